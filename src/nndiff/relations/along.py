"""One number for all elements, or one for each place along an axis, by which two tensors are apart: exact to the bit.

Each element of the rounded side leaves an interval for the number. Where the intervals of all elements that share it
have something in common, the number explains every one of them; where they have not, no number does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from nndiff.relations.operations import list_roots
from nndiff.relations.relation import Array, Operation, Relation
from nndiff.relations.rounding import FORMATS, round_numbers
from nndiff.relations.value_operations import Round
from nndiff.tensors import Shape, TensorRef
from nndiff.verdict import RelationKind

BLOCK = 1 << 18  # elements read at once
PEEKED = 1 << 12  # elements of the first block: most tensors that are not related end there
LEAST_EVIDENCE = 40  # bits that must agree beyond those that the numbers were fitted to: chance is below 1e-12

Bound = Callable[[Array, Array, str], "tuple[Array, Array]"]  # elements, values, type of those -> interval
Combine = Callable[[Array, Array], Array]  # elements and numbers -> elements
SizeOf = Callable[[Array], Array]


@dataclass
class Fit:
    """Hold the intervals for the numbers along one axis, or for the one number of all elements."""

    axis: int | None
    low: Array
    high: Array
    smallest: Array  # of the elements on both sides, by place: where all are alike, any number would fit
    largest: Array
    counts: Array

    @classmethod
    def start(cls, axis: int | None, size: int) -> Fit:
        """Return the intervals before any element was seen."""
        sides = (2, size)
        unbounded = np.full(size, np.inf)
        return cls(axis, -unbounded, unbounded, np.full(sides, np.inf), np.full(sides, -np.inf), np.zeros(size, int))

    @property
    def is_possible(self) -> bool:
        """Return True if there is a number for every place."""
        return bool(np.all(self.low <= self.high))

    def is_telling(self, digits: int) -> bool:
        """Return True if so many elements agree that chance is out of the question, and no place fits any number."""
        varies = np.all(self.largest > self.smallest, axis=0) | (self.counts == 0)
        evidence = (int(self.counts.sum()) - len(self.counts)) * digits
        return bool(varies.all()) and evidence >= LEAST_EVIDENCE


@dataclass(frozen=True)
class Numbers:
    """Hold the numbers that were found, and the types that the result is rounded to, in turn, to give the very bits."""

    axis: int | None
    numbers: tuple[float, ...]
    rounded_to: tuple[str, ...] = field(default=())


def find_directed_numbers(
    reference: TensorRef, candidate: TensorRef, bound: Bound, combine: Combine, neutral: float, size_of: SizeOf
) -> tuple[Numbers, bool] | None:
    """Return the numbers that give one side from the other, and whether they are for the reference; None if none are.

    The side of fewer digits is the rounded one. Where both have as many, that way counts that gives the very bits.
    """
    digits = FORMATS[reference.dtype.name].digits, FORMATS[candidate.dtype.name].digits
    directions = []
    if digits[0] >= digits[1]:
        directions.append((reference, candidate, True))
    if digits[0] <= digits[1]:
        directions.append((candidate, reference, False))
    inexact: tuple[Numbers, bool] | None = None
    for source, rounded, on_reference in directions:
        numbers = find_numbers(source, rounded, bound, combine, neutral, size_of)
        if numbers is not None and numbers.rounded_to:
            return numbers, on_reference
        if numbers is not None and inexact is None:
            inexact = numbers, on_reference
    return inexact


def make_relation(kind: RelationKind, operation: Operation, numbers: Numbers, on_reference: bool) -> Relation:
    """Return the relation that applies an operation to one side and rounds the result as it was stored."""
    operations = (operation, *(Round(dtype) for dtype in numbers.rounded_to))
    return Relation(kind, *((operations, ()) if on_reference else ((), operations)))


def find_numbers(
    source: TensorRef, rounded: TensorRef, bound: Bound, combine: Combine, neutral: float, size_of: SizeOf
) -> Numbers | None:
    """Return the numbers that, combined with one tensor and rounded, give the other; None if there are none.

    `size_of` says which elements count as alike for the number: for a factor those of one size, and zeros say nothing.
    """
    fit = fit_numbers(source, rounded, bound, size_of)
    if fit is None or np.all((fit.low <= neutral) & (neutral <= fit.high)):
        return None
    chosen = choose_numbers(fit, neutral, source.shape)
    for numbers in (chosen, to_single(chosen)):
        for rounded_to in list_roundings(rounded.dtype.name):
            if gives_bits(source, rounded, fit.axis, numbers, rounded_to, combine):
                return Numbers(fit.axis, tuple(numbers.tolist()), rounded_to)
    return Numbers(fit.axis, tuple(chosen.tolist()))


def to_single(numbers: Array) -> Array:
    """Return numbers as float32 has them: torch takes the numbers of Python as such."""
    return numbers.astype(np.float32).astype(np.float64)


def list_roundings(dtype: str) -> list[tuple[str, ...]]:
    """Return the types that a result may have been rounded to before it was stored: short ones by way of float32."""
    direct: list[tuple[str, ...]] = [(dtype,)]
    return direct if dtype in ("float64", "float32") else [*direct, ("float32", dtype)]


def fit_numbers(source: TensorRef, rounded: TensorRef, bound: Bound, size_of: SizeOf) -> Fit | None:
    """Return the intervals of one number for all elements, or of one for each place along an axis; None if none fit."""
    fits = [Fit.start(None, 1)]
    if len(source.shape) > 1:
        for axis, size in enumerate(source.shape):
            if 1 < size < source.count:
                fits.append(Fit.start(axis, size))
    for rows, source_block, rounded_block in read_parting_first(source, rounded):
        with np.errstate(all="ignore"):
            low, high = bound(source_block, rounded_block, rounded.dtype.name)
            sizes = size_of(source_block), size_of(rounded_block)
        for fit in fits:
            narrow_fit(fit, source.shape, rows, (low, high), sizes)
        fits = [fit for fit in fits if fit.is_possible]
        if not fits:
            return None
    digits = FORMATS[rounded.dtype.name].digits
    return next((fit for fit in fits if fit.is_telling(digits)), None)


def narrow_fit(fit: Fit, shape: Shape, rows: Array, bounds: tuple[Array, Array], sizes: tuple[Array, Array]) -> None:
    """Take the elements of some rows into account."""
    places = find_places(rows, shape, fit.axis)
    tells = ~np.isnan(sizes[0]) & ~np.isnan(sizes[1])
    np.maximum.at(fit.low, places, reduce_rows(np.maximum, bounds[0], fit.axis, shape))
    np.minimum.at(fit.high, places, reduce_rows(np.minimum, bounds[1], fit.axis, shape))
    np.add.at(fit.counts, places, reduce_rows(np.add, tells.astype(int), fit.axis, shape))
    for side, size in enumerate(sizes):
        smallest, largest = np.where(tells, size, np.inf), np.where(tells, size, -np.inf)
        np.minimum.at(fit.smallest[side], places, reduce_rows(np.minimum, smallest, fit.axis, shape))
        np.maximum.at(fit.largest[side], places, reduce_rows(np.maximum, largest, fit.axis, shape))


def reduce_rows(reduce: np.ufunc, elements: Array, axis: int | None, shape: Shape) -> Array:
    """Return what elements of rows come to at each of the places that `find_places` gives."""
    if axis is None:
        return np.array([reduce.reduce(elements, axis=None)])
    return np.asarray(reduce.reduce(elements, axis=0 if axis == len(shape) - 1 else 1))


def find_places(rows: Array, shape: Shape, axis: int | None) -> Array:
    """Return at which place along an axis each row of the last axis is; for the last axis itself, all its places.

    Where one number is for all elements there is one place.
    """
    if axis is None:
        return np.zeros(1, int)
    if axis == len(shape) - 1:
        return np.arange(shape[-1])
    return rows // math.prod(shape[axis + 1 : -1]) % shape[axis]


def read_parting_first(ours: TensorRef, theirs: TensorRef) -> Iterator[tuple[Array, ...]]:
    """Yield the row blocks of two tensors, the first in which they differ before all others; nothing if they are equal.

    Nearly every wrong way to make one of the other ends at what differs, however much is equal.
    """
    parting = None
    for number, (rows, our_block, their_block) in enumerate(read_row_blocks(ours, theirs)):
        if not np.array_equal(our_block, their_block, equal_nan=True):
            parting = number
            yield rows, our_block, their_block
            break
    if parting is None:
        return
    for number, rows_and_block in enumerate(read_row_blocks(ours, theirs)):
        if number != parting:
            yield rows_and_block


def read_row_blocks(*tensors: TensorRef) -> Iterator[tuple[Array, ...]]:
    """Yield the numbers of rows along the last axis and their elements in each tensor, the first block small.

    A tensor of one axis has rows of one element.
    """
    shape = tensors[0].shape
    length = shape[-1] if len(shape) > 1 else 1
    total = math.prod(shape) // length
    start, stop = 0, max(1, PEEKED // length)
    while start < total:
        stop = min(stop, total)
        blocks = []
        for tensor in tensors:
            elements = tensor.dtype.decode(tensor.read(start * length, stop * length))
            blocks.append(elements.reshape(stop - start, length))
        yield np.arange(start, stop), *blocks
        start, stop = stop, stop + max(1, BLOCK // length)


def choose_numbers(fit: Fit, neutral: float, shape: Shape) -> Array:
    """Return numbers of the intervals: where one is for all, the plainest; else the neutral one, or one of float32."""
    if fit.axis is None:
        return np.array([choose_plain_number(float(fit.low[0]), float(fit.high[0]), shape)])
    is_bounded = np.isfinite(fit.low) & np.isfinite(fit.high)
    numbers = np.full(len(fit.low), neutral)
    numbers[is_bounded] = (fit.low[is_bounded] + fit.high[is_bounded]) / 2
    for choice in (to_single(numbers), -neutral, neutral):
        numbers = np.where((fit.low <= choice) & (choice <= fit.high), choice, numbers)
    return numbers


def choose_plain_number(low: float, high: float, shape: Shape) -> float:
    """Return the number of an interval that a person may have written: few digits, or the root of a size."""
    middle = (low + high) / 2
    plain = [float(f"{middle:.{digits}g}") for digits in range(1, 5)]
    for square in list_divisors(shape):
        plain += [math.copysign(root, middle) for root in list_roots(square)]
    for number in (*plain, middle):
        for stored in (number, float(np.float32(number))):
            if low <= stored <= high:
                return stored
    return middle


def list_divisors(shape: Shape) -> list[int]:
    """Return what the sizes of a shape can be divided by: the size of a head divides that of a layer."""
    divisors: set[int] = set()
    for size in set(shape):
        for divisor in range(1, math.isqrt(size) + 1):
            if size % divisor == 0:
                divisors.update((divisor, size // divisor))
    return sorted(divisors)


def gives_bits(
    source: TensorRef,
    rounded: TensorRef,
    axis: int | None,
    numbers: Array,
    rounded_to: Sequence[str],
    combine: Combine,
) -> bool:
    """Return True if every element combined with its number, and rounded, is the other side's element to the bit."""
    for rows, source_block, rounded_block in read_row_blocks(source, rounded):
        places = find_places(rows, source.shape, axis)
        is_last = axis is not None and axis == len(source.shape) - 1
        with np.errstate(all="ignore"):
            values = combine(source_block.astype(np.float64), numbers[places] if is_last else numbers[places][:, None])
            for dtype in rounded_to:
                values = round_numbers(values, dtype)
        if not np.array_equal(values, rounded_block, equal_nan=True):
            return False
    return True
