"""Calls that return the same but for rounding: another class of layer, another order of sums, the same values.

Their statistics tell, as far as nothing else has them; in short floats some of their elements do. A layer whose
like elsewhere in the model was paired so is paired as that was, whatever it returns.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from nndiff.align.calls import Call, Key, Paired
from nndiff.align.short import is_short, likeliest, nearest
from nndiff.names import ancestors, without_numbers
from nndiff.tensors import Stats, TensorRef

_NEAR = 1e-4  # of the scale of a tensor: what rounding may change in its statistics
_FEWEST = 16  # elements: the statistics of fewer may be near by chance
_MOST = 64  # calls of like values on a side that are told apart by class and order
_LONGEST = 1000  # calls of like size among which those of like values are looked for

CallPair = tuple[Call, Call]


def near_calls(reference: Iterable[Call], candidate: Iterable[Call]) -> Iterator[CallPair]:
    """Yield the calls that return nearly the same, in order where several do; copies on one side stay alone."""
    for ours, theirs in _of_one_shape(reference, candidate):
        long = [sorted((call for call in side if not is_short(call)), key=_size) for side in (ours, theirs)]
        found = [both for group in _groups(*long) for both in _in_group(*group)]
        yield from found
        if any(map(is_short, (*ours, *theirs))):
            known = {id(call) for both in found for call in both}
            rest = ([call for call in side if id(call) not in known] for side in (ours, theirs))
            for group in nearest(*rest):
                yield from _in_group(*group)


def likely_calls(reference: Iterable[Call], candidate: Iterable[Call]) -> Iterator[CallPair]:
    """Yield the calls in short floats that may return nearly the same: a guess, no elements were kept of them."""
    for ours, theirs in _of_one_shape(reference, candidate):
        if any(map(is_short, (*ours, *theirs))):
            for group in likeliest(ours, theirs):
                yield from _in_group(*group)


def turned_calls(reference: Iterable[Call], candidate: Iterable[Call]) -> Iterator[CallPair]:
    """Yield the calls that return nearly the same elements in another shape, as far as their statistics tell.

    Only where all elements were kept: how they lie is for these to prove.
    """
    for ours, theirs in _of_one_kind(reference, candidate, lambda tensor: tensor.count):
        long = [sorted(filter(_is_kept_long, side), key=_size) for side in (ours, theirs)]
        found = (both for group in _groups(*long) for both in _in_group(*group))
        yield from (both for both in found if both[0].shapes[0] != both[1].shapes[0])


def _is_kept_long(call: Call) -> bool:
    tensor = call.outputs[0]
    sketch = tensor.trace.sketch
    kept = not tensor.missing or (isinstance(sketch, TensorRef) and sketch.count == tensor.count)
    return kept and not is_short(call)


def _of_one_shape(reference: Iterable[Call], candidate: Iterable[Call]) -> Iterator[tuple[list[Call], list[Call]]]:
    return _of_one_kind(reference, candidate, lambda tensor: tensor.shape)


def _of_one_kind(
    reference: Iterable[Call], candidate: Iterable[Call], form: Callable[[TensorRef], Hashable]
) -> Iterator[tuple[list[Call], list[Call]]]:
    """Yield the calls of both sides whose first output tells something, by its form and kind of numbers."""
    left, right = _telling(reference, form), _telling(candidate, form)
    return ((ours, right[kind]) for kind, ours in left.items() if kind in right)


def _telling(calls: Iterable[Call], form: Callable[[TensorRef], Hashable]) -> dict[Hashable, list[Call]]:
    found: dict[Hashable, list[Call]] = {}
    for call in calls:
        first = call.outputs[0]
        if _tells(first):
            found.setdefault((form(first), first.dtype.kind), []).append(call)
    return found


def _tells(tensor: TensorRef) -> bool:
    """Tell whether statistics say which tensor it is: not of constants, masks, few numbers, nor of whole ones."""
    stats = tensor.trace.stats
    if stats is None or tensor.dtype.kind not in ("float", "complex") or tensor.count < _FEWEST:
        return False
    return bool(stats.std > _NEAR * stats.abs_max > 0 and not stats.nonfinite)


def _stats(call: Call) -> Stats:
    stats = call.outputs[0].trace.stats
    assert stats is not None  # only calls whose statistics tell something come here
    return stats


def _size(call: Call) -> float:
    return _stats(call).l2


def _near(one: Call, other: Call) -> bool:
    here, there = _stats(one), _stats(other)
    room = _NEAR * max(here.abs_max, there.abs_max)
    alike = (abs(getattr(here, what) - getattr(there, what)) <= room for what in ("mean", "std", "min", "max"))
    return abs(here.l2 - there.l2) <= _NEAR * max(here.l2, there.l2) and all(alike)


def _groups(left: Sequence[Call], right: Sequence[Call]) -> Iterator[tuple[list[Call], list[Call]]]:
    """Yield the calls of both sides that are near each other, where all of one side are near all of the other."""
    sizes = [_size(call) for call in right]
    groups: dict[tuple[Key, ...], tuple[list[Call], list[Call]]] = {}
    for one in left:
        found = _reached(one, right, sizes)
        groups.setdefault(tuple(call.key for call in found), ([], found))[0].append(one)
    claimed = Counter(key for keys in groups for key in keys)
    for keys, group in groups.items():
        if keys and all(claimed[key] == 1 for key in keys) and max(map(len, group)) <= _MOST:
            yield group


def _reached(one: Call, right: Sequence[Call], sizes: Sequence[float]) -> list[Call]:
    room = 2 * _NEAR * _size(one)
    start, stop = bisect_left(sizes, _size(one) - room), bisect_left(sizes, _size(one) + room)
    return [other for other in right[start:stop] if _near(one, other)] if stop - start <= _LONGEST else []


def _in_group(left: list[Call], right: list[Call]) -> Iterator[CallPair]:
    """Yield pairs in order: of the very same values first, then of one class, then leaves with leaves.

    What returns its input (dropout at rest, a wrapper) follows who made it: the first of each side belong together.
    """
    keys: tuple[Callable[[Call], Hashable], ...] = (
        lambda call: (call.outputs[0].trace.digest, call.cls),
        lambda call: (call.outputs[0].trace.digest, call.leaf),
        lambda call: call.cls,
        lambda call: call.leaf,
    )
    ours, theirs = (sorted(side, key=lambda call: call.order) for side in (left, right))
    for key in keys:
        for kind in dict.fromkeys(map(key, ours)):
            both = [call for call in ours if key(call) == kind], [call for call in theirs if key(call) == kind]
            for one, other in zip(*both, strict=False):
                ours.remove(one)
                theirs.remove(other)
                yield one, other


def like_calls(reference: Sequence[Call], candidate: Sequence[Call], same: Paired) -> Iterator[CallPair]:
    """Yield free calls whose like in other blocks are paired: all of these in one way, and equally many of them.

    Like are modules of one class whose paths differ in numbers alone; the third of them belongs to the third.
    """
    left, right = _by_likeness(reference), _by_likeness(candidate)
    taken = set(same.values())
    for one, other in _learnt(reference, candidate, same).items():
        ours, theirs = left[one], right[other]
        ranks = {call.key: rank for rank, call in enumerate(theirs)}
        known = (rank == ranks.get(same[call.key]) for rank, call in enumerate(ours) if call.key in same)
        if len(ours) == len(theirs) and all(known):
            free = (both for both in zip(ours, theirs, strict=True) if both[0].key not in same)
            yield from (both for both in free if both[1].key not in taken and both[0].shapes[0] in both[1].shapes)


_Kind = tuple[str, str]  # the path without its numbers, and the class


def _kind(call: Call) -> _Kind:
    return without_numbers(call.module), call.cls


def _by_likeness(calls: Iterable[Call]) -> dict[_Kind, list[Call]]:
    found: dict[_Kind, list[Call]] = {}
    for call in calls:
        found.setdefault(_kind(call), []).append(call)
    return found


def _learnt(reference: Iterable[Call], candidate: Iterable[Call], same: Paired) -> dict[_Kind, _Kind]:
    """Return which kinds of modules are paired with which, where all pairs of a kind say the same."""
    kinds = {call.key: _kind(call) for call in candidate}
    pairs = {(_kind(call), kinds[same[call.key]]) for call in reference if same.get(call.key) in kinds}
    left, right = Counter(one for one, _ in pairs), Counter(other for _, other in pairs)
    return {one: other for one, other in pairs if "#" in one[0] and left[one] == right[other] == 1}


def around(reference: Sequence[Call], candidate: Sequence[Call], same: Paired) -> Iterator[CallPair]:
    """Yield free calls of modules around the very same paired ones, where but one on each side is."""
    taken = set(same.values())
    left = _by_inside((call for call in reference if call.key not in same), {key: key for key in same})
    right = _by_inside((call for call in candidate if call.key not in taken), {v: k for k, v in same.items()})
    for inside, ours in left.items():
        theirs = right.get(inside, [])
        if inside and len(ours) == len(theirs) == 1:
            yield ours[0], theirs[0]


def _by_inside(calls: Iterable[Call], names: Paired) -> dict[frozenset[Key], list[Call]]:
    """Return calls of modules by what is paired inside them, in the reference's names for it."""
    inside: dict[str, set[Key]] = {}
    for (module, _), name in names.items():
        for outer in filter(None, ancestors(module)):
            inside.setdefault(outer, set()).add(name)
    found: dict[frozenset[Key], list[Call]] = {}
    for call in calls:
        found.setdefault(frozenset(inside.get(call.module, ())), []).append(call)
    return found
