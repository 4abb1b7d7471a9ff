"""The orders of axes by which one array may become the other: axes split into runs, permuted, merged again.

Both shapes are cut into the same runs of places, and each run of the reference is joined to one of the candidate. Along
two runs that belong together both arrays have the same means, so most of the ways that the shapes allow are never
tried on elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nndiff.relations.operations import Permute, Reshape, widen
from nndiff.relations.relation import Array, Operation
from nndiff.tensors import Shape

MOST_CUTS = 3  # runs beyond the axes of the longer shape: patches of a film need three
MOST_STEPS = 20_000  # pairs of runs tried before the search ends: half a second
LONGEST_AXIS = 1 << 14  # places along an axis up to which taking means is quicker than looking at elements
MEANS_ROUNDING = 1e-9  # relative error of a mean in float64, with room for long sums
BLOCK = 1 << 18  # elements widened to float64 at once


class Run(NamedTuple):
    """Hold some of the places along an axis: every `stride`-th, `size` of them, then over again."""

    axis: int
    stride: int
    size: int


Joined = tuple[tuple[Run, Run], ...]  # (run of the reference, run of the candidate), the innermost first


class AxisMeans:
    """Hold the mean at every place along each axis: of the elements, and of their distance from the overall mean.

    Normalised tensors have the same mean everywhere, but not the same spread.
    """

    def __init__(self, array: Array, centre: Any) -> None:
        wide = np.complex128 if np.iscomplexobj(array) else np.float64
        sums = [np.zeros((2, size), wide) for size in array.shape]
        self.largest = 0.0
        rows = max(1, BLOCK * array.shape[0] // array.size)
        for start in range(0, array.shape[0], rows):
            block = widen(array[start : start + rows])
            block[~np.isfinite(block)] = 0.0
            self.largest = max(self.largest, float(np.abs(block).max()))
            block /= array.size  # before sums can overflow
            for number, numbers in enumerate((block, np.abs(block - centre / array.size))):
                for axis, axis_sums in enumerate(sums):
                    window = slice(start, start + rows) if axis == 0 else slice(None)
                    other_axes = tuple(number for number in range(array.ndim) if number != axis)
                    axis_sums[number, window] += numbers.sum(axis=other_axes)
        self._means: list[NDArray[Any]] = [axis_sums * axis_sums.shape[1] for axis_sums in sums]
        self._of_runs: dict[Run, NDArray[Any]] = {}

    def along(self, run: Run) -> NDArray[Any]:
        """Return the means at the places of a run."""
        if run not in self._of_runs:
            means = self._means[run.axis]
            self._of_runs[run] = means.reshape(2, -1, run.size, run.stride).mean(axis=(1, 3))
        return self._of_runs[run]


@dataclass
class AxisSearch:
    """Find how two arrays without axes of one element can be cut into the same runs, from the inside out."""

    reference: Array
    candidate: Array
    atol: float
    rtol: float

    def __post_init__(self) -> None:
        self._steps = 0
        self._cuts_axes = True
        self._candidate_runs: dict[int, list[Run]] = {}  # by size
        for axis in reversed(range(self.candidate.ndim)):
            length = self.candidate.shape[axis]
            for stride in divisors(length):
                for size in divisors(length // stride)[1:]:
                    self._candidate_runs.setdefault(size, []).append(Run(axis, stride, size))

    @cached_property
    def _means(self) -> tuple[AxisMeans, AxisMeans]:
        """Return the means of both arrays."""
        with np.errstate(all="ignore"):  # where sums overflow, means tell nothing
            centre = np.mean(self.reference, dtype=widen(self.reference[:0]).dtype)
            centre = centre if np.isfinite(centre) else 0.0
            return AxisMeans(self.reference, centre), AxisMeans(self.candidate, centre)

    def ways(self, cuts: int) -> Iterator[Joined]:
        """Yield the ways to join all runs, those with the fewest runs first."""
        fewest = max(self.reference.ndim, self.candidate.ndim)
        for count in range(fewest, fewest + cuts + 1):
            self._cuts_axes = count > min(self.reference.ndim, self.candidate.ndim)
            yield from self._extend((), self.reference.ndim - 1, 1, count)

    def _extend(self, joined: Joined, axis: int, stride: int, remaining: int) -> Iterator[Joined]:
        """Yield what is joined with `remaining` runs more.

        Of the reference the axes behind `axis` are joined wholly, `axis` itself up to the stride.
        """
        if axis < 0:
            if not remaining:
                yield joined
            return
        length = self.reference.shape[axis] // stride
        if length == 1:
            yield from self._extend(joined, axis - 1, 1, remaining)
            return
        if self._count_unfilled(joined) > remaining or axis + 1 > remaining:
            return
        for size in reversed(divisors(length)[1:]):
            if axis + 1 + (size < length) > remaining:
                continue
            reference_run = Run(axis, stride, size)
            for candidate_run in self._candidate_runs.get(size, ()):
                if self._steps >= MOST_STEPS:
                    return
                self._steps += 1
                pair = reference_run, candidate_run
                if is_free(candidate_run, joined) and not continues(pair, joined) and self._may_belong(*pair):
                    yield from self._extend((*joined, pair), axis, stride * size, remaining - 1)

    def _count_unfilled(self, joined: Joined) -> int:
        """Return how many axes of the candidate need more runs."""
        lengths = list(self.candidate.shape)
        for _, run in joined:
            lengths[run.axis] //= run.size
        return sum(length > 1 for length in lengths)

    def _may_belong(self, reference_run: Run, candidate_run: Run) -> bool:
        """Return False if the means along two runs prove that they are not the same places.

        Of whole axes there are so few orders that means of all elements would take longer than they save.
        """
        if not self._cuts_axes:
            return True
        if max(self.reference.shape[reference_run.axis], self.candidate.shape[candidate_run.axis]) > LONGEST_AXIS:
            return True
        with np.errstate(all="ignore"):
            reference_means, candidate_means = self._means
            gap = np.abs(reference_means.along(reference_run) - candidate_means.along(candidate_run))
        room = self.atol + (self.rtol + MEANS_ROUNDING) * reference_means.largest
        return not np.any((gap > room) & (gap < np.inf))


def is_free(run: Run, joined: Joined) -> bool:
    """Return True if a run of the candidate lies wholly inside or outside of each one taken on its axis."""
    for _, taken in joined:
        is_outside = run.stride % (taken.stride * taken.size) == 0
        is_inside = taken.stride % (run.stride * run.size) == 0
        if taken.axis == run.axis and not is_outside and not is_inside:
            return False
    return True


def continues(pair: tuple[Run, Run], joined: Joined) -> bool:
    """Return True if two runs only go on where the last two end: they are one run, and were tried as one."""
    if not joined:
        return False
    for run, last in zip(pair, joined[-1], strict=True):
        if run.axis != last.axis or run.stride != last.stride * last.size:
            return False
    return True


@lru_cache(maxsize=1024)
def divisors(number: int) -> list[int]:
    """Return the divisors of a number, the smallest first."""
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def drop_ones(shape: Shape) -> Shape:
    """Return a shape without its axes of one element."""
    return tuple(size for size in shape if size > 1)


def build_operations(joined: Joined, reference: Shape, candidate: Shape) -> tuple[Operation, ...]:
    """Return the operations that bring the candidate into the reference's shape."""

    def place_of(run: Run) -> tuple[int, int]:
        return run.axis, -run.stride

    reference_runs = sorted((reference_run for reference_run, _ in joined), key=place_of)
    candidate_runs = sorted((candidate_run for _, candidate_run in joined), key=place_of)
    partner = dict(joined)
    axes = tuple(candidate_runs.index(partner[run]) for run in reference_runs)
    uncut = len(joined) == len(drop_ones(reference)) == len(drop_ones(candidate))
    if uncut and len(reference) == len(candidate):
        # no axis is cut: say it as an order of all axes, those of one element too
        long_axes = [axis for axis, size in enumerate(candidate) if size > 1]
        short_axes = iter(axis for axis, size in enumerate(candidate) if size == 1)
        permuted = iter(long_axes[axis] for axis in axes)
        order = tuple(next(permuted) if size > 1 else next(short_axes) for size in reference)
        return (Permute(order),)
    operations: list[Operation] = []
    cut = tuple(run.size for run in candidate_runs)
    if cut != candidate:
        operations.append(Reshape(cut))
    operations.append(Permute(axes))
    if tuple(cut[axis] for axis in axes) != reference:
        operations.append(Reshape(reference))
    return tuple(operations)
