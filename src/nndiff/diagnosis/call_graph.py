"""Which call was given what: by the links between the calls of a recording, as far as they tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from nndiff.diagnosis.site_pairs import SitePair
from nndiff.result import SIDES
from nndiff.tensors import Link, Slot, TensorRef

Tensors = Mapping[int, TensorRef]  # every recorded tensor of a side by its order


def is_inside(inner: str, outer: str) -> bool:
    """Return True if a module is inside another, by their paths."""
    return inner.startswith(f"{outer}." if outer else "") and inner != outer


def surrounds(outer: SitePair, inner: SitePair) -> bool:
    """Return True if the module of one pair is around that of the other."""
    return is_inside(inner.module, outer.module)


def have_same_bytes(first: TensorRef, second: TensorRef) -> bool:
    """Return True if two tensors of one side are known to hold the same bytes."""
    digest = first.trace.digest
    return first is second or (digest is not None and digest == second.trace.digest)


def get_forward_order(gradient: TensorRef) -> int:
    """Return the order of the output a gradient belongs to; -1 where it is not known."""
    return -1 if gradient.trace.forward is None else gradient.trace.forward


def select_innermost(calls: Sequence[SitePair]) -> list[SitePair]:
    """Return the calls with no other inside: of a composite and the module in it that took the same, the inner one."""
    return [call for call in calls if call.module and not any(surrounds(call, inner) for inner in calls)]


def find_common_holder(sites: Sequence[SitePair], calls: Iterable[SitePair]) -> str:
    """Return the innermost module that was called and is around all of these; "" is the model."""
    holder = ""
    for call in calls:
        if len(call.module) > len(holder) and all(surrounds(call, site) for site in sites):
            holder = call.module
    return holder


@dataclass(frozen=True)
class OutputUse:
    """Know which calls took the output at which a gradient was recorded, and how.

    A tensor is known by its memory and by its bytes: what went through an identity is a view of all of it.
    """

    site: SitePair  # of the gradient
    reference: Tensors
    candidate: Tensors

    @property
    def reference_output(self) -> TensorRef | None:
        """Return the output on the reference's side; None where it was not kept."""
        return self.reference.get(get_forward_order(self.site.reference))

    @property
    def candidate_output(self) -> TensorRef | None:
        """Return the output on the candidate's side; None where it was not kept."""
        return self.candidate.get(get_forward_order(self.site.candidate))

    def select_takers(self, calls: Iterable[SitePair]) -> list[SitePair]:
        """Return the calls of the reference that took the output, as it is or as a copy."""
        return [call for call in calls if _find_links(call.reference, self.reference_output, self.reference)]

    def name_detour(self, call: SitePair) -> str:
        """Return the sides on which code stands between the output and a call that takes it, "" for none.

        Where both take a view, that is how it is taken, and counts as the tensor itself; where one does, there is code.
        """
        kinds = (
            _get_link_kind(call.reference, self.reference_output, self.reference),
            _get_link_kind(call.candidate, self.candidate_output, self.candidate),
        )
        if kinds == ("view", "view"):
            return ""
        return " and the ".join(side for side, kind in zip(SIDES, kinds, strict=True) if kind != "same")

    def is_returned_by(self, call: SitePair) -> bool:
        """Return True if a call of the reference returned the very output."""
        output = self.reference_output
        return output is not None and have_same_bytes(call.reference, output)

    def trace_origins(self) -> tuple[OriginMap, OriginMap] | None:
        """Return what comes from the output on either side; None where a side did not keep it."""
        outputs = self.reference_output, self.candidate_output
        if outputs[0] is None or outputs[1] is None:
            return None
        return OriginMap(self.reference, outputs[0]), OriginMap(self.candidate, outputs[1])


def _find_links(call: TensorRef, output: TensorRef | None, tensors: Tensors) -> list[Link]:
    """Return the links by which a call was given an output: its event, or another of the same bytes."""
    links = []
    for link in call.trace.inputs if output is not None else ():
        given = tensors.get(link.event) if link.event is not None else None
        if given is not None and output is not None and have_same_bytes(given, output):
            links.append(link)
    return links


def _get_link_kind(call: TensorRef, output: TensorRef | None, tensors: Tensors) -> str:
    """Return how a call was given an output: same, view, or "" for anything looser."""
    kinds = {link.how for link in _find_links(call, output, tensors)}
    return next((kind for kind in ("same", "view") if kind in kinds), "")


class Origin(IntEnum):
    """Say whether a tensor comes from an output."""

    ELSEWHERE = 0
    UNKNOWN = 1
    OUTPUT = 2


class OriginMap:
    """Know, for everything the calls of a side were given, whether it comes from one output."""

    def __init__(self, tensors: Tensors, output: TensorRef) -> None:
        self._tensors, self._output = tensors, output
        self._origins: dict[int, Origin] = {}
        for order in sorted(tensors):  # what a call is given was made before it
            self._origins[order] = self._find_origin(order)

    def get_origin_of_inputs(self, call: TensorRef) -> Origin:
        """Return whether what a call was given comes from the output."""
        origin = Origin.ELSEWHERE
        for link in call.trace.inputs:
            if link.how != "value":
                event = -1 if link.event is None else link.event
                origin = max(origin, self._origins.get(event, Origin.UNKNOWN))
        return origin

    def list_unknown_inputs(self, call: TensorRef) -> set[int | None]:
        """Return the events a call was given that no module returned and that may be made of the output."""
        unknown: set[int | None] = set()
        for link in call.trace.inputs:
            if link.how == "value":
                continue
            event = link.event
            if event is None or (self._is_made_by_code(event) and self._origins[event] is Origin.UNKNOWN):
                unknown.add(event)
        return unknown

    def _find_origin(self, order: int) -> Origin:
        tensor = self._tensors[order]
        if have_same_bytes(tensor, self._output):
            return Origin.OUTPUT
        if order < self._output.trace.order:
            return Origin.ELSEWHERE
        if self._is_made_by_code(order):
            return Origin.UNKNOWN if _may_carry_gradients(tensor) else Origin.ELSEWHERE
        if is_inside(self._output.site.module, tensor.site.module):
            return Origin.UNKNOWN
        return self.get_origin_of_inputs(tensor)

    def _is_made_by_code(self, order: int) -> bool:
        """Return True if a tensor was first seen as what a call was given: no module returned it."""
        return order in self._tensors and self._tensors[order].site.slot is Slot.INPUT


def _may_carry_gradients(tensor: TensorRef) -> bool:
    """Return True if a tensor may be made of an output: no positions, and not one number other than 0 everywhere."""
    stats = tensor.trace.stats
    is_constant = stats is not None and tensor.count > 1 and stats.min == stats.max != 0
    return not (tensor.dtype.exact or is_constant)
