"""Modules that one side calls more or less often: one instead of another, one left out, a loop too many."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from nndiff.diagnosis.call_graph import Tensors, have_same_bytes, is_inside
from nndiff.diagnosis.modules import Meta, get_class, has_weights, read_module_tree, read_never_called
from nndiff.diagnosis.site_pairs import SitePair
from nndiff.diagnosis.tensor_values import tensors_agree
from nndiff.findings.case import Case
from nndiff.findings.causes import Cause
from nndiff.names import ancestors
from nndiff.result import SIDES, Finding, InputState
from nndiff.tensors import MODEL, Slot, TensorRef
from nndiff.text import first_few

_MOST_SHOWN = 3


class CallCounts:
    """Know how often a side called each of its modules, and what these are."""

    def __init__(self, tensors: Iterable[TensorRef], meta: Meta) -> None:
        self.tree = read_module_tree(meta)
        self._never_called = read_never_called(meta)
        self.calls: dict[str, dict[int, int]] = {}  # by module and call: when it returned
        self.elements: Counter[str] = Counter()  # by module: elements in all its outputs
        self._with_calls_inside: set[str] = set()
        for tensor in tensors:
            if tensor.site.slot is Slot.OUTPUT:
                module = tensor.site.module
                self.elements[module] += tensor.count
                self.calls.setdefault(module, {}).setdefault(tensor.site.call, tensor.trace.order)
                self._with_calls_inside.update(ancestors(module))
        self.weighted: set[str] = set()  # modules with weights, themselves or inside
        for name, module_facts in self.tree.items():
            if has_weights(module_facts):
                self.weighted.update((name, *ancestors(name)))

    def count_calls(self, module: str) -> int:
        """Return how often a module was called."""
        return len(self.calls.get(module, ()))

    def get_return_order(self, module: str, number: int) -> int:
        """Return when the call of a number, from 0, returned."""
        return sorted(self.calls[module].values())[number]

    def is_unused(self, module: str) -> bool:
        """Return True if neither a module nor anything in it was called."""
        return module in self._never_called and module not in self._with_calls_inside

    def is_plain_layer(self, module: str) -> bool:
        """Return True for a layer with weights that was called once and calls nothing inside."""
        has_inner_calls = module in self._with_calls_inside
        return module in self.weighted and self.count_calls(module) == 1 and not has_inner_calls

    def get_class_of(self, module: str) -> str:
        """Return the class of a module."""
        return get_class(self.tree.get(module, {}))


_Counts = tuple[CallCounts, CallCounts]


def find_call_causes(case: Case) -> Iterator[Finding]:
    """Yield the layers that are called instead of others and, where the runs part, those left out.

    Where everything agrees it is worth knowing that layers share weights on one side only, and no more.
    """
    run, first = case.run, case.first
    counts = CallCounts(run.reference.values(), case.reference), CallCounts(run.candidate.values(), case.candidate)
    # what is called after the runs part may depend on what differs
    until = (math.inf, math.inf) if first is None else first.orders
    findings: list[Finding] = []
    for side in (0, 1):
        findings += _find_replaced_layers(counts, side, until[side], case.passed)
    if first is not None and first.slot is Slot.OUTPUT:
        for side in (0, 1):
            findings += _find_left_out(case, counts, side, until[1 - side])
        for side in () if findings else (0, 1):
            findings += _find_last_step(case, first, side)
    if not case.passed:
        findings += _find_wrong_order(case, counts)
    yield from findings or _find_shared_layers(case, counts, until[0])


def _find_replaced_layers(counts: _Counts, side: int, until: float, harmless: bool) -> Iterator[Finding]:
    """Yield the layers that a side calls more often than the other does, and those of their class it never calls."""
    own, partner = counts[side], counts[1 - side]
    repeated = _select_outermost(name for name in _list_repeated(own, partner, until) if name in own.weighted)
    classes = {own.get_class_of(name) for name in repeated}
    unused = _select_outermost(
        name for name in partner.calls if own.is_unused(name) and partner.get_class_of(name) in classes
    )
    if not repeated or (harmless and not unused):
        return
    texts = []
    for name in repeated[:_MOST_SHOWN]:
        times = [_say_times(side_counts.count_calls(name)) for side_counts in counts]
        texts.append(f"{name} is called {times[0]} by the reference and {times[1]} by the candidate")
    if unused:
        texts.append(f"{first_few(unused)} {_are(unused)} never called by the {SIDES[side]}")
    yield Finding(
        Cause.CALLED_OTHERWISE,
        (*repeated, *unused),
        "; ".join(texts),
        "" if harmless else "call each layer where, and as often as, the other side does",
        0.9 if unused else 0.7,
        harmless,
    )


def _find_left_out(case: Case, counts: _Counts, side: int, until: float) -> Iterator[Finding]:
    """Yield the modules that a side never calls and the other calls before the runs part."""
    own, partner = counts[side], counts[1 - side]
    partner_tensors = (case.run.candidate, case.run.reference)[side]
    # one activation may stand in for several
    spared = {own.get_class_of(name) for name in _list_repeated(own, partner, math.inf)}
    missing = []
    for name in partner.calls:
        outer = name.rpartition(".")[0]
        # inside a module of another class something else may do its work
        same_around = counts[0].get_class_of(outer) == counts[1].get_class_of(outer) != ""
        is_left_out = own.is_unused(name) and same_around and partner.get_return_order(name, 0) <= until
        if is_left_out and partner.get_class_of(name) not in spared and _does_something(name, partner_tensors):
            missing.append(name)
    missing = _select_outermost(missing)
    if missing:
        yield Finding(
            Cause.CALLED_OTHERWISE,
            tuple(missing),
            f"{first_few(missing)} {_are(missing)} called by the {SIDES[1 - side]} and never by the {SIDES[side]}",
            "call it there too, or look for what does its work",
            0.7,
        )


def _find_last_step(case: Case, first: SitePair, side: int) -> Iterator[Finding]:
    """Yield the call with which the first diverging module ends on one side only.

    It is proven: what that call was given is what the whole module returns on the other side.
    """
    own_tensors = (case.run.reference, case.run.candidate)[side]
    own, partner = first.tensors[side], first.tensors[1 - side]
    unpaired = {leftover.name for leftover in case.leftovers if leftover.side == SIDES[side]}
    for tensor in own_tensors.values():
        is_last = tensor.site.slot is Slot.OUTPUT and have_same_bytes(tensor, own)
        if not is_last or tensor.name not in unpaired or not is_inside(tensor.site.module, own.site.module):
            continue
        events = [link.event for link in tensor.trace.inputs if link.event is not None]
        given = own_tensors.get(events[0]) if len(events) == 1 else None
        if given is not None and tensors_agree(given, partner, first.pair.atol, first.pair.rtol):
            yield Finding(
                Cause.CALLED_OTHERWISE,
                (tensor.site.module,),
                f"{tensor.site.module} is called by the {SIDES[side]} alone; without it both sides return the same "
                f"from {first.module or MODEL}",
                "leave it out, or call it on both sides",
                0.95,
            )


def _list_repeated(own: CallCounts, partner: CallCounts, until: float) -> Iterator[str]:
    """Yield what a side calls more often than the other does; called for a few rows at a time is not more often."""
    for name in own.calls:
        times = partner.count_calls(name)
        is_repeated = own.count_calls(name) > times > 0 and own.elements[name] > partner.elements[name]
        if is_repeated and own.get_return_order(name, times) <= until:
            yield name


def _find_wrong_order(case: Case, counts: _Counts) -> Iterator[Finding]:
    """Yield that the first differing layer runs before another on one side, and after it on the other.

    A first layer that differs on its own is at fault itself, wherever it runs.
    """
    layers = []
    for site in case.run.outputs:
        if counts[0].is_plain_layer(site.module) and counts[1].is_plain_layer(site.candidate_module):
            layers.append(site)
    first = next((site for site in layers if not site.passed), None)
    if first is None or case.run.get_input_state(first) is not InputState.DIFFER:
        return
    for site in layers:
        if site.order > first.order and site.orders[1] < first.orders[1]:
            yield Finding(
                Cause.CALLED_OTHERWISE,
                (first.module, site.module),
                f"{first.module} runs before {site.module} in the reference, and after it in the candidate",
                "run the layers in the same order",
                0.7,
            )
            return


def _find_shared_layers(case: Case, counts: _Counts, until: float) -> Iterator[Finding]:
    """Yield where one layer of a side stands in for several of the other, whatever they are called."""
    outputs = [site for site in case.run.pairs if site.slot is Slot.OUTPUT and not site.is_part]
    early = [site for site in outputs if site.order <= until]
    for side, own in enumerate(counts):
        partners = _group_partners(outputs, side)
        shared = []
        for name, early_partners in _group_partners(early, side).items():
            classes = {counts[1 - side].get_class_of(partner) for partner in partners[name]}
            if len(early_partners) > 1 and name in own.weighted and classes == {own.get_class_of(name)}:
                shared.append(name)
        for name in _select_outermost(shared):
            yield Finding(
                Cause.CALLED_OTHERWISE,
                (name, *partners[name]),
                f"{name} of the {SIDES[side]} is called {_say_times(own.count_calls(name))}, instead of "
                f"{first_few(partners[name])} of the {SIDES[1 - side]}",
                "" if case.passed else "give it layers of its own, or share one on both sides",
                0.8,
                case.passed,
            )


def _group_partners(outputs: Iterable[SitePair], side: int) -> dict[str, list[str]]:
    """Return the modules of the other side that each module of a side was paired with."""
    partners: dict[str, list[str]] = {}
    for site in outputs:
        modules = site.module, site.candidate_module
        names = partners.setdefault(modules[side], [])
        if modules[1 - side] not in names:
            names.append(modules[1 - side])
    return partners


def _does_something(module: str, tensors: Tensors) -> bool:
    """Return True if a module returned anything else than it was given."""
    for tensor in tensors.values():
        if tensor.site.slot is not Slot.OUTPUT or tensor.site.module != module:
            continue
        digests = set()
        for link in tensor.trace.inputs:
            given = tensors.get(link.event) if link.event is not None else None
            if given is not None:
                digests.add(given.trace.digest)
        if tensor.trace.digest not in digests:
            return True
    return False


def _select_outermost(names: Iterable[str]) -> list[str]:
    listed = list(names)
    inside = set(listed)
    return [name for name in listed if inside.isdisjoint(ancestors(name))]


def _say_times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number:,} times")


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
