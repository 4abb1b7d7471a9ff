"""Sources: anything that yields named tensors."""

from __future__ import annotations

from nndiff.sources.detect import open_source
from nndiff.sources.source import Source

__all__ = ["Source", "open_source"]
