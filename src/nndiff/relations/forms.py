"""Forms: the name that people have for a layout, read off the operations of a proven relation."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

import numpy as np

from nndiff.relations.axis_search import divisors, drop_ones
from nndiff.relations.operations import Arrange, Concatenate, Expand, Permute, Reshape, Stack, Take
from nndiff.relations.order import read_order
from nndiff.relations.permutation import (
    Factor,
    Places,
    factor_permutation,
    read_axis_order,
    split_permutation,
    spread_operations,
    structure_permutation,
)
from nndiff.relations.relation import Operation, Relation
from nndiff.tensors import Shape

LARGEST_HEAD = 256  # rows: no attention in use has larger heads, so that larger blocks are those of ranks

# Names choose between words for what is proven, never whether it is.
ROTATED = re.compile(
    r"(^|[._])(q|k|query|key|q_?proj|k_?proj|wq|wk|qkv|query_key_value|\w*rope|k_pe|q_pe)([._]|$)", re.I
)
ATTENTION = re.compile(r"attn|attention|(^|[._])(q|k|v|o|wq|wk|wv|wo|[qkvo]_proj|query|key|value)([._]|$)", re.I)
RECURRENT = re.compile(r"lstm|gru|rnn|(weight|bias)_[ih]h|kernel_[ih]h", re.I)


class Form(str, Enum):
    """Name a layout: what was done to the reference to get the candidate."""

    TRANSPOSED = "transposed"
    AXES_PERMUTED = "axes permuted"
    RESHAPED = "reshaped"
    REPEATED = "repeated"
    ROPE_TO_HALVES = "RoPE to halves"
    ROPE_TO_INTERLEAVED = "RoPE to interleaved"
    HEAD_ORDER = "heads in another order"
    BLOCK_ORDER = "blocks in another order"
    GATE_ORDER = "gates in another order"
    HALVES_SWAPPED = "halves swapped"
    CHANNELS_REVERSED = "channels reversed"
    FLATTEN_ORDER = "flattened in another order"
    REGROUPED = "regrouped"  # split, permuted and merged in a way that has no name
    INTERLEAVED = "interleaved"  # the halves, row by row
    DEINTERLEAVED = "deinterleaved"
    ROWS_PERMUTED = "rows permuted"
    COLUMNS_PERMUTED = "columns permuted"
    SLICES_PERMUTED = "slices permuted"
    ROWS_AND_COLUMNS_PERMUTED = "rows and columns permuted"
    CONCATENATED = "concatenated"
    PER_HEAD = "per head"
    PER_GROUP = "per group"
    STACKED = "stacked"
    SHARDED = "sharded"
    REARRANGED = "rearranged"  # none of these


@dataclass(frozen=True)
class LayoutForm:
    """Hold the name of a layout and what can be said of it; what does not apply is None or empty."""

    form: Form
    axis: int | None = None  # of the reference, or along which parts are joined
    transposed: bool = False  # as well
    axes: tuple[int, ...] = ()  # order of the candidate's axes in the reference
    heads: int | None = None
    head_dim: int | None = None
    rotary_dim: int | None = None  # where only a part of each head rotates
    sizes: Shape = ()  # into which the candidate's axis is split
    order: tuple[int, ...] = ()  # of blocks, gates or parts: which block of the reference comes first, second, ...
    block: int | None = None  # places in each block
    groups: int | None = None  # in which the same order repeats
    copies: int | None = None  # of each block
    rows: tuple[int, ...] = ()  # of each part in a group
    inner: LayoutForm | None = None  # what was done inside of parts, or of some of them
    inner_parts: tuple[int, ...] = ()  # which
    split: bool = False  # the reference has the whole, the candidate the parts
    ambiguous: bool = False  # equal rows: other orders agree as well

    @property
    def facts(self) -> dict[str, Any]:
        """Return what is known beside the form, by name."""
        known: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "form" and value != field.default:
                known[field.name] = value.facts | {"form": value.form} if isinstance(value, LayoutForm) else value
        return known


def describe_layout(
    relation: Relation,
    reference_shapes: Sequence[Shape],
    candidate_shapes: Sequence[Shape],
    reference_names: Sequence[str] = (),
) -> LayoutForm:
    """Return the name of a proven layout with its numbers, from the reference to the candidate."""
    for side, operations in enumerate((relation.reference, relation.candidate)):
        if operations and isinstance(operations[-1], Concatenate | Stack):
            whole_operations = (relation.candidate, relation.reference)[side]
            part_shapes = (reference_shapes, candidate_shapes)[side]
            (whole_shape,) = (candidate_shapes, reference_shapes)[side]
            return describe_fused(
                operations, whole_operations, whole_shape, part_shapes, side == 1, reference_names, relation.ambiguous
            )
    if any(isinstance(operation, Expand) for operation in (*relation.reference, *relation.candidate)):
        return describe_repeated(relation.reference or relation.candidate)
    if relation.reference:
        return LayoutForm(Form.REARRANGED)
    name = reference_names[0] if reference_names else ""
    operations = relation.candidate
    match operations:
        case [Reshape() as split, Permute() as permute, Reshape() as merged] if (
            split_orders(operations, merged.shape) is None
        ):
            operations = separate_orders(split.shape, permute.axes, merged.shape, candidate_shapes[0])
    return describe_moved(operations, reference_shapes[0], name, relation.ambiguous)


def describe_repeated(operations: Sequence[Operation]) -> LayoutForm:
    """Return which blocks one side holds several times, as key and value heads that queries share."""
    match operations:
        case [Reshape() as split, Expand() as expand, Reshape() as merged] if len(split.shape) == len(merged.shape) + 2:
            axis = next(number for number, size in enumerate(split.shape) if size != expand.shape[number]) - 1
            block, copies = split.shape[axis + 2], expand.shape[axis + 1]
            return LayoutForm(Form.REPEATED, axis=axis, block=block, copies=copies)
    return LayoutForm(Form.REPEATED)


def separate_orders(split: Shape, axes: tuple[int, ...], merged: Shape, candidate: Shape) -> tuple[Operation, ...]:
    """Return a split, permute and merge as an order of whole axes and then one of places along each.

    As they are if an axis of the reference mixes axes of the candidate.
    """
    unchanged = Reshape(split), Permute(axes), Reshape(merged)
    owners = assign_runs(split, candidate)
    merged_from = assign_runs([split[axis] for axis in axes], merged)
    if owners is None or merged_from is None or len(drop_ones(candidate)) != len(candidate):
        return unchanged
    whole_axes: list[int] = []
    ordered: list[Operation] = []
    for number in range(len(merged)):
        runs = [axis for axis, target in zip(axes, merged_from, strict=True) if target == number]
        sources = {owners[run] for run in runs}
        if len(sources) != 1 or owners.count(min(sources)) != len(runs):
            return unchanged
        whole_axes.extend(sources)
        sizes = [split[run] for run in sorted(runs)]
        places = np.arange(merged[number]).reshape(sizes).transpose(np.argsort(np.argsort(runs))).reshape(-1)
        ordered.extend(spread_operations(structure_permutation(places.tolist()), merged, number))
    turned = (Permute(tuple(whole_axes)),) if whole_axes != sorted(whole_axes) else ()
    return (*turned, *ordered)


def assign_runs(runs: Sequence[int], shape: Shape) -> list[int] | None:
    """Return of which axis of a shape each run of places is a part; None if a run crosses axes."""
    axes: list[int] = []
    remaining = list(runs)
    for axis, size in enumerate(shape):
        while size > 1:
            if not remaining or size % remaining[0]:
                return None
            size //= remaining.pop(0)
            axes.append(axis)
    return axes if not remaining else None


def describe_moved(operations: Sequence[Operation], shape: Shape, name: str, ambiguous: bool) -> LayoutForm:
    """Return the name of operations that bring one candidate into the reference's shape."""
    axes: tuple[int, ...] = ()
    match operations:
        case []:
            return LayoutForm(Form.RESHAPED)
        case [Reshape()]:
            return LayoutForm(Form.RESHAPED, sizes=shape)
        case [Permute() as permute]:
            form = Form.TRANSPOSED if len(permute.axes) == 2 else Form.AXES_PERMUTED
            return LayoutForm(form, axes=permute.axes)
        case [Permute() as permute, *rest]:
            axes, operations = permute.axes, rest
    orders = split_orders(operations, shape)
    if orders is None:
        return LayoutForm(Form.REARRANGED)
    turned = LayoutForm(Form.REARRANGED, transposed=bool(axes), axes=axes, ambiguous=ambiguous)
    if len(orders) > 1:
        form = Form.ROWS_AND_COLUMNS_PERMUTED if len(shape) == 2 else Form.SLICES_PERMUTED
        return merge_forms(turned, LayoutForm(form))
    ((axis, places),) = orders
    return merge_forms(turned, describe_order(places, axis, len(shape), name))


