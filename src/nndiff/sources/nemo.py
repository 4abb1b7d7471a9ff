"""NeMo's .nemo files: a tar, plain or gzip, of a config and the weights."""

from __future__ import annotations

import os
import re
from dataclasses import replace

from nndiff.errors import SourceError
from nndiff.files import RegularFile, Window
from nndiff.sources.pickled_source import build_source
from nndiff.sources.safetensors_file import read_header
from nndiff.sources.source import OtherEntry, Source, index_by_name, select_part
from nndiff.sources.tar import read_tar
from nndiff.sources.torch_file import load_any
from nndiff.tensors import TensorRef

_WEIGHT_SUFFIXES = (".ckpt", ".pt", ".pth", ".bin", ".safetensors")
_WEIGHTS, _CONFIG = "model_weights.ckpt", "model_config.yaml"
_CONFIG_LIMIT = 1 << 20
# YAML is not parsed: two plain lines of it are all that is wanted
_CONFIG_LINE = re.compile(r"^(target|nemo_version):[ \t]*([\w.+-]{1,200})[ \t]*$", re.MULTILINE)


def open_nemo(path: str, part_key: str = "") -> Source:
    """Open a .nemo file, or any tar that holds weights."""
    from nndiff.recording.format.folder import refuse_packed

    members = read_tar(Window(RegularFile(path)))
    refuse_packed(path, members)
    weights = [name for name in members if os.path.basename(name) == _WEIGHTS]
    if not weights:
        weights = [name for name in members if name.endswith(_WEIGHT_SUFFIXES)]
    if not weights:
        contents = ", ".join(repr(name) for name in list(members)[:5]) or "nothing"
        raise SourceError(path, f"a tar archive without weights; it holds {contents}")
    kind = "tar"
    meta: dict[str, str] = {}
    other_entries = {}
    for name, window in members.items():
        if os.path.basename(name) == _CONFIG:
            kind = "nemo"
            meta = meta or dict(_CONFIG_LINE.findall(str(window.head(_CONFIG_LIMIT), "utf-8", "replace")))
        if name not in weights:
            other_entries[name] = OtherEntry.of_bytes(window.size)
    if len(weights) == 1:
        opened = _open_member(path, weights[0], members[weights[0]], part_key)
        return replace(opened, kind=kind, others={**opened.others, **other_entries}, notes=(), meta=meta)
    tensors: list[TensorRef] = []
    foreign: dict[str, None] = {}
    for name in weights:
        opened = _open_member(path, name, members[name])
        stem = name.rsplit(".", 1)[0]
        for tensor in opened.tensors.values():
            tensors.append(tensor.renamed(f"{stem}.{tensor.name}"))
        for key, entry in opened.others.items():
            other_entries[f"{name}::{key}"] = entry
        foreign |= dict.fromkeys(opened.foreign)
    merged = Source(path, kind, index_by_name(path, tensors), "", other_entries, tuple(foreign), meta=meta)
    return select_part(merged, part_key)


def _open_member(path: str, name: str, window: Window, part_key: str = "") -> Source:
    if name.endswith(".safetensors"):
        tensors, metadata = read_header(window)
        return select_part(Source(path, "safetensors", index_by_name(path, tensors), meta=metadata), part_key)
    return build_source(path, "torch", load_any(window), part_key)
