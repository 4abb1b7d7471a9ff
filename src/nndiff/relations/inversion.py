"""Inversion: the operations that lead back from the form in which tensors are compared to how they are stored."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nndiff.relations.operations import Arrange, Flatten, Multiply, Permute, Reshape, Take
from nndiff.relations.relation import Operation
from nndiff.tensors import Shape


def invert_operations(operations: Sequence[Operation], shape: Shape) -> tuple[Operation, ...] | None:
    """Return the operations that undo others, for arrays that had this shape; None if elements are lost on the way."""
    inverse: list[Operation] = []
    for operation in operations:
        following = follow_shape(operation, shape)
        undo = invert_operation(operation, shape) if following is not None else None
        if following is None or undo is None:
            return None
        inverse.insert(0, undo)
        shape = following
    return tuple(inverse)


def invert_operation(operation: Operation, shape: Shape) -> Operation | None:
    """Return what undoes one operation on arrays of a shape; None if nothing does."""
    match operation:
        case Reshape() | Flatten():
            return Reshape(shape)
        case Permute():
            return Permute(invert_order(operation.axes))
        case Take() if operation.axis < len(shape) and len(operation.places) == shape[operation.axis]:
            return Take(operation.axis, invert_order(operation.places))
        case Arrange():
            return Arrange(invert_order(operation.order))
        case Multiply():
            return Multiply(1 / operation.factor)
    return None


def follow_shape(operation: Operation, shape: Shape) -> Shape | None:
    """Return the shape after an operation that can be undone; None if it does not fit."""
    match operation:
        case Reshape():
            return operation.shape if math.prod(operation.shape) == math.prod(shape) else None
        case Flatten():
            return (math.prod(shape),)
        case Permute():
            fits = sorted(operation.axes) == list(range(len(shape)))
            return tuple(shape[axis] for axis in operation.axes) if fits else None
    return shape


def invert_order(order: Sequence[int]) -> tuple[int, ...]:
    """Return at which place each number of an order is."""
    places = [0] * len(order)
    for place, number in enumerate(order):
        places[number] = place
    return tuple(places)
