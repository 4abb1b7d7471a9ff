"""Buffers that are computed, not trained: positions, masks, rotary frequencies, sine tables; and what they tell."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nndiff.relations.along import LEAST_EVIDENCE, choose_plain_number
from nndiff.relations.operations import MASKED_BELOW
from nndiff.relations.relation import Array
from nndiff.relations.rounding import FORMATS
from nndiff.tensors import TensorRef

LARGEST_BUFFER = 1 << 24  # elements of a buffer that are read: masks of 4,096 x 4,096
FEWEST_STEPS = 4  # equal steps in a row: fewer occur by chance, or by design, in a small weight
ROUNDINGS = 4  # units of rounding by which a power may be off: frequencies are computed in float32
TABLE_ERROR = 1e-3  # of a sine at a large angle in float32: 2,048 radians have lost 11 of 24 digits


def is_derived(tensor: TensorRef) -> bool:
    """Return True if the elements of a tensor of a file follow from its shape, so that they cannot be a weight.

    Values decide, with one exception: the counter of batch norms, whose name torch itself gives.
    """
    if tensor.missing or not 0 < tensor.count <= LARGEST_BUFFER or tensor.dtype.kind not in ("int", "bool", "float"):
        return False
    is_float = tensor.dtype.kind == "float"
    if tensor.count == 1:
        if is_float:
            return float(tensor.numpy().reshape(-1)[0]) <= MASKED_BELOW  # the value of masked places
        return tensor.name.rpartition(".")[2] == "num_batches_tracked" or not tensor.numpy().any()
    numbers = tensor.numpy().astype(np.float64)
    if not np.isfinite(numbers).all():
        return is_triangular(numbers)
    rows = numbers.reshape(-1, numbers.shape[-1])
    if not is_float and not rows.any():
        return tensor.dtype.kind == "int"  # token types
    if np.all(rows == rows[0]) and is_stepped(rows[0]):
        return True
    if not is_float:
        return is_triangular(numbers)
    return is_triangular(numbers) or read_frequencies(tensor) is not None or is_sine_table(rows)


def is_stepped(row: Array) -> bool:
    """Return True if numbers go up or down by one whole number: positions."""
    steps = np.diff(row)
    return len(steps) >= FEWEST_STEPS and bool(np.all(steps == steps[0])) and steps[0] != 0 and steps[0].is_integer()


def is_triangular(numbers: Array) -> bool:
    """Return True if square matrices hold one number up to the diagonal and another one beyond it."""
    if numbers.ndim < 2 or numbers.shape[-1] != numbers.shape[-2] or numbers.shape[-1] < FEWEST_STEPS:
        return False
    masks = numbers.reshape(-1, *numbers.shape[-2:])
    lower = np.tril(np.ones(masks.shape[1:], bool))
    inside, outside = masks[0][lower][0], masks[0][~lower][0]
    return inside != outside and bool(np.all(masks == np.where(lower, inside, outside)))


def is_sine_table(rows: Array) -> bool:
    """Return True if every column is a sine of the position, and not all of them are constant.

    Of three sines at equal steps, the outer two add up to a multiple of the middle one, the same at every place.
    """
    if len(rows) < 2 * FEWEST_STEPS or np.abs(rows).max() > 1 + TABLE_ERROR:
        return False
    middle, outer = rows[1:-1], rows[2:] + rows[:-2]
    squares = np.sum(middle * middle, axis=0)
    if not squares.all():
        return False
    factors = np.sum(outer * middle, axis=0) / squares  # twice the cosine of the step
    if np.any(np.abs(factors) > 2 + TABLE_ERROR) or np.any(np.abs(outer - factors * middle) > TABLE_ERROR):
        return False
    # a sine is as large as one somewhere, or the table ends before: cosines begin with it, sines with zero
    begins = np.minimum(np.abs(rows[0]), np.abs(rows[0] - 1))
    return bool(np.all(begins <= TABLE_ERROR)) and bool(np.ptp(rows, axis=0).max() > FEWEST_STEPS * TABLE_ERROR)


@dataclass(frozen=True)
class Frequencies:
    """Hold what rotary frequencies were computed from: theta ** (-i / n) / factor."""

    theta: float
    factor: float


def read_frequencies(tensor: TensorRef) -> Frequencies | None:
    """Return the base and the scaling of geometric frequencies; None if the elements are none."""
    if tensor.dtype.name not in FORMATS or not 3 <= tensor.count <= LARGEST_BUFFER or tensor.missing:
        return None
    rows = tensor.numpy().astype(np.float64).reshape(-1, tensor.shape[-1])
    row, digits = rows[0], FORMATS[tensor.dtype.name].digits
    count = len(row)
    if (count - 2) * digits < LEAST_EVIDENCE or not np.all(rows == row) or not np.all(np.diff(row) < 0) or row[-1] <= 0:
        return None
    error = ROUNDINGS * 2.0**-digits
    theta = (row[0] / row[-1]) ** (count / (count - 1))
    theta = choose_plain_number(theta * (1 - 2 * error), theta * (1 + 2 * error), ())
    factor = choose_plain_number((1 - error) / row[0], (1 + error) / row[0], ())
    made = theta ** (-np.arange(count) / count) / factor
    # a base that is a little off shows most in the last element
    if not np.all(np.abs(made / row - 1) <= ROUNDINGS * error):
        return None
    return Frequencies(theta, factor)


@dataclass(frozen=True)
class FrequencyChange:
    """Say how the rotary frequencies of two sides differ."""

    reference: Frequencies | None
    candidate: Frequencies | None
    first_ratio: float  # of the candidate's frequencies to the reference's: the highest
    last_ratio: float  # and the lowest


def compare_frequencies(reference: TensorRef, candidate: TensorRef) -> FrequencyChange | None:
    """Return how two tensors of frequencies differ; None if neither was computed from a base, or they do not differ."""
    if reference.shape != candidate.shape:
        return None
    sides = read_frequencies(reference), read_frequencies(candidate)
    if sides[0] == sides[1]:
        return None
    firsts, lasts = [], []
    for tensor in (reference, candidate):
        row = tensor.numpy().reshape(-1, tensor.shape[-1])[0]
        firsts.append(float(row[0]))
        lasts.append(float(row[-1]))
    ratios = [divide(firsts[1], firsts[0]), divide(lasts[1], lasts[0])]
    if None in sides and not is_piecewise_scaled(reference, candidate):
        return None
    return FrequencyChange(*sides, *ratios)


def divide(number: float, divisor: float) -> float:
    """Return a quotient; NaN where there is none."""
    return number / divisor if divisor else math.nan


def is_piecewise_scaled(reference: TensorRef, candidate: TensorRef) -> bool:
    """Return True if one side slows down the low frequencies more and more, as scaled positions do (llama3, yarn)."""
    rows = []
    for tensor in (reference, candidate):
        rows.append(tensor.numpy().astype(np.float64).reshape(-1, tensor.shape[-1])[0])
    if not all(np.isfinite(row).all() and np.all(row > 0) for row in rows):
        return False
    ratios = rows[1] / rows[0]
    error = ROUNDINGS * 2.0 ** -min(FORMATS[tensor.dtype.name].digits for tensor in (reference, candidate))
    steps = np.diff(ratios)
    one_way = np.all(steps <= error * ratios.max()) or np.all(steps >= -error * ratios.max())
    return bool(one_way) and abs(ratios[0] - 1) <= error and abs(ratios[-1] - 1) > error
