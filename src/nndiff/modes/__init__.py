"""Modes: one reference, many variants of it. Ready modes for any model; torch is imported when one is first used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nndiff.modes.library import bf16, fp8, fp16, torchao, w8a8_dynamic, w8a8_static, weight_only

__all__ = ["bf16", "fp8", "fp16", "torchao", "w8a8_dynamic", "w8a8_static", "weight_only"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'nndiff.modes' has no attribute {name!r}")
    from nndiff.modes import library

    return getattr(library, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
