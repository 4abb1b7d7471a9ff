"""Pairing recordings: by name, then, for what is left, by class, shape and the order of calls.

One shared ReLU called three times is three separate ones in another implementation, and a Sequential has
numbers where another has names. Between calls that are paired already, those left over on both sides are
laid side by side in the order they ran; every pair made so says so.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher

from nndiff.align.calls import Call, Paired, calls_of
from nndiff.align.containers import ELSEWHERE, belonging, pair_in_other_containers, same_content
from nndiff.align.fused import Fused, find_fused, pair_fused, pair_owned_parts
from nndiff.align.hints import site_hints
from nndiff.align.near import CallPair, around, like_calls, likely_calls, near_calls, turned_calls
from nndiff.align.own import pair_own
from nndiff.align.passes import pair_by_name
from nndiff.align.plan import Alignment, Tensors
from nndiff.align.rules import Rename
from nndiff.align.work import Work
from nndiff.tensors import Site, TensorRef

GUESSED = "order"  # every rule that goes by the order of calls ends so: such a pair may be a wrong guess
_LONGEST = 3000  # calls laid side by side at once; matching is quadratic


def align_sites(
    reference: Tensors,
    candidate: Tensors,
    renames: Sequence[Rename] = (),
    mapping: Mapping[str, str] | None = None,
    misnamed: tuple[Container[str], Container[str]] = ((), ()),
) -> Alignment:
    """Pair the tensors of two recordings; read nothing but a few elements of short floats.

    Of the modules `misnamed`, names tell nothing.
    """
    work = Work(reference, candidate)
    calls = calls_of(reference), calls_of(candidate)
    shared = _shared_otherwise(*calls)
    held = work.hold_back(*misnamed), work.hold_back(shared, shared)
    notes = pair_by_name(work, renames, mapping)
    _pair_fed(work)
    pair_in_other_containers(work, renames, GUESSED)
    same = _calls_paired_by_name(work, *calls)
    for each in held:
        work.give_back(each)
    _pair_unique(work, *calls, same, _content, "content")
    if not all(call.cls for side in calls for call in side):  # whoever wrote it did not say
        _pair_unique(work, *calls, same, _content_alone, "content")
    _pair_unique(work, *calls, same, _weights, "weights")
    named = dict(same)
    _pair_calls(work, near_calls(*_free(calls, same)), same, "values near")
    _pair_calls(work, like_calls(*calls, same), same, "values near in like layers")
    _pair_likely(work, calls, same)
    _pair_calls(work, turned_calls(*_free(calls, same)), same, f"values near in another shape, and {GUESSED}")
    fused = find_fused(work, *calls, same)
    calls = _without(calls, fused)
    _pair_calls(work, around(*calls, same), same, f"the layers inside and {GUESSED}")
    _pair_in_order(work, *calls, same, lambda call: (call.cls, call.shapes), f"class, shape and {GUESSED}")
    fused += find_fused(work, *calls, same)
    calls = _without(calls, fused)
    known = _of_one_class(*calls, same) | named  # a layer may return what a whole attention of the other side does
    _pair_in_order(work, *calls, same, lambda call: (call.leaf, call.shapes), f"shape and {GUESSED}")
    _pair_unique(work, *calls, same, lambda call: (call.cls, call.shapes), f"class and shape, out of {GUESSED}")
    _pair_followers(work, same)
    pair_fused(work, fused)
    pair_owned_parts(work, *calls, known)
    _pair_owned(work)
    _pair_parametrised(work, known)
    pair_own(work, _modules(same), _doubtful(work), GUESSED)
    return work.alignment(notes, site_hints)


_Calls = tuple[list[Call], list[Call]]


def _pair_fed(work: Work) -> None:
    """Pair the same inputs of the two models that go by other names, or by their places."""
    left, right = (
        [tensors[name] for name in free if tensors[name].site.slot == "model_input"]
        for tensors, free in ((work.all_reference, work.reference), (work.all_candidate, work.candidate))
    )
    for one, other in same_content(left, right):
        work.pair(one.name, other.name, "content")


def _shared_otherwise(reference: list[Call], candidate: list[Call]) -> frozenset[str]:
    """Return the modules that both sides have and call another number of times, more than once.

    One activation that stands in for several on one side goes by the name of the first: which of its calls is
    that one's, the number of the call does not tell. What is called for a few rows at a time has other shapes.
    """
    left, right = (Counter(call.module for call in side) for side in (reference, candidate))
    shapes = {call.key: call.shapes for call in candidate}
    alike = {call.module for call in reference if not call.leaf and call.shapes == shapes.get(call.key)}
    return frozenset(
        name for name in left if left[name] != right[name] and min(left[name], right[name]) > 0 and name not in alike
    )


def _without(calls: _Calls, fused: Iterable[Fused]) -> _Calls:
    """Return the calls that are not part of a fused layer, nor one."""
    gone = {id(call) for each in fused for call in (each.whole, *each.parts)}
    left, right = ([call for call in side if id(call) not in gone] for side in calls)
    return left, right


def _calls_paired_by_name(work: Work, reference: list[Call], candidate: list[Call]) -> Paired:
    owner = {output.name: call for call in candidate for output in call.outputs}
    named = {call.key: call for call in candidate}
    found: Paired = {}
    for call in reference:
        matches = (work.matches.get(output.name) for output in call.outputs)
        other = next((owner[match.candidate] for match in matches if match and match.candidate in owner), None)
        if other is None and not call.module:  # the models themselves belong together whatever they return
            other = named.get(call.key)
        if other is not None:
            found[call.key] = other.key
            _pair_outputs(work, call.outputs, other.outputs, "name")
    return found


def _pair_unique(
    work: Work,
    reference: list[Call],
    candidate: list[Call],
    same: Paired,
    key: Callable[[Call], Hashable | None],
    matched_by: str,
) -> None:
    """Pair a free call with the only free one of its key on the other side; a key of None decides nothing."""
    taken = set(same.values())
    left = _alone((call for call in reference if call.key not in same), key)
    right = _alone((call for call in candidate if call.key not in taken), key)
    for found, one in left.items():
        other = right.get(found)
        if one is not None and other is not None:
            same[one.key] = other.key
            _pair_outputs(work, one.outputs, other.outputs, matched_by)


def _free(calls: _Calls, same: Paired) -> _Calls:
    """Return the calls without a partner."""
    taken = set(same.values())
    return [call for call in calls[0] if call.key not in same], [call for call in calls[1] if call.key not in taken]


def _pair_calls(work: Work, found: Iterable[CallPair], same: Paired, matched_by: str) -> None:
    """Pair calls that were found to belong together."""
    for one, other in list(found):
        same[one.key] = other.key
        _pair_outputs(work, one.outputs, other.outputs, matched_by)


def _pair_likely(work: Work, calls: _Calls, same: Paired) -> None:
    """Pair calls in short floats by their statistics, and their like: a guess that is better than their order alone."""
    likely = list(likely_calls(*_free(calls, same)))
    if likely:
        _pair_calls(work, likely, same, f"statistics near, and {GUESSED}")
        _pair_calls(work, like_calls(*calls, same), same, f"statistics near in like layers, and {GUESSED}")


def _of_one_class(reference: list[Call], candidate: list[Call], same: Paired) -> Paired:
    """Return the pairs of calls of one class: those of others do not hold the same."""
    classes = {call.key: call.cls for call in candidate}
    return {call.key: same[call.key] for call in reference if classes.get(same.get(call.key, ("", -1))) == call.cls}


def _alone(calls: Iterable[Call], key: Callable[[Call], Hashable | None]) -> dict[Hashable, Call | None]:
    """Return calls by key; None where two share it."""
    found: dict[Hashable, Call | None] = {}
    for call in calls:
        each = key(call)
        if each is not None:
            found[each] = call if each not in found else None
    return found


def _content(call: Call) -> Hashable | None:
    """Return class and digests of a call, or None where too little is there to tell."""
    digests = tuple(output.trace.digest for output in call.outputs)
    telling = all(digests) and any(output.count > 1 for output in call.outputs)
    return (call.cls, call.shapes, digests) if telling else None


def _content_alone(call: Call) -> Hashable | None:
    found = _content(call)
    return None if found is None else (call.shapes, tuple(output.trace.digest for output in call.outputs))


def _weights(call: Call) -> Hashable | None:
    """Return what a call's module holds, which call it is and what it makes; None where it holds nothing."""
    return (call.held, call.number, call.shapes) if call.held else None


