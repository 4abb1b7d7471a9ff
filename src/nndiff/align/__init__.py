"""Alignment: which names belong together, how each pair was found, and what is left over."""

from __future__ import annotations

from nndiff.align.alignment import Alignment, FusedMatch, GroupMatch, HeldWeights, Hint, Match, Tensors
from nndiff.align.by_rule import Rename, read_map
from nndiff.align.files import align

# `recordings.align_recordings` is imported where recordings are compared: files do without what it needs.
__all__ = [
    "Alignment",
    "FusedMatch",
    "GroupMatch",
    "HeldWeights",
    "Hint",
    "Match",
    "Rename",
    "Tensors",
    "align",
    "read_map",
]
