"""Layout: the same elements with the axes permuted, split, merged or reshaped, or with one side repeated or summed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, permutations
from operator import mul
from typing import TypeGuard

import numpy as np

from nndiff.relations.axis_search import MOST_CUTS, AxisSearch, build_operations, drop_ones
from nndiff.relations.operations import Expand, Permute, Reshape, SumOver
from nndiff.relations.proof import (
    LARGEST_MOVED,
    LARGEST_TENSOR,
    SAMPLED,
    agree,
    agree_after,
    agree_in_sample,
    is_readable,
    is_telling,
    read_array,
    read_places,
    sample_places,
    statistics_differ,
    tighten_tolerance,
)
from nndiff.relations.relation import Array, Operation, Relation
from nndiff.tensors import Shape, TensorRef
from nndiff.verdict import RelationKind

MOST_AXES = 6  # whose every order is tried on a few elements
MOST_COMPARED = 16  # ways compared on every element; where a sample fits so many, nothing tells which it is


def prove(
    reference: Sequence[TensorRef],
    candidate: Sequence[TensorRef],
    atol: float,
    rtol: float,
    hints: Sequence[Relation] = (),
) -> Relation | None:
    """Return how the axes of the candidate must be rearranged, or a side repeated, to give the reference."""
    if len(reference) != 1 or len(candidate) != 1:
        return None
    tensors = (*reference, *candidate)
    if not all(is_readable(tensor, LARGEST_MOVED) for tensor in tensors):
        return None
    shapes = reference[0].shape, candidate[0].shape
    if math.prod(shapes[0]) != math.prod(shapes[1]):
        if not can_broadcast(*shapes):
            return None
        is_gradient = all(tensor.site.slot.is_gradient for tensor in tensors)
        return prove_repeated(read_array(reference[0]), read_array(candidate[0]), atol, rtol, is_gradient)
    if shapes[0] == shapes[1] and len(set(drop_ones(shapes[0]))) == len(drop_ones(shapes[0])):
        return None  # no axis can be exchanged for another of its size
    if statistics_differ(reference[0], candidate[0], atol, rtol):
        return None
    if shapes[0] == shapes[1] and not may_be_permuted(reference[0], candidate[0], atol, rtol):
        return None
    return prove_arrays(read_array(reference[0]), read_array(candidate[0]), atol, rtol, hints)


def is_rearrangement(relation: object) -> TypeGuard[Relation]:
    """Return True if a relation only moves the elements of one tensor: axes permuted, split or merged."""
    if not isinstance(relation, Relation) or relation.kind is not RelationKind.LAYOUT:
        return False
    operations = (*relation.reference, *relation.candidate)
    return all(isinstance(operation, Reshape | Permute) for operation in operations)


def may_be_permuted(reference: TensorRef, candidate: TensorRef, atol: float, rtol: float) -> bool:
    """Return False if a few elements rule out every order of axes that keeps the shape: then nothing more is read."""
    if reference.missing or candidate.missing or reference.count <= SAMPLED or len(reference.shape) > MOST_AXES:
        return True
    places = sample_places(reference.shape)
    elements = read_places(reference, places)
    unmoved = tuple(range(len(reference.shape)))
    for axes in permutations(unmoved):
        if axes == unmoved or tuple(reference.shape[axis] for axis in axes) != reference.shape:
            continue
        moved = [places[axes.index(axis)] for axis in range(len(axes))]
        if agree_in_sample(elements, read_places(candidate, moved), atol, rtol):
            return True
    return False


def prove_arrays(
    reference: Array, candidate: Array, atol: float, rtol: float, hints: Sequence[Relation] = ()
) -> Relation | None:
    """Return the layout of two arrays of as many elements: a hint, else a reshape, else the way with the fewest cuts.

    Where all elements are in tolerance of one another any order agrees: then a smaller tolerance decides, and where
    they are equal only a hint, or a reshape without an alternative, is taken.
    """
    if reference.shape == candidate.shape and agree(reference, candidate, atol, rtol):
        return None  # nothing is to be rearranged
    for hint in hints:
        if hint.kind is RelationKind.LAYOUT and agree_after(hint, [reference], [candidate], atol, rtol):
            return hint
    atol, rtol = tighten_tolerance(reference, atol, rtol)
    telling = is_telling(reference, atol, rtol)
    if reference.shape != candidate.shape and (telling or merges_axes(reference.shape, candidate.shape)):
        reshaped = Relation(RelationKind.LAYOUT, candidate=(Reshape(reference.shape),))
        if agree_after(reshaped, [reference], [candidate], atol, rtol):
            return reshaped
    return find_permutation(reference, candidate, atol, rtol) if telling else None


def find_permutation(reference: Array, candidate: Array, atol: float, rtol: float) -> Relation | None:
    """Return the order of axes, split where need be, that makes the candidate the reference; the fewest cuts first."""
    search = AxisSearch(
        reference.reshape(drop_ones(reference.shape)), candidate.reshape(drop_ones(candidate.shape)), atol, rtol
    )
    compared = 0
    for joined in search.ways(MOST_CUTS if reference.shape != candidate.shape else 0):
        operations = build_operations(joined, reference.shape, candidate.shape)
        if keeps_order(operations):
            continue  # tried as a reshape
        laid, in_order = lay_out(candidate, operations), reference
        if laid.shape != reference.shape:
            in_order = reference.reshape(laid.shape)
        if not agree_in_sample(in_order, laid, atol, rtol):
            continue
        if agree(in_order, laid, atol, rtol):
            return Relation(RelationKind.LAYOUT, candidate=operations)
        compared += 1
        if compared == MOST_COMPARED:
            break
    return None


def lay_out(candidate: Array, operations: Sequence[Operation]) -> Array:
    """Return the candidate's array up to the permutation: the reshape after it would copy every element."""
    for operation in operations:
        (candidate,) = operation.apply([candidate])
        if isinstance(operation, Permute):
            break
    return candidate


