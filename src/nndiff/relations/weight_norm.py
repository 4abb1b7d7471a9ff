"""Weight norm: a weight that is computed at each call as g * v / |v|, and what that makes of its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from nndiff.names import weight_norm_shapes
from nndiff.relations.fold import agree_but_for_rounding, is_foldable, measure_unit
from nndiff.relations.operations import Concatenate, Flatten, WeightNorm, WeightNormGradient
from nndiff.relations.proof import agree_after, is_readable, read_array
from nndiff.relations.relation import Operation, Relation
from nndiff.tensors import Shape, TensorRef
from nndiff.verdict import RelationKind


def prove(
    reference: Sequence[TensorRef],
    candidate: Sequence[TensorRef],
    atol: float,
    rtol: float,
    hints: Sequence[Relation] = (),
) -> Relation | None:
    """Return how a weight of one side is made of (g, v) of the other, its size and its direction."""
    if sorted((len(reference), len(candidate))) != [1, 2]:
        return None
    plain_in_reference = len(reference) == 1
    (weight,), (size, direction) = (reference, candidate) if plain_in_reference else (candidate, reference)
    if weight.shape != direction.shape or not all(is_readable(tensor) for tensor in (weight, size, direction)):
        return None
    arrays = [read_array(tensor) for tensor in reference], [read_array(tensor) for tensor in candidate]
    for axes in list_norm_axes(size.shape, direction.shape):
        made: tuple[Operation, ...] = (WeightNorm(axes),)
        relation = Relation(RelationKind.FOLD, *(((), made) if plain_in_reference else (made, ())))
        if agree_after(relation, *arrays, atol, rtol):
            return relation
        if is_foldable((weight, size, direction)):  # stored as a shorter type, perhaps
            sides = relation.apply(*arrays)
            stored, computed = sides if plain_in_reference else sides[::-1]
            unit = measure_unit((size, direction))
            if agree_but_for_rounding(computed, stored, np.abs(computed), unit, weight.dtype.name):
                return relation
    return None


def prove_gradient(
    reference: Sequence[TensorRef],
    candidate: Sequence[TensorRef],
    values: Sequence[TensorRef],
    atol: float,
    rtol: float,
) -> Relation | None:
    """Return how the gradient of a weight gives those of (g, v) by the chain rule; `values` are g and v themselves.

    The relation is applied to (dW, g, v) of the side that has the weight, and to (dg, dv) of the other.
    """
    if sorted((len(reference), len(candidate))) != [1, 2] or len(values) != 2:
        return None
    plain_in_reference = len(reference) == 1
    (weight,), (size, direction) = (reference, candidate) if plain_in_reference else (candidate, reference)
    if weight.shape != direction.shape or [size.shape, direction.shape] != [value.shape for value in values]:
        return None
    if not all(is_readable(tensor) for tensor in (weight, size, direction, *values)):
        return None
    plain = [read_array(tensor) for tensor in (weight, *values)]
    normed = [read_array(tensor) for tensor in (size, direction)]
    joined: tuple[Operation, ...] = (Flatten(), Concatenate(0))
    for axes in list_norm_axes(size.shape, direction.shape):
        derived = (WeightNormGradient(axes), *joined)
        relation = Relation(RelationKind.FOLD, *((derived, joined) if plain_in_reference else (joined, derived)))
        if agree_after(relation, *((plain, normed) if plain_in_reference else (normed, plain)), atol, rtol):
            return relation
    return None


def list_norm_axes(size: Shape, direction: Shape) -> Iterator[tuple[int, ...]]:
    """Yield the axes over which the norm may run: those along which there is one size for all places."""
    for shape in weight_norm_shapes(size, direction):
        yield tuple(axis for axis, length in enumerate(shape) if length == 1)
