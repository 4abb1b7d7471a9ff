"""Quantised: weights rounded to few levels for each group of elements, as numbers again or packed with their scales."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nndiff.relations.along import BLOCK, PEEKED
from nndiff.relations.cast import is_rounded_float
from nndiff.relations.fold import ROUNDINGS
from nndiff.relations.packed import Dequantise, PackedForm
from nndiff.relations.proof import is_readable, read_array
from nndiff.relations.relation import Array, Relation
from nndiff.relations.rounding import FORMATS
from nndiff.tensors import TensorRef
from nndiff.verdict import RelationKind

GROUP_SIZES = (1024, 512, 256, 128, 64, 32, 16)  # in use, beside whole rows
MOST_LEVELS = 256  # of a group: 8 bits
LEVEL_ROUNDINGS = 2.0  # units of rounding by which a level may be off: it is one product
LEAST_STEP = 8.0  # times that: levels nearer to each other are those of the type itself
HALF_STEP = 0.51  # of a step: nearest level, with room for a scale that was itself rounded to 16 bits

# The 16 levels of the 4-bit NormalFloat of QLoRA, by quantiles of a normal distribution.
NORMAL_FLOAT = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)


@dataclass(frozen=True)
class Grid:
    """Say to how many levels the elements of each group were rounded."""

    bits: int
    group_size: int  # elements with one scale; 0: all of the tensor
    is_uniform: bool  # False: levels of a normal distribution (nf4)
    largest_error: float  # in steps


def find_grid(original: TensorRef, rounded: TensorRef) -> Grid | None:
    """Return the grid of one tensor, if every element of the other is at most half a step away; else None."""
    if original.shape != rounded.shape or len(original.shape) < 2:
        return None
    if not (is_rounded_float(original) and is_rounded_float(rounded)):
        return None
    width = rounded.count // rounded.shape[0]
    if width < 2:
        return None  # one element has no steps
    sizes = [width, *(size for size in GROUP_SIZES if width % size == 0 and size < width)]
    for size in sizes:
        grid = measure_grid(original, rounded, size)
        if grid is not None:
            return grid
    return find_normal_grid(original, rounded)


def read_groups(size: int, *tensors: TensorRef) -> Iterator[list[Array]]:
    """Yield the elements of both tensors, a row for each group, the first block small."""
    groups = tensors[0].count // size
    start, stop = 0, max(1, PEEKED // size)
    while start < groups:
        stop = min(stop, groups)
        rows = []
        for tensor in tensors:
            elements = tensor.dtype.decode(tensor.read(start * size, stop * size))
            rows.append(elements.astype(np.float64).reshape(stop - start, size))
        yield rows
        start, stop = stop, stop + max(1, BLOCK // size)


def measure_grid(original: TensorRef, rounded: TensorRef, size: int) -> Grid | None:
    """Return the uniform grid of groups of a size; None if a group has none, or an element is too far from it."""
    unit = 2.0 ** -FORMATS[rounded.dtype.name].digits
    most_levels, largest_error = 1, 0.0
    steps = []
    for elements, levels in read_groups(size, original, rounded):
        if not (np.isfinite(elements).all() and np.isfinite(levels).all()):
            return None
        ordered = np.sort(levels, axis=1)
        largest = np.maximum(np.abs(ordered[:, 0]), np.abs(ordered[:, -1]))
        room = (LEVEL_ROUNDINGS * unit * largest)[:, None]
        gaps = np.diff(ordered, axis=1)
        smallest = np.where(gaps > room, gaps, np.inf).min(axis=1)
        span = ordered[:, -1] - ordered[:, 0]
        # gap by gap, because the smallest is off by a rounding that would add up over many levels
        counts = np.rint(gaps / smallest[:, None]).sum(axis=1)
        if counts.max() >= MOST_LEVELS:
            return None
        has_steps = counts > 0
        if not np.all(np.abs(elements - levels)[~has_steps] <= room[~has_steps]):
            return None  # one level for numbers that are not all that number
        if not has_steps.any():
            continue
        step = (span[has_steps] / counts[has_steps])[:, None]
        if np.any(step < LEAST_STEP * room[has_steps]):
            return None
        numbers = (levels[has_steps] - ordered[has_steps, :1]) / step
        if np.any(np.abs(numbers - np.rint(numbers)) * step > 2 * room[has_steps]):
            return None
        errors = np.abs(elements[has_steps] - levels[has_steps]) / step
        is_end = (numbers < 0.5) | (numbers > counts[has_steps][:, None] - 0.5)
        # the largest of a group may have been cut off: 7 levels above zero, 8 below
        if np.any(errors > np.where(is_end, 1 + HALF_STEP, HALF_STEP) + 2 * room[has_steps] / step):
            return None
        most_levels = max(most_levels, int(counts.max()) + 1)
        largest_error = max(largest_error, float(errors.max()))
        steps.append(step[:, 0])
    if most_levels < 3 or largest_error == 0 or 2 * most_levels > rounded.count:
        return None  # so few elements would lie on any grid
    joined = np.concatenate(steps)
    is_shared = len(joined) > 1 and bool(np.all(np.abs(joined / joined[0] - 1) <= 2 * LEVEL_ROUNDINGS * unit))
    return Grid(math.ceil(math.log2(most_levels)), 0 if is_shared else size, True, largest_error)


def find_normal_grid(original: TensorRef, rounded: TensorRef) -> Grid | None:
    """Return the size of groups whose elements are at the levels of nf4, times the largest of the group; else None."""
    levels = np.array(NORMAL_FLOAT)
    middles = (levels[1:] + levels[:-1]) / 2
    gaps = np.diff(levels)
    # half the way to the next level on either side
    room_below, room_above = np.append(np.inf, gaps / 2), np.append(gaps / 2, np.inf)
    unit = 2.0 ** -FORMATS[rounded.dtype.name].digits
    for size in GROUP_SIZES:
        if rounded.count % size:
            continue
        largest_error = 0.0
        for elements, values in read_groups(size, original, rounded):
            largest = np.abs(values).max(axis=1, keepdims=True)
            if not (np.isfinite(elements).all() and np.isfinite(values).all()) or not largest.all():
                break
            places = np.searchsorted(middles, values / largest)
            if np.any(np.abs(values / largest - levels[places]) > ROUNDINGS * unit):
                break
            off = elements / largest - levels[places]
            room = np.where(off > 0, room_above[places], room_below[places]) * 2 * HALF_STEP
            if np.any(np.abs(off) > room):
                break
            largest_error = max(largest_error, float(np.abs(off).max()))
        else:
            return Grid(4, size, False, largest_error) if largest_error else None
    return None


def prove_packed(
    reference: Sequence[TensorRef],
    candidate: Sequence[TensorRef],
    atol: float,
    rtol: float,
    hints: Sequence[Relation] = (),
) -> Relation | None:
    """Return how packed integers and scales of one side make the weight of the other, each element within half a step.

    Where the weight was dequantised from these very integers, it is the same but for rounding.
    """
    if min(len(reference), len(candidate)) != 1 or max(len(reference), len(candidate)) not in (2, 3, 4):
        return None
    on_reference = len(reference) > 1
    parts, (weight,) = (reference, candidate) if on_reference else (candidate, reference)
    if not all(is_readable(tensor) for tensor in (*parts, weight)) or weight.dtype.name not in FORMATS:
        return None
    arrays = [read_array(tensor) for tensor in parts]
    numbers = read_array(weight).astype(np.float64)
    unit = 2.0 ** -FORMATS[weight.dtype.name].digits
    for operation in list_operations(parts):
        try:
            made, steps = operation.make_weight(arrays)
        except (ValueError, IndexError):
            continue
        if made.shape != numbers.shape or not np.isfinite(made).all():
            continue
        room = HALF_STEP * np.abs(steps) + ROUNDINGS * unit * np.abs(numbers)
        if parts[0].dtype.kind == "float":  # levels of short floats lie as far apart as they are large
            room = room * 2.0 ** (1 - FORMATS[parts[0].dtype.name].digits) * np.maximum(np.abs(made / steps), 1)
        if parts[1].dtype.name in FORMATS:  # scales are often rounded after the integers were found
            room = room + 2.0 ** -FORMATS[parts[1].dtype.name].digits * np.abs(made)
        if made.any() and np.all(np.abs(made - numbers) <= room):
            sides = ((operation,), ()) if on_reference else ((), (operation,))
            return Relation(RelationKind.QUANTISED, *sides)
    return None


def list_operations(parts: Sequence[TensorRef]) -> Iterator[Dequantise]:
    """Yield the ways in which integers of this type are stored."""
    packed = parts[0]
    if packed.dtype.name in ("int8", "uint8") or packed.dtype.name.startswith("float8"):
        for divisor in (1.0, 127.0):
            for offset in (0, 128) if packed.dtype.name == "uint8" else (0,):
                yield Dequantise(PackedForm.PLAIN, 8, offset, divisor)
    elif packed.dtype.name == "int32":
        for bits in (4, 8, 2):
            middle = 1 << (bits - 1)
            has_zeros = len(parts) > 2
            for form in (PackedForm.GPTQ, PackedForm.AWQ, PackedForm.ROWS):
                for offset in (1, 0) if has_zeros else (middle,):  # GPTQ stores zero points less one
                    yield Dequantise(form, bits, offset, 1.0)
