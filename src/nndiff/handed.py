"""Who was handed an output: by the links between the calls of a recording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nndiff.sites import SitePair
from nndiff.tensors import Link, TensorRef

Tensors = Mapping[int, TensorRef]  # every recorded tensor of a side by its order


@dataclass(frozen=True)
class Handed:
    """Know who was handed the output at which a gradient is out, and how.

    A tensor is known by its memory and by what made it: one that went through an identity is a view of all of it.
    """

    site: SitePair  # of the gradient
    reference: Tensors
    candidate: Tensors

    def takers(self, calls: Iterable[SitePair]) -> list[SitePair]:
        """Return the calls of the reference that took it, as it is or as a copy."""
        return [each for each in calls if self._taken(each.reference, self._here)]

    def detour(self, each: SitePair) -> str:
        """Return the sides on which code stands between the output and the call that takes it.

        Where both take a view, that is how it is taken, and the tensor itself; where one does, that is the detour.
        """
        here, there = self._how(each.reference, self._here), self._how(each.candidate, self._there)
        both_view = here == there == "view"
        sides = (("reference", here), ("candidate", there))
        return " and the ".join(name for name, how in sides if not (how == "same" or both_view))

    def same(self, each: SitePair) -> bool:
        """Tell whether a call of the reference returned the very output."""
        return self._here is not None and same(each.reference, self._here)

    def made(self) -> list[tuple[Tensors, TensorRef]]:
        """Return the tensors of both sides with the output; none where a side did not keep it."""
        here, there = self._here, self._there
        return [] if here is None or there is None else [(self.reference, here), (self.candidate, there)]

    @property
    def _here(self) -> TensorRef | None:
        return self.reference.get(forward_of(self.site.reference))

    @property
    def _there(self) -> TensorRef | None:
        return self.candidate.get(forward_of(self.site.candidate))

    def _how(self, taker: TensorRef, made: TensorRef | None) -> str:
        hows = {link.how for link in self._taken(taker, made)}
        return next((how for how in ("same", "view") if how in hows), "")

    def _taken(self, taker: TensorRef, made: TensorRef | None) -> list[Link]:
        """Return by which links a call was given an output: by its event, or by another of the same bytes."""
        if made is None:
            return []
        tensors = self.candidate if made is self._there else self.reference
        given = ((link, tensors.get(link.event)) for link in links(taker) if link.event is not None)
        return [link for link, tensor in given if tensor is not None and same(tensor, made)]


def same(one: TensorRef, other: TensorRef) -> bool:
    """Tell whether two tensors of a side are of the same bytes."""
    digest = one.trace.digest
    return one is other or (digest is not None and digest == other.trace.digest)


def forward_of(gradient: TensorRef) -> int:
    """Return the event of the output a gradient belongs to; -1 where it is not known."""
    return -1 if gradient.trace.forward is None else gradient.trace.forward


def links(tensor: TensorRef) -> Sequence[Link]:
    """Return what the call was given that returned a tensor."""
    found: Sequence[Link] = tensor.trace.inputs
    return found


def innermost(takers: Sequence[SitePair]) -> Iterator[SitePair]:
    """Yield those that have no other inside: of a composite and the module in it that took the same, the inner one."""
    for each in takers:
        if each.module and not any(holds(each, other) for other in takers):
            yield each


def holds(outer: SitePair, inner: SitePair) -> bool:
    """Tell whether the module of one is around that of the other."""
    return is_inside(inner.module, outer.module)


def is_inside(inner: str, outer: str) -> bool:
    """Tell whether a module is inside another, by their paths."""
    return inner.startswith(f"{outer}." if outer else "") and inner != outer


def around(sites: Sequence[SitePair], called: Iterable[SitePair]) -> str:
    """Return the innermost module that was called and is around all of these."""
    holders = [each.module for each in called if all(holds(each, site) for site in sites)]
    return max(holders, key=lambda module: len(module), default="")
