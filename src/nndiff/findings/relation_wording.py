"""Relations of checkpoints in words: the cause of each and one sentence that says what was done, with its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nndiff.findings.causes import Cause
from nndiff.names import without_numbers
from nndiff.relations import Relation
from nndiff.relations.fold_operations import AddLowRank, FoldBatchNorm, FoldNorm
from nndiff.relations.forms import Form, LayoutForm, describe_layout
from nndiff.relations.operations import Add, Multiply, WeightNorm
from nndiff.relations.value_operations import MultiplyAlong, Round, Shift, ShiftAlong
from nndiff.relations.vocab import describe_added_rows
from nndiff.tensors import TensorRef
from nndiff.text import plural
from nndiff.verdict import RelationKind

_CAUSES_OF_FORMS = {
    Form.TRANSPOSED: Cause.TRANSPOSED,
    Form.AXES_PERMUTED: Cause.AXES_PERMUTED,
    Form.RESHAPED: Cause.RESHAPED,
    Form.REPEATED: Cause.BROADCAST,
    Form.ROPE_TO_HALVES: Cause.ROPE_LAYOUT,
    Form.ROPE_TO_INTERLEAVED: Cause.ROPE_LAYOUT,
    Form.HEAD_ORDER: Cause.HEAD_ORDER,
    Form.BLOCK_ORDER: Cause.HEAD_ORDER,
    Form.GATE_ORDER: Cause.GATE_ORDER,
    Form.HALVES_SWAPPED: Cause.HALVES_SWAPPED,
    Form.CHANNELS_REVERSED: Cause.CHANNEL_ORDER,
    Form.FLATTEN_ORDER: Cause.FLATTEN_ORDER,
    Form.CONCATENATED: Cause.FUSED,
    Form.PER_HEAD: Cause.FUSED,
    Form.PER_GROUP: Cause.FUSED,
    Form.STACKED: Cause.FUSED,
    Form.SHARDED: Cause.FUSED,
}
_CAUSES_OF_KINDS = {
    RelationKind.CAST: Cause.CAST,
    RelationKind.SCALE: Cause.SCALED,
    RelationKind.SHIFT: Cause.SHIFTED,
    RelationKind.FOLD: Cause.FOLDED,
    RelationKind.VOCAB: Cause.VOCAB,
    RelationKind.TIED: Cause.TIED,
    RelationKind.MASK: Cause.MASK,
    RelationKind.QUANTISED: Cause.QUANTISED,
}


class RelationText(NamedTuple):
    """Say what a relation is; tensors of one cause and sentence share a finding, in which details are listed."""

    cause: Cause
    sentence: str
    detail: str = ""


def describe_relation(
    relation: Relation, reference: Sequence[TensorRef], candidate: Sequence[TensorRef]
) -> RelationText:
    """Return the cause that a relation is told as, and a sentence without the tensors' names."""
    if RelationKind.CAST in relation.kinds[1:]:
        moved = describe_relation(relation.without_rounding(), reference, candidate)
        return moved._replace(sentence=f"{moved.sentence}, and {describe_rounding(relation)}")
    if relation.kind is RelationKind.LAYOUT:
        shapes = [tensor.shape for tensor in reference], [tensor.shape for tensor in candidate]
        form = describe_layout(relation, *shapes, [tensor.name for tensor in reference])
        return describe_form(form, relation, label_parts(candidate if form.split else reference))
    cause = _CAUSES_OF_KINDS[relation.kind]
    if relation.kind is RelationKind.VOCAB:
        return describe_vocabulary(reference[0], candidate[0])
    for operation in (*relation.reference, *relation.candidate):
        match operation:
            case Round():
                return RelationText(cause, describe_rounding(relation))
            case WeightNorm():
                return RelationText(Cause.WEIGHT_NORM, "equal once weight norm is applied")
            case FoldBatchNorm():
                return RelationText(Cause.BATCH_NORM_FOLDED, "batch norm is folded into the layer before it")
            case FoldNorm():
                return RelationText(cause, "the weights of a norm are folded into the layer after it")
            case AddLowRank():
                return RelationText(Cause.LORA, "the adapter is merged on one side and stored beside on the other")
            case Add():
                return RelationText(cause, "two biases are added up into one")
            case MultiplyAlong():
                return RelationText(cause, f"scaled by one factor for each place along axis {operation.axis}")
            case ShiftAlong():
                return RelationText(cause, f"shifted by one number for each place along axis {operation.axis}")
            case Multiply() | Shift():
                return RelationText(cause, f"{operation.text} on the {_name_side(relation)}'s side gives the other")
    return RelationText(cause, cause.description, relation.text)


def describe_rounding(relation: Relation) -> str:
    """Return to what type elements were rounded, and on which side."""
    for side, operations in (("candidate", relation.reference), ("reference", relation.candidate)):
        for operation in operations:
            if isinstance(operation, Round):
                return f"rounded to {operation.dtype} in the {side}"
    return ""


def describe_vocabulary(reference: TensorRef, candidate: TensorRef) -> RelationText:
    """Return which side has rows of its own, how many and of what kind."""
    rows = describe_added_rows(reference, candidate)
    if rows is None:
        return RelationText(Cause.VOCAB, Cause.VOCAB.description)
    side = "reference" if rows.in_reference else "candidate"
    sentence = f"the first {rows.shared:,} rows are equal, the {side} has {rows.added:,} more"
    return RelationText(Cause.VOCAB, f"{sentence} ({rows.kind.value})")


