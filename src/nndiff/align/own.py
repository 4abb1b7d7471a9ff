"""What a module holds itself under another name than its partner does: `weight` here, `scale` there.

Inside two modules that belong together such tensors are paired by what they hold, by a shape that no other has,
and where several have one shape by their statistics. Every such pair says so.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import product

from nndiff.align.work import Work
from nndiff.tensors import TensorRef

_KINDS = (("param", "param_grad"), ("buffer", "buffer_before"))
_MOST = 64  # tensors of one shape in one module that are told apart by their statistics
_MADE_OF = re.compile(r"(.+)_(?:g|v|orig)")  # what weight norm and its kind make of a parameter

_Held = dict[str, TensorRef]  # by slot: a parameter and its gradient
_Names = dict[str, _Held]  # by the name in the module
_Found = tuple[str, str, str]  # a name of the reference, one of the candidate, and what tells


def pair_own(work: Work, modules: Mapping[str, str], doubtful: Container[str], guess: str) -> None:
    """Pair what is left in modules that are paired; of `doubtful` ones the pairs say that their module is a guess."""
    for kinds in _KINDS:
        left, right = _by_module(work, kinds, candidate=False), _by_module(work, kinds, candidate=True)
        for module, names in left.items():
            others = right.get(modules.get(module, "?"), {}) if module in modules else {}
            how = f"its module by {guess}" if module in doubtful else "its module"
            for one, other, told in _matched(names, others):
                for slot in names[one].keys() & others[other].keys():
                    work.pair(names[one][slot].name, others[other][slot].name, f"{how}, its name by {told}")


def _by_module(work: Work, kinds: Container[str], candidate: bool) -> dict[str, _Names]:
    found: dict[str, _Names] = {}
    for name in work.free(candidate):
        tensor = work.tensors(candidate)[name]
        if tensor.site.slot in kinds:
            held = found.setdefault(tensor.site.module, {}).setdefault(tensor.site.tensor, {})
            held[tensor.site.slot] = tensor
    return found


def _matched(left: _Names, right: _Names) -> Iterator[_Found]:
    """Yield the names that belong together, the surest first; none of the rest where one side has more of them."""
    left, right = dict(left), dict(right)
    found = list(_by_content(left, right))
    yield from _taken(found, left, right)
    if len(left) != len(right):
        return
    for shape in {_shape(held) for held in left.values()}:
        ours, theirs = (sorted(name for name in side if _shape(side[name]) == shape) for side in (left, right))
        if len(ours) == len(theirs) <= _MOST:
            yield from _taken(list(_of_one_shape(ours, theirs, left, right)), left, right)


def _taken(found: Iterable[_Found], left: _Names, right: _Names) -> Iterator[_Found]:
    for one, other, told in found:
        if left[one].keys() & right[other].keys():
            yield one, other, told
        del left[one], right[other]


def _by_content(left: _Names, right: _Names) -> Iterator[_Found]:
    """Yield the names whose tensors are the same bit for bit, where only one on each side is."""
    ones, others = _alone(left), _alone(right)
    found: dict[str, str] = {}
    for key, one in ones.items():
        other = others.get(key)
        if one and other and one not in found and other not in found.values() and not _made_of(one, other):
            found[one] = other
            yield one, other, "content"


def _alone(names: _Names) -> dict[tuple[str, str], str]:
    """Return names by slot and digest; nothing where two share them, or where one element is all there is."""
    found: dict[tuple[str, str], str] = {}
    for name, held in names.items():
        for slot, tensor in held.items():
            digest = tensor.trace.digest
            if digest and tensor.count > 1:
                found[slot, digest] = "" if (slot, digest) in found else name
    return found


def _shape(held: _Held) -> tuple[int, ...]:
    return next(iter(held.values())).shape


def _of_one_shape(ours: list[str], theirs: list[str], left: _Names, right: _Names) -> Iterator[_Found]:
    if len(ours) == 1:
        (one,), (other,) = ours, theirs
        if not _made_of(one, other):
            yield one, other, "shape"
        return
    apart = {(one, other): _apart(left[one], right[other]) for one, other in product(ours, theirs)}
    if any(distance is None for distance in apart.values()):
        return
    free = set(ours), set(theirs)
    for one, other in sorted(apart, key=lambda both: (apart[both] or 0.0, both)):
        if one in free[0] and other in free[1]:
            free[0].remove(one)
            free[1].remove(other)
            yield one, other, "shape and statistics"


def _made_of(one: str, other: str) -> bool:
    stems = [found[1] if (found := _MADE_OF.fullmatch(name)) else name for name in (one, other)]
    return stems[0] == stems[1]


def _apart(one: _Held, other: _Held) -> float | None:
    """Return how far apart the statistics of two are; None where nobody took any."""
    distances = []
    for slot in one.keys() & other.keys():
        here, there = one[slot].trace.stats, other[slot].trace.stats
        if not (here and there):
            return None
        scale = max(here.abs_max, there.abs_max) or 1.0
        distances += [abs(getattr(here, what) - getattr(there, what)) / scale for what in ("mean", "std", "min", "max")]
    return sum(distances) if distances else None
