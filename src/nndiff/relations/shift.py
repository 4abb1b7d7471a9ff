"""Shift: one side is the other plus a number: one for all (zero-centred norms), or one for each place along an axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nndiff.relations.along import find_directed_numbers, make_relation
from nndiff.relations.cast import is_rounded_float
from nndiff.relations.proof import confirm_hint
from nndiff.relations.relation import Array, Relation
from nndiff.relations.rounding import bound_preimages
from nndiff.relations.value_operations import Shift, ShiftAlong
from nndiff.tensors import TensorRef
from nndiff.verdict import RelationKind


def prove(
    reference: Sequence[TensorRef],
    candidate: Sequence[TensorRef],
    atol: float,
    rtol: float,
    hints: Sequence[Relation] = (),
) -> Relation | None:
    """Return the number that was added to one side to give the other, exact but for one rounding of each element."""
    if len(reference) != 1 or len(candidate) != 1 or reference[0].shape != candidate[0].shape:
        return None
    if not all(is_rounded_float(tensor) for tensor in (*reference, *candidate)):
        return None
    known = confirm_hint(RelationKind.SHIFT, reference[0], candidate[0], hints)
    if known is not None:
        return known
    directed = find_directed_numbers(reference[0], candidate[0], bound_shift, np.add, 0.0, keep_finite)
    if directed is None:
        return None
    numbers, on_reference = directed
    shift = Shift(numbers.numbers[0]) if numbers.axis is None else ShiftAlong(numbers.axis, numbers.numbers)
    return make_relation(RelationKind.SHIFT, shift, numbers, on_reference)


def bound_shift(elements: Array, values: Array, dtype: str) -> tuple[Array, Array]:
    """Return between which numbers those lie that, added to elements, are rounded to values."""
    low, high = bound_preimages(values, dtype)
    wide = elements.astype(np.float64)
    low, high = low - wide, high - wide
    same = (np.isnan(elements) & np.isnan(values)) | (np.isinf(elements) & (elements == values))
    possible = np.isfinite(elements) & np.isfinite(values)
    low = np.where(possible, low, np.where(same, -np.inf, np.inf))
    return low, np.where(possible, high, np.where(same, np.inf, -np.inf))


def keep_finite(elements: Array) -> Array:
    """Return elements, NaN in place of those that no shift can change."""
    return np.where(np.isfinite(elements), elements, np.nan)
