"""Pairing calls by class, shape and the order in which they ran, between those that are paired already: guesses.

One shared ReLU called three times is three separate ones in another implementation, and a Sequential has
numbers where another has names.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher

from nndiff.align.by_statistics import near_calls
from nndiff.align.calls import Call, CallKey, CallLists, CallPairs
from nndiff.names import ancestors
from nndiff.result import Method

_LONGEST = 3000  # calls laid side by side at once; matching is quadratic


def class_and_shapes(call: Call) -> Hashable:
    """Return the class of the module of a call, and the shapes it returns."""
    return call.cls, call.shapes


def leaf_and_shapes(call: Call) -> Hashable:
    """Return whether the module of a call has no children, and the shapes it returns."""
    return call.leaf, call.shapes


def pair_by_structure(pairs: CallPairs) -> None:
    """Pair free calls of modules with weights where both sides have the same structure: certain, no other way fits.

    Between calls that are paired already, both sides must have the same sequence of classes, numbers of weights and
    shapes, with none left over. Renaming the modules of a model never changes that.
    """
    for reference_free, candidate_free in list(_free_stretches(pairs)):
        holders = [call for call in reference_free if call.outputs[0].trace.weights]
        partners = [call for call in candidate_free if call.outputs[0].trace.weights]
        same_structure = [_describe_structure(call) for call in holders] == [
            _describe_structure(call) for call in partners
        ]
        if same_structure and not _run_in_another_order(pairs, holders, partners):
            pairs.pair_all(zip(holders, partners, strict=True), Method.STRUCTURE, certain=True)


def _run_in_another_order(pairs: CallPairs, holders: Sequence[Call], partners: Sequence[Call]) -> bool:
    """Return True if calls at different places return nearly the same and are given the same: branches exchanged.

    Calls that are not given the same are no branches: a norm of a norm returns nearly what the first one does.
    """
    places = {call.key: place for place, call in enumerate(holders)}
    partner_places = {call.key: place for place, call in enumerate(partners)}
    displaced = []
    for call, partner in near_calls(holders, partners):
        if places[call.key] != partner_places[partner.key]:
            displaced.append((call, partner))
    partner_events = _map_events(pairs, holders, partners) if displaced else {}
    for call, partner in displaced:
        given = partner_events.get(call.inputs[0]) if call.inputs else None
        if given is None or not partner.inputs or given == partner.inputs[0]:
            return True
    return False


def _map_events(pairs: CallPairs, holders: Sequence[Call], partners: Sequence[Call]) -> dict[int, int]:
    """Return a map from events of the reference to the candidate's, for paired tensors and for these calls in order."""
    events: dict[int, int] = {}
    for match in pairs.draft.matches.values():
        reference, candidate = pairs.draft.reference[match.reference], pairs.draft.candidate[match.candidate]
        events[reference.trace.order] = candidate.trace.order
    for call, partner in zip(holders, partners, strict=True):
        for output, partner_output in zip(call.outputs, partner.outputs, strict=True):
            events[output.trace.order] = partner_output.trace.order
    return events


def _describe_structure(call: Call) -> Hashable:
    return call.cls, call.shapes, call.number, len(call.outputs[0].trace.weights)


def pair_in_order(pairs: CallPairs, key: Callable[[Call], Hashable]) -> None:
    """Pair free calls of equal key, in order, between those that are paired already."""
    for reference_free, candidate_free in list(_free_stretches(pairs)):
        numbers: dict[Hashable, int] = {}  # small numbers are quick to compare
        reference_keys = [numbers.setdefault(key(call), len(numbers)) for call in reference_free]
        candidate_keys = [numbers.setdefault(key(call), len(numbers)) for call in candidate_free]
        matcher = SequenceMatcher(None, reference_keys, candidate_keys, autojunk=False)
        for block in matcher.get_matching_blocks():
            for step in range(block.size):
                call, partner = reference_free[block.a + step], candidate_free[block.b + step]
                pairs.pair(call, partner, Method.CALL, certain=False)


def _free_stretches(pairs: CallPairs) -> Iterator[CallLists]:
    """Yield the free calls of both sides between two neighbouring pairs; pairs that cross others are ignored."""
    places = {call.key: place for place, call in enumerate(pairs.candidate)}
    anchors: list[tuple[int, int]] = []
    for place, call in enumerate(pairs.reference):
        partner = pairs.partners.get(call.key)
        if partner is not None:
            anchors.append((place, places[partner]))
    reference_free, candidate_free = ({call.key for call in calls} for calls in pairs.free())
    reference_start = candidate_start = 0
    for reference_stop, candidate_stop in [*_longest_rising(anchors), (len(pairs.reference), len(pairs.candidate))]:
        reference_stretch = pairs.reference[reference_start:reference_stop]
        candidate_stretch = pairs.candidate[candidate_start:candidate_stop]
        reference_calls = [call for call in reference_stretch if call.key in reference_free]
        candidate_calls = [call for call in candidate_stretch if call.key in candidate_free]
        if reference_calls and candidate_calls:
            yield reference_calls[:_LONGEST], candidate_calls[:_LONGEST]
        reference_start, candidate_start = reference_stop + 1, candidate_stop + 1


def _longest_rising(anchors: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest run of anchors that rises on both sides."""
    tails: list[int] = []  # the smallest end of a run of each length
    tail_anchors: list[int] = []  # and the anchor it ends with
    previous: list[int] = []
    for number, (_, place) in enumerate(anchors):
        length = bisect_left(tails, place)
        previous.append(tail_anchors[length - 1] if length else -1)
        if length == len(tails):
            tails.append(place)
            tail_anchors.append(number)
        else:
            tails[length], tail_anchors[length] = place, number
    rising: list[tuple[int, int]] = []
    number = tail_anchors[-1] if tail_anchors else -1
    while number >= 0:
        rising.append(anchors[number])
        number = previous[number]
    return rising[::-1]


def pair_around_paired(pairs: CallPairs) -> None:
    """Pair free calls of modules that contain exactly the same pairs, where each side has only one such module."""
    reference_free, candidate_free = pairs.free()
    reference_names = {partner: key for key, partner in pairs.partners.items()}
    partners_of_inside = _group_by_inside(candidate_free, reference_names)
    for inside, calls in _group_by_inside(reference_free, {key: key for key in pairs.partners}).items():
        partners = partners_of_inside.get(inside, [])
        if inside and len(calls) == len(partners) == 1:
            pairs.pair(calls[0], partners[0], Method.CALL, certain=False)


def _group_by_inside(
    calls: Iterable[Call], reference_names: Mapping[CallKey, CallKey]
) -> dict[frozenset[CallKey], list[Call]]:
    """Return calls grouped by the paired calls inside their modules, by the reference's names."""
    inside: dict[str, set[CallKey]] = {}
    for (module, _), name in reference_names.items():
        for outer in ancestors(module):
            if outer:
                inside.setdefault(outer, set()).add(name)
    groups: dict[frozenset[CallKey], list[Call]] = {}
    for call in calls:
        groups.setdefault(frozenset(inside.get(call.module, ())), []).append(call)
    return groups