def keeps_order(operations: Sequence[Operation]) -> bool:
    """Return True if no operation changes the order of the elements."""
    for operation in operations:
        if isinstance(operation, Permute) and operation.axes != tuple(sorted(operation.axes)):
            return False
    return True


def merges_axes(reference: Shape, candidate: Shape) -> bool:
    """Return True if one shape is the other with neighbouring axes merged: then no other way comes to mind."""
    ends = [set(accumulate(drop_ones(shape), mul)) for shape in (reference, candidate)]
    fewer, more = sorted(ends, key=len)
    return fewer <= more and max(fewer, default=1) == max(more, default=1)


def can_broadcast(reference: Shape, candidate: Shape) -> bool:
    """Return True if both shapes can be expanded to one that fits into memory."""
    try:
        return math.prod(np.broadcast_shapes(reference, candidate)) <= LARGEST_TENSOR
    except ValueError:
        return False


def prove_repeated(reference: Array, candidate: Array, atol: float, rtol: float, is_gradient: bool) -> Relation | None:
    """Return how one side is the other expanded, or a gradient summed over what the other side expands."""
    wide = np.broadcast_shapes(reference.shape, candidate.shape)
    if agree(np.broadcast_to(reference, wide), np.broadcast_to(candidate, wide), atol, rtol):
        sides = []
        for shape in (reference.shape, candidate.shape):
            sides.append((Expand(wide),) if shape != wide else ())
        return Relation(RelationKind.LAYOUT, *sides)
    if not is_gradient:
        return None
    # a tensor that is expanded gets the sum of the gradients of all its uses
    reference_sum = build_sum(reference.shape, candidate.shape)
    summed = Relation(RelationKind.LAYOUT, reference_sum, build_sum(candidate.shape, reference.shape))
    return summed if agree_after(summed, [reference], [candidate], atol, rtol) else None


def build_sum(shape: Shape, other_shape: Shape) -> tuple[Operation, ...]:
    """Return the operations that sum a shape over the axes of which another has one element, or which it lacks."""
    longest = max(len(shape), len(other_shape))
    padded, other_padded = ((1,) * (longest - len(sizes)) + sizes for sizes in (shape, other_shape))
    narrow = tuple(min(sizes) for sizes in zip(padded, other_padded, strict=True))
    operations: list[Operation] = []
    axes = tuple(axis for axis, size in enumerate(shape, longest - len(shape)) if narrow[axis] < size)
    if axes:
        operations.append(SumOver(tuple(axis - (longest - len(shape)) for axis in axes)))
    summed = tuple(narrow[longest - len(shape) :])
    if summed != narrow:
        operations.append(Reshape(narrow))
    return tuple(operations)
