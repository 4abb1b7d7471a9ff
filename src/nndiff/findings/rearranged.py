"""The ways one array may lie in another: its axes cut, put in another order, and put together again.

Both shapes are cut into the same runs of places; whose run is whose is told by what the arrays hold. Along a run
both have the same means, so most of the ways that the shapes allow are never tried, and of the rest a few elements
are looked at before all are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nndiff.tensors import Shape

Array = NDArray[Any]

_BLOCK = 1 << 18  # elements compared at once
_SAMPLED = 128  # elements that are looked at first
_MOST_CUTS = 3  # runs more than the side with more axes has
_MOST_STEPS = 20_000  # runs laid beside each other before the search ends
_LONGEST = 1 << 14  # places along an axis up to which taking means is quicker than looking at elements
_MOST_COMPARED = 16  # ways by which a few elements agree; where so many do, nothing tells which it is


@dataclass(frozen=True)
class Way:
    """Say how the candidate's array becomes the reference's: cut, its axes put in order, put together again."""

    given: Shape
    cut: Shape
    axes: tuple[int, ...]
    wanted: Shape

    @property
    def turned(self) -> bool:
        """Tell whether the order of the elements is another, not the shape alone."""
        return self.axes != tuple(range(len(self.axes)))

    @property
    def how(self) -> str:
        """Return what is to be done, as a person would write it."""
        if not self.turned:
            return "reshape"
        cut = "" if self.cut == self.given else f"reshape to {list(self.cut)}, "
        merged = "" if self._between == self.wanted else f", reshape to {list(self.wanted)}"
        return f"{cut}permute{self.axes}{merged}"

    @property
    def _between(self) -> Shape:
        return tuple(self.cut[axis] for axis in self.axes)

    def laid(self, other: Array) -> Array:
        """Return the candidate's array with its axes in order, before they are put together; nothing is copied."""
        laid: Array = other.reshape(self.cut).transpose(self.axes)
        return laid


def in_order(given: Shape, wanted: Shape) -> Way:
    """Return the way that changes the shape alone."""
    return Way(given, given, tuple(range(len(given))), wanted)


def merges(one: Shape, other: Shape) -> bool:
    """Tell whether one shape is the other with neighbouring axes put together: then no other way comes to mind."""
    fewer, more = sorted((set(accumulate(_without_ones(each), mul)) for each in (one, other)), key=len)
    return fewer <= more and max(fewer, default=1) == max(more, default=1)


@dataclass(frozen=True)
class Sides:
    """Hold two arrays, each in C order, and the tolerance they are compared at."""

    one: Array
    other: Array
    atol: float
    rtol: float

    def agree(self, way: Way) -> bool:
        """Tell whether the arrays agree once the candidate's is rearranged."""
        laid = way.laid(self.other)
        return self.sampled(way) and self.close(self.one.reshape(laid.shape), laid)

    def sampled(self, way: Way) -> bool:
        """Tell whether a few elements agree, wherever they lie."""
        laid = way.laid(self.other)
        random = np.random.default_rng(0)
        places = tuple(random.integers(0, size, _SAMPLED) for size in laid.shape)
        return self._close(self.one.reshape(laid.shape)[places], laid[places])

    def close(self, one: Array, other: Array) -> bool:
        """Tell whether two arrays of one shape agree, block by block."""
        return all(self._close(*both) for both in _blocks(one, other))

    def _close(self, one: Array, other: Array) -> bool:
        return bool(np.allclose(_wide(other), _wide(one), atol=self.atol, rtol=self.rtol, equal_nan=True))

    @cached_property
    def varies(self) -> bool:
        """Tell whether some elements are out of tolerance of others: if none are, all ways look alike."""
        if not self.one.size:
            return False
        low, high = _extremes(self.one)
        if not (np.isfinite(low) and np.isfinite(high)):
            return bool(np.isfinite(self.one).any())  # where in it lies what is not finite tells
        return bool(high - low > 2 * (self.atol + self.rtol * max(abs(low), abs(high))))

    @cached_property
    def centre(self) -> Any:
        """Return the mean of the reference's array."""
        with np.errstate(all="ignore"):
            mean = np.mean(self.one, dtype=np.complex128 if np.iscomplexobj(self.one) else np.float64)
        return mean if np.isfinite(mean) else 0.0


