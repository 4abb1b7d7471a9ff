"""Summed: two tensors of one side that are added up in one of the other: both biases of a recurrent layer."""

from __future__ import annotations

from collections.abc import Sequence

from nndiff.relations.operations import Add
from nndiff.relations.order import have_equal_values
from nndiff.relations.proof import LARGEST_MOVED, is_readable, is_telling, read_array
from nndiff.relations.relation import Operation, Relation
from nndiff.tensors import TensorRef
from nndiff.verdict import RelationKind


def prove(
    reference: Sequence[TensorRef],
    candidate: Sequence[TensorRef],
    atol: float,
    rtol: float,
    hints: Sequence[Relation] = (),
) -> Relation | None:
    """Return how two tensors of one side are the sum in the other: equal values, whatever the tolerance."""
    if sorted((len(reference), len(candidate))) != [1, 2]:
        return None
    tensors = (*reference, *candidate)
    if len({tensor.shape for tensor in tensors}) != 1:
        return None
    if not all(is_readable(tensor, LARGEST_MOVED) and tensor.dtype.kind == "float" for tensor in tensors):
        return None
    added: tuple[Operation, ...] = (Add(),)
    relation = Relation(RelationKind.FOLD, *((added, ()) if len(reference) == 2 else ((), added)))
    arrays = [read_array(tensor) for tensor in reference], [read_array(tensor) for tensor in candidate]
    if not is_telling(arrays[0][0], 0.0, 0.0) or not is_telling(arrays[1][0], 0.0, 0.0):
        return None  # constants may be the sum of many others
    return relation if have_equal_values(*relation.apply(*arrays)) else None
