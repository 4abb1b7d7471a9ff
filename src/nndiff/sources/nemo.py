"""NeMo's .nemo files: a tar, plain or gzip, of a config and the weights."""

from __future__ import annotations

import re

from nndiff.errors import SourceError
from nndiff.files import RegularFile, Window
from nndiff.sources.safetensors_file import read_header
from nndiff.sources.source import Source, below, by_name
from nndiff.sources.tar import tar_members
from nndiff.sources.torch_file import as_source, load_any
from nndiff.tensors import TensorRef

_WEIGHTS = (".ckpt", ".pt", ".pth", ".bin", ".safetensors")
_CONFIG_LIMIT = 1 << 20


def open_nemo(path: str, part: str = "") -> Source:
    """Open a .nemo file, or any tar that holds weights."""
    members = tar_members(Window(RegularFile(path)))
    _refuse_recording(path, members)
    weights = _weights(members)
    if not weights:
        held = ", ".join(repr(name) for name in list(members)[:5]) or "nothing"
        raise SourceError(path, f"a tar archive without weights; it holds {held}")
    others = {name: f"{window.size} bytes" for name, window in members.items() if name not in weights}
    if len(weights) == 1:
        return _single(path, weights, part, others, members)
    return below(_several(path, weights, others, members), part)


def _refuse_recording(path: str, members: dict[str, Window]) -> None:
    from nndiff.recording.format.folder import refuse_packed

    refuse_packed(path, members)


def _several(path: str, weights: dict[str, Window], others: dict[str, str], members: dict[str, Window]) -> Source:
    """Put several files of weights together, each under its own name."""
    tensors: list[TensorRef] = []
    foreign: dict[str, None] = {}
    for name, window in weights.items():
        opened = _open_member(path, name, window, "")
        tensors.extend(each.renamed(f"{name.rsplit('.', 1)[0]}.{each.name}") for each in opened.tensors.values())
        others |= {f"{name}::{key}": value for key, value in opened.others.items()}
        foreign |= dict.fromkeys(opened.foreign)
    return Source(path, _kind(members), by_name(path, tensors), "", others, tuple(foreign), meta=_config(members))


def _weights(members: dict[str, Window]) -> dict[str, Window]:
    """Return the members that hold weights: model_weights.ckpt where there is one."""
    named = {name: window for name, window in members.items() if name.rsplit("/", 1)[-1] == "model_weights.ckpt"}
    return named or {name: window for name, window in members.items() if name.endswith(_WEIGHTS)}


def _single(
    path: str, weights: dict[str, Window], part: str, others: dict[str, str], members: dict[str, Window]
) -> Source:
    ((name, window),) = weights.items()
    opened = _open_member(path, name, window, part)
    return Source(
        opened.label,
        _kind(members),
        opened.tensors,
        opened.part,
        {**opened.others, **others},
        opened.foreign,
        meta=_config(members),
    )


def _kind(members: dict[str, Window]) -> str:
    return "nemo" if any(name.rsplit("/", 1)[-1] == "model_config.yaml" for name in members) else "tar"


def _open_member(path: str, name: str, window: Window, part: str) -> Source:
    if name.endswith(".safetensors"):
        tensors, metadata = read_header(window)
        return below(Source(path, "safetensors", by_name(path, tensors), meta=metadata), part)
    return as_source(path, "torch", load_any(window), part)


def _config(members: dict[str, Window]) -> dict[str, str]:
    """Return what the config says of the model, without reading YAML in full: its class and versions."""
    for name, window in members.items():
        if name.rsplit("/", 1)[-1] == "model_config.yaml":
            text = str(window.head(_CONFIG_LIMIT), "utf-8", "replace")
            found = re.findall(r"^(target|nemo_version):[ \t]*([\w.+-]{1,200})[ \t]*$", text, re.MULTILINE)
            return dict(found)
    return {}
