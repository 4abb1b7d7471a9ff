"""What the files of NeMo say about their model, read without NeMo and without executing anything."""

from __future__ import annotations

import os
from typing import Any

from nndiff.errors import SourceError
from nndiff.files import RegularFile, Window
from nndiff.sources import open_source
from nndiff.sources.pickle_nodes import Object
from nndiff.sources.torch_file import load_any

_DEEPEST = 64
_ARCHIVE_KIND = "nemo"
_PICKLED_KINDS = ("torch", "torch legacy", "pickle")


def is_from_nemo(path: str) -> bool:
    """Return True for a .nemo archive, and for a Lightning checkpoint whose config names a class of NeMo."""
    if not os.path.isfile(path):
        return False
    kind = open_source(path).kind
    if kind in _PICKLED_KINDS:
        return get_target(read_own_config(path)).startswith("nemo.")
    return kind == _ARCHIVE_KIND


def is_checkpoint(path: str) -> bool:
    """Return True for a checkpoint (zip or pickle), False for a .nemo archive (tar), by the first bytes."""
    return Window(RegularFile(path)).head(4).startswith((b"PK\x03\x04", b"\x80"))


def get_target(config: Any) -> str:
    """Return the class that a config names, or an empty text."""
    target = config.get("target") if hasattr(config, "get") else None
    return target if isinstance(target, str) else ""


def read_own_config(path: str) -> dict[str, Any] | None:
    """Return the config in the hyper-parameters of a Lightning checkpoint, as plain values."""
    root = load_any(Window(RegularFile(path))).root
    hyper_parameters = root.get("hyper_parameters") if isinstance(root, dict) else None
    values = _to_plain_values(path, hyper_parameters)
    config = values.get("cfg", values) if isinstance(values, dict) else None
    return config if isinstance(config, dict) else None


def _to_plain_values(path: str, node: Any, depth: int = 0) -> Any:
    """Return the values that an omegaconf object holds, from a pickle that was not executed."""
    if depth > _DEEPEST:
        raise SourceError(path, "its config is nested too deeply: give --config MODEL.yaml")
    if isinstance(node, Object):
        state = node.state[0] if node.state and isinstance(node.state[0], dict) else {}
        return _to_plain_values(path, state.get("_content", state.get("_val")), depth + 1)
    if isinstance(node, dict):
        values = {}
        for key, value in node.items():
            if isinstance(key, str):
                values[key] = _to_plain_values(path, value, depth + 1)
        return values
    if isinstance(node, (list, tuple)):
        return [_to_plain_values(path, item, depth + 1) for item in node]
    return node if isinstance(node, (bool, int, float, str)) else None
