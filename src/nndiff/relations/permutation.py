"""Permutation: an order of the places along one axis, written as the split, permute and merge that makes it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nndiff.relations.axis_search import divisors
from nndiff.relations.operations import Permute, Reshape, Take
from nndiff.relations.relation import Operation
from nndiff.tensors import Shape

Places = NDArray[np.intp]

MOST_FACTORS = 4  # runs of a structured order: parts, heads, halves, dimensions
PEEKED = 64  # places that rule out most orders


@dataclass(frozen=True)
class Factor:
    """Hold one factor of an order: its places are split into sizes, whose axes are permuted, or taken one by one."""

    sizes: Shape
    axes: tuple[int, ...]
    places: tuple[int, ...] | None = None  # of an order without structure

    @property
    def length(self) -> int:
        """Return the number of places it orders."""
        return math.prod(self.sizes)

    @property
    def is_kept(self) -> bool:
        """Return True if every place stays where it is."""
        return self.places is None and self.axes == tuple(sorted(self.axes))


def structure_permutation(places: Sequence[int]) -> tuple[Operation, ...]:
    """Return the operations on an array of one axis that take its places in this order; as few places as possible."""
    factors = factor_permutation(np.asarray(places, np.intp))
    if all(factor.is_kept for factor in factors):
        return ()
    split: list[int] = []
    takes: list[Operation] = []
    axes: list[int] = []
    for factor in factors:
        if factor.places is not None:
            takes.append(Take(len(split), factor.places))
        axes.extend(len(split) + axis for axis in factor.axes)
        split.extend(factor.sizes)
    operations: list[Operation] = list(takes)
    if axes != sorted(axes):
        operations.append(Permute(tuple(axes)))
    if len(split) == 1:
        return tuple(operations)
    return (Reshape(tuple(split)), *operations, Reshape((len(places),)))


def factor_permutation(places: Places) -> list[Factor]:
    """Return an order as factors, the outermost first: each orders its digit of a place whatever the others are."""
    axis_order = read_axis_order(places)
    if axis_order is not None:
        return [Factor(*axis_order)]
    explicit = Factor((len(places),), (0,), tuple(places.tolist()))
    if np.array_equal(places, np.arange(len(places))[::-1]):
        return [explicit]  # a product of reversals too, but nobody would say it so
    for size in divisors(len(places))[1:-1]:
        split = split_permutation(places, size)
        if split is not None:
            outer, inner = factor_permutation(split[0]), factor_permutation(split[1])
            if outer[-1].is_kept and inner[0].is_kept:
                length = outer.pop().length * inner.pop(0).length
                outer.append(Factor((length,), (0,)))
            return [*outer, *inner]
    return [explicit]


def read_axis_order(places: Places) -> tuple[Shape, tuple[int, ...]] | None:
    """Return the sizes into which places are split and the order of these axes; None if places are ordered otherwise.

    Places in such an order are sums of one multiple of a stride for each axis, which can be read off one by one.
    """
    runs: list[tuple[int, int]] = []  # (stride, size), the innermost first
    remaining = places
    while len(remaining) > 1:
        stride = int(remaining[1])
        breaks = np.flatnonzero(remaining != stride * np.arange(len(remaining)))
        size = int(breaks[0]) if len(breaks) else len(remaining)
        if size < 2 or len(remaining) % size or len(runs) == MOST_FACTORS:
            return None
        if not np.array_equal(remaining, np.add.outer(remaining[::size], stride * np.arange(size)).reshape(-1)):
            return None
        runs.append((stride, size))
        remaining = remaining[::size]
    outward = sorted(runs)
    expected = 1
    for stride, size in outward:
        if stride != expected:
            return None
        expected *= size
    inward = outward[::-1]
    sizes = tuple(size for _, size in inward) or (1,)
    axes = tuple(inward.index(run) for run in reversed(runs)) or (0,)
    return sizes, axes


def split_permutation(places: Places, size: int) -> tuple[Places, Places] | None:
    """Return the order of blocks of a size and the one order inside all of them; None if there is none."""
    blocks = places.reshape(-1, size)
    outer, inner = blocks[:, 0] // size, blocks[0] % size
    return (outer, inner) if np.array_equal(blocks, outer[:, None] * size + inner) else None


def match_labels(wanted: Places, given: Places) -> Places | None:
    """Return the order that makes given labels the wanted ones; None if they are not the same.

    Equal labels can be exchanged: then an order of axes is preferred, then one of large blocks, then one that leaves
    most places as they are.
    """
    wanted_order, given_order = np.argsort(wanted, kind="stable"), np.argsort(given, kind="stable")
    labels = wanted[wanted_order]
    if not np.array_equal(labels, given[given_order]):
        return None
    places = np.empty(len(wanted), np.intp)
    places[wanted_order] = given_order
    if not np.any(labels[1:] == labels[:-1]):
        return places
    moved = np.flatnonzero(wanted != given)
    peeked = moved[:PEEKED]
    for ordered in list_axis_orders(len(wanted)):
        if np.array_equal(given[ordered.flat[peeked]], wanted[peeked]):
            order = np.asarray(ordered.reshape(-1))
            if np.array_equal(given[order], wanted):
                return order
    for size in reversed(divisors(len(wanted))[1:-1]):
        blocks = match_blocks(wanted, given, size)
        if blocks is not None:
            return blocks
    kept = np.arange(len(wanted))
    kept[moved[np.argsort(wanted[moved], kind="stable")]] = moved[np.argsort(given[moved], kind="stable")]
    return kept


def match_blocks(wanted: Places, given: Places, size: int) -> Places | None:
    """Return the order of blocks of a size that makes given labels the wanted ones; None if there is none."""
    labels: dict[bytes, int] = {}
    sides = []
    for side in (wanted, given):
        blocks = [labels.setdefault(block.tobytes(), len(labels)) for block in side.reshape(-1, size)]
        sides.append(np.asarray(blocks, np.intp))
    if not np.array_equal(np.sort(sides[0]), np.sort(sides[1])):
        return None
    places = match_labels(*sides)
    assert places is not None
    return np.asarray(np.add.outer(places * size, np.arange(size)).reshape(-1))


def list_axis_orders(length: int) -> Iterator[Places]:
    """Yield every order that comes of splitting places in two or three and exchanging these axes, as a view."""
    numbers = np.arange(length)
    for outer in divisors(length)[1:-1]:
        yield numbers.reshape(outer, -1).T
    for outer in divisors(length)[1:-1]:
        for middle in divisors(length // outer)[1:-1]:
            split = numbers.reshape(outer, middle, -1)
            for axes in ((0, 2, 1), (1, 0, 2), (2, 1, 0)):
                yield split.transpose(axes)


def spread_operations(operations: Sequence[Operation], shape: Shape, axis: int) -> tuple[Operation, ...]:
    """Return operations on an array of one axis as those on one axis of a shape."""
    before, after = shape[:axis], shape[axis + 1 :]
    spread: list[Operation] = []
    split = 1  # axes into which that one is split
    for operation in operations:
        match operation:
            case Reshape():
                spread.append(Reshape((*before, *operation.shape, *after)))
                split = len(operation.shape)
            case Permute():
                last = range(axis + split, axis + split + len(after))
                spread.append(Permute((*range(axis), *(axis + number for number in operation.axes), *last)))
            case Take():
                spread.append(Take(axis + operation.axis, operation.places))
            case _:
                raise ValueError(f"{operation.text} does not order the places of an axis")
    return tuple(spread)
