"""Scale: one side is the other times a factor: a scaled loss, a folded root of a size, a sign, one for each channel."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from nndiff.relations.along import find_directed_numbers, make_relation
from nndiff.relations.cast import is_rounded_float
from nndiff.relations.operations import Multiply, widen
from nndiff.relations.proof import (
    SAMPLED,
    STATS_ROUNDING,
    agree_after,
    agree_in_sample,
    confirm_hint,
    is_readable,
    is_telling,
    read_array,
    read_places,
    sample_places,
)
from nndiff.relations.relation import Array, Operation, Relation
from nndiff.relations.rounding import bound_preimages
from nndiff.relations.value_operations import MultiplyAlong
from nndiff.tensors import TensorRef
from nndiff.verdict import RelationKind

LEAST_SQUARED, MOST_SQUARED = 1e-150, 1e150  # sizes whose squares float64 holds: others may have a wrong length


def prove(
    reference: Sequence[TensorRef],
    candidate: Sequence[TensorRef],
    atol: float,
    rtol: float,
    hints: Sequence[Relation] = (),
) -> Relation | None:
    """Return the factor that the candidate has against the reference, proven on every element divided by it.

    Elements that are all alike fit any factor, so that they only confirm a hint.
    """
    if len(reference) != 1 or len(candidate) != 1 or reference[0].shape != candidate[0].shape:
        return None
    for tensor in (*reference, *candidate):
        if not is_readable(tensor) or tensor.dtype.kind == "bool":
            return None
    if statistics_exclude_factor(reference[0], candidate[0], atol, rtol):
        return None
    if not may_be_scaled(reference[0], candidate[0], atol, rtol):
        return None
    reference_array, candidate_array = read_array(reference[0]), read_array(candidate[0])
    for hint in hints:
        if hint.kind is RelationKind.SCALE and agree_after(hint, [reference_array], [candidate_array], atol, rtol):
            return hint
    if not is_telling(reference_array, atol, rtol):
        return None
    factor = fit_factor(reference_array, candidate_array)
    if factor is None or is_one(factor, reference_array, atol, rtol):
        return None
    relation = Relation(RelationKind.SCALE, candidate=(Multiply(1 / factor),))
    return relation if agree_after(relation, [reference_array], [candidate_array], atol, rtol) else None


def prove_stored(
    reference: Sequence[TensorRef],
    candidate: Sequence[TensorRef],
    atol: float,
    rtol: float,
    hints: Sequence[Relation] = (),
) -> Relation | None:
    """Return the factor of all elements, or those along an axis, that give one side from the other but for rounding.

    Weights of files are not computed anew, so that each element must be the product, rounded once: no tolerance takes
    part. Elements that are all alike only confirm a hint.
    """
    if len(reference) != 1 or len(candidate) != 1 or reference[0].shape != candidate[0].shape:
        return None
    if not all(is_rounded_float(tensor) for tensor in (*reference, *candidate)):
        return None
    known = confirm_hint(RelationKind.SCALE, reference[0], candidate[0], hints)
    if known is not None:
        return known
    directed = find_directed_numbers(reference[0], candidate[0], bound_factor, np.multiply, 1.0, measure_sizes)
    if directed is None or not all(directed[0].numbers):
        return None
    numbers, on_reference = directed
    single = numbers.numbers[0]
    factors: Operation = Multiply(single) if numbers.axis is None else MultiplyAlong(numbers.axis, numbers.numbers)
    return make_relation(RelationKind.SCALE, factors, numbers, on_reference)


def bound_factor(elements: Array, values: Array, dtype: str) -> tuple[Array, Array]:
    """Return between which factors those lie that, multiplied with elements, are rounded to values."""
    wide = elements.astype(np.float64)
    ends = [bound / wide for bound in bound_preimages(values, dtype)]
    same = (np.isnan(elements) & np.isnan(values)) | ((elements == 0) & (values == 0))
    possible = np.isfinite(elements) & np.isfinite(values) & (elements != 0)
    low = np.where(possible, np.fmin(*ends), np.where(same, -np.inf, np.inf))
    high = np.where(possible, np.fmax(*ends), np.where(same, np.inf, -np.inf))
    infinite = np.isinf(elements) & np.isinf(values)
    sign = np.sign(elements) * np.sign(values)
    low = np.where(infinite, np.where(sign > 0, 0.0, -np.inf), low)
    return low, np.where(infinite, np.where(sign > 0, np.inf, 0.0), high)


def measure_sizes(elements: Array) -> Array:
    """Return the moduli of elements, NaN in place of those that fit any factor."""
    return np.where(np.isfinite(elements) & (elements != 0), np.abs(elements), np.nan)


def may_be_scaled(reference: TensorRef, candidate: TensorRef, atol: float, rtol: float) -> bool:
    """Return False if a few elements have no common factor: then nothing more is read."""
    if reference.missing or candidate.missing or reference.count <= SAMPLED:
        return True
    places = sample_places(reference.shape)
    elements, candidate_elements = read_places(reference, places), read_places(candidate, places)
    factor = fit_factor(elements, candidate_elements)
    if factor is None:
        return True  # zeros: the other elements tell
    # the factor of the sample is as good as its elements: twice the tolerance leaves room for that
    return agree_in_sample(elements, widen(candidate_elements) / factor, 2 * atol, 2 * rtol)


def fit_factor(reference: Array, candidate: Array) -> float | None:
    """Return the factor by least squares over the elements that are finite on both sides; None if there is none."""
    wide_reference, wide_candidate = widen(reference), widen(candidate)
    finite = np.isfinite(wide_reference) & np.isfinite(wide_candidate)
    wide_reference, wide_candidate = wide_reference[finite], wide_candidate[finite]
    largest = [float(np.abs(numbers).max(initial=0.0)) for numbers in (wide_reference, wide_candidate)]
    if not min(largest) > 0:
        return None
    # on a common scale, so that squares neither overflow nor vanish
    wide_reference, wide_candidate = wide_reference / largest[0], wide_candidate / largest[1]
    product = float(np.vdot(wide_reference, wide_candidate).real)
    with np.errstate(all="ignore"):
        factor = float(np.float64(product / np.vdot(wide_reference, wide_reference).real) * largest[1] / largest[0])
        inverse = float(1 / np.float64(factor))
    return factor if np.isfinite(factor) and np.isfinite(inverse) and factor != 0 else None


def is_one(factor: float, reference: Array, atol: float, rtol: float) -> bool:
    """Return True if the factor moves no element out of tolerance."""
    moduli = np.abs(widen(reference))
    largest = float(moduli[np.isfinite(moduli)].max(initial=0.0))
    return abs(factor - 1) * largest <= atol + rtol * largest


def statistics_exclude_factor(reference: TensorRef, candidate: TensorRef, atol: float, rtol: float) -> bool:
    """Return True if recorded statistics show that no factor fits: it would scale length and largest value alike."""
    reference_stats, candidate_stats = reference.trace.stats, candidate.trace.stats
    if reference_stats is None or candidate_stats is None:
        return False
    if reference_stats.nonfinite or candidate_stats.nonfinite:
        return reference_stats.nonfinite != candidate_stats.nonfinite
    # how far each may be from the reference's once every element is in tolerance
    sizes = (
        (reference_stats.abs_max, candidate_stats.abs_max, atol + rtol * reference_stats.abs_max),
        (reference_stats.l2, candidate_stats.l2, math.sqrt(reference.count) * atol + rtol * reference_stats.l2),
    )
    least, most = 0.0, math.inf
    for reference_size, candidate_size, slack in sizes:
        if not all(LEAST_SQUARED < size < MOST_SQUARED for size in (reference_size, candidate_size)):
            return False
        slack += STATS_ROUNDING * reference_size
        least = max(least, candidate_size / (reference_size + slack))
        most = min(most, candidate_size / (reference_size - slack) if reference_size > slack else math.inf)
    return least > most


def read_factor(relation: Relation) -> float | None:
    """Return what the reference is multiplied with; None if the relation is no scale, or has several factors."""
    if relation.kind is not RelationKind.SCALE:
        return None
    for operation in relation.candidate:
        if isinstance(operation, Multiply):
            return 1 / operation.factor
    for operation in relation.reference:
        if isinstance(operation, Multiply):
            return operation.factor
    return None
