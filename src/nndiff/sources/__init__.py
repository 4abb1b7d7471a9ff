"""Sources: anything that yields named tensors."""

from __future__ import annotations

from nndiff.sources.source import Source

__all__ = ["Source"]