def _wide(array: Array) -> Array:
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def _blocks(one: Array, other: Array) -> Iterator[tuple[Array, Array]]:
    """Yield arrays of one shape in pieces that are small enough to be widened."""
    if one.size <= _BLOCK:
        yield one, other
    elif one.shape[0] == 1:
        yield from _blocks(one[0], other[0])
    else:
        half = one.shape[0] // 2
        yield from _blocks(one[:half], other[:half])
        yield from _blocks(one[half:], other[half:])


def _extremes(array: Array) -> tuple[float, float]:
    numbers = np.abs(array) if np.iscomplexobj(array) else array
    return float(numbers.min()), float(numbers.max())


def rearranged(sides: Sides) -> Way | None:
    """Return a way that makes the candidate's array the reference's, the one with the fewest cuts."""
    if sides.one.size != sides.other.size or sides.one.size < 2 or not sides.varies:
        return None
    with np.errstate(all="ignore"):  # where sums overflow, means tell nothing
        return _found(sides)


def _found(sides: Sides) -> Way | None:
    one, other = _without_ones(sides.one.shape), _without_ones(sides.other.shape)
    means = _Means.of(sides.one.reshape(one), sides), _Means.of(sides.other.reshape(other), sides)
    room = sides.atol + (sides.rtol + 1e-9) * means[0].largest

    def fits(here: Run, there: Run) -> bool:
        if max(one[here.axis], other[there.axis]) > _LONGEST:
            return True
        apart = np.abs(means[0].along(here) - means[1].along(there))
        return not np.any((apart > room) & (apart < np.inf))

    compared = 0
    for joined in _Search(one, other, fits).ways(_MOST_CUTS if sides.one.shape != sides.other.shape else 0):
        way = _way(joined, sides.one.shape, sides.other.shape)
        if way.turned and sides.sampled(way):
            compared += 1
            if sides.agree(way):
                return way
            if compared == _MOST_COMPARED:
                break
    return None


def _without_ones(shape: Shape) -> Shape:
    return tuple(size for size in shape if size > 1)


class Run(NamedTuple):
    """Hold some of the places along an axis: every `stride`-th, `size` of them, then over again."""

    axis: int
    stride: int
    size: int


_Joined = tuple[tuple[Run, Run], ...]  # runs of the reference and of the candidate, the innermost first


