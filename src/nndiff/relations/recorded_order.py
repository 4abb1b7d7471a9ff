"""Order of what was computed: slices along one axis in another order, each found again within a tolerance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nndiff.relations.operations import MOST_PLACES
from nndiff.relations.order import read_order
from nndiff.relations.permutation import Places, spread_operations, structure_permutation
from nndiff.relations.proof import agree_after, is_readable, is_telling, read_array, statistics_differ
from nndiff.relations.relation import Array, Relation
from nndiff.tensors import TensorRef
from nndiff.verdict import RelationKind

MOST_DRAWS = 4  # directions by which slices are sorted: two that are next to each other in one are apart in another


def prove(
    reference: Sequence[TensorRef],
    candidate: Sequence[TensorRef],
    atol: float,
    rtol: float,
    hints: Sequence[Relation] = (),
) -> Relation | None:
    """Return how slices of the candidate along one axis must be ordered to give the reference.

    It says how tensors lie. Whether the network takes them so, only what it makes of them tells.
    """
    sides = read_sides(reference, candidate, atol, rtol)
    if sides is None:
        return None
    known = follow_arrays(*sides, atol, rtol, hints)
    if known is not None:
        return known
    for axis in range(sides[0].ndim - 1, -1, -1):
        size = sides[0].shape[axis]
        if not 1 < size < sides[0].size or size > MOST_PLACES:
            continue  # single numbers are found again in any order
        rows = [np.moveaxis(array, axis, 0).reshape(size, -1) for array in sides]
        places = match_rows(rows[0], rows[1], atol, rtol)
        relation = build_order(places, sides[0], axis) if places is not None else None
        if relation is not None and agree_after(relation, [sides[0]], [sides[1]], atol, rtol):
            return relation
    return None


def follow(
    reference: Sequence[TensorRef], candidate: Sequence[TensorRef], atol: float, rtol: float, hints: Sequence[Relation]
) -> Relation | None:
    """Return the order that is known from other tensors and holds along an axis of these: of weights, by outputs."""
    sides = read_sides(reference, candidate, atol, rtol)
    return follow_arrays(*sides, atol, rtol, hints) if sides is not None else None


def read_sides(
    reference: Sequence[TensorRef], candidate: Sequence[TensorRef], atol: float, rtol: float
) -> tuple[Array, Array] | None:
    """Return the elements of both sides; None if no order of them can agree, or if every order would."""
    if len(reference) != 1 or len(candidate) != 1 or reference[0].shape != candidate[0].shape:
        return None
    if not all(is_readable(tensor) and tensor.dtype.kind == "float" for tensor in (*reference, *candidate)):
        return None
    if statistics_differ(reference[0], candidate[0], atol, rtol):
        return None
    sides = read_array(reference[0]), read_array(candidate[0])
    is_finite = all(bool(np.isfinite(side).all()) for side in sides)
    return sides if is_finite and is_telling(sides[0], atol, rtol) else None


def follow_arrays(
    reference: Array, candidate: Array, atol: float, rtol: float, hints: Sequence[Relation]
) -> Relation | None:
    """Return the first known order that makes one array the other along an axis."""
    for hint in hints:
        places = read_order(hint.candidate) if not hint.reference else None
        for axis, size in enumerate(reference.shape if places is not None else ()):
            if places is None or size != len(places):
                continue
            relation = build_order(places, reference, axis)
            if relation is not None and agree_after(relation, [reference], [candidate], atol, rtol):
                return relation
    return None


def build_order(places: Places, reference: Array, axis: int) -> Relation | None:
    """Return the relation that takes places along an axis; None if they are in order."""
    operations = spread_operations(structure_permutation(places.tolist()), reference.shape, axis)
    return Relation(RelationKind.LAYOUT, (), operations) if operations else None


def match_rows(reference: Array, candidate: Array, atol: float, rtol: float) -> Places | None:
    """Return which row of the candidate each row of the reference is; None if one is not found within tolerance.

    Rows are sorted by their projection on a random direction, which puts equal ones at the same place. Rounding may
    exchange neighbours: what does not fit is sorted again by another direction.
    """
    random = np.random.default_rng(0)
    places = np.full(len(reference), -1, np.intp)
    free = np.arange(len(reference)), np.arange(len(reference))
    for _ in range(MOST_DRAWS):
        direction = random.standard_normal(reference.shape[1])
        wanted, given = (
            rows[np.argsort(array[rows].astype(np.float64) @ direction, kind="stable")]
            for rows, array in zip(free, (reference, candidate), strict=True)
        )
        target = reference[wanted].astype(np.float64)
        fits = np.all(np.abs(candidate[given] - target) <= atol + rtol * np.abs(target), axis=1)
        places[wanted[fits]] = given[fits]
        free = wanted[~fits], given[~fits]
        if fits.all():
            return places
        if not fits.any():
            return None
    return None
