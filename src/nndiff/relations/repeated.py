"""Repeated: one side holds each block along an axis several times, as key and value heads that queries share."""

from __future__ import annotations

from collections.abc import Sequence

from nndiff.relations.axis_search import divisors
from nndiff.relations.operations import Expand, Reshape, SumOver
from nndiff.relations.proof import agree_after, is_readable, is_telling, read_array
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
    """Return how blocks of one side are repeated along an axis to give the other.

    The gradient of what is repeated is the sum of those of its copies.
    """
    if len(reference) != 1 or len(candidate) != 1:
        return None
    axis = find_longer_axis(reference[0].shape, candidate[0].shape)
    tensors = (*reference, *candidate)
    if axis is None or not all(is_readable(tensor) and tensor.dtype.kind == "float" for tensor in tensors):
        return None
    sides = read_array(reference[0]), read_array(candidate[0])
    if not is_telling(sides[0], atol, rtol):
        return None
    on_reference = sides[0].shape[axis] < sides[1].shape[axis]
    short, long = (side.shape for side in (sides if on_reference else sides[::-1]))
    is_gradient = all(tensor.site.slot.is_gradient for tensor in tensors)
    for block in divisors(short[axis]):
        operations = sum_copies(short, long, axis, block) if is_gradient else repeat_blocks(short, long, axis, block)
        both = ((), operations) if on_reference == is_gradient else (operations, ())
        relation = Relation(RelationKind.LAYOUT, *both)
        if agree_after(relation, [sides[0]], [sides[1]], atol, rtol):
            return relation
    return None


def find_longer_axis(reference: Shape, candidate: Shape) -> int | None:
    """Return the only axis along which two shapes differ, if one side is a multiple of the other there."""
    if len(reference) != len(candidate):
        return None
    differing = [axis for axis, sizes in enumerate(zip(reference, candidate, strict=True)) if sizes[0] != sizes[1]]
    if len(differing) != 1:
        return None
    small, large = sorted((reference[differing[0]], candidate[differing[0]]))
    return differing[0] if small > 1 and large % small == 0 else None


def split_copies(short: Shape, long: Shape, axis: int, block: int) -> tuple[Shape, Shape]:
    """Return both shapes with that axis split into blocks, copies of each, and places in a block."""
    before, after, blocks = short[:axis], short[axis + 1 :], short[axis] // block
    copies = long[axis] // short[axis]
    return (*before, blocks, 1, block, *after), (*before, blocks, copies, block, *after)


def repeat_blocks(short: Shape, long: Shape, axis: int, block: int) -> tuple[Operation, ...]:
    """Return the operations that repeat each block."""
    split, wide = split_copies(short, long, axis, block)
    return Reshape(split), Expand(wide), Reshape(long)


def sum_copies(short: Shape, long: Shape, axis: int, block: int) -> tuple[Operation, ...]:
    """Return the operations that add up the copies of each block."""
    _, wide = split_copies(short, long, axis, block)
    return Reshape(wide), SumOver((axis + 1,)), Reshape(short)
