"""A judged pair of two recordings with the recorded tensors behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nndiff.align.fused import PART
from nndiff.recorded import is_inner, is_owned
from nndiff.result import Pair
from nndiff.result import outside_agrees as agrees
from nndiff.tensors import TensorRef


@dataclass(frozen=True)
class SitePair:
    """Hold a judged pair with the two recorded tensors behind it."""

    pair: Pair
    reference: TensorRef
    candidate: TensorRef

    @property
    def slot(self) -> str:
        """Return the slot of the site."""
        return str(self.reference.site.slot)

    @property
    def module(self) -> str:
        """Return the path of the module, by the reference's name."""
        return str(self.reference.site.module)

    @property
    def call(self) -> tuple[str, int]:
        """Return which call it is of: the module and the number of the call, by the reference."""
        return self.module, int(self.reference.site.call)

    @property
    def order(self) -> int:
        """Return when it was taken, as the reference counts."""
        return int(self.reference.trace.order)

    @property
    def orders(self) -> tuple[int, int]:
        """Return when it was taken, as the reference and as the candidate count."""
        return self.order, int(self.candidate.trace.order)

    @property
    def inside(self) -> bool:
        """Tell whether it is of something inside the model, which another implementation may do otherwise."""
        return is_inner(self.reference) or is_owned(self.reference)

    @property
    def part(self) -> bool:
        """Tell whether one of the two is but a stretch of a larger layer."""
        return self.pair.matched_by.startswith(PART)

    @property
    def is_norm(self) -> bool:
        """Tell whether it is of a norm, by the name of its class."""
        return "norm" in str(self.reference.site.cls).lower()

    @property
    def passed(self) -> bool:
        """Tell whether the pair is the same."""
        return self.pair.verdict.passed


def outside_agrees(sites: Iterable[SitePair]) -> bool:
    """Tell whether all that goes in and comes out agrees, the final output among it."""
    return agrees(site.pair for site in sites)
