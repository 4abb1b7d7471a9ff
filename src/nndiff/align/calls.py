"""The calls of two recordings: which module, which time, what came out, and which of them are paired."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from nndiff.align.alignment import Draft, Tensors
from nndiff.align.containers import pair_outputs
from nndiff.names import ancestors
from nndiff.result import Method
from nndiff.tensors import Shape, Slot, TensorRef

CallKey = tuple[str, int]  # module and number of a call


@dataclass(frozen=True)
class Call:
    """Hold one call of a module with its recorded outputs."""

    module: str
    number: int
    cls: str
    order: int
    outputs: tuple[TensorRef, ...]
    leaf: bool

    @property
    def key(self) -> CallKey:
        """Return the module and the number of the call."""
        return self.module, self.number

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """Return the shapes of its outputs."""
        return tuple(output.shape for output in self.outputs)

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """Return the events of the tensors it was called with, as far as they were recorded."""
        return tuple(link.event for link in self.outputs[0].trace.inputs if link.event is not None)


CallPair = tuple[Call, Call]  # of the reference and of the candidate
CallLists = tuple[list[Call], list[Call]]


def calls_of(tensors: Tensors) -> list[Call]:
    """Return the calls of a recording in the order in which they finished."""
    outputs_of_call: dict[CallKey, list[TensorRef]] = {}
    for tensor in tensors.values():
        if tensor.site.slot is Slot.OUTPUT:
            outputs_of_call.setdefault((tensor.site.module, tensor.site.call), []).append(tensor)
    parents: set[str] = set()
    for module, _ in outputs_of_call:
        parents.update(ancestors(module))
    calls = []
    for (module, number), outputs in outputs_of_call.items():
        first = outputs[0]
        calls.append(Call(module, number, first.site.cls, first.trace.order, tuple(outputs), module not in parents))
    return sorted(calls, key=lambda call: call.order)


def group_calls(calls: Iterable[Call], key: Callable[[Call], Hashable]) -> dict[Hashable, list[Call]]:
    """Return calls by key, in their order."""
    groups: dict[Hashable, list[Call]] = {}
    for call in calls:
        groups.setdefault(key(call), []).append(call)
    return groups


class CallPairs:
    """Hold the calls of two recordings and which of them are paired."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.reference = calls_of(draft.reference)  # fused calls are taken out when they are found
        self.candidate = calls_of(draft.candidate)
        self.partners: dict[CallKey, CallKey] = {}  # from the reference's calls to the candidate's
        self._taken: set[CallKey] = set()  # calls of the candidate that have a partner
        self._guessed: set[CallKey] = set()  # calls of the reference whose partner is a guess
        self._same_weights: dict[str, str] = {}  # modules that hold the same weights, called or not

    def free(self) -> CallLists:
        """Return the calls of both sides without a partner, in order."""
        return (
            [call for call in self.reference if call.key not in self.partners],
            [call for call in self.candidate if call.key not in self._taken],
        )

    def pair(self, reference_call: Call, candidate_call: Call, method: Method, certain: bool) -> None:
        """Pair two calls and what they return; do nothing if one of them has a partner already."""
        if reference_call.key in self.partners or candidate_call.key in self._taken:
            return
        self.partners[reference_call.key] = candidate_call.key
        self._taken.add(candidate_call.key)
        if not certain:
            self._guessed.add(reference_call.key)
        pair_outputs(self.draft, reference_call.outputs, candidate_call.outputs, method, certain)

    def pair_all(self, call_pairs: Iterable[CallPair], method: Method, certain: bool) -> None:
        """Pair calls that were found to belong together."""
        for reference_call, candidate_call in list(call_pairs):
            self.pair(reference_call, candidate_call, method, certain)

    def pair_unique(self, key: Callable[[Call], Hashable | None], method: Method, certain: bool) -> None:
        """Pair a free call with the only free one of its key on the other side; a key of None decides nothing."""
        reference_calls, candidate_calls = self.free()
        calls_of_key = group_calls(candidate_calls, key)
        for value, group in group_calls(reference_calls, key).items():
            partners = calls_of_key.get(value, [])
            if value is not None and len(group) == len(partners) == 1:
                self.pair(group[0], partners[0], method, certain)

    def is_certain(self, key: CallKey) -> bool:
        """Return True if the partner of a call of the reference is certain."""
        return key in self.partners and key not in self._guessed

    def leave_out(self, calls: Iterable[Call]) -> None:
        """Remove calls that belong to fused layers from those that may still be paired."""
        left_out = {id(call) for call in calls}
        self.reference = [call for call in self.reference if id(call) not in left_out]
        self.candidate = [call for call in self.candidate if id(call) not in left_out]

    def add_same_weights(self, modules: Mapping[str, str]) -> None:
        """Remember modules that hold the same weights: parameters follow them even where nothing was called."""
        self._same_weights.update(modules)

    def certain_modules(self) -> dict[str, str]:
        """Return the modules of the reference with the candidate's that certainly belong to them."""
        modules = {"": ""}
        for (module, number), (partner, _) in self.partners.items():
            if (module, number) not in self._guessed:
                modules.setdefault(module, partner)
        for module, partner in self._same_weights.items():
            modules.setdefault(module, partner)
        return modules

    def modules(self) -> dict[str, str]:
        """Return the modules of the reference with the candidate's that belong to them, guesses included."""
        modules = self.certain_modules()
        for (module, _), (partner, _) in self.partners.items():
            modules.setdefault(module, partner)
        return modules

    def reliable_modules(self) -> dict[str, str]:
        """Return the modules that belong together, guesses only where both are of one class.

        A layer may return what a whole attention of the other side does, and be laid beside it.
        """
        modules = self.certain_modules()
        classes = {call.key: call.cls for call in self.candidate}
        for call in self.reference:
            partner = self.partners.get(call.key)
            if partner is not None and classes.get(partner) == call.cls:
                modules.setdefault(call.module, partner[0])
        return modules


class Regions:
    """Find the innermost ancestor of a module that has a partner, by the reference's name."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._known_reference = set(modules)
        self._reference_names = {partner: module for module, partner in modules.items()}

    def region_of(self, module: str, is_candidate: bool) -> str:
        """Return the region a module of a side is in; the model itself where there is no other."""
        for outer in ancestors(module):
            if is_candidate and outer in self._reference_names:
                return self._reference_names[outer]
            if not is_candidate and outer in self._known_reference:
                return outer
        return ""
