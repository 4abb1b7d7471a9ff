"""Calls that return nearly the same in short floats, bfloat16 and float16, told apart by a few of their elements.

The rounding of these types changes statistics by as much as two layers differ in them: every norm has the same mean
and spread. Elements tell: those of two layers have little to do with each other. Each call belongs to the one it is
nearest to, where that is near, nearest to it in turn, and the next one much farther away. Of recordings that keep no
elements the statistics make a guess: a call may belong to the only one that is near.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nndiff.align.calls import Call
from nndiff.errors import DamagedError
from nndiff.recording.format.keep_levels import sketch_positions
from nndiff.tensors import TensorRef

_EPS = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
_LONG = 2.5e-5  # of a longer type beside a short one: four of them are what is near among long ones
_NEAR = 4  # eps, of the size of a tensor: what rounding comes to in some dozen layers
_FARTHER = 2  # times: how much farther away the next one must be
_MOST = 1000  # calls of one shape on a side that are compared with all of the other
_WHOLE = 1024  # elements up to which all are looked at
_THINNED = 16  # of a sketch of more, every so many-th element is looked at

Numbers = NDArray[np.float64]
Group = tuple[list[Call], list[Call]]


def is_short(call: Call) -> bool:
    """Tell whether a call returns short floats."""
    return call.outputs[0].dtype.name in _EPS


def nearest(left: Iterable[Call], right: Iterable[Call]) -> Iterator[Group]:
    """Yield the calls of both sides that belong together, each with those that return the very same."""
    ours, theirs = ([each for each in _values(side) if each.elements is not None] for side in (left, right))
    if _comparable(ours, theirs):
        apart = _elements_apart(ours, theirs)
        yield from _chosen(ours, theirs, _mutual(apart, _room(ours, theirs), _FARTHER * apart))


def likeliest(left: Iterable[Call], right: Iterable[Call]) -> Iterator[Group]:
    """Yield the calls of both sides that may belong together by their statistics, where elements are not to be had."""
    ours, theirs = _values(left), _values(right)
    if _comparable(ours, theirs) and not all(each.kept for each in (*ours, *theirs)):
        room = _room(ours, theirs)
        yield from _chosen(ours, theirs, _mutual(_stats_apart(ours, theirs), room, room))


@dataclass(frozen=True)
class _Value:
    """Hold what one or several calls return."""

    calls: list[Call]

    @property
    def tensor(self) -> TensorRef:
        """Return the tensor."""
        return self.calls[0].outputs[0]

    @property
    def eps(self) -> float:
        """Return what rounding is in its type."""
        return _EPS.get(self.tensor.dtype.name, _LONG)

    @property
    def kept(self) -> bool:
        """Tell whether any elements were kept."""
        return not self.tensor.missing or self.tensor.trace.sketch is not None

    @cached_property
    def elements(self) -> Numbers | None:
        """Return a few elements, at places that depend on the number of elements alone; None where none were kept."""
        try:
            return _elements(self.tensor)
        except DamagedError:  # told when it is compared, and not if it is left out of that
            return None

    @cached_property
    def stats(self) -> Numbers:
        """Return mean, spread and extremes on the scale of the largest element."""
        stats = self.tensor.trace.stats
        assert stats is not None  # only tensors with statistics come here
        found: Numbers = np.array([stats.mean, stats.std, stats.min, stats.max]) / stats.abs_max
        return found


def _values(calls: Iterable[Call]) -> list[_Value]:
    found: dict[Hashable, _Value] = {}
    for call in calls:
        digest = call.outputs[0].trace.digest or call.key
        found.setdefault(digest, _Value([])).calls.append(call)
    return list(found.values())


def _comparable(ours: Sequence[_Value], theirs: Sequence[_Value]) -> bool:
    return min(len(ours), len(theirs)) > 0 and max(len(ours), len(theirs)) <= _MOST


def _room(ours: Sequence[_Value], theirs: Sequence[_Value]) -> Numbers:
    """Return how far apart each two may be and still be near: the shorter type decides."""
    room: Numbers = _NEAR * np.maximum.outer([each.eps for each in ours], [each.eps for each in theirs])
    return room


def _chosen(ours: Sequence[_Value], theirs: Sequence[_Value], chosen: NDArray[np.bool_]) -> Iterator[Group]:
    for row, column in zip(*np.nonzero(chosen), strict=True):
        yield ours[row].calls, theirs[column].calls


def _elements(tensor: TensorRef) -> Numbers | None:
    sketch = tensor.trace.sketch
    step = 1 if tensor.count <= _WHOLE else _THINNED
    if not tensor.missing:
        places = sketch_positions(tensor.count)[::step]
        raw = tensor.read(0, tensor.count) if step == 1 else tensor.take(places.tolist())
    elif isinstance(sketch, TensorRef):
        raw = sketch.read(0, sketch.count)[::step]
    else:
        return None
    return tensor.dtype.decode(raw).astype(np.float64)


def _elements_apart(ours: Sequence[_Value], theirs: Sequence[_Value]) -> Numbers:
    """Return how far apart the elements of each two are, beside their size; far where all are zero."""
    one, other = (np.stack([each.elements for each in side if each.elements is not None]) for side in (ours, theirs))
    sizes = np.linalg.norm(one, axis=1)[:, None], np.linalg.norm(other, axis=1)[None, :]
    larger: Numbers = np.maximum(*sizes)
    squares = sizes[0] ** 2 + sizes[1] ** 2 - 2 * one @ other.T
    distance: Numbers = np.sqrt(np.maximum(squares, 0.0))
    return np.divide(distance, larger, out=np.full_like(distance, np.inf), where=larger > 0)


def _stats_apart(ours: Sequence[_Value], theirs: Sequence[_Value]) -> Numbers:
    one, other = (np.stack([each.stats for each in side]) for side in (ours, theirs))
    found: Numbers = np.abs(one[:, None] - other[None]).max(axis=-1)
    return found


def _mutual(apart: Numbers, room: Numbers, next_one: Numbers) -> NDArray[np.bool_]:
    """Tell which are near, nearest to each other, and alone in that: all others as far away as `next_one` or more."""
    found: NDArray[np.bool_] = apart <= room
    for axis in (0, 1):
        best = apart == apart.min(axis=axis, keepdims=True)
        others = np.where(best, np.inf, apart).min(axis=axis, keepdims=True)
        found &= best & (best.sum(axis=axis, keepdims=True) == 1) & (others >= next_one)
    return found
