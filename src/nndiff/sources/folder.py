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
from nndiff.sources.source import Source, shown
from nndiff.tensors import TensorRef

_MOST_FILES = 100_000
_INDEXES = (
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "diffusion_pytorch_model.safetensors.index.json",
)
_SINGLES = (
    "model.safetensors",
    "pytorch_model.bin",
    "adapter_model.safetensors",
    "adapter_model.bin",
    "diffusion_pytorch_model.safetensors",
    "diffusion_pytorch_model.bin",
)
_SUFFIXES = (".safetensors", ".npy", ".npz", ".pt", ".pth", ".bin", ".ckpt", ".nemo", ".pkl")

OpenFile = Callable[[str], Source]


def open_folder(path: str, open_file: OpenFile) -> Source:
    """Open a folder by what is in it."""
    names = _names(path)
    for index in (*_INDEXES, *(name for name in names if name.endswith(".index.json"))):
        if index in names:
            weight_map = read_index(os.path.join(path, index))
            sharded = _open_shards(os.path.join(path, index), weight_map, open_file)
            used = {index, *weight_map.values()}
            return replace(sharded, label=path, others={**sharded.others, **_unread(path, names, used)})
    for single in _SINGLES:
        if single in names:
            found = open_file(os.path.join(path, single))
            meta = {**found.meta, **_config(path, names)}
            others = {**found.others, **_unread(path, names, {single})}
            return replace(found, label=path, kind=f"folder of {found.kind}", others=others, meta=meta)
    readable = [name for name in names if name.endswith(_SUFFIXES)]
    merged = _many(path, readable, open_file)
    return replace(merged, others={**merged.others, **_unread(path, names, set(readable))})


def _unread(path: str, names: list[str], used: set[str]) -> dict[str, str]:
    """Name what else in a folder may hold tensors and was passed over."""
    found = {name: "another file of tensors" for name in names if name.endswith(_SUFFIXES) and name not in used}
    folders = [name for name in names if name not in used and not name.startswith(".")]
    return {
        **found,
        **{f"{name}/": "a folder, not looked into" for name in folders if os.path.isdir(os.path.join(path, name))},
    }


def _names(path: str) -> list[str]:
    try:
        names = sorted(os.listdir(path), key=natural_key)
    except OSError as error:
        raise SourceError(path, (error.strerror or str(error)).lower()) from None
    if len(names) > _MOST_FILES:
        raise UnsafeFileError(path, f"a folder of {len(names)} files; more than {_MOST_FILES} are not read")
    return names


def _many(path: str, names: list[str], open_file: OpenFile) -> Source:
    """Open every file: shards keep their names, arrays and tensors go by the name of their file."""
    if not names:
        raise SourceError(path, "a folder without any file nndiff can read (*.safetensors, *.pt, *.npy, *.npz, ...)")
    shards = all(name.endswith((".safetensors", ".bin")) for name in names)
    merged = _Merged(path)
    for name in names:
        opened = open_file(os.path.join(path, name))
        stem = name.rsplit(".", 1)[0]
        if shards:
            merged.add(name, opened, lambda each: each)
        elif len(opened.tensors) == 1 and next(iter(opened.tensors)) in (stem, "tensor"):
            merged.add(name, opened, lambda _, stem=stem: stem)  # type: ignore[misc]
        else:
            merged.add(name, opened, lambda each, stem=stem: f"{stem}.{each}")  # type: ignore[misc]
    return merged.source("shards" if shards else "folder")


def open_index(path: str, open_file: OpenFile) -> Source:
    """Open a sharded checkpoint by its index file."""
    return _open_shards(path, read_index(path), open_file)


def _open_shards(path: str, weight_map: dict[str, str], open_file: OpenFile) -> Source:
    folder = os.path.dirname(path)
    merged = _Merged(path)
    for shard in sorted(set(weight_map.values()), key=natural_key):
        merged.add(shard, open_file(os.path.join(folder, shard)), lambda each: each)
    for name, shard in weight_map.items():
        if merged.origin.get(name) != shard:
            raise SourceError(path, f"says that {shown(shard)} holds {shown(name)}, and it does not")
    return merged.source("sharded")


def looks_like_index(head: bytes) -> bool:
    """Tell whether a file begins as JSON does."""
    return head.lstrip()[:1] == b"{"


def read_index(path: str) -> dict[str, str]:
    """Return {tensor: shard} of an index file; shards must lie beside it."""
    weight_map = read_json(Window(RegularFile(path)), "an index").get("weight_map")
    if not isinstance(weight_map, dict):
        raise SourceError(path, "JSON, but not the index of a sharded checkpoint (it has no weight_map)")
    pairs = [(name, shard) for name, shard in weight_map.items() if isinstance(shard, str)]
    if len(pairs) != len(weight_map) or not pairs:
        raise SourceError(path, "its weight_map does not name a shard for every tensor")
    for _, shard in pairs:
        if shard in ("", ".", "..") or "/" in shard or "\\" in shard or "\0" in shard or len(shard) > 255:
            raise UnsafeFileError(path, f"names a shard outside its own folder: {shown(shard)}")
        if shard.endswith(".json"):
            raise UnsafeFileError(path, f"names an index as a shard: {shown(shard)}")
    return dict(pairs)


class _Merged:
    """Put several files together as one source."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.tensors: dict[str, TensorRef] = {}
        self.origin: dict[str, str] = {}
        self.others: dict[str, str] = {}
        self.foreign: dict[str, None] = {}

    def add(self, file: str, opened: Source, rename: Callable[[str], str]) -> None:
        for tensor in opened.tensors.values():
            name = rename(tensor.name)
            if name in self.tensors:
                raise SourceError(self.path, f"{shown(self.origin[name])} and {shown(file)} both hold {shown(name)}")
            self.tensors[name] = tensor.renamed(name)
            self.origin[name] = file
        self.others.update({f"{file}::{key}": value for key, value in opened.others.items()})
        self.foreign.update(dict.fromkeys(opened.foreign))

    def source(self, kind: str) -> Source:
        return Source(self.path, kind, self.tensors, others=self.others, foreign=tuple(self.foreign))


def _config(path: str, names: list[str]) -> dict[str, Any]:
    """Return the architecture a Hugging Face config names, where it can be read."""
    if "config.json" not in names:
        return {}
    try:
        window = Window(RegularFile(os.path.join(path, "config.json")))
        found = read_json(window, "a config")
        wanted = ("model_type", "architectures", "torch_dtype", "dtype", "transformers_version")
        return {key: found[key] for key in wanted if isinstance(found.get(key), (str, list))}
    except SourceError:
        return {}
