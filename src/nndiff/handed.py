"""Who was handed an output: by the links between the calls of a recording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nndiff.recording.events import Link
from nndiff.sites import SitePair
from nndiff.tensors import TensorRef

Tensors = Mapping[int, TensorRef]  # every recorded tensor of a side by its order


@dataclass(frozen=True)
class Handed:
    """Know who was handed the output at which a gradient is out, and how.

    A tensor is known by its memory: what returns its argument as it is, and does something to the gradient, leaves
    no trace in the forward pass.
    """

    site: SitePair  # of the gradient
    reference: Tensors
    candidate: Tensors

    def takers(self, calls: Iterable[SitePair]) -> list[SitePair]:
        """Return the calls of the reference that took it, as it is or as a copy."""
        return [each for each in calls if self._straight(each.reference, self.site.reference) or self._copy(each)]

    def detour(self, each: SitePair) -> str:
        """Return the sides on which code stands between the output and the call that takes it."""
        sides = {
            "reference": self._straight(each.reference, self.site.reference),
            "candidate": self._straight(each.candidate, self.site.candidate),
        }
        return " and the ".join(side for side, straight in sides.items() if not straight)

    def same(self, each: SitePair) -> bool:
        """Tell whether a call of the reference returned the very output."""
        return self._digest is not None and each.reference.meta.get("digest") == self._digest

    @staticmethod
    def _straight(taker: TensorRef, gradient: TensorRef) -> bool:
        made = gradient.meta.get("forward")
        return made is not None and any(link.event == made for link in links(taker))

    def _copy(self, each: SitePair) -> bool:
        copies = (self.reference.get(link.event) for link in links(each.reference) if link.event is not None)
        return self._digest is not None and any(copy and copy.meta.get("digest") == self._digest for copy in copies)

    @property
    def _digest(self) -> str | None:
        made = self.reference.get(self.site.reference.meta.get("forward", -1))
        return None if made is None else made.meta.get("digest")


def links(tensor: TensorRef) -> Sequence[Link]:
    """Return what the call was given that returned a tensor."""
    found: Sequence[Link] = tensor.meta.get("inputs", ())
    return found


def innermost(takers: Sequence[SitePair]) -> Iterator[SitePair]:
    """Yield those that have no other inside: of a composite and the module in it that took the same, the inner one."""
    for each in takers:
        if each.module and not any(holds(each, other) for other in takers):
            yield each


def holds(outer: SitePair, inner: SitePair) -> bool:
    """Tell whether the module of one is around that of the other."""
    return inner.module.startswith(f"{outer.module}." if outer.module else "") and inner.module != outer.module


def around(sites: Sequence[SitePair], called: Iterable[SitePair]) -> str:
    """Return the innermost module that was called and is around all of these."""
    holders = [each.module for each in called if all(holds(each, site) for site in sites)]
    return max(holders, key=lambda module: len(module), default="")
