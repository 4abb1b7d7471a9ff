"""Order: slices in another order are found along every axis, bit by bit, and nothing else is called an order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from relation_tensors import check, tensor

from nndiff.relations import order, prove
from nndiff.relations.operations import Permute, Take
from nndiff.tensors import Slot

RANDOM = np.random.default_rng(0)
WEIGHT = RANDOM.standard_normal((64, 24)).astype(np.float32)
KERNEL = RANDOM.standard_normal((8, 3, 5, 5)).astype(np.float32)
SQUARE = RANDOM.standard_normal((32, 32)).astype(np.float32)
ROWS, COLUMNS = RANDOM.permutation(64), RANDOM.permutation(24)


def to_halves(weight, heads=4):
    """As Llama's converter: interleaved pairs of each head become halves."""
    return weight.reshape(heads, -1, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


PAIRS = {
    "rope": (WEIGHT, to_halves(WEIGHT), 3),
    "rope, transposed": (WEIGHT, to_halves(WEIGHT).T, 4),
    "rope of a square, transposed": (SQUARE, to_halves(SQUARE).T, 4),
    "rope back": (to_halves(WEIGHT), WEIGHT, 3),
    "rope of a bias": (WEIGHT[:, 0].copy(), to_halves(WEIGHT[:, 0].copy()), 3),
    "rows": (WEIGHT, WEIGHT[ROWS], 1),
    "columns": (WEIGHT, WEIGHT[:, COLUMNS], 1),
    "rows and columns": (WEIGHT, WEIGHT[ROWS][:, COLUMNS], 2),
    "bgr": (KERNEL, KERNEL[:, ::-1], 1),
    "bgr of tensorflow": (KERNEL, KERNEL[:, ::-1].transpose(2, 3, 1, 0), 2),
    "gates": (WEIGHT, WEIGHT.reshape(4, 16, 24)[[0, 1, 3, 2]].reshape(64, 24), 3),
    "halves": (WEIGHT, np.roll(WEIGHT, 32, 0), 3),
    "flattened channels last": (
        SQUARE[:, :24].copy(),
        SQUARE[:, :24].reshape(32, 2, 3, 4).transpose(0, 2, 3, 1).reshape(32, 24),
        3,
    ),
    "half precision": (WEIGHT.astype(np.float16), to_halves(WEIGHT.astype(np.float16)).astype(np.float32), 3),
    "whole numbers": ((100 * WEIGHT).astype(np.int32), (100 * WEIGHT).astype(np.int32)[ROWS], 1),
}


def found(reference, candidate, hints=(), slot=Slot.STORED):
    return order.prove([tensor(reference, slot=slot)], [tensor(candidate, slot=slot)], 0.0, 0.0, hints)


@pytest.mark.parametrize("case", PAIRS)
def test_an_order_is_found_and_gives_the_same_bits(case):
    reference, candidate, length = PAIRS[case]
    relation = found(reference, candidate)
    one, other = check(relation, [reference], [candidate], 0.0, 0.0)
    assert np.array_equal(one, other)
    assert other.dtype == candidate.dtype
    assert len(relation.candidate) == length
    assert not relation.ambiguous


def change_element(array):
    array.reshape(-1)[7] = np.nextafter(array.reshape(-1)[7], np.float32(9), dtype=np.float32)


def change_sign(array):
    array.reshape(-1)[7] *= -1


def mix_rows(array):
    array[0], array[1] = 0.6 * array[0] + 0.8 * array[1], 0.8 * array[0] - 0.6 * array[1]


def average_rows(array):
    array[:2] = (array[0] + array[1]) / 2


def exchange_elements(array):
    flat = array.reshape(-1)
    flat[[3, -2]] = flat[[-2, 3]]


def repeat_row(array):
    array[1] = array[0]


def set_nan(array):
    array.reshape(-1)[5] = np.nan


def roll_row(array):
    array[1] = np.roll(array[1], 1, -1)


def move_a_little(array):
    array += np.float32(1e-6)


def shuffle_elements(array):
    array[:] = np.random.default_rng(5).permutation(array.reshape(-1)).reshape(array.shape)


CHANGES = [
    change_element,
    change_sign,
    mix_rows,
    average_rows,
    exchange_elements,
    repeat_row,
    set_nan,
    roll_row,
    move_a_little,
    shuffle_elements,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("case", ["rope", "rope, transposed", "rows", "columns", "rows and columns", "bgr", "halves"])
def test_a_subtle_change_is_no_order(case, change):
    reference, candidate, _ = PAIRS[case]
    changed = np.ascontiguousarray(candidate).copy()
    change(changed)
    assert found(reference, changed) is None
    assert prove([tensor(reference)], [tensor(changed)], 0.0, 0.0) is None


def test_unrelated_and_equal_tensors_have_no_order():
    assert found(WEIGHT, RANDOM.standard_normal(WEIGHT.shape).astype(np.float32)) is None
    assert found(WEIGHT, WEIGHT) is None
    assert found(WEIGHT, WEIGHT[:32]) is None
    assert found(np.ones((4, 4)), np.ones((4, 4))) is None
    assert found(np.float32(1), np.float32(1)) is None


def test_equal_rows_are_said_to_be_so():
    padded = WEIGHT.copy()
    padded[20:30] = 0
    relation = found(padded, to_halves(padded))
    assert relation.ambiguous
    assert relation.candidate == found(WEIGHT, to_halves(WEIGHT)).candidate
    check(relation, [padded], [to_halves(padded)], 0.0, 0.0)


def test_zeros_and_nan_have_one_value_each():
    reference, candidate = WEIGHT.copy(), WEIGHT[ROWS].copy()
    reference[ROWS[0], 0], candidate[0, 0] = -0.0, 0.0
    reference[ROWS[1], 1], candidate[1, 1] = np.nan, np.float32(-np.nan)
    relation = found(reference, candidate)
    one, other = relation.apply([reference], [candidate])
    assert np.array_equal(one, other, equal_nan=True)


def test_a_vector_needs_evidence_for_its_order():
    """Forty bits: 16 different numbers have orders enough for a structure to be no chance, 12 have not."""
    for length, is_enough in ((16, True), (12, False)):
        vector = np.arange(float(length))
        halves = vector.reshape(-1, 2).T.reshape(-1)
        assert (found(vector, halves) is not None) is is_enough
    many, few = np.arange(600.0) // 50, np.arange(600) // 597 * 1.0
    assert found(many, to_halves(many)).ambiguous
    assert found(few, to_halves(few)) is None
    assert found(WEIGHT[:, 0], WEIGHT[ROWS, 0]) is None  # in no order that a network would have


def test_a_vector_follows_the_weight_of_its_layer():
    hint = found(WEIGHT, WEIGHT[ROWS])
    bias = WEIGHT[:, 0].copy()
    relation = found(bias, bias[ROWS], [hint])
    assert relation.candidate == (Take(0, hint.candidate[0].places),)
    check(relation, [bias], [bias[ROWS]], 0.0, 0.0)
    assert found(bias, bias[np.roll(ROWS, 1)], [hint]) is None
    rope = found(WEIGHT, to_halves(WEIGHT))
    small = np.arange(64.0) // 60
    assert found(small, to_halves(small)) is None
    check(found(small, to_halves(small), [rope]), [small], [to_halves(small)], 0.0, 0.0)


def test_orders_are_read_back_from_operations():
    assert np.array_equal(order.read_order(found(WEIGHT, WEIGHT[:, COLUMNS]).candidate), np.argsort(COLUMNS))
    halves = found(to_halves(WEIGHT), WEIGHT).candidate
    assert np.array_equal(WEIGHT[order.read_order(halves)], to_halves(WEIGHT))
    assert order.read_order([Permute((1, 0))]) is None
    assert order.read_order([]) is None


def test_where_a_network_ran_an_order_of_rows_is_another_network():
    assert found(WEIGHT, WEIGHT[ROWS], slot=Slot.PARAM) is None
    assert found(WEIGHT, WEIGHT[ROWS], slot=Slot.OUTPUT) is None


@given(array_shapes(min_dims=2, max_dims=4, min_side=2, max_side=5), st.data())
def test_every_order_along_every_axis_is_found(shape, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    places = data.draw(st.permutations(range(shape[axis])))
    axes = data.draw(st.permutations(range(len(shape))))
    reference = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    candidate = np.take(reference, places, axis).transpose(axes)
    relation = prove([tensor(reference)], [tensor(candidate)], 0.0, 0.0)
    if relation is None:
        assert np.array_equal(reference, candidate)
    else:
        assert np.array_equal(*check(relation, [reference], [candidate], 0.0, 0.0))
