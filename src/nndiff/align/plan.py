"""The plan of a comparison: complete before one tensor is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nndiff.tensors import TensorRef


@dataclass(frozen=True)
class Match:
    """Say that two names belong together, and by which rule."""

    reference: str
    candidate: str
    matched_by: str  # name, prefix, rename, map


@dataclass(frozen=True)
class Alignment:
    """Hold the pairs in the reference's order, and both sides' leftovers with hints."""

    matches: tuple[Match, ...]
    only_reference: Mapping[str, str]  # {name: hint or ""}
    only_candidate: Mapping[str, str]
    notes: tuple[str, ...] = ()


Tensors = Mapping[str, TensorRef]
