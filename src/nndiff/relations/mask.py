"""Mask: a boolean mask and the additive mask of the same places, whichever of the two True stands for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from nndiff.relations.axis_search import drop_ones
from nndiff.relations.operations import MASKED_BELOW, AsMask, Expand, MaskForm, Reshape
from nndiff.relations.proof import LARGEST_TENSOR, agree, agree_after, is_readable, read_array
from nndiff.relations.relation import Array, Operation, Relation
from nndiff.tensors import Shape, TensorRef
from nndiff.verdict import RelationKind

PEEKED = 256  # elements looked at first
MOST_AXES_TRIED = 8  # axes of a mask: attention has five at most, and every choice among them is tried


def prove(
    reference: Sequence[TensorRef],
    candidate: Sequence[TensorRef],
    atol: float,
    rtol: float,
    hints: Sequence[Relation] = (),
) -> Relation | None:
    """Return how two tensors mask the same places; one of them may be repeated along axes of the other.

    A mask that keeps all places, or none, does not show that it is one, so that it only confirms a hint.
    """
    if len(reference) != 1 or len(candidate) != 1:
        return None
    tensors = (*reference, *candidate)
    if not all(is_readable(tensor) and tensor.dtype.kind in ("bool", "int", "float") for tensor in tensors):
        return None
    if not any(True for _ in fit_shapes(reference[0].shape, candidate[0].shape)):
        return None
    if not all(may_be_mask(tensor) for tensor in tensors):
        return None
    arrays = [read_array(tensor) for tensor in tensors]
    if agree(arrays[0], arrays[1], atol, rtol):
        return None
    forms = [list_forms(array) for array in arrays]
    if not all(forms):
        return None
    for hint in hints:
        if hint.kind is RelationKind.MASK and agree_after(hint, arrays[:1], arrays[1:], 0.0, 0.0):
            return hint
    if any(np.all(array == 0) or np.all(array != 0) for array in arrays):
        return None
    for reference_form in forms[0]:
        for candidate_form in forms[1]:
            if MaskForm.ADDITIVE not in (reference_form, candidate_form):
                continue  # two arrays of zeros and ones may be anything
            for resize_reference, resize_candidate in fit_shapes(reference[0].shape, candidate[0].shape):
                relation = Relation(
                    RelationKind.MASK,
                    (AsMask(reference_form), *resize_reference),
                    (AsMask(candidate_form), *resize_candidate),
                )
                if agree_after(relation, arrays[:1], arrays[1:], 0.0, 0.0):
                    return relation
    return None


def may_be_mask(tensor: TensorRef) -> bool:
    """Return False if a few elements show that a tensor is no mask: most tensors are none, and need not be read."""
    if tensor.missing:
        return True
    peeked = tensor.dtype.decode(tensor.read(0, min(tensor.count, PEEKED)))
    return bool(list_forms(peeked.astype(bool) if tensor.dtype.kind == "bool" else peeked))


def list_forms(array: Array) -> tuple[MaskForm, ...]:
    """Return the forms of mask that the values of an array allow."""
    if array.dtype == bool or np.issubdtype(array.dtype, np.integer):
        is_binary = bool(np.all((array == 0) | (array == 1)))
        return (MaskForm.TRUE_KEEPS, MaskForm.TRUE_MASKS) if is_binary else ()
    is_additive = bool(np.all((array <= MASKED_BELOW) | (array == 0)))
    return (MaskForm.ADDITIVE,) if is_additive else ()


def fit_shapes(reference: Shape, candidate: Shape) -> Iterator[tuple[tuple[Operation, ...], tuple[Operation, ...]]]:
    """Yield the operations that bring the smaller of two shapes into the larger, by repeating it along new axes."""
    if math.prod(reference) <= math.prod(candidate):
        for operations in resize_shape(reference, candidate):
            yield operations, ()
    else:
        for operations in resize_shape(candidate, reference):
            yield (), operations


def resize_shape(small: Shape, large: Shape) -> Iterator[tuple[Operation, ...]]:
    """Yield how a shape without its axes of one element can be put into some of the axes of a larger one."""
    if small == large:
        yield ()
        return
    if math.prod(large) > LARGEST_TENSOR:
        return
    long_axes = [axis for axis, size in enumerate(large) if size > 1]
    sizes = drop_ones(small)
    if len(long_axes) > MOST_AXES_TRIED:
        return
    for axes in combinations(long_axes, len(sizes)):
        if tuple(large[axis] for axis in axes) != sizes:
            continue
        spread = tuple(size if axis in axes else 1 for axis, size in enumerate(large))
        operations: list[Operation] = []
        if spread != small:
            operations.append(Reshape(spread))
        if spread != large:
            operations.append(Expand(large))
        yield tuple(operations)