def _pair_in_order(
    work: Work,
    reference: list[Call],
    candidate: list[Call],
    same: Paired,
    key: Callable[[Call], Hashable],
    matched_by: str,
) -> None:
    """Pair free calls of equal key, in order, between those that are paired already."""
    taken = set(same.values())
    for left, right in _gaps(reference, candidate, same):
        free_left = [call for call in left if call.key not in same][:_LONGEST]
        free_right = [call for call in right if call.key not in taken][:_LONGEST]
        if not (free_left and free_right):
            continue
        matcher = SequenceMatcher(None, *_numbered(free_left, free_right, key), autojunk=False)
        for block in matcher.get_matching_blocks():
            for step in range(block.size):
                one, other = free_left[block.a + step], free_right[block.b + step]
                same[one.key] = other.key
                _pair_outputs(work, one.outputs, other.outputs, matched_by)


def _numbered(left: list[Call], right: list[Call], key: Callable[[Call], Hashable]) -> tuple[list[int], list[int]]:
    """Return keys as small numbers, which are quick to compare."""
    numbers: dict[Hashable, int] = {}
    one, other = ([numbers.setdefault(key(call), len(numbers)) for call in calls] for calls in (left, right))
    return one, other


def _gaps(reference: list[Call], candidate: list[Call], same: Paired) -> Iterable[tuple[list[Call], list[Call]]]:
    """Yield the stretches of calls between paired ones; pairs that cross others do not divide."""
    place = {call.key: index for index, call in enumerate(candidate)}
    anchors = [(index, place[same[call.key]]) for index, call in enumerate(reference) if call.key in same]
    last_ref = last_cand = 0
    for index, other in [*_rising(anchors), (len(reference), len(candidate))]:
        yield reference[last_ref:index], candidate[last_cand:other]
        last_ref, last_cand = index + 1, other + 1


