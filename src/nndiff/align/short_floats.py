"""Calls that return nearly the same in bfloat16 and float16, told apart by a few of their elements.

The rounding of these types changes statistics by as much as two layers differ in them: every norm has the same mean
and spread. Elements tell: those of two layers have little to do with each other. Each call belongs to the one it is
nearest to, where that is near, nearest to it in turn, and the next one much farther away. In recordings that keep no
elements, statistics decide: a call may belong to the only one that is near.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nndiff.align.calls import Call, CallLists, group_calls
from nndiff.errors import DamagedError
from nndiff.recording.format.keep_levels import sketch_positions
from nndiff.tensors import TensorRef

_EPS = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
_EPS_OF_LONG = 2.5e-5  # of a longer type beside a short one: four of them are what is near among long ones
_NEAR = 4  # eps, of the size of a tensor: what rounding comes to in some dozen layers
_FARTHER = 2  # times: how much farther away the next one must be
_MOST_COMPARED = 1000  # calls of one shape on a side: each is compared with all of the other side
_READ_ALL = 1024  # elements up to which all are looked at
_THINNED = 16  # of a sketch of more, every so many-th element is looked at: enough to tell layers apart

Numbers = NDArray[np.float64]


def is_short(call: Call) -> bool:
    """Return True if a call returns short floats."""
    return call.outputs[0].dtype.name in _EPS


def group_by_elements(reference: Iterable[Call], candidate: Iterable[Call]) -> Iterator[CallLists]:
    """Yield the calls of both sides that belong together, each with those that return the very same."""
    reference_values = [value for value in _distinct_values(reference) if value.elements is not None]
    candidate_values = [value for value in _distinct_values(candidate) if value.elements is not None]
    if _are_comparable(reference_values, candidate_values):
        distances = _distances_of_elements(reference_values, candidate_values)
        room = _rounding_room(reference_values, candidate_values)
        yield from _chosen_groups(reference_values, candidate_values, distances, room, _FARTHER * distances)


def group_by_likely_statistics(reference: Iterable[Call], candidate: Iterable[Call]) -> Iterator[CallLists]:
    """Yield the calls of both sides that may belong together by their statistics, where elements were not kept."""
    reference_values, candidate_values = _distinct_values(reference), _distinct_values(candidate)
    if all(value.has_elements for value in (*reference_values, *candidate_values)):
        return
    if _are_comparable(reference_values, candidate_values):
        one_by_one = np.stack([value.statistics for value in reference_values])[:, None]
        distances: Numbers = np.abs(one_by_one - np.stack([value.statistics for value in candidate_values])).max(
            axis=-1
        )
        room = _rounding_room(reference_values, candidate_values)
        yield from _chosen_groups(reference_values, candidate_values, distances, room, room)


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
        return _EPS.get(self.tensor.dtype.name, _EPS_OF_LONG)

    @property
    def has_elements(self) -> bool:
        """Return True if any elements were kept."""
        return not self.tensor.missing or self.tensor.trace.sketch is not None

    @cached_property
    def elements(self) -> Numbers | None:
        """Return a few elements, at places that depend on the number of elements alone; None where none were kept."""
        tensor, sketch = self.tensor, self.tensor.trace.sketch
        step = 1 if tensor.count <= _READ_ALL else _THINNED
        try:
            if not tensor.missing and step == 1:
                raw = tensor.read(0, tensor.count)
            elif not tensor.missing:
                raw = tensor.take(sketch_positions(tensor.count)[::step].tolist())
            elif sketch is not None:
                raw = sketch.read(0, sketch.count)[::step]
            else:
                return None
        except DamagedError:  # reported when it is compared, and not if it is left out of that
            return None
        return tensor.dtype.decode(raw).astype(np.float64)

    @cached_property
    def statistics(self) -> Numbers:
        """Return mean, spread and extremes on the scale of the largest element."""
        stats = self.tensor.trace.stats
        assert stats is not None  # only tensors with statistics come here
        numbers: Numbers = np.array([stats.mean, stats.std, stats.min, stats.max]) / stats.abs_max
        return numbers


def _distinct_values(calls: Iterable[Call]) -> list[_Value]:
    groups = group_calls(calls, lambda call: call.outputs[0].trace.digest or call.key)
    return [_Value(group) for group in groups.values()]


def _are_comparable(reference: Sequence[_Value], candidate: Sequence[_Value]) -> bool:
    return min(len(reference), len(candidate)) > 0 and max(len(reference), len(candidate)) <= _MOST_COMPARED


def _rounding_room(reference: Sequence[_Value], candidate: Sequence[_Value]) -> Numbers:
    """Return how far apart each two may be and still be near: the shorter type decides."""
    room: Numbers = _NEAR * np.maximum.outer([value.eps for value in reference], [value.eps for value in candidate])
    return room


def _distances_of_elements(reference: Sequence[_Value], candidate: Sequence[_Value]) -> Numbers:
    """Return how far apart the elements of each two are, beside their size; infinitely where all are zero."""
    rows = np.stack([value.elements for value in reference if value.elements is not None])
    columns = np.stack([value.elements for value in candidate if value.elements is not None])
    row_sizes, column_sizes = np.linalg.norm(rows, axis=1)[:, None], np.linalg.norm(columns, axis=1)[None, :]
    larger: Numbers = np.maximum(row_sizes, column_sizes)
    squares = row_sizes**2 + column_sizes**2 - 2 * rows @ columns.T
    distance: Numbers = np.sqrt(np.maximum(squares, 0.0))
    return np.divide(distance, larger, out=np.full_like(distance, np.inf), where=larger > 0)


def _chosen_groups(
    reference: Sequence[_Value], candidate: Sequence[_Value], distances: Numbers, room: Numbers, next_nearest: Numbers
) -> Iterator[CallLists]:
    """Yield what is near and nearest to each other, where all others are as far away as `next_nearest` or more."""
    chosen: NDArray[np.bool_] = distances <= room
    for axis in (0, 1):
        is_nearest = distances == distances.min(axis=axis, keepdims=True)
        farther = np.where(is_nearest, np.inf, distances).min(axis=axis, keepdims=True)
        chosen &= is_nearest & (is_nearest.sum(axis=axis, keepdims=True) == 1) & (farther >= next_nearest)
    for row, column in zip(*np.nonzero(chosen), strict=True):
        yield reference[row].calls, candidate[column].calls
