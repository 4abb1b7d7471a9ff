"""Rounded and moved: one side is the other in a shorter float type, and in another layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nndiff.dtypes import DTYPES
from nndiff.relations import fused, layout, order
from nndiff.relations.cast import is_rounded_float
from nndiff.relations.proof import LARGEST_MOVED, is_readable, read_array
from nndiff.relations.relation import Operation, Prove, Relation
from nndiff.relations.rounding import round_numbers
from nndiff.relations.value_operations import Round
from nndiff.stats.content_hashes import find_roundings
from nndiff.tensors import LateData, MemoryData, TensorRef

# What leaves every value as it is, so that values may be rounded first.
MOVES: tuple[Prove, ...] = (layout.prove, order.prove, fused.prove)


def prove(
    reference: Sequence[TensorRef],
    candidate: Sequence[TensorRef],
    atol: float,
    rtol: float,
    hints: Sequence[Relation] = (),
) -> Relation | None:
    """Return the layout in which both sides hold the same values, once those of one side are rounded."""
    if not all(is_rounded_float(tensor) and is_readable(tensor, LARGEST_MOVED) for tensor in (*reference, *candidate)):
        return None
    known = [hint.without_rounding() for hint in hints]
    for finer_is_reference in (True, False):
        finer, coarser = (reference, candidate) if finer_is_reference else (candidate, reference)
        for dtype in list_shorter_types(finer, coarser):
            rounded = [round_tensor(tensor, dtype) for tensor in finer]
            sides = (rounded, coarser) if finer_is_reference else (coarser, rounded)
            for prove_move in MOVES:
                relation = prove_move(sides[0], sides[1], atol, rtol, known)
                if relation is None:
                    continue
                first: tuple[Operation, ...] = (Round(dtype),)
                if finer_is_reference:
                    return replace(relation, reference=(*first, *relation.reference))
                return replace(relation, candidate=(*first, *relation.candidate))
    return None


def list_shorter_types(finer: Sequence[TensorRef], coarser: Sequence[TensorRef]) -> list[str]:
    """Return the float types that hold a sample of one side exactly, and not one of the other."""
    types = [{rounding.name.lower() for rounding in find_roundings(tensor)} for tensor in coarser]
    too_short = [{rounding.name.lower() for rounding in find_roundings(tensor)} for tensor in finer]
    held = set.intersection(*types)
    return [name for name in DTYPES if name in held and not all(name in names for names in too_short)]


def round_tensor(tensor: TensorRef, dtype: str) -> TensorRef:
    """Return a tensor whose elements are rounded to a type when they are read."""

    def read_rounded() -> MemoryData:
        return MemoryData(round_numbers(read_array(tensor), dtype).astype("float32", copy=False))

    trace = replace(tensor.trace, digest=None, stats=None, sketch=None)
    return replace(tensor, dtype=DTYPES["float32"], data=LateData(read_rounded), storage_id=None, trace=trace)
