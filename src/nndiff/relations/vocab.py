"""Vocabulary: one side has more rows, or columns, of an embedding; those that both have are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from nndiff.relations.along import BLOCK
from nndiff.relations.cast import CHAINS, fits_types, is_rounded_float
from nndiff.relations.operations import Slice
from nndiff.relations.relation import Array, Operation, Relation
from nndiff.relations.rounding import round_numbers
from nndiff.relations.value_operations import Round
from nndiff.tensors import TensorRef
from nndiff.verdict import RelationKind


class RowsKind(str, Enum):
    """Say what the rows are that only one side has."""

    ZEROS = "zeros"
    REPEATED = "one row repeated"  # that before them, or the mean of all
    DISTINCT = "rows of their own"  # drawn at random, or trained


@dataclass(frozen=True)
class AddedRows:
    """Describe the rows that only one side has."""

    shared: int  # rows that both sides have
    added: int
    in_reference: bool
    kind: RowsKind


def prove(
    reference: Sequence[TensorRef],
    candidate: Sequence[TensorRef],
    atol: float,
    rtol: float,
    hints: Sequence[Relation] = (),
) -> Relation | None:
    """Return the cut after which both sides hold the same values, exactly, perhaps once one of them is rounded."""
    if len(reference) != 1 or len(candidate) != 1:
        return None
    axis = find_longer_axis(reference[0], candidate[0])
    if axis is None or not all(is_rounded_float(tensor) for tensor in (*reference, *candidate)):
        return None
    shared = min(reference[0].shape[axis], candidate[0].shape[axis])
    cut: tuple[Operation, ...] = (Slice(axis, 0, shared),)
    sides: list[tuple[Operation, ...]] = []
    for tensor in (reference[0], candidate[0]):
        sides.append(cut if tensor.shape[axis] > shared else ())
    chains = find_shared_chains(reference[0], candidate[0], axis, shared)
    if not chains:
        return None
    finer_side, chain = chains[0]
    sides[finer_side] = (*sides[finer_side], *(Round(dtype) for dtype in chain))
    return Relation(RelationKind.VOCAB, *sides)


def find_longer_axis(reference: TensorRef, candidate: TensorRef) -> int | None:
    """Return the one axis, first or last, along which two tensors of at most two axes differ in length; else None."""
    if len(reference.shape) != len(candidate.shape) or not 1 <= len(reference.shape) <= 2:
        return None
    axes = []
    for axis, sizes in enumerate(zip(reference.shape, candidate.shape, strict=True)):
        if sizes[0] != sizes[1]:
            axes.append(axis)
    return axes[0] if len(axes) == 1 else None


def find_shared_chains(
    reference: TensorRef, candidate: TensorRef, axis: int, shared: int
) -> list[tuple[int, tuple[str, ...]]]:
    """Return which side must be rounded to what, so that all shared elements are equal: to nothing first."""
    chains: list[tuple[int, tuple[str, ...]]] = [(0, ())]
    for chain in CHAINS:
        for side, (finer, coarser) in enumerate(((reference, candidate), (candidate, reference))):
            if fits_types(chain, finer, coarser):
                chains.append((side, chain))
    first: Array | None = None
    varies = False
    rows, width = (shared, reference.count // reference.shape[0]) if axis == 0 else (reference.shape[0], shared)
    step = max(1, BLOCK // width)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        blocks = read_rows(reference, start, stop)[:, :width], read_rows(candidate, start, stop)[:, :width]
        first = blocks[0].flat[0] if first is None else first
        varies = varies or bool((blocks[0] != first).any())
        chains = [(side, chain) for side, chain in chains if is_equal_after(blocks, side, chain)]
        if not chains:
            return []
    return chains if varies else []  # equal elements would fit at any length


def read_rows(tensor: TensorRef, start: int, stop: int) -> Array:
    """Return some rows of a tensor; those of one axis have one element each."""
    width = tensor.count // tensor.shape[0]
    return tensor.dtype.decode(tensor.read(start * width, stop * width)).reshape(stop - start, width)


def is_equal_after(blocks: tuple[Array, Array], side: int, chain: Sequence[str]) -> bool:
    """Return True if two blocks are equal once that of one side is rounded to some types in turn."""
    rounded = list(blocks)
    for dtype in chain:
        rounded[side] = round_numbers(rounded[side], dtype)
    return np.array_equal(rounded[0], rounded[1], equal_nan=True)


def describe_added_rows(reference: TensorRef, candidate: TensorRef) -> AddedRows | None:
    """Return what the rows are that only one side has; None if they are columns, or there are none."""
    if find_longer_axis(reference, candidate) != 0:
        return None
    shared = min(reference.shape[0], candidate.shape[0])
    longer = reference if reference.shape[0] > shared else candidate
    added = longer.shape[0] - shared
    first = read_rows(longer, shared, shared + 1)
    step = max(1, BLOCK // first.size)
    repeated = True
    for start in range(shared, longer.shape[0], step):
        rows = read_rows(longer, start, min(start + step, longer.shape[0]))
        repeated = repeated and bool(np.all(rows == first))
    kind = RowsKind.DISTINCT
    if repeated and not first.any():
        kind = RowsKind.ZEROS
    elif repeated and (added > 1 or np.array_equal(first, read_rows(longer, shared - 1, shared))):
        kind = RowsKind.REPEATED
    return AddedRows(shared, added, longer is reference, kind)
