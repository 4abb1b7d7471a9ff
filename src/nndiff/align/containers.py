"""One call of one module on both sides that hands its tensors over in another container: `o` here, `(o, None)` there.

Whose tensors they are is certain by name; which is which is told by what they hold, by shape and dtype, and last
by their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from nndiff.align.plan import Tensors
from nndiff.align.rules import Rename
from nndiff.align.work import Work
from nndiff.names import strip_wrappers
from nndiff.tensors import TensorRef

ELSEWHERE = "in another container"  # how such pairs say they were found
_SLOTS = ("output", "input")
_BY_NAME = ("name", "prefix")

_Tensors = list[TensorRef]
_Found = tuple[TensorRef, TensorRef, bool]  # two that belong together, and whether that is certain


def pair_in_other_containers(work: Work, renames: Sequence[Rename], guess: str) -> None:
    """Pair what calls of one name return, and were given, in other containers."""
    prefixes = _prefixes(work)
    left = _by_call(work.all_reference, lambda key: _bare(key, prefixes))
    right = _by_call(work.all_candidate, lambda key: _bare(_renamed(key, renames), prefixes))
    for key, ours in left.items():
        theirs = right.get(key, [])
        if _of_one_call(ours) and _of_one_call(theirs):
            _take_back(work, ours, theirs)
            for one, other, certain in _of_calls(work, ours, theirs):
                work.pair(one.name, other.name, f"name, {ELSEWHERE}" + ("" if certain else f", then {guess}"))


def _by_call(tensors: Tensors, known_as: Callable[[str], str]) -> dict[str, _Tensors]:
    """Return the tensors, not the plain values, by their call and slot."""
    found: dict[str, _Tensors] = {}
    for name, tensor in tensors.items():
        slot = tensor.site.slot
        if slot in _SLOTS and tensor.trace.digest:
            found.setdefault(known_as(f"{name.partition(':')[0]}:{slot}"), []).append(tensor)
    return found


def _prefixes(work: Work) -> list[str]:
    told = {match.matched_by for match in work.matches.values() if match.matched_by.startswith("prefix ")}
    return sorted(each.removeprefix("prefix ") for each in told)


def _bare(key: str, prefixes: Iterable[str]) -> str:
    bare = strip_wrappers(key)
    for prefix in prefixes:
        bare = bare.removeprefix(prefix)
    return bare


def _renamed(key: str, renames: Iterable[Rename]) -> str:
    for rule in renames:
        key = rule.apply(key)
    return key


def _of_one_call(tensors: _Tensors) -> bool:
    return len({(tensor.site.module, tensor.site.call) for tensor in tensors}) == 1


def _take_back(work: Work, ours: _Tensors, theirs: _Tensors) -> None:
    """Free pairs of one place and other shapes, where a tensor in another place has the shape.

    Not those of the model itself: in which place it returns what is for all to see.
    """
    places = {tensor.name: tensor for tensor in theirs}
    alone = {kind for kind, many in _kinds(ours).items() if many == _kinds(theirs).get(kind) == 1}
    for one in ours:
        match = work.matches.get(one.name)
        other = places.get(match.candidate) if match and match.matched_by.startswith(_BY_NAME) else None
        if other is None or one.shape == other.shape or not one.site.module:
            continue
        if alone & {_kind(one), _kind(other)}:
            work.unpair(one.name)


def _kinds(tensors: _Tensors) -> Counter[Hashable]:
    return Counter(map(_kind, tensors))


def _kind(tensor: TensorRef) -> Hashable:
    return tensor.shape, tensor.dtype


def _shape(tensor: TensorRef) -> Hashable:
    return tensor.shape


def _of_calls(work: Work, ours: _Tensors, theirs: _Tensors) -> Iterator[_Found]:
    """Yield the free tensors of one call that belong together; the only ones of both sides whatever their shape."""
    left = [tensor for tensor in ours if tensor.name in work.reference]
    right = [tensor for tensor in theirs if tensor.name in work.candidate]
    only = len(ours) == len(theirs) == 1 and ours[0].site.slot == "output"
    if only and left and right:
        yield left[0], right[0], True
    else:
        yield from belonging(left, right)


def belonging(left: Iterable[TensorRef], right: Iterable[TensorRef]) -> Iterator[_Found]:
    """Yield the tensors of one call on both sides that belong together, the surest first."""
    ours, theirs = list(left), list(right)
    for key in (_kind, _shape):
        for kind in dict.fromkeys(map(key, ours)):
            found = _of_one_kind([each for each in ours if key(each) == kind], [t for t in theirs if key(t) == kind])
            for one, other, certain in found:
                ours.remove(one)
                theirs.remove(other)
                yield one, other, certain


def _of_one_kind(left: _Tensors, right: _Tensors) -> list[_Found]:
    """Return those that hold the same, and the rest in their order: a guess where one side has more."""
    found: list[_Found] = []
    for one, other in same_content(left, right):
        found.append((one, other, True))
        left.remove(one)
        right.remove(other)
    certain = len(left) == len(right)
    return [*found, *((one, other, certain) for one, other in zip(left, right, strict=False))]


def same_content(left: Sequence[TensorRef], right: Sequence[TensorRef]) -> list[tuple[TensorRef, TensorRef]]:
    """Return the tensors that are the same on both sides, where only one on each is."""
    ones, others = _only(left), _only(right)
    return [(one, others[digest]) for digest, one in ones.items() if digest in others]


def _only(tensors: Iterable[TensorRef]) -> dict[str, TensorRef]:
    """Return tensors by their digest, those that are there once."""
    found: dict[str, _Tensors] = {}
    for tensor in tensors:
        found.setdefault(tensor.trace.digest or "", []).append(tensor)
    return {digest: each[0] for digest, each in found.items() if digest and len(each) == 1}
