"""Alignment: which names belong together, by which rule, and what is left over."""

from __future__ import annotations

from nndiff.align.passes import align
from nndiff.align.plan import Alignment, Match
from nndiff.align.rules import Rename, read_map

__all__ = ["Alignment", "Match", "Rename", "align", "read_map"]
