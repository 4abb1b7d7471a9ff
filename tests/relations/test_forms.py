"""Forms: a proven layout gets the name and the numbers that people have for it, in the right direction."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from relation_tensors import check, tensor

from nndiff.relations import Form, describe_layout, prove
from nndiff.relations.forms import LayoutForm

RANDOM = np.random.default_rng(0)


def numbers(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def to_halves(weight, heads):
    """As the converter of Llama: neighbours that rotate together become two halves."""
    return weight.reshape(heads, -1, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def to_partial_halves(weight, heads, rotary):
    split = weight.reshape(heads, -1, weight.shape[1]).copy()
    split[:, :rotary] = (
        split[:, :rotary].reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(heads, rotary, -1)
    )
    return split.reshape(weight.shape)


def order_blocks(weight, order):
    return weight.reshape(len(order), -1, *weight.shape[1:])[list(order)].reshape(weight.shape)


def by_group(parts, groups):
    return np.concatenate([part.reshape(groups, -1, part.shape[1]) for part in parts], 1).reshape(-1, parts[0].shape[1])


WEIGHT, KERNEL = numbers(64, 24), numbers(8, 3, 5, 5)
HEADS = np.array([3, 0, 2, 1, 7, 5, 4, 6])
ROWS, COLUMNS = RANDOM.permutation(64), RANDOM.permutation(24)
PART = [numbers(32, 24) for _ in range(3)]
GROUPED = [numbers(size, 24) for size in (48, 16, 16)]
EXPERTS = [numbers(6, 4) for _ in range(5)]

ONE = {
    "transposed": (WEIGHT, WEIGHT.T, "h.0.mlp.c_fc.weight", LayoutForm(Form.TRANSPOSED, axes=(1, 0))),
    "kernel of tensorflow": (
        KERNEL,
        KERNEL.transpose(2, 3, 1, 0),
        "conv.weight",
        LayoutForm(Form.AXES_PERMUTED, axes=(3, 2, 0, 1)),
    ),
    "reshaped": (WEIGHT, WEIGHT.reshape(64, 24, 1), "conv.weight", LayoutForm(Form.RESHAPED, sizes=(64, 24))),
    "to halves": (
        WEIGHT,
        to_halves(WEIGHT, 8),
        "layers.0.attention.wq.weight",
        LayoutForm(Form.ROPE_TO_HALVES, axis=0, heads=8, head_dim=8),
    ),
    "to interleaved": (
        to_halves(WEIGHT, 8),
        WEIGHT,
        "anything",
        LayoutForm(Form.ROPE_TO_INTERLEAVED, axis=0, heads=8, head_dim=8),
    ),
    "to halves of a bias": (
        WEIGHT[:, 0].copy(),
        to_halves(WEIGHT[:, 0].copy(), 4),
        "k_proj.bias",
        LayoutForm(Form.ROPE_TO_HALVES, axis=0, heads=4, head_dim=16),
    ),
    "to halves, transposed": (
        WEIGHT,
        to_halves(WEIGHT, 4).T,
        "q_proj.weight",
        LayoutForm(Form.ROPE_TO_HALVES, axis=0, heads=4, head_dim=16, transposed=True, axes=(1, 0)),
    ),
    "to halves, one head": (
        WEIGHT,
        to_halves(WEIGHT, 1),
        "attn.k_proj.weight",
        LayoutForm(Form.ROPE_TO_HALVES, axis=0, heads=1, head_dim=64),
    ),
    "part of each head to halves": (
        WEIGHT,
        to_partial_halves(WEIGHT, 4, 8),
        "q_proj.weight",
        LayoutForm(Form.ROPE_TO_HALVES, axis=0, heads=4, head_dim=16, rotary_dim=8),
    ),
    "heads and halves": (
        WEIGHT,
        to_halves(order_blocks(WEIGHT, HEADS), 8),
        "q_proj.weight",
        LayoutForm(Form.ROPE_TO_HALVES, axis=0, heads=8, head_dim=8, order=tuple(HEADS.tolist())),
    ),
    "heads": (
        WEIGHT,
        order_blocks(WEIGHT, HEADS),
        "attn.v_proj.weight",
        LayoutForm(Form.HEAD_ORDER, axis=0, heads=8, head_dim=8, order=tuple(HEADS.tolist()), block=8),
    ),
    "neighbouring heads exchanged": (
        WEIGHT,
        order_blocks(WEIGHT, (1, 0, 3, 2, 5, 4, 7, 6)),
        "attn.v_proj.weight",
        LayoutForm(Form.HEAD_ORDER, axis=0, heads=8, head_dim=8, order=(1, 0, 3, 2, 5, 4, 7, 6), block=8),
    ),
    "blocks exchanged in each group": (
        WEIGHT,
        order_blocks(WEIGHT, (1, 0, 3, 2, 5, 4, 7, 6)),
        "mlp.weight",
        LayoutForm(Form.BLOCK_ORDER, axis=0, order=(1, 0), block=8, groups=4),
    ),
    "blocks": (
        WEIGHT,
        order_blocks(WEIGHT, HEADS),
        "mlp.weight",
        LayoutForm(Form.BLOCK_ORDER, axis=0, order=tuple(HEADS.tolist()), block=8),
    ),
    "gates": (
        WEIGHT,
        order_blocks(WEIGHT, (0, 1, 3, 2)),
        "lstm.weight_ih_l0",
        LayoutForm(Form.GATE_ORDER, axis=0, order=(0, 1, 3, 2), block=16),
    ),
    "gates that look like two axes": (
        WEIGHT,
        order_blocks(WEIGHT, (0, 2, 1, 3)),
        "lstm.bias_hh_l0",
        LayoutForm(Form.GATE_ORDER, axis=0, order=(0, 2, 1, 3), block=16),
    ),
    "gates of a gru": (
        WEIGHT[:48].copy(),
        order_blocks(WEIGHT[:48].copy(), (1, 2, 0)),
        "gru.weight_hh_l0",
        LayoutForm(Form.GATE_ORDER, axis=0, order=(1, 2, 0), block=16),
    ),
    "halves swapped": (
        WEIGHT,
        order_blocks(WEIGHT, (1, 0)),
        "mlp.gate_up_proj.weight",
        LayoutForm(Form.HALVES_SWAPPED, axis=0, order=(1, 0), block=32),
    ),
    "gate and up, row by row": (
        to_halves(WEIGHT, 1),
        WEIGHT,
        "mlp.gate_up_proj.weight",
        LayoutForm(Form.INTERLEAVED, axis=0, sizes=(32, 2)),
    ),
    "bgr": (
        KERNEL,
        KERNEL[:, ::-1],
        "conv1.weight",
        LayoutForm(Form.CHANNELS_REVERSED, axis=1, order=(2, 1, 0), block=1),
    ),
    "flattened channels last": (
        WEIGHT,
        WEIGHT.reshape(64, 6, 2, 2).transpose(0, 2, 3, 1).reshape(64, 24),
        "fc.weight",
        LayoutForm(Form.FLATTEN_ORDER, axis=1, sizes=(4, 6), order=(1, 0)),
    ),
    "rows": (WEIGHT, WEIGHT[ROWS], "q_proj.weight", LayoutForm(Form.ROWS_PERMUTED, axis=0)),
    "columns": (WEIGHT, WEIGHT[:, COLUMNS], "q_proj.weight", LayoutForm(Form.COLUMNS_PERMUTED, axis=1)),
    "rows and columns": (
        WEIGHT,
        WEIGHT[ROWS][:, COLUMNS],
        "q_proj.weight",
        LayoutForm(Form.ROWS_AND_COLUMNS_PERMUTED),
    ),
    "channels": (KERNEL, KERNEL[[2, 0, 1, 3, 7, 5, 6, 4]], "conv.weight", LayoutForm(Form.SLICES_PERMUTED, axis=0)),
}

HALVES = LayoutForm(Form.ROPE_TO_HALVES, axis=0, heads=4, head_dim=8)
FUSED = {
    "qkv": (PART, np.concatenate(PART), LayoutForm(Form.CONCATENATED, axis=0, order=(0, 1, 2))),
    "qkv, transposed": (
        PART,
        np.concatenate(PART).T,
        LayoutForm(Form.CONCATENATED, axis=1, order=(0, 1, 2), transposed=True),
    ),
    "up before gate": (PART[:2], np.concatenate(PART[1::-1]), LayoutForm(Form.CONCATENATED, axis=0, order=(1, 0))),
    "per head": (
        PART,
        by_group(PART, 4),
        LayoutForm(Form.PER_HEAD, axis=0, order=(0, 1, 2), groups=4, rows=(8, 8, 8)),
    ),
    "codegen": (
        PART,
        by_group([PART[0], PART[2], PART[1]], 4),
        LayoutForm(Form.PER_HEAD, axis=0, order=(0, 2, 1), groups=4, rows=(8, 8, 8)),
    ),
    "per group": (
        GROUPED,
        by_group(GROUPED, 2),
        LayoutForm(Form.PER_GROUP, axis=0, order=(0, 1, 2), groups=2, rows=(24, 8, 8)),
    ),
    "gate and up, row by row": (
        PART[:2],
        np.stack(PART[:2], 1).reshape(64, 24),
        LayoutForm(Form.INTERLEAVED, axis=0, order=(0, 1), groups=32, rows=(1, 1)),
    ),
    "rotated and concatenated": (
        PART,
        np.concatenate([to_halves(PART[0], 4), to_halves(PART[1], 4), PART[2]]),
        LayoutForm(Form.CONCATENATED, axis=0, order=(0, 1, 2), rows=(32, 32, 32), inner=HALVES, inner_parts=(0, 1)),
    ),
    "rotated and per head": (
        PART,
        by_group([to_halves(PART[0], 4), to_halves(PART[1], 4), PART[2]], 4),
        LayoutForm(Form.PER_HEAD, axis=0, order=(0, 1, 2), groups=4, rows=(8, 8, 8), inner=HALVES, inner_parts=(0, 1)),
    ),
    "experts": (EXPERTS, np.stack(EXPERTS), LayoutForm(Form.STACKED, axis=0, order=(0, 1, 2, 3, 4))),
    "experts, transposed": (
        EXPERTS,
        np.stack([expert.T for expert in EXPERTS]),
        LayoutForm(Form.STACKED, axis=0, order=(0, 1, 2, 3, 4), transposed=True),
    ),
    "gate and up of experts": (
        EXPERTS[:4],
        np.concatenate(EXPERTS[:4]).reshape(2, 12, 4),
        LayoutForm(Form.STACKED, axis=0, order=(0, 1, 2, 3), inner=LayoutForm(Form.CONCATENATED, order=(0, 1))),
    ),
    "gate and up of experts, row by row": (
        EXPERTS[:4],
        np.stack(EXPERTS[:4]).reshape(2, 2, 6, 4).swapaxes(1, 2).reshape(2, 12, 4),
        LayoutForm(
            Form.STACKED,
            axis=0,
            order=(0, 1, 2, 3),
            inner=LayoutForm(Form.INTERLEAVED, order=(0, 1), groups=6, rows=(1, 1)),
        ),
    ),
    "up and gate of experts, each transposed": (
        EXPERTS[:4],
        np.concatenate([EXPERTS[1], EXPERTS[0], EXPERTS[3], EXPERTS[2]]).reshape(2, 12, 4).swapaxes(1, 2),
        LayoutForm(
            Form.STACKED,
            axis=0,
            order=(1, 0, 3, 2),
            transposed=True,
            inner=LayoutForm(Form.CONCATENATED, order=(1, 0)),
        ),
    ),
}


def described(references, candidates, names=()):
    relation = prove([tensor(each) for each in references], [tensor(each) for each in candidates], 0.0, 0.0)
    assert np.array_equal(*check(relation, references, candidates, 0.0, 0.0))
    return describe_layout(relation, [each.shape for each in references], [each.shape for each in candidates], names)


@pytest.mark.parametrize("case", ONE)
def test_layouts_of_one_tensor_have_their_names(case):
    reference, candidate, name, expected = ONE[case]
    assert described([reference], [candidate], [name]) == expected


@pytest.mark.parametrize("case", FUSED)
def test_parts_in_a_whole_have_their_names(case):
    parts, whole, expected = FUSED[case]
    assert described(parts, [whole]) == expected


@pytest.mark.parametrize("case", FUSED)
def test_a_whole_that_was_split_has_the_same_name(case):
    parts, whole, expected = FUSED[case]
    split = described([whole], parts)
    assert split.split
    assert (split.form, split.order, split.groups, split.rows) == (
        expected.form,
        expected.order,
        expected.groups,
        expected.rows,
    )
    if expected.form is Form.STACKED:
        assert split.inner == expected.inner
    elif expected.inner is not None:
        assert split.inner.form is Form.ROPE_TO_INTERLEAVED


def test_names_choose_words_and_nothing_else():
    for case in ("to halves", "rows", "transposed", "halves swapped", "bgr", "flattened channels last"):
        reference, candidate, _, expected = ONE[case]
        assert described([reference], [candidate], ["x"]) == expected
        assert described([reference], [candidate]) == expected
    reference, candidate, _, _ = ONE["gate and up, row by row"]
    assert described([reference], [candidate], ["k_proj"]).form is Form.ROPE_TO_INTERLEAVED


def test_blocks_larger_than_any_head_are_those_of_ranks():
    for rows, form in ((250, Form.PER_HEAD), (260, Form.SHARDED), (700, Form.SHARDED), (100, Form.PER_HEAD)):
        parts = [numbers(2 * rows, 3) for _ in range(2)]
        assert described(parts, [by_group(parts, 2)]).form is form


def test_shards_of_one_name_are_said_to_be_so():
    assert described(PART, [np.concatenate(PART, 1)], ["w", "w", "w"]).form is Form.SHARDED
    assert described(PART, [np.concatenate(PART, 1)], ["q", "k", "v"]).form is Form.CONCATENATED


def test_facts_are_what_applies():
    reference, candidate, name, _ = ONE["to halves"]
    assert described([reference], [candidate], [name]).facts == {"axis": 0, "heads": 8, "head_dim": 8}
    parts, whole, _ = FUSED["rotated and per head"]
    assert described(parts, [whole]).facts["inner"] == {**HALVES.facts, "form": Form.ROPE_TO_HALVES}


def test_equal_rows_are_said_to_be_so():
    padded = WEIGHT.copy()
    padded[10:20] = 0
    assert described([padded], [to_halves(padded, 8)]).ambiguous


@given(st.lists(st.integers(2, 4), min_size=2, max_size=4), st.data())
def test_every_proven_layout_can_be_described(sizes, data):
    array = np.random.default_rng(0).standard_normal(sizes).astype(np.float32)
    moved = array.transpose(data.draw(st.permutations(range(len(sizes)))))
    cut = data.draw(st.integers(1, len(sizes) - 1))
    candidate = moved.reshape(int(np.prod(moved.shape[:cut])), -1)
    reference = array.reshape(candidate.shape) if data.draw(st.booleans()) else array
    relation = prove([tensor(reference)], [tensor(candidate)], 0.0, 0.0)
    if relation is not None:
        check(relation, [reference], [candidate], 0.0, 0.0)
        form = describe_layout(relation, [reference.shape], [candidate.shape], ["q_proj.weight"])
        assert isinstance(form.form, Form)
        assert set(form.facts) <= {"axis", "transposed", "axes", "sizes", "order", "block", "groups"} | {
            "heads",
            "head_dim",
            "rotary_dim",
            "ambiguous",
        }