@dataclass
class _Means:
    """Hold the means of an array at every place along each axis: of the elements, and of their distance from one."""

    axes: Sequence[Array]  # of two rows each
    largest: float

    def __post_init__(self) -> None:
        self._known: dict[Run, Array] = {}

    @classmethod
    def of(cls, array: Array, sides: Sides) -> _Means:
        """Take the means, in pieces; what is normalised has the same mean everywhere, but not the same spread."""
        found = [np.zeros((2, size), _wide(array[:0]).dtype) for size in array.shape]
        largest, rows = 0.0, max(1, _BLOCK * array.shape[0] // array.size)
        for start in range(0, array.shape[0], rows):
            block = _wide(array[start : start + rows])
            block[~np.isfinite(block)] = 0.0
            largest = max(largest, float(np.abs(block).max()))
            block /= array.size  # before sums can overflow
            for number, each in enumerate((block, np.abs(block - sides.centre / array.size))):
                for axis, means in enumerate(found):
                    where = slice(start, start + rows) if axis == 0 else slice(None)
                    means[number, where] += each.sum(axis=tuple(k for k in range(array.ndim) if k != axis))
        return cls([means * means.shape[1] for means in found], largest)

    def along(self, run: Run) -> Array:
        """Return the means at the places of a run."""
        if run not in self._known:
            means = self.axes[run.axis]
            self._known[run] = means.reshape(2, -1, run.size, run.stride).mean(axis=(1, 3))
        return self._known[run]


class _Search:
    """Find how two shapes can be cut into the same runs, from the inside of the reference's out."""

    def __init__(self, one: Shape, other: Shape, fits: Callable[[Run, Run], bool]) -> None:
        self._one, self._other, self._fits = one, other, fits
        self._places: dict[int, list[Run]] = {}
        self._steps = 0
        for axis in reversed(range(len(other))):
            for stride in _divisors(other[axis]):
                for size in _divisors(other[axis] // stride)[1:]:
                    self._places.setdefault(size, []).append(Run(axis, stride, size))

    def ways(self, cuts: int) -> Iterator[_Joined]:
        """Yield what can be joined, in few runs first."""
        fewest = max(len(self._one), len(self._other))
        for many in range(fewest, fewest + cuts + 1):
            yield from self._joined((), len(self._one) - 1, 1, many)

    def _joined(self, known: _Joined, axis: int, stride: int, left: int) -> Iterator[_Joined]:
        """Yield what is known and `left` runs more; the axis is joined up to the stride, those after it wholly."""
        if axis < 0:
            if not left:
                yield known
            return
        rest = self._one[axis] // stride
        if rest == 1:
            yield from self._joined(known, axis - 1, 1, left)
            return
        if self._unfilled(known) > left or axis + 1 > left:
            return
        for size in reversed(_divisors(rest)[1:]):
            here = Run(axis, stride, size)
            for there in self._places.get(size, ()) if axis + 1 + (size < rest) <= left else ():
                if self._steps >= _MOST_STEPS:
                    return
                self._steps += 1
                if _free(there, known) and not _continues(here, there, known) and self._fits(here, there):
                    yield from self._joined((*known, (here, there)), axis, stride * size, left - 1)

    def _unfilled(self, known: _Joined) -> int:
        """Return how many axes of the candidate need more runs."""
        left = list(self._other)
        for _, there in known:
            left[there.axis] //= there.size
        return sum(size > 1 for size in left)


@lru_cache(maxsize=1024)
def _divisors(number: int) -> list[int]:
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})


def _free(run: Run, known: _Joined) -> bool:
    """Tell whether a run lies wholly inside or outside of each one that is taken on its axis."""
    return all(
        taken.axis != run.axis
        or run.stride % (taken.stride * taken.size) == 0
        or taken.stride % (run.stride * run.size) == 0
        for _, taken in known
    )


def _continues(here: Run, there: Run, known: _Joined) -> bool:
    """Tell whether two runs only go on where the last two end: they are one, and were tried as one."""
    if not known:
        return False
    return all(
        run.axis == last.axis and run.stride == last.stride * last.size
        for run, last in zip((here, there), known[-1], strict=True)
    )


def _way(joined: _Joined, one: Shape, other: Shape) -> Way:
    """Return the way that runs tell; where no axis is cut, as an order of all axes, those of one element too."""
    ours, theirs = (sorted(side, key=lambda run: (run.axis, -run.stride)) for side in zip(*joined, strict=True))
    partner = dict(joined)
    axes = tuple(theirs.index(partner[run]) for run in ours)
    whole = len(ours) == len(_without_ones(one)) == len(_without_ones(other)) and len(one) == len(other)
    if not whole:
        return Way(other, tuple(run.size for run in theirs), axes, one)
    long, short = ([axis for axis, size in enumerate(other) if (size > 1) is many] for many in (True, False))
    turned, ones = iter(long[axis] for axis in axes), iter(short)
    return Way(other, other, tuple(next(turned) if size > 1 else next(ones) for size in one), one)