def merge_forms(outer: LayoutForm, inner: LayoutForm) -> LayoutForm:
    """Return the second form with what the first one knows."""
    known = {field.name: getattr(inner, field.name) for field in fields(inner)}
    for field in fields(outer):
        value = getattr(outer, field.name)
        if field.name != "form" and value != field.default:
            known[field.name] = value
    return LayoutForm(**known)


def split_orders(operations: Sequence[Operation], shape: Shape) -> list[tuple[int, Places]] | None:
    """Return the axes that operations order one after the other, with the places; None if they do anything else."""
    orders = []
    start = 0
    for stop, operation in enumerate(operations, 1):
        is_whole = isinstance(operation, Take) and stop == start + 1
        if not is_whole and not (isinstance(operation, Reshape) and operation.shape == shape and stop > start + 1):
            continue
        window = operations[start:stop]
        places = read_order(window)
        if places is None:
            return None
        first = window[0]
        if isinstance(first, Take):
            axis = first.axis
        elif isinstance(first, Reshape):
            axis = next(number for number, size in enumerate(shape) if first.shape[number] != size)
        orders.append((axis, places))
        start = stop
    return orders if orders and start == len(operations) else None


def describe_order(places: Places, axis: int, ndim: int, name: str) -> LayoutForm:
    """Return the name of the order of places that makes the candidate's slices the reference's."""
    gates = find_gates(places) if RECURRENT.search(name) else ()
    if gates:
        return LayoutForm(Form.GATE_ORDER, axis=axis, order=gates, block=len(places) // len(gates))
    factors = factor_permutation(places)
    rotated = find_rotation(places, factors, name)
    if rotated is not None:
        return merge_forms(LayoutForm(rotated.form, axis=axis), rotated)
    moved = [factor for factor in factors if not factor.is_kept]
    if len(moved) == 1 and moved[0].places is None:
        return describe_axis_order(moved[0], factors, axis, ndim)
    if len(moved) == 1 and (len(factors) > 1 or len(places) <= 4):
        block_form = describe_blocks(moved[0], factors, axis, name)
        if block_form is not None:
            return block_form
    if ndim > 2:
        return LayoutForm(Form.SLICES_PERMUTED, axis=axis)
    return LayoutForm(Form.COLUMNS_PERMUTED if axis == 1 else Form.ROWS_PERMUTED, axis=axis)


def find_gates(places: Places) -> tuple[int, ...]:
    """Return the order of the four gates of an LSTM or the three of a GRU; empty if the places are none of gates."""
    for count in (4, 3):
        split = split_permutation(places, len(places) // count) if len(places) % count == 0 else None
        if split is not None and np.array_equal(split[1], np.arange(len(places) // count)):
            return invert_places(split[0].tolist())
    return ()


def find_rotation(places: Places, factors: Sequence[Factor], name: str) -> LayoutForm | None:
    """Return how pairs of each head that rotate together moved between neighbours and halves; None if they did not."""
    last = factors[-1]
    rotary_dim = None
    order: tuple[int, ...] = ()
    if last.places is None and last.axes[-2:] == (len(last.axes) - 1, len(last.axes) - 2):
        if last.axes[:-2] != tuple(range(len(last.axes) - 2)):
            return None
        outer, inner = last.sizes[-2:]
    elif last.places is not None:
        region = find_rotated_region(np.asarray(last.places))
        if region is None:
            return None
        outer, inner = region
        rotary_dim = outer * inner
    else:
        return None
    if 2 not in (outer, inner):
        return None
    head_dim = last.length if rotary_dim else outer * inner
    heads = len(places) // head_dim
    if len(factors) > 1 and factors[0].places is not None:
        order = invert_places(factors[0].places)
    if heads == 1 and not ROTATED.search(name):
        return None  # gate and up, row by row, look the same
    form = Form.ROPE_TO_HALVES if outer == 2 else Form.ROPE_TO_INTERLEAVED
    return LayoutForm(form, heads=heads, head_dim=head_dim, rotary_dim=rotary_dim, order=order)


def find_rotated_region(places: Places) -> tuple[int, int] | None:
    """Return the sizes of the one stretch of a head that is split in pairs, while the rest stays; None if none is."""
    moved = np.flatnonzero(places != np.arange(len(places)))
    start, stop = int(moved[0]) - 1, int(moved[-1]) + 2  # the first and the last of the stretch stay too
    if start < 0 or stop > len(places):
        return None
    axis_order = read_axis_order(places[start:stop] - start)
    if axis_order is None or axis_order[1] != (1, 0):
        return None
    outer, inner = axis_order[0]
    return outer, inner


def describe_axis_order(moved: Factor, factors: Sequence[Factor], axis: int, ndim: int) -> LayoutForm:
    """Return the name of an order that comes of splitting an axis and permuting what it is split into."""
    if moved.axes == (1, 0) and 2 in moved.sizes and len(factors) == 1:
        form = Form.DEINTERLEAVED if moved.sizes[0] == 2 else Form.INTERLEAVED
        return LayoutForm(form, axis=axis, sizes=moved.sizes)
    if len(factors) == 1 and axis == ndim - 1 and ndim > 1:
        return LayoutForm(Form.FLATTEN_ORDER, axis=axis, sizes=moved.sizes, order=moved.axes)
    return LayoutForm(Form.REGROUPED, axis=axis, sizes=moved.sizes, order=moved.axes)


def describe_blocks(moved: Factor, factors: Sequence[Factor], axis: int, name: str) -> LayoutForm | None:
    """Return the name of blocks of equal size that changed their order; None if they are single rows."""
    number = list(factors).index(moved)
    groups = math.prod(factor.length for factor in factors[:number])
    block = math.prod(factor.length for factor in factors[number + 1 :])
    order = invert_places(moved.places or ())
    found = LayoutForm(Form.BLOCK_ORDER, axis=axis, order=order, block=block, groups=groups if groups > 1 else None)
    if order == (2, 1, 0) and block == 1:
        return merge_forms(found, LayoutForm(Form.CHANNELS_REVERSED))
    if order == (1, 0) and block > 1 and groups == 1:
        return merge_forms(found, LayoutForm(Form.HALVES_SWAPPED))
    if block > 1 and ATTENTION.search(name):
        everywhere = tuple(len(order) * group + place for group in range(groups) for place in order)
        return LayoutForm(Form.HEAD_ORDER, axis, heads=len(everywhere), head_dim=block, order=everywhere, block=block)
    return found if block > 1 else None


def invert_places(places: Sequence[int]) -> tuple[int, ...]:
    """Return which block of the reference comes first, second, ... in the candidate."""
    return tuple(np.argsort(np.asarray(places)).tolist())


def describe_fused(
    joined: Sequence[Operation],
    prepare: Sequence[Operation],
    whole_shape: Shape,
    part_shapes: Sequence[Shape],
    split: bool,
    names: Sequence[str],
    ambiguous: bool,
) -> LayoutForm:
    """Return how parts lie in a whole; `split` where the reference has the whole."""
    join = joined[-1]
    if not isinstance(join, Concatenate | Stack):
        raise ValueError("not a relation between parts and a whole")
    stacks = 0
    transposed = any(isinstance(operation, Permute) for operation in joined)
    if prepare and isinstance(prepare[0], Permute):
        transposed, prepare = True, prepare[1:]
    if prepare and isinstance(prepare[0], Reshape) and len(prepare[0].shape) < len(whole_shape):
        stacks, prepare = whole_shape[0], prepare[1:]
    order = tuple(range(len(part_shapes)))
    for operation in joined:
        if isinstance(operation, Arrange):
            order = operation.order
    known = LayoutForm(
        Form.CONCATENATED, axis=join.axis, transposed=transposed, order=order, split=split, ambiguous=ambiguous
    )
    if isinstance(join, Stack):
        return merge_forms(known, LayoutForm(Form.STACKED))
    places = read_order(prepare)
    is_turned = any(isinstance(operation, Permute) for operation in joined)
    lengths = [(shape[::-1] if is_turned else shape)[join.axis] for shape in part_shapes]
    if stacks:
        return merge_forms(known, describe_stacks(stacks, order, places, lengths, split, names))
    if places is None:
        is_one_name = not split and len(names) > 1 and len(set(names)) == 1
        return merge_forms(known, LayoutForm(Form.SHARDED if is_one_name else Form.CONCATENATED))
    return merge_forms(replace(known, order=()), describe_dealt(places, lengths, split, names))


def describe_stacks(
    stacks: int, order: Sequence[int], places: Places | None, lengths: Sequence[int], split: bool, names: Sequence[str]
) -> LayoutForm:
    """Return how several parts lie in each of a stack, as gate and up of every expert, where all are alike."""
    each = len(lengths) // stacks
    if places is None:
        numbers = np.array(order).reshape(stacks, each) % each
        inner = LayoutForm(Form.CONCATENATED, order=tuple(numbers[0].tolist()))
        is_alike = bool(np.all(numbers == numbers[0]))
        return LayoutForm(Form.STACKED, inner=inner if is_alike else None)
    rows = len(places) // stacks
    inside = np.asarray(places).reshape(stacks, rows) - np.arange(stacks)[:, None] * rows
    if not np.all(inside == inside[0]):
        return LayoutForm(Form.ROWS_PERMUTED)
    return LayoutForm(Form.STACKED, inner=describe_dealt(inside[0], lengths[:each], split, names[:each]))


def describe_dealt(places: Places, lengths: Sequence[int], split: bool, names: Sequence[str]) -> LayoutForm:
    """Return how the rows of parts are dealt out in a whole: in how many groups, how many of each part in a group."""
    owners = np.empty(len(places), np.intp)
    owners[places] = np.repeat(np.arange(len(lengths)), lengths)
    groups = 1
    for groups in reversed(divisors(math.gcd(*lengths))):
        by_group = owners.reshape(groups, -1)
        if np.array_equal(by_group, np.broadcast_to(by_group[0], by_group.shape)):
            break
    period = owners[: len(places) // groups]
    starts = np.flatnonzero(np.diff(period, prepend=-1))
    order = tuple(period[starts].tolist())
    if sorted(order) != list(range(len(lengths))):
        return LayoutForm(Form.ROWS_PERMUTED)
    inner, inner_parts = describe_inside(places, lengths, split, names)
    rows = tuple(length // groups for length in lengths)
    form = Form.PER_GROUP
    if groups == 1:
        form = Form.CONCATENATED
    elif max(rows) == 1:
        form = Form.INTERLEAVED
    elif min(rows) > LARGEST_HEAD:
        form = Form.SHARDED
    elif len(set(rows)) == 1:
        form = Form.PER_HEAD
    return LayoutForm(
        form, order=order, groups=groups if groups > 1 else None, rows=rows, inner=inner, inner_parts=inner_parts
    )


def describe_inside(
    places: Places, lengths: Sequence[int], split: bool, names: Sequence[str]
) -> tuple[LayoutForm | None, tuple[int, ...]]:
    """Return what was done to the rows of parts before they were joined, and to which parts; None if nothing was."""
    inner: LayoutForm | None = None
    moved: list[int] = []
    start = 0
    for number, length in enumerate(lengths):
        in_whole = np.argsort(places[start : start + length])  # the part's rows as they follow one another there
        start += length
        if np.array_equal(in_whole, np.arange(length)):
            continue
        name = names[number] if number < len(names) else ""
        described = describe_order(in_whole if split else np.argsort(in_whole), 0, 2, name)
        moved.append(number)
        inner = inner or described
    return inner, tuple(moved)
