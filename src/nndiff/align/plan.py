"""The plan of a comparison: complete before one tensor is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nndiff.tensors import TensorRef


@dataclass(frozen=True)
class Match:
    """Say that two names belong together, and by which rule."""

    reference: str
    candidate: str
    matched_by: str  # name, prefix, rename, map


@dataclass(frozen=True)
class Slice:
    """Say which stretch of a tensor is compared as a tensor of its own."""

    name: str
    of: str  # name of the whole
    part: str  # name of the tensor of the other side that it is compared with
    flipped: bool  # the whole is the reference's
    axis: int
    start: int
    stop: int
    turned: bool = False  # its two axes are exchanged
    group: str = ""  # those of one fused layer lie in it in the same order
    places: tuple[int, ...] | None = None  # along the axis, where that is no stretch


@dataclass(frozen=True)
class Alignment:
    """Hold the pairs in the reference's order, and both sides' leftovers with hints."""

    matches: tuple[Match, ...]
    only_reference: Mapping[str, str]  # {name: hint or ""}
    only_candidate: Mapping[str, str]
    notes: tuple[str, ...] = ()
    slices: Mapping[str, Slice] = field(default_factory=dict)  # by the name a pair has for them, of either side

    def whole(self, name: str) -> str:
        """Return the name of the tensor behind a name in a pair."""
        return self.slices[name].of if name in self.slices else name


Tensors = Mapping[str, TensorRef]
