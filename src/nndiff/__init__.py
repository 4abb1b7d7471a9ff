"""nndiff: `diff` for neural networks. Public names are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nndiff.api import Comparison, assert_same, compare
    from nndiff.errors import NndiffError
    from nndiff.recording.reader import Recording
    from nndiff.recording.record import record
    from nndiff.runs.recorder import TrainingRecorder
    from nndiff.sources import Source, open_source
    from nndiff.tensors import TensorRef

__all__ = [
    "Comparison",
    "NndiffError",
    "Recording",
    "Source",
    "TensorRef",
    "TrainingRecorder",
    "assert_same",
    "compare",
    "open_source",
    "record",
]

_HOMES = {
    "Comparison": "nndiff.api",
    "NndiffError": "nndiff.errors",
    "Recording": "nndiff.recording.reader",
    "Source": "nndiff.sources",
    "TensorRef": "nndiff.tensors",
    "TrainingRecorder": "nndiff.runs.recorder",
    "assert_same": "nndiff.api",
    "compare": "nndiff.api",
    "open_source": "nndiff.sources",
    "record": "nndiff.recording.record",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nndiff' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
