"""Fused: one tensor that holds several, concatenated (query, key and value) or stacked (experts), in any order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nndiff.relations.axis_search import drop_ones
from nndiff.relations.operations import Arrange, Concatenate, Permute, Reshape, Slice, Stack, Take, widen
from nndiff.relations.order import have_equal_lines, have_equal_values, label_slices, read_order, shows_order
from nndiff.relations.permutation import match_labels, spread_operations, structure_permutation
from nndiff.relations.proof import agree, agree_after, is_readable, is_telling, read_array
from nndiff.relations.relation import Array, Operation, Relation
from nndiff.tensors import (
    Data,
    FileData,
    LateData,
    MemoryData,
    Shape,
    StridedFileData,
    TensorRef,
    contiguous_strides,
    is_contiguous,
    settled,
)
from nndiff.verdict import RelationKind

LARGEST_FUSED = 1 << 26  # elements of a whole, held in memory with its parts: 256 MB each in float32
MOST_ORDER_STEPS = 20_000  # places times parts tried for an order: enough for 128 experts in any order
LEAST_ROW = 2  # elements by which a row can be found: single numbers are found in every permutation
ROW_FEATURES = 512  # elements of a row by which it is found; all are compared afterwards
MOST_REMATCHED = 1024  # rows told apart by their distances, where rounding mixed up their order


@dataclass(frozen=True)
class Arrangement:
    """Say how shapes allow parts to lie in a whole."""

    join: Concatenate | Stack
    turned: bool = False  # the parts are transposed first
    prepare: tuple[Operation, ...] = ()  # what is done to the whole first

    @property
    def part_operations(self) -> tuple[Operation, ...]:
        """Return what is done to each part before they are joined."""
        return (Permute((1, 0)),) if self.turned else ()

    def part_length(self, shape: Shape) -> int:
        """Return how many places a part of this shape takes along the axis of the whole."""
        if isinstance(self.join, Stack):
            return 1
        return shape[::-1][self.join.axis] if self.turned else shape[self.join.axis]

    def build_relation(
        self,
        whole_in_reference: bool,
        whole: Shape,
        order: Sequence[int] = (),
        places: Sequence[int] = (),
        ambiguous: bool = False,
    ) -> Relation:
        """Return the relation of parts in some order, or of their rows at some places of a whole of that shape."""
        joined: list[Operation] = list(self.part_operations)
        if order and list(order) != sorted(order):
            joined.append(Arrange(tuple(order)))
        joined.append(self.join)
        prepared = self.prepare
        if places:
            prepared = (*prepared, *spread_operations(structure_permutation(places), whole, self.join.axis))
        sides = (prepared, tuple(joined)) if whole_in_reference else (tuple(joined), prepared)
        return Relation(RelationKind.LAYOUT, *sides, ambiguous=ambiguous)


def list_arrangements(whole: Shape, parts: Sequence[Shape]) -> Iterator[Arrangement]:
    """Yield the arrangements that shapes allow: as they are first, then transposed."""
    is_matrix = all(len(shape) == 2 for shape in parts)
    for turned in (False, True) if is_matrix else (False,):
        shapes = [shape[::-1] if turned else shape for shape in parts]
        for axis in range(len(shapes[0])):
            if concatenate_shapes(shapes, axis) == whole:
                yield Arrangement(Concatenate(axis), turned)
        for axis in range(len(shapes[0]) + 1):
            if len(set(shapes)) == 1 and (*shapes[0][:axis], len(shapes), *shapes[0][axis:]) == whole:
                yield Arrangement(Stack(axis), turned)
    if is_matrix and len(whole) == 3:
        # several parts in each of a stack: gate and up of every expert
        merged = Reshape((whole[0] * whole[1], whole[2]))
        if concatenate_shapes(parts, 0) == merged.shape:
            yield Arrangement(Concatenate(0), prepare=(merged,))
        merged = Reshape((whole[0] * whole[2], whole[1]))
        if concatenate_shapes(parts, 0) == merged.shape:
            yield Arrangement(Concatenate(0), prepare=(Permute((0, 2, 1)), merged))


def concatenate_shapes(shapes: Sequence[Shape], axis: int) -> Shape | None:
    """Return the shape of a concatenation; None if the shapes do not fit."""
    first = shapes[0]
    for shape in shapes:
        if len(shape) != len(first) or shape[:axis] != first[:axis] or shape[axis + 1 :] != first[axis + 1 :]:
            return None
    if axis >= len(first):
        return None
    return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])


def prove(
    reference: Sequence[TensorRef],
    candidate: Sequence[TensorRef],
    atol: float,
    rtol: float,
    hints: Sequence[Relation] = (),
) -> Relation | None:
    """Return how several tensors of one side lie in one tensor of the other."""
    if min(len(reference), len(candidate)) != 1 or max(len(reference), len(candidate)) < 2:
        return None
    whole_in_reference = len(reference) == 1
    (whole,), parts = (reference, candidate) if whole_in_reference else (candidate, reference)
    if not all(is_readable(tensor, LARGEST_FUSED) for tensor in (whole, *parts)):
        return None
    arrangements = list(list_arrangements(whole.shape, [part.shape for part in parts]))
    if not arrangements:
        return None
    whole_array, part_arrays = read_array(whole), [read_array(part) for part in parts]
    sides = ([whole_array], part_arrays) if whole_in_reference else (part_arrays, [whole_array])
    for hint in hints:
        if hint.kind is RelationKind.LAYOUT and agree_after(hint, *sides, atol, rtol):
            return hint
        relation = follow_places(hint, whole.shape, arrangements, whole_in_reference)
        if relation is not None and agree_after(relation, *sides, atol, rtol):
            return relation
    telling = is_telling(whole_array, atol, rtol)
    for find in (find_order, find_places):
        for arrangement in arrangements:
            search = FusedSearch(whole_array, part_arrays, arrangement, atol, rtol, whole_in_reference)
            relation = find(search)
            if relation is not None and (telling or is_natural(relation)):
                return relation
    return None


def follow_places(
    hint: Relation, whole: Shape, arrangements: Sequence[Arrangement], whole_in_reference: bool
) -> Relation | None:
    """Return the places of a proven relation in a whole of another shape: the bias of a layer whose weight is known."""
    places = read_order(hint.reference if whole_in_reference else hint.candidate)
    for arrangement in arrangements:
        if places is not None and not arrangement.prepare and whole[arrangement.join.axis] == len(places):
            return arrangement.build_relation(whole_in_reference, whole, places=places.tolist())
    return None


def is_natural(relation: Relation) -> bool:
    """Return True if parts lie in a whole in their own order: all that constant elements can show."""
    return not any(isinstance(operation, Arrange | Take) for operation in (*relation.reference, *relation.candidate))


class FusedSearch:
    """Hold the arrays of a whole and its parts in one arrangement."""

    def __init__(
        self,
        whole: Array,
        parts: Sequence[Array],
        arrangement: Arrangement,
        atol: float,
        rtol: float,
        whole_in_reference: bool,
    ) -> None:
        for operation in arrangement.prepare:
            (whole,) = operation.apply([whole])
        for operation in arrangement.part_operations:
            parts = operation.apply(parts)
        self.arrangement = arrangement
        self.axis = arrangement.join.axis
        self.whole = whole
        self.parts = parts
        self.atol, self.rtol = atol, rtol
        self.whole_in_reference = whole_in_reference

    def agree(self, whole: Array, part: Array) -> bool:
        """Return True if every element agrees."""
        sides = (whole, part) if self.whole_in_reference else (part, whole)
        return agree(*sides, self.atol, self.rtol)

    def build_relation(
        self, order: Sequence[int] = (), places: Sequence[int] = (), ambiguous: bool = False
    ) -> Relation:
        """Return the relation of parts in some order, or of their rows at some places of the whole."""
        return self.arrangement.build_relation(self.whole_in_reference, self.whole.shape, order, places, ambiguous)


def find_order(search: FusedSearch) -> Relation | None:
    """Return the order in which the parts lie one behind the other, their own first."""
    stacked = isinstance(search.arrangement.join, Stack)
    parts = [np.expand_dims(part, search.axis) for part in search.parts] if stacked else search.parts
    length = search.whole.shape[search.axis]
    matches: dict[tuple[int, int], bool] = {}
    orders: list[tuple[tuple[int, ...], int]] = [((), 0)]  # what is placed, and how far it reaches; the last is next
    steps = 0
    while orders and steps < MOST_ORDER_STEPS:
        order, start = orders.pop()
        if start == length and len(order) == len(parts):
            return search.build_relation(order)
        following = []
        for number, part in enumerate(parts):
            steps += 1
            stop = start + part.shape[search.axis]
            if number in order or stop > length:
                continue
            if (number, start) not in matches:
                window = (slice(None),) * search.axis + (slice(start, stop),)
                matches[number, start] = search.agree(search.whole[window], part)
            if matches[number, start]:
                following.append(((*order, number), stop))
        orders.extend(reversed(following))
    return None


def find_places(search: FusedSearch) -> Relation | None:
    """Return where in the whole the rows of the parts lie, dealt out in any order, found by what they hold."""
    if isinstance(search.arrangement.join, Stack):
        return None
    joined = np.concatenate(search.parts, search.axis)
    exact = find_equal_rows(search, joined)
    if exact is not None:
        return exact
    whole, parts = np.moveaxis(search.whole, search.axis, 0), np.moveaxis(joined, search.axis, 0)
    whole_rows, part_rows = whole.reshape(len(whole), -1), parts.reshape(len(parts), -1)
    if whole_rows.shape[1] < LEAST_ROW:
        return None
    places = match_rows(whole_rows, part_rows, search.atol, search.rtol)
    if not search.agree(whole_rows[places], part_rows):
        return None
    return search.build_relation(places=tuple(places.tolist()))


def find_equal_rows(search: FusedSearch, joined: Array) -> Relation | None:
    """Return where in the whole the rows of the parts lie if they have equal values; equal rows in a likely order."""
    if not have_equal_lines(joined, search.whole, search.axis):
        return None
    labels = label_slices(joined, search.whole, search.axis)
    places = match_labels(*labels)
    if places is None or not have_equal_values(joined, search.whole, search.axis, places):
        return None
    if joined.size == len(places) and not shows_order(labels[0], places):
        return None
    return search.build_relation(places=places.tolist(), ambiguous=len(np.unique(labels[0])) < len(places))


def match_rows(whole: Array, parts: Array, atol: float, rtol: float) -> Array:
    """Return for each row of the parts the row of the whole that is likely the same, each of them once."""
    step = max(1, whole.shape[1] // ROW_FEATURES)
    whole_features, part_features = widen(whole[:, ::step]), widen(parts[:, ::step])
    for features in (whole_features, part_features):
        features[~np.isfinite(features)] = 0.0
    scale = max(float(np.abs(part_features).max()), np.finfo(np.float64).tiny)
    weights = np.random.default_rng(0).standard_normal(whole_features.shape[1]) / scale
    places = np.empty(len(whole), np.intp)
    places[np.argsort((part_features @ weights).real)] = np.argsort((whole_features @ weights).real)
    # rounding may exchange rows whose projections are close: those are matched again by their distance
    with np.errstate(all="ignore"):
        gaps = np.abs(whole_features[places] - part_features)
    loose = np.flatnonzero((gaps > atol + rtol * np.abs(part_features)).any(axis=1))
    if len(loose) > MOST_REMATCHED:
        return places
    free = places[loose]
    for row in loose:
        with np.errstate(all="ignore"):
            nearest = np.abs(whole_features[free] - part_features[row]).max(axis=1).argmin()
        places[row] = free[nearest]
        free = np.delete(free, nearest)
    return places


def relate_parts(relation: Relation, parts: Sequence[TensorRef]) -> list[Relation]:
    """Return for each part of a proven fused relation its own relation with the whole."""
    whole_in_reference = joins_parts(relation.candidate)
    joined = relation.candidate if whole_in_reference else relation.reference
    prepare = list(relation.reference if whole_in_reference else relation.candidate)
    join = joined[-1] if joined else None
    is_laid_out = all(isinstance(operation, Permute | Arrange) for operation in joined[:-1])
    if not isinstance(join, Concatenate | Stack) or not is_laid_out:
        raise ValueError("parts are not only laid side by side: what else is done to them does not come back")
    order = tuple(range(len(parts)))
    for operation in joined:
        if isinstance(operation, Arrange):
            order = operation.order
    arrangement = Arrangement(join, turned=isinstance(joined[0], Permute))
    places = prepare.pop() if prepare and isinstance(prepare[-1], Take) else None
    relations: dict[int, Relation] = {}
    start = 0
    for number in order:
        shape = parts[number].shape
        stop = start + arrangement.part_length(shape)
        operations = list(prepare)
        if isinstance(places, Take):
            operations.append(Take(join.axis, places.places[start:stop]))
        else:
            operations.append(Slice(join.axis, start, stop))
        if isinstance(join, Stack):
            operations.append(Reshape(shape[::-1] if arrangement.turned else shape))
        operations.extend(arrangement.part_operations)
        start = stop
        sides = (tuple(operations), ()) if whole_in_reference else ((), tuple(operations))
        relations[number] = Relation(RelationKind.LAYOUT, *sides)
    return [relations[number] for number in range(len(parts))]


@dataclass(frozen=True)
class PartLayout:
    """Say how the parts lie in a fused layer: the same for its output, its parameters and their gradients."""

    order: tuple[int, ...]  # empty for their own
    places: tuple[int, ...]  # of all rows of the parts in the whole; empty where they lie one behind the other
    lengths: tuple[int, ...]  # of the parts


def read_layout(relation: Relation, parts: Sequence[TensorRef]) -> PartLayout | None:
    """Return how the parts lie, of a relation proven for one tensor of a layer; None where it says more than that."""
    whole_in_reference = joins_parts(relation.candidate)
    joined = relation.candidate if whole_in_reference else relation.reference
    prepare = relation.reference if whole_in_reference else relation.candidate
    join = joined[-1]
    places = read_order(prepare)
    if not isinstance(join, Concatenate) or (prepare and places is None):
        return None
    order: tuple[int, ...] = ()
    for operation in joined:
        if isinstance(operation, Arrange):
            order = operation.order
    arrangement = Arrangement(join, turned=isinstance(joined[0], Permute))
    known = () if places is None else tuple(places.tolist())
    return PartLayout(order, known, tuple(arrangement.part_length(part.shape) for part in parts))


def follow_layout(
    layout: PartLayout, reference: Sequence[TensorRef], candidate: Sequence[TensorRef], atol: float, rtol: float
) -> tuple[Relation, bool] | None:
    """Return the relation of another tensor of a layer whose layout is known, and whether its elements agree so.

    None where its shape does not fit the layout.
    """
    whole_in_reference = len(reference) == 1
    (whole,), parts = (reference, candidate) if whole_in_reference else (candidate, reference)
    relations = []
    for arrangement in list_arrangements(whole.shape, [part.shape for part in parts]):
        lengths = tuple(arrangement.part_length(part.shape) for part in parts)
        if isinstance(arrangement.join, Concatenate) and not arrangement.prepare and lengths == layout.lengths:
            relations.append(arrangement.build_relation(whole_in_reference, whole.shape, layout.order, layout.places))
    if all(is_readable(tensor, LARGEST_FUSED) for tensor in (whole, *parts)):
        arrays = [read_array(tensor) for tensor in reference], [read_array(tensor) for tensor in candidate]
        for relation in relations:
            if agree_after(relation, *arrays, atol, rtol):
                return relation, True
    return (relations[0], False) if relations else None


def joins_parts(operations: Sequence[Operation]) -> bool:
    """Return True for the operations of the side that has the parts."""
    return bool(operations) and isinstance(operations[-1], Concatenate | Stack)


def natural_parts(
    whole: TensorRef, parts: Sequence[TensorRef], whole_in_reference: bool = False
) -> list[Relation] | None:
    """Return how parts would lie in a whole in their own order, unproven; None if the shapes do not fit."""
    for arrangement in list_arrangements(whole.shape, [part.shape for part in parts]):
        joined = (*arrangement.part_operations, arrangement.join)
        sides = (arrangement.prepare, joined) if whole_in_reference else (joined, arrangement.prepare)
        return relate_parts(Relation(RelationKind.LAYOUT, *sides), parts)
    return None


@dataclass(frozen=True)
class StridedView:
    """Hold where a part lies in a storage, in elements; no strides where its places are scattered."""

    shape: Shape
    strides: tuple[int, ...] | None
    offset: int

    def follow(self, operation: Operation) -> StridedView:
        """Return the view after one operation of `relate_parts`."""
        if isinstance(operation, Permute):
            shape = tuple(self.shape[axis] for axis in operation.axes)
            strides = self.strides and tuple(self.strides[axis] for axis in operation.axes)
            return StridedView(shape, strides, self.offset)
        if isinstance(operation, Slice | Take):
            taken = operation.stop - operation.start if isinstance(operation, Slice) else len(operation.places)
            shape = (*self.shape[: operation.axis], taken, *self.shape[operation.axis + 1 :])
            if self.strides is None or isinstance(operation, Take):
                return StridedView(shape, None, self.offset)
            return StridedView(shape, self.strides, self.offset + operation.start * self.strides[operation.axis])
        if not isinstance(operation, Reshape):
            raise ValueError(f"{operation.text} does not cut out a part")
        strides = self.strides and reshape_strides(self.shape, self.strides, operation.shape)
        return StridedView(operation.shape, strides, self.offset)


def reshape_strides(shape: Shape, strides: tuple[int, ...], wanted: Shape) -> tuple[int, ...] | None:
    """Return the strides after a reshape; None if elements might have to be copied."""
    if is_contiguous(shape, strides):
        return contiguous_strides(wanted)
    long_strides = [stride for size, stride in zip(shape, strides, strict=True) if size > 1]
    if drop_ones(shape) != drop_ones(wanted):
        return None
    remaining = iter(long_strides)
    return tuple(next(remaining) if size > 1 else 0 for size in wanted)


def cut_part(whole: TensorRef, operations: Sequence[Operation], name: str | None = None) -> TensorRef:
    """Return a part of a tensor, by the operations of `relate_parts`; nothing is read before it is asked for."""
    view = StridedView(whole.shape, contiguous_strides(whole.shape), 0)
    for operation in operations:
        view = view.follow(operation)
    trace = replace(whole.trace, digest=None, stats=None, sketch=None, same=None, whole=whole.shape)
    data = LateData(lambda: cut_data(whole, operations, view))
    return replace(
        whole, name=whole.name if name is None else name, shape=view.shape, data=data, storage_id=None, trace=trace
    )


def cut_data(whole: TensorRef, operations: Sequence[Operation], view: StridedView) -> Data:
    """Return the elements of a part: a strided window of a file where that is possible, else read with the whole."""
    data = settled(whole.data)
    if isinstance(data, FileData) and view.strides is not None and 0 not in view.shape:
        return StridedFileData(data.window, data.storage, view.offset, view.shape, view.strides, data.swapped)
    array = whole.read(0, whole.count).reshape(whole.shape)
    for operation in operations:
        (array,) = operation.apply([array])
    return MemoryData(array)
