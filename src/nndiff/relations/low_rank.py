"""Low rank: a weight, and the same with an adapter (LoRA) merged into it, which may be stored beside it or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from nndiff.relations.along import BLOCK, choose_plain_number
from nndiff.relations.fold import agree_but_for_rounding, is_foldable, measure_unit
from nndiff.relations.fold_operations import AddLowRank
from nndiff.relations.operations import widen
from nndiff.relations.proof import read_array
from nndiff.relations.relation import Array, Operation, Relation
from nndiff.relations.rounding import FORMATS
from nndiff.tensors import TensorRef
from nndiff.verdict import RelationKind

SAMPLED_ROWS = 512  # rows and columns of the difference whose rank is looked at first: 50 ms
MOST_RANK = 128  # of a difference: a quarter of the sample
EXTRA_DIRECTIONS = 8  # random directions beyond the rank, so that none of the difference is missed
NOISE = 8.0  # units of rounding that the difference may have beside what is of low rank, which must have more
LEAST_CHANGED = 0.5  # share of rows and of columns that differ: an adapter changes all, a patched row is none
MOST_IN_ONE_ROW = 0.5  # share of a direction that one row may have: more is an element or a row that was changed


def prove_adapter(
    reference: Sequence[TensorRef],
    candidate: Sequence[TensorRef],
    atol: float,
    rtol: float,
    hints: Sequence[Relation] = (),
) -> Relation | None:
    """Return with which scale (weight, A, B) of one side make the weight of the other: weight + scale * B @ A."""
    if sorted((len(reference), len(candidate))) != [1, 3]:
        return None
    on_reference = len(reference) == 3
    (weight, down, up), (merged,) = (reference, candidate) if on_reference else (candidate, reference)
    if len(weight.shape) != 2 or weight.shape != merged.shape or not is_foldable((down, up)):
        return None
    if weight.dtype.name not in FORMATS or merged.dtype.name not in FORMATS or weight.missing or merged.missing:
        return None
    if len(down.shape) != 2 or len(up.shape) != 2 or down.shape[0] != up.shape[1]:
        return None
    factors = widen(read_array(down)), widen(read_array(up))
    unit = measure_unit((weight, down, up))
    for transposed in (False, True):
        # rows of the weight: those of the one factor with all of the other
        first, second = (factors[0].T, factors[1].T) if transposed else (factors[1], factors[0])
        if (len(first), second.shape[1]) != weight.shape:
            continue
        scale = find_scale(weight, merged, first, second, unit)
        if scale is not None:
            operations: tuple[Operation, ...] = (AddLowRank(scale, transposed),)
            return Relation(RelationKind.FOLD, *((operations, ()) if on_reference else ((), operations)))
    return None


def find_scale(weight: TensorRef, merged: TensorRef, first: Array, second: Array, unit: float) -> float | None:
    """Return the scale with which a product was added to a weight, if that gives every element; else None."""
    product_square = shared = noise_square = 0.0
    for start, rows, merged_rows in read_rows(weight, merged):
        product = first[start : start + len(rows)] @ second
        product_square += float(np.vdot(product, product))
        shared += float(np.vdot(product, merged_rows - rows))
        noise_square += float(np.vdot(rows, rows))
    if not product_square:
        scale = 1.0  # an adapter that was never trained adds nothing
    elif not np.isfinite(shared) or not shared:
        return None
    else:
        unit_of_both = max(unit, measure_unit((merged,)))
        scale, room = shared / product_square, unit_of_both * np.sqrt(noise_square / product_square)
        scale = choose_plain_number(scale - room, scale + room, first.shape)
    for start, rows, merged_rows in read_rows(weight, merged):
        block = first[start : start + len(rows)]
        sizes = np.abs(rows) + abs(scale) * (np.abs(block) @ np.abs(second))
        if not agree_but_for_rounding(rows + scale * (block @ second), merged_rows, sizes, unit, merged.dtype.name):
            return None
    return scale or None


def read_rows(*tensors: TensorRef) -> Iterator[tuple[int, Array, Array]]:
    """Yield where a block of rows of two matrices starts, and their elements in float64."""
    height, width = tensors[0].shape
    step = max(1, BLOCK // width)
    for start in range(0, height, step):
        stop = min(start + step, height)
        blocks = []
        for tensor in tensors:
            numbers = tensor.dtype.decode(tensor.read(start * width, stop * width))
            blocks.append(numbers.astype(np.float64).reshape(stop - start, width))
        yield start, blocks[0], blocks[1]


def find_rank(reference: TensorRef, candidate: TensorRef) -> int | None:
    """Return the rank of the difference of two matrices, if that is low, proven on every element; else None."""
    shape = reference.shape
    if len(shape) != 2 or shape != candidate.shape or min(shape) < 4 or reference.missing or candidate.missing:
        return None
    if reference.dtype.name not in FORMATS or candidate.dtype.name not in FORMATS:
        return None
    unit = measure_unit((reference, candidate))
    largest = 0.0
    for _, rows, candidate_rows in read_rows(reference, candidate):
        if not (np.isfinite(rows).all() and np.isfinite(candidate_rows).all()):
            return None
        largest = max(largest, float(np.abs(rows).max()), float(np.abs(candidate_rows).max()))
    room = NOISE * unit * largest
    rank = count_sampled_rank(reference, candidate, room)
    if not 0 < rank <= min(MOST_RANK, min(shape) // 4):
        return None
    return rank if is_of_rank(reference, candidate, rank, room) else None


def count_sampled_rank(reference: TensorRef, candidate: TensorRef, room: float) -> int:
    """Return how many directions some rows and columns of the difference have beyond rounding; 0 where that is unclear.

    It is unclear where a direction is hardly longer than those of rounding, and shows nothing where the matrices
    themselves have no more directions.
    """
    random = np.random.default_rng(0)
    height, width = reference.shape
    rows = np.sort(random.choice(height, min(height, SAMPLED_ROWS), replace=False))
    columns = np.sort(random.choice(width, min(width, SAMPLED_ROWS), replace=False))
    samples: list[Array] = []
    for tensor in (reference, candidate):
        sampled = [tensor.dtype.decode(tensor.read(row * width, (row + 1) * width))[columns] for row in rows.tolist()]
        samples.append(np.array(sampled, np.float64))
    noise = room / NOISE * (np.sqrt(len(rows)) + np.sqrt(len(columns)))  # of a matrix of independent roundings

    def count_directions(matrix: Array, least: float) -> int:
        return int(np.count_nonzero(np.linalg.svd(matrix, compute_uv=False) > least))

    difference = samples[1] - samples[0]
    rank = count_directions(difference, noise)
    if 0 < rank < min(difference.shape) and count_directions(difference, NOISE * noise) < rank:
        return 0
    return rank if all(count_directions(sample, NOISE * noise) > rank for sample in samples) else 0


def is_of_rank(reference: TensorRef, candidate: TensorRef, rank: int, room: float) -> bool:
    """Return True if a few directions make up every element of the difference, and most rows and columns differ."""
    height, width = reference.shape
    directions = np.random.default_rng(1).standard_normal((width, rank + EXTRA_DIRECTIONS))
    projected = np.empty((height, directions.shape[1]))
    changed_rows, changed_columns = 0, np.zeros(width, bool)
    for start, rows, candidate_rows in read_rows(reference, candidate):
        difference = candidate_rows - rows
        projected[start : start + len(rows)] = difference @ directions
        differs = difference != 0
        changed_rows += int(differs.any(axis=1).sum())
        changed_columns |= differs.any(axis=0)
    if min(changed_rows / height, changed_columns.sum() / width) < LEAST_CHANGED:
        return False
    basis = np.linalg.svd(projected, full_matrices=False)[0][:, :rank]
    if np.square(basis).max() > MOST_IN_ONE_ROW:
        return False
    coefficients = np.zeros((rank, width))
    for start, rows, candidate_rows in read_rows(reference, candidate):
        coefficients += basis[start : start + len(rows)].T @ (candidate_rows - rows)
    for start, rows, candidate_rows in read_rows(reference, candidate):
        rest = candidate_rows - rows - basis[start : start + len(rows)] @ coefficients
        if np.abs(rest).max() > room:
            return False
    return True