def _rising(anchors: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest run of anchors that rises on both sides."""
    tails: list[int] = []
    best: list[int] = []  # index into anchors of the tail of each length
    before: list[int] = []
    for number, (_, other) in enumerate(anchors):
        length = bisect_left(tails, other)
        before.append(best[length - 1] if length else -1)
        if length == len(tails):
            tails.append(other)
            best.append(number)
        else:
            tails[length], best[length] = other, number
    found: list[tuple[int, int]] = []
    number = best[-1] if best else -1
    while number >= 0:
        found.append(anchors[number])
        number = before[number]
    return found[::-1]


def _pair_outputs(work: Work, left: Iterable[TensorRef], right: Iterable[TensorRef], matched_by: str) -> None:
    """Pair the outputs of two calls: by their place in the tuple or dict, by content, by order where shapes agree."""
    free_left = [each for each in left if each.name in work.reference]
    free_right = [each for each in right if each.name in work.candidate]
    by_path = {each.site.path: each for each in free_right}
    for one in list(free_left):
        other = by_path.get(one.site.path)
        if other is not None:
            work.pair(one.name, other.name, matched_by)
            free_left.remove(one)
            free_right.remove(other)
    for one, other in same_content(free_left, free_right):
        work.pair(one.name, other.name, f"{matched_by}, then content")
        free_left.remove(one)
        free_right.remove(other)
    for one, other, certain in belonging(free_left, free_right):
        how = f"{matched_by}, {ELSEWHERE}"
        work.pair(one.name, other.name, how if certain or GUESSED in matched_by else f"{how}, then {GUESSED}")


def _pair_followers(work: Work, same: Paired) -> None:
    """Pair what belongs to paired calls: gradients at outputs, inputs, parameters and their gradients."""
    modules, partner, doubtful = _modules(same), work.partners(), _doubtful(work)
    keys = {_follower_key(work.all_candidate[name]): name for name in work.candidate}
    for name in list(work.reference):
        wanted = _partner_key(work.all_reference[name], modules, same, partner)
        other = keys.get(wanted) if wanted else None
        if other is not None and other in work.candidate:
            guess = work.all_reference[name].site.module in doubtful
            work.pair(name, other, f"its module, by {GUESSED}" if guess else "its module")


def _modules(same: Paired) -> dict[str, str]:
    return {left: right for (left, _), (right, _) in same.items()}


def _doubtful(work: Work) -> set[str]:
    """Return the modules of the reference that were paired by guess."""
    guessed = (match.reference for match in work.matches.values() if GUESSED in match.matched_by)
    return {str(work.all_reference[name].site.module) for name in guessed}


_OF_A_TENSOR = ("param", "param_grad", "buffer", "buffer_before")


def _pair_owned(work: Work) -> None:
    """Pair the parameters that are left: wrapped in another module they have another path and the same name.

    Those of one kind, name and shape, equally many on both sides, are paired in their order.
    """
    left, right = _owned(work.all_reference, work.reference), _owned(work.all_candidate, work.candidate)
    for key, names in left.items():
        others = right.get(key, [])
        if len(others) == len(names):
            for one, other in zip(names, others, strict=True):
                work.pair(one, other, f"name, shape and {GUESSED}")


def _owned(tensors: Tensors, free: Iterable[str]) -> dict[Hashable, list[str]]:
    found: dict[Hashable, list[str]] = {}
    for name in free:
        site = tensors[name].site
        if site.slot in _OF_A_TENSOR:
            found.setdefault((site.slot, site.tensor, tensors[name].shape), []).append(name)
    return found


def _pair_parametrised(work: Work, same: Paired) -> None:
    """Pair a plain parameter with one that the other side computes anew at each call (weight norm and its kind).

    What such a computation returns is the parameter, and the gradient there is that of the parameter.
    """
    modules = _modules(same)
    for plain, computed in _computed(work, modules, candidate=False):
        work.pair(plain, computed, "parametrised")
    for plain, computed in _computed(work, {right: left for left, right in modules.items()}, candidate=True):
        work.pair(computed, plain, "parametrised")


_MADE_BY = {"param": "output", "param_grad": "grad_output"}


def _computed(work: Work, modules: Mapping[str, str], candidate: bool) -> list[tuple[str, str]]:
    """Return free parameters of a side, each with where the other side computes it."""
    ours, theirs = work.tensors(candidate), work.tensors(not candidate)
    sites = {_site_key(theirs[name].site): name for name in work.free(not candidate)}
    found = []
    for name in work.free(candidate):
        site = ours[name].site
        slot, module = (
            _MADE_BY.get(site.slot.value, ""),
            f"{modules.get(site.module)}.parametrizations.{site.tensor}",
        )
        other = sites.get((slot, module, 0, 0))
        if other is not None and ours[name].shape == theirs[other].shape:
            found.append((name, other))
    return found


def _site_key(site: Site) -> tuple[str, str, int, int]:
    return site.slot, site.module, site.call, site.nth


def _follower_key(tensor: TensorRef) -> tuple[Hashable, ...]:
    site, slot = tensor.site, tensor.site.slot
    if slot in _OF_A_TENSOR:
        return slot, site.module, site.tensor
    if tensor.trace.forward is not None:
        return slot, tensor.trace.forward, site.nth
    return slot, site.module, site.call, site.path


def _partner_key(
    tensor: TensorRef, modules: Mapping[str, str], same: Paired, partner: Mapping[int, int]
) -> tuple[Hashable, ...] | None:
    """Return the key the partner of a reference's tensor would have."""
    site, slot = tensor.site, tensor.site.slot
    if slot in _OF_A_TENSOR:
        module = modules.get(site.module)
        return None if module is None else (slot, module, site.tensor)
    if tensor.trace.forward is not None:
        forward = partner.get(tensor.trace.forward)
        return None if forward is None else (slot, forward, site.nth)
    call = same.get((site.module, site.call))
    return None if call is None else (slot, *call, site.path)
