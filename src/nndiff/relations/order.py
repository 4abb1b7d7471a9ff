"""Order: the same rows, columns or slices in another order along one axis, or along each of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.relations.operations import MOST_PLACES, Permute, Reshape, Take
from nndiff.relations.permutation import (
    Places,
    factor_permutation,
    match_labels,
    spread_operations,
    structure_permutation,
)
from nndiff.relations.proof import LARGEST_MOVED, is_readable, read_array, statistics_differ
from nndiff.relations.relation import Array, Operation, Relation
from nndiff.tensors import Shape, TensorRef
from nndiff.verdict import RelationKind

MOST_AXES = 4  # whose every order is tried: those of an image kernel
BLOCK = 1 << 18  # elements hashed or compared at once
# Bits that the order of single numbers must hold to show a structure: some thousand structured orders exist, so that
# one fits numbers in disorder by chance once in 1e9.
LEAST_EVIDENCE = 40.0

MIXER = np.uint64(0x9E3779B97F4A7C15)  # odd, its bits without a pattern: 2**64 over the golden ratio

Hashes = NDArray[np.uint64]


def prove(
    reference: Sequence[TensorRef],
    candidate: Sequence[TensorRef],
    atol: float,
    rtol: float,
    hints: Sequence[Relation] = (),
) -> Relation | None:
    """Return how slices of the candidate must be ordered to give the reference: equal values, whatever the tolerance.

    Only of files: where a network ran, another order of its rows is another network until its outputs show otherwise.
    """
    if len(reference) != 1 or len(candidate) != 1:
        return None
    for tensor in (*reference, *candidate):
        if tensor.recorded or not is_readable(tensor, LARGEST_MOVED) or tensor.dtype.kind not in ("float", "int"):
            return None
    shapes = reference[0].shape, candidate[0].shape
    if sorted(shapes[0]) != sorted(shapes[1]) or max(shapes[0], default=0) > MOST_PLACES:
        return None
    if statistics_differ(reference[0], candidate[0], 0.0, 0.0):
        return None
    return prove_arrays(read_array(reference[0]), read_array(candidate[0]), hints)


def prove_arrays(reference: Array, candidate: Array, hints: Sequence[Relation] = ()) -> Relation | None:
    """Return the order along one axis, else along several, that makes the candidate the reference."""
    if not all(have_equal_values(limit(reference), limit(candidate)) for limit in (np.min, np.max)):
        return None  # no order changes them, and nearly all unrelated tensors differ there
    if reference.shape == candidate.shape and have_equal_values(reference, candidate):
        return None
    for hint in hints:
        relation = follow_order(hint, reference, candidate)
        if relation is not None:
            return relation
    for axes in list_axis_orders(reference.shape, candidate.shape):
        turned = candidate.transpose(axes)
        for axis in range(reference.ndim):
            if not have_equal_lines(reference, turned, axis):
                continue
            labels = label_slices(reference, turned, axis)
            places = match_labels(*labels)
            if places is None or not have_equal_values(reference, turned, axis, places):
                continue
            if reference.size == len(places) and not shows_order(labels[0], places):
                continue
            ordered = spread_operations(structure_permutation(places.tolist()), reference.shape, axis)
            ambiguous = len(np.unique(labels[0])) < len(places)
            return Relation(RelationKind.LAYOUT, (), (*turn_axes(axes), *ordered), ambiguous=ambiguous)
    for axes in list_axis_orders(reference.shape, candidate.shape):
        orders = order_all_axes(reference, candidate.transpose(axes))
        if orders is not None:
            return Relation(RelationKind.LAYOUT, (), (*turn_axes(axes), *orders))
    return None


def list_axis_orders(reference: Shape, candidate: Shape) -> Iterator[tuple[int, ...]]:
    """Yield the orders of the candidate's axes that give the reference's shape, as they are first."""
    unmoved = tuple(range(len(candidate)))
    for axes in permutations(unmoved) if len(unmoved) <= MOST_AXES else (unmoved,):
        if tuple(candidate[axis] for axis in axes) == reference:
            yield axes


def turn_axes(axes: tuple[int, ...]) -> tuple[Operation, ...]:
    """Return the operations that put axes in an order; none if they are in it."""
    return (Permute(axes),) if axes != tuple(sorted(axes)) else ()


def to_bits(array: Array, dtype: np.dtype[Any]) -> Hashes:
    """Return the value of each element as a whole number: one for 0 and -0, and one for all NaN."""
    if not np.issubdtype(dtype, np.inexact):
        return array.astype(dtype).astype(np.uint64)
    numbers = array.astype(dtype, order="C") + dtype.type(0)  # -0 becomes 0
    numbers[np.isnan(numbers)] = np.nan
    bits: Hashes = numbers.view(f"u{dtype.itemsize}").astype(np.uint64)
    return bits


def hash_slices(array: Array, axis: int, dtype: np.dtype[Any], ordered: bool = True) -> Hashes:
    """Return a number for each slice along an axis, the same for the same values; in any order if not `ordered`."""
    shape = tuple(1 if number == axis else size for number, size in enumerate(array.shape))
    weights = np.random.default_rng(0).integers(0, 1 << 63, shape, np.uint64) * np.uint64(2) + np.uint64(1)
    inward = sorted(range(array.ndim), key=lambda number: -array.strides[number])  # as the elements lie in memory
    array, weights, axis = array.transpose(inward), weights.transpose(inward), inward.index(axis)
    rest = tuple(number for number in range(array.ndim) if number != axis)
    hashes = np.zeros(array.shape[axis], np.uint64)
    for window in split_slices(len(array), array.size):
        mixed = to_bits(array[window], dtype)
        mixed *= MIXER
        mixed ^= mixed >> np.uint64(32)
        if ordered:
            mixed *= weights if axis == 0 else weights[window]
        hashes[window if axis == 0 else slice(None)] += mixed.sum(axis=rest, dtype=np.uint64)
    return hashes


def split_slices(length: int, size: int) -> Iterator[slice]:
    """Yield stretches of slices with about as many elements as are held at once."""
    step = max(1, BLOCK * length // max(size, 1))
    for start in range(0, length, step):
        yield slice(start, start + step)


def label_slices(reference: Array, candidate: Array, axis: int, ordered: bool = True) -> tuple[Places, Places]:
    """Return for both arrays a number of each slice along an axis, equal for slices that have the same hash."""
    dtype = np.result_type(reference, candidate)
    hashes = [hash_slices(array, axis, dtype, ordered) for array in (reference, candidate)]
    _, labels = np.unique(np.concatenate(hashes), return_inverse=True)
    labels = labels.reshape(-1).astype(np.intp)
    return labels[: reference.shape[axis]], labels[reference.shape[axis] :]


def have_equal_lines(reference: Array, candidate: Array, axis: int) -> bool:
    """Return False if the first elements of all slices show that the slices are not the same."""
    dtype = np.result_type(reference, candidate)
    window = tuple(slice(None) if number == axis else 0 for number in range(reference.ndim))
    lines = [to_bits(array[window], dtype) for array in (reference, candidate)]
    return np.array_equal(np.sort(lines[0]), np.sort(lines[1]))


def have_equal_values(reference: Array, candidate: Array, axis: int = 0, places: Places | None = None) -> bool:
    """Return True if every element has the same value, once slices of the candidate are taken at some places."""
    if reference.shape != candidate.shape:
        return False
    if reference.ndim == 0:
        reference, candidate = reference.reshape(1), candidate.reshape(1)
    may_be_nan = np.issubdtype(reference.dtype, np.inexact)
    for window in split_slices(len(reference), reference.size):
        if places is None:
            block = candidate[window]
        elif axis == 0:
            block = candidate[places[window]]
        else:
            block = np.take(candidate[window], places, axis)
        if np.array_equal(reference[window], block):
            continue
        if not may_be_nan or not np.array_equal(reference[window], block, equal_nan=True):
            return False
    return True


def shows_order(labels: Places, places: Places) -> bool:
    """Return True if single numbers, which are found in any order, are in one that is no chance.

    It must have a structure, and the numbers must have so many orders that hardly any has one.
    """
    factors = factor_permutation(places)
    if len(factors) == 1 and factors[0].places is not None:
        return False
    _, counts = np.unique(labels, return_counts=True)
    orders = math.lgamma(len(labels) + 1) - sum(math.lgamma(count + 1) for count in counts.tolist())
    return orders / math.log(2) >= LEAST_EVIDENCE


def order_all_axes(reference: Array, candidate: Array) -> tuple[Operation, ...] | None:
    """Return the order along each axis, found by what slices hold in any order; None if that does not tell."""
    operations: list[Operation] = []
    for axis in range(reference.ndim if reference.ndim > 1 else 0):
        wanted, given = label_slices(reference, candidate, axis, ordered=False)
        if len(np.unique(wanted)) < len(wanted):
            return None  # slices of the same numbers: nothing tells them apart before the other axes are ordered
        places = match_labels(wanted, given)
        if places is None:
            return None
        operations.extend(spread_operations(structure_permutation(places.tolist()), reference.shape, axis))
        candidate = np.take(candidate, places, axis)
    return tuple(operations) if operations and have_equal_values(reference, candidate) else None


def follow_order(hint: Relation, reference: Array, candidate: Array) -> Relation | None:
    """Return the order of a relation proven for another tensor of the layer, if it holds along an axis of this one."""
    known = read_order(hint.candidate)
    if known is None or hint.reference or hint.kind is not RelationKind.LAYOUT or reference.shape != candidate.shape:
        return None
    for axis, size in enumerate(reference.shape):
        if size == len(known) and have_equal_values(reference, candidate, axis, known):
            ordered = spread_operations(structure_permutation(known.tolist()), reference.shape, axis)
            labels, _ = label_slices(reference, candidate, axis)
            return Relation(RelationKind.LAYOUT, (), ordered, ambiguous=len(np.unique(labels)) < size)
    return None


def read_order(operations: Sequence[Operation]) -> Places | None:
    """Return the places along the one axis that operations order; None if they do anything else."""
    narrow = narrow_operations(operations)
    if narrow is None:
        return None
    _, length, on_axis = narrow
    arrays: Sequence[Array] = [np.arange(length)]
    for operation in on_axis:
        arrays = operation.apply(arrays)
    return np.asarray(arrays[0], np.intp)


def narrow_operations(operations: Sequence[Operation]) -> tuple[int, int, tuple[Operation, ...]] | None:
    """Return the axis that operations order, its length, and the operations on that axis alone; None if none do."""
    match operations:
        case [Take() as take]:
            return take.axis, len(take.places), (Take(0, take.places),)
        case [Reshape() as split, *between, Reshape() as merged] if len(merged.shape) < len(split.shape):
            pairs = zip(split.shape, merged.shape, strict=False)
            axis = next((number for number, sizes in enumerate(pairs) if sizes[0] != sizes[1]), None)
            if axis is None:
                return None
            factors = len(split.shape) - len(merged.shape) + 1
            narrow: list[Operation] = [Reshape(split.shape[axis : axis + factors])]
            for operation in between:
                match operation:
                    case Take() if axis <= operation.axis < axis + factors:
                        narrow.append(Take(operation.axis - axis, operation.places))
                    case Permute():
                        narrow.append(Permute(tuple(number - axis for number in operation.axes[axis : axis + factors])))
                    case _:
                        return None
            narrow.append(Reshape((merged.shape[axis],)))
            if spread_operations(narrow, merged.shape, axis) == tuple(operations):
                return axis, merged.shape[axis], tuple(narrow)
    return None