def _name_side(relation: Relation) -> str:
    return "candidate" if relation.candidate else "reference"


def label_parts(parts: Sequence[TensorRef]) -> list[str]:
    """Return what tells the names of parts apart: `q_proj`, `k_proj`, `v_proj`."""
    labels = shorten_names([part.name for part in parts])
    alike = [without_numbers(label) for label in labels]  # the same in every block, if that still tells them apart
    return alike if len(set(alike)) == len(alike) else labels


def shorten_names(names: Sequence[str]) -> list[str]:
    """Return names without the words that all begin or end with."""
    words = [name.split(".") for name in names]
    shortest = min(len(name) for name in words)
    start = stop = 0
    while start < shortest and len({name[start] for name in words}) == 1:
        start += 1
    while stop < shortest - start and len({name[-1 - stop] for name in words}) == 1:
        stop += 1
    return [".".join(name[start : len(name) - stop]) for name in words]


def describe_form(form: LayoutForm, relation: Relation, labels: Sequence[str]) -> RelationText:
    """Return one sentence on a layout, from the reference to the candidate; `labels` are those of parts."""
    cause = _CAUSES_OF_FORMS.get(form.form, Cause.ROWS_PERMUTED)
    if cause is Cause.FUSED:
        return RelationText(cause, _describe_fused(form, labels))
    heads = f"{plural(form.heads or 0, 'head')} of {form.head_dim}"
    heads += f", {form.rotary_dim} of which rotate" if form.rotary_dim else ""
    to_halves, to_interleaved = "from interleaved to rotate-half", "from rotate-half to interleaved"
    if (form.rotary_dim or form.head_dim) == 4:  # two pairs are interleaved as they are taken apart
        to_halves = to_interleaved = "between rotate-half and interleaved"
    along = f"along axis {form.axis}" + (f", in each of {form.groups} groups" if form.groups else "")
    sentences = {
        Form.TRANSPOSED: ("transposed", ""),
        Form.AXES_PERMUTED: (f"axes in another order: {relation.text} gives the reference", ""),
        Form.ROPE_TO_HALVES: (f"rows permuted {to_halves} RoPE", heads),
        Form.ROPE_TO_INTERLEAVED: (f"rows permuted {to_interleaved} RoPE", heads),
        Form.HEAD_ORDER: (f"heads in the order {_list_order(form.order)}", heads),
        Form.BLOCK_ORDER: (f"blocks of {form.block} in the order {_list_order(form.order)} {along}", ""),
        Form.GATE_ORDER: (f"gates in the order {_list_order(form.order)}", ""),
        Form.HALVES_SWAPPED: (f"the two halves are swapped {along}", ""),
        Form.CHANNELS_REVERSED: (f"channels reversed {along}, as RGB against BGR", ""),
        Form.REPEATED: (f"each block of {form.block} is held {form.copies} times {along}", ""),
        Form.FLATTEN_ORDER: (f"columns flattened in another order: {_list_sizes(form)}, axes {form.order}", ""),
    }
    sentence, detail = sentences.get(form.form, (form.form.value, relation.text))
    if form.ambiguous and cause is Cause.ROWS_PERMUTED:
        detail += "; some are equal, so other orders agree as well"
    return RelationText(cause, sentence + (" and transposed" if form.transposed else ""), detail)


_FUSED_WORDS = {
    Form.CONCATENATED: "concatenated",
    Form.PER_HEAD: "interleaved head by head",
    Form.PER_GROUP: "interleaved group by group",
    Form.STACKED: "stacked",
    Form.SHARDED: "joined from shards",
    Form.INTERLEAVED: "interleaved row by row",
}


def _describe_fused(form: LayoutForm, labels: Sequence[str]) -> str:
    """Return how parts lie in a whole."""
    how = _FUSED_WORDS[form.form] + (f" along axis {form.axis}" if form.axis else "")
    is_named = not any(character.isdigit() for label in labels for character in label)
    if form.order and (is_named or list(form.order) != sorted(form.order)):
        how += f" in the order {_list_order([labels[number] for number in form.order])}"
    if form.groups:
        how += f", {form.groups} groups of {' + '.join(str(form.rows[number]) for number in form.order)} rows"
    if form.form is Form.STACKED and form.inner is not None:
        order = form.inner.order or range(len(form.inner.rows))
        inside = [labels[number] for number in order]
        how += f", in each {_list_order(shorten_names(inside))} {_FUSED_WORDS[form.inner.form]}"
    if form.transposed:
        how += ", each transposed"
    if form.inner is not None and form.inner_parts:
        how += f"; {_list_order([labels[number] for number in form.inner_parts])}: {form.inner.form.value}"
    return f"one tensor of the reference holds several of the candidate, {how}" if form.split else f"fused: {how}"


def _list_sizes(form: LayoutForm) -> str:
    return " x ".join(str(size) for size in form.sizes)


def _list_order(order: Sequence[object]) -> str:
    return ", ".join(str(place) for place in order[:8]) + (", ..." if len(order) > 8 else "")
