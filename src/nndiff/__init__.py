"""nndiff: `diff` for neural networks. Public names are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nndiff.comparing import compare
    from nndiff.errors import NndiffError
    from nndiff.result import Comparison
    from nndiff.sources import Source, open_source
    from nndiff.tensors import TensorRef

__all__ = ["Comparison", "NndiffError", "Source", "TensorRef", "compare", "open_source"]

_HOMES = {
    "Comparison": "nndiff.result",
    "NndiffError": "nndiff.errors",
    "Source": "nndiff.sources",
    "TensorRef": "nndiff.tensors",
    "compare": "nndiff.comparing",
    "open_source": "nndiff.sources",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nndiff' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
