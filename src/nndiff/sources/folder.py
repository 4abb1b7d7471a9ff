"""Folders: Hugging Face directories, sharded checkpoints by their index, and folders of arrays."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from nndiff.errors import SourceError, UnsafeFileError
from nndiff.files import RegularFile, Window
from nndiff.names import natural_key
from nndiff.sources.json_text import read_json
from nndiff.sources.source import EntryKind, OtherEntry, Source, quote_name
from nndiff.tensors import TensorRef

_MOST_FILES = 100_000
_INDEX_NAMES = (
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "diffusion_pytorch_model.safetensors.index.json",
)
MODEL_NAMES = (
    "model.safetensors",
    "pytorch_model.bin",
    "adapter_model.safetensors",
    "adapter_model.bin",
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model.bin",
)
_SUFFIXES = (".safetensors", ".npy", ".npz", ".pt", ".pth", ".bin", ".ckpt", ".nemo", ".pkl")
_CONFIG_KEYS = ("model_type", "architectures", "torch_dtype", "dtype", "transformers_version")

SETTING_FILES = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model"),
    *("sentencepiece.bpe.model", "preprocessor_config.json", "processor_config.json", "chat_template.jinja"),
)

OpenFile = Callable[[str], Source]


def open_folder(path: str, open_file: OpenFile) -> Source:
    """Open a folder by what is in it: an index of shards, a model file, or every file of tensors."""
    names = _list_names(path)
    settings = {name: Window(RegularFile(os.path.join(path, name))) for name in SETTING_FILES if name in names}
    return replace(_open_tensors(path, names, open_file), settings=settings)


def _open_tensors(path: str, names: list[str], open_file: OpenFile) -> Source:
    indexes = [name for name in _INDEX_NAMES if name in names]
    indexes += [name for name in names if name.endswith(".index.json")]
    if indexes:
        index_path = os.path.join(path, indexes[0])
        weight_map = _read_index(index_path)
        source = _open_shards(index_path, weight_map, open_file)
        return _add_skipped(replace(source, label=path), names, {indexes[0], *weight_map.values()})
    for name in MODEL_NAMES:
        if name in names:
            source = open_file(os.path.join(path, name))
            meta = {**source.meta, **_read_config(path, names)}
            source = replace(source, label=path, kind=f"folder of {source.kind}", meta=meta)
            return _add_skipped(source, names, {name})
    readable = [name for name in names if name.endswith(_SUFFIXES)]
    return _add_skipped(_open_every_file(path, readable, open_file), names, set(readable))


def _list_names(path: str) -> list[str]:
    try:
        names = sorted(os.listdir(path), key=natural_key)
    except OSError as error:
        raise SourceError(path, (error.strerror or str(error)).lower()) from None
    if len(names) > _MOST_FILES:
        raise UnsafeFileError(path, f"a folder of {len(names)} files; more than {_MOST_FILES} are not read")
    return names


def _add_skipped(source: Source, names: list[str], read: set[str]) -> Source:
    """Return the source with an entry for every file and folder that may hold tensors and was not read."""
    other_entries = dict(source.others)
    folders = {}
    for name in names:
        if name in read:
            continue
        if name.endswith(_SUFFIXES):
            other_entries[name] = OtherEntry(EntryKind.FILE)
        if not name.startswith(".") and os.path.isdir(os.path.join(source.label, name)):
            folders[f"{name}/"] = OtherEntry(EntryKind.FOLDER)
    return replace(source, others={**other_entries, **folders})


def _open_every_file(path: str, names: list[str], open_file: OpenFile) -> Source:
    """Open every file: tensors of shards keep their names, others get the name of their file."""
    if not names:
        raise SourceError(path, "a folder without any file nndiff can read (*.safetensors, *.pt, *.npy, *.npz, ...)")
    are_shards = all(name.endswith((".safetensors", ".bin")) for name in names)
    merged = _MergedFiles(path)
    for file_name in names:
        opened = open_file(os.path.join(path, file_name))
        stem = file_name.rsplit(".", 1)[0]
        has_one_nameless = len(opened.tensors) == 1 and next(iter(opened.tensors)) in (stem, "tensor")
        tensors = []
        for tensor in opened.tensors.values():
            if not are_shards:
                tensor = tensor.renamed(stem if has_one_nameless else f"{stem}.{tensor.name}")
            tensors.append(tensor)
        merged.add_file(file_name, opened, tensors)
    return merged.build_source("shards" if are_shards else "folder")


def open_index(path: str, open_file: OpenFile) -> Source:
    """Open a sharded checkpoint by its index file."""
    return _open_shards(path, _read_index(path), open_file)


def _open_shards(index_path: str, weight_map: dict[str, str], open_file: OpenFile) -> Source:
    merged = _MergedFiles(index_path)
    for shard in sorted(set(weight_map.values()), key=natural_key):
        opened = open_file(os.path.join(os.path.dirname(index_path), shard))
        merged.add_file(shard, opened, list(opened.tensors.values()))
    for name, shard in weight_map.items():
        if merged.file_of.get(name) != shard:
            raise SourceError(
                index_path, f"says that {quote_name(shard)} holds {quote_name(name)}, but that file does not"
            )
    return merged.build_source("sharded")


def _read_index(path: str) -> dict[str, str]:
    """Return {tensor: shard} of an index file; shards must be in the same folder."""
    weight_map = read_json(Window(RegularFile(path)), "an index").get("weight_map")
    if not isinstance(weight_map, dict):
        raise SourceError(path, "JSON, but not the index of a sharded checkpoint (it has no weight_map)")
    if not weight_map or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise SourceError(path, "its weight_map does not name a shard for every tensor")
    for shard in weight_map.values():
        if shard in ("", ".", "..") or "/" in shard or "\\" in shard or "\0" in shard or len(shard) > 255:
            raise UnsafeFileError(path, f"names a shard outside its own folder: {quote_name(shard)}")
        if shard.endswith(".json"):
            raise UnsafeFileError(path, f"names an index as a shard: {quote_name(shard)}")
    return weight_map


class _MergedFiles:
    """Put several files together as one source."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.tensors: dict[str, TensorRef] = {}
        self.file_of: dict[str, str] = {}  # the file each tensor is in
        self.other_entries: dict[str, OtherEntry] = {}
        self.foreign: dict[str, None] = {}

    def add_file(self, file_name: str, opened: Source, tensors: list[TensorRef]) -> None:
        """Add the tensors of a file, under the names they go by here."""
        for tensor in tensors:
            name = tensor.name
            if name in self.tensors:
                files = f"{quote_name(self.file_of[name])} and {quote_name(file_name)}"
                raise SourceError(self.path, f"{files} both hold {quote_name(name)}")
            self.tensors[name] = tensor
            self.file_of[name] = file_name
        for key, entry in opened.others.items():
            self.other_entries[f"{file_name}::{key}"] = entry
        self.foreign.update(dict.fromkeys(opened.foreign))

    def build_source(self, kind: str) -> Source:
        """Return the files as one source."""
        return Source(self.path, kind, self.tensors, others=self.other_entries, foreign=tuple(self.foreign))


def _read_config(path: str, names: list[str]) -> dict[str, Any]:
    """Return the architecture that a Hugging Face config names; nothing if it cannot be read."""
    if "config.json" not in names:
        return {}
    try:
        config = read_json(Window(RegularFile(os.path.join(path, "config.json"))), "a config")
    except SourceError:
        return {}
    return {key: config[key] for key in _CONFIG_KEYS if isinstance(config.get(key), (str, list))}
