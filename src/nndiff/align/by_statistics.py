"""Pairing calls that return the same but for rounding: another class of layer, another order of sums, the same values.

Statistics tell, as far as no other call has them; of short floats some elements do. A layer whose like elsewhere in
the model was paired so is paired as that was, whatever it returns. All of these pairs are guesses.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from nndiff.align.calls import Call, CallKey, CallLists, CallPair, CallPairs, group_calls
from nndiff.align.short_floats import group_by_elements, group_by_likely_statistics, is_short
from nndiff.names import without_numbers
from nndiff.result import Method
from nndiff.tensors import Stats, TensorRef

_NEAR = 1e-4  # of the scale of a tensor: what rounding may change in its statistics
_FEWEST_ELEMENTS = 16  # the statistics of fewer may be near by chance
_MOST_ALIKE = 64  # calls of near values on a side that are told apart by class and order; more are repetition
_LONGEST = 1000  # calls of near size among which those of near values are looked for; the search is quadratic


def pair_by_statistics(pairs: CallPairs) -> None:
    """Pair calls with nearly equal values: of the same shape, then repeated layers like them, then of another shape."""
    pairs.pair_all(near_calls(*pairs.free()), Method.STATISTICS, certain=False)
    pairs.pair_all(alike_calls(pairs), Method.STATISTICS, certain=False)
    likely = list(likely_calls(*pairs.free()))
    if likely:
        pairs.pair_all(likely, Method.STATISTICS, certain=False)
        pairs.pair_all(alike_calls(pairs), Method.STATISTICS, certain=False)
    pairs.pair_all(reshaped_calls(*pairs.free()), Method.STATISTICS, certain=False)


def near_calls(reference: Iterable[Call], candidate: Iterable[Call]) -> Iterator[CallPair]:
    """Yield the calls that return nearly the same values; where several do, in order, and surplus copies stay free."""
    for reference_calls, candidate_calls in _group_by_form(reference, candidate, lambda tensor: tensor.shape):
        near = list(_pairs_of_near_statistics(reference_calls, candidate_calls))
        yield from near
        if any(map(is_short, (*reference_calls, *candidate_calls))):
            paired = {id(call) for pair in near for call in pair}
            reference_free = [call for call in reference_calls if id(call) not in paired]
            candidate_free = [call for call in candidate_calls if id(call) not in paired]
            for group in group_by_elements(reference_free, candidate_free):
                yield from _pairs_in_group(*group)


def likely_calls(reference: Iterable[Call], candidate: Iterable[Call]) -> Iterator[CallPair]:
    """Yield the calls in short floats that may return nearly the same, where no elements were kept of them."""
    for reference_calls, candidate_calls in _group_by_form(reference, candidate, lambda tensor: tensor.shape):
        if any(map(is_short, (*reference_calls, *candidate_calls))):
            for group in group_by_likely_statistics(reference_calls, candidate_calls):
                yield from _pairs_in_group(*group)


def reshaped_calls(reference: Iterable[Call], candidate: Iterable[Call]) -> Iterator[CallPair]:
    """Yield the calls that return nearly the same elements in another shape, as far as their statistics tell.

    Only where all elements were kept: how they lie is for these to prove.
    """
    for reference_calls, candidate_calls in _group_by_form(reference, candidate, lambda tensor: tensor.count):
        reference_kept = [call for call in reference_calls if _has_all_elements(call)]
        candidate_kept = [call for call in candidate_calls if _has_all_elements(call)]
        for reference_call, candidate_call in _pairs_of_near_statistics(reference_kept, candidate_kept):
            if reference_call.shapes[0] != candidate_call.shapes[0]:
                yield reference_call, candidate_call


def _has_all_elements(call: Call) -> bool:
    tensor, sketch = call.outputs[0], call.outputs[0].trace.sketch
    return not tensor.missing or (sketch is not None and sketch.count == tensor.count)


def _group_by_form(
    reference: Iterable[Call], candidate: Iterable[Call], form: Callable[[TensorRef], Hashable]
) -> Iterator[CallLists]:
    """Yield the calls of both sides with a telling first output, grouped by its form and kind of dtype."""

    def form_and_kind(call: Call) -> Hashable:
        return form(call.outputs[0]), call.outputs[0].dtype.kind

    candidate_groups = group_calls(filter(_has_telling_output, candidate), form_and_kind)
    for key, group in group_calls(filter(_has_telling_output, reference), form_and_kind).items():
        if key in candidate_groups:
            yield group, candidate_groups[key]


def _has_telling_output(call: Call) -> bool:
    """Return True if statistics can identify the output: floats that vary, and enough of them."""
    tensor, stats = call.outputs[0], call.outputs[0].trace.stats
    if stats is None or tensor.dtype.kind not in ("float", "complex") or tensor.count < _FEWEST_ELEMENTS:
        return False
    return stats.std > _NEAR * stats.abs_max > 0 and not stats.nonfinite


def _stats_of(call: Call) -> Stats:
    stats = call.outputs[0].trace.stats
    assert stats is not None  # only calls with a telling output come here
    return stats


def _size_of(call: Call) -> float:
    return _stats_of(call).l2


def _are_near(reference_call: Call, candidate_call: Call) -> bool:
    reference, candidate = _stats_of(reference_call), _stats_of(candidate_call)
    room = _NEAR * max(reference.abs_max, candidate.abs_max)
    return (
        abs(reference.l2 - candidate.l2) <= _NEAR * max(reference.l2, candidate.l2)
        and abs(reference.mean - candidate.mean) <= room
        and abs(reference.std - candidate.std) <= room
        and abs(reference.min - candidate.min) <= room
        and abs(reference.max - candidate.max) <= room
    )


def _pairs_of_near_statistics(reference: Iterable[Call], candidate: Iterable[Call]) -> Iterator[CallPair]:
    """Yield pairs of calls in long floats whose statistics are near, where all of a group are near all of the other."""
    by_size = sorted((call for call in candidate if not is_short(call)), key=_size_of)
    sizes = [_size_of(call) for call in by_size]
    groups: dict[tuple[CallKey, ...], CallLists] = {}
    for call in sorted((call for call in reference if not is_short(call)), key=_size_of):
        room = 2 * _NEAR * _size_of(call)
        start, stop = bisect_left(sizes, _size_of(call) - room), bisect_left(sizes, _size_of(call) + room)
        in_reach = by_size[start:stop] if stop - start <= _LONGEST else []
        near = [candidate_call for candidate_call in in_reach if _are_near(call, candidate_call)]
        groups.setdefault(tuple(candidate_call.key for candidate_call in near), ([], near))[0].append(call)
    claims = Counter(key for keys in groups for key in keys)
    for keys, group in groups.items():
        if keys and all(claims[key] == 1 for key in keys) and max(map(len, group)) <= _MOST_ALIKE:
            yield from _pairs_in_group(*group)


def _pairs_in_group(reference: Iterable[Call], candidate: Iterable[Call]) -> Iterator[CallPair]:
    """Yield pairs in order: of the very same values first, then of one class, then leaves with leaves.

    What returns its input (dropout at rest, a wrapper) follows who made it: the first of each side belong together.
    """
    keys: tuple[Callable[[Call], Hashable], ...] = (
        lambda call: (call.outputs[0].trace.digest, call.cls),
        lambda call: (call.outputs[0].trace.digest, call.leaf),
        lambda call: call.cls,
        lambda call: call.leaf,
    )
    reference_free = sorted(reference, key=lambda call: call.order)
    candidate_free = sorted(candidate, key=lambda call: call.order)
    for key in keys:
        candidate_groups = group_calls(candidate_free, key)
        for value, group in group_calls(reference_free, key).items():
            for reference_call, candidate_call in zip(group, candidate_groups.get(value, []), strict=False):
                reference_free.remove(reference_call)
                candidate_free.remove(candidate_call)
                yield reference_call, candidate_call


_Likeness = tuple[str, str]  # the path without its numbers, and the class


def _likeness_of(call: Call) -> _Likeness:
    return without_numbers(call.module), call.cls


def alike_calls(pairs: CallPairs) -> Iterator[CallPair]:
    """Yield free calls of repeated layers whose counterparts in other blocks are all paired in the same way.

    Like are modules of one class whose paths differ in numbers alone; the third of them belongs to the third.
    """
    reference_groups = group_calls(pairs.reference, _likeness_of)
    candidate_groups = group_calls(pairs.candidate, _likeness_of)
    free_keys = [{call.key for call in calls} for calls in pairs.free()]
    for likeness, partner in _paired_likenesses(pairs.reference, pairs.candidate, pairs.partners).items():
        group, partner_group = reference_groups[likeness], candidate_groups[partner]
        if len(group) != len(partner_group):
            continue
        in_order = list(zip(group, partner_group, strict=True))
        paired = [pair for pair in in_order if pair[0].key in pairs.partners]
        if any(pairs.partners[call.key] != partner_call.key for call, partner_call in paired):
            continue
        for call, partner_call in in_order:
            if call.key in free_keys[0] and partner_call.key in free_keys[1] and call.shapes[0] in partner_call.shapes:
                yield call, partner_call


def _paired_likenesses(
    reference: Sequence[Call], candidate: Sequence[Call], partners: dict[CallKey, CallKey]
) -> dict[_Likeness, _Likeness]:
    """Return which kinds of numbered modules are paired with which, where all pairs of a kind say the same."""
    likenesses = {call.key: _likeness_of(call) for call in candidate}
    links: set[tuple[_Likeness, _Likeness]] = set()
    for call in reference:
        partner = likenesses.get(partners.get(call.key, ("", -1)))
        if partner is not None:
            links.add((_likeness_of(call), partner))
    counts, partner_counts = Counter(link[0] for link in links), Counter(link[1] for link in links)
    return {
        likeness: partner
        for likeness, partner in links
        if "#" in likeness[0] and counts[likeness] == partner_counts[partner] == 1
    }
