"""Permutation: every order is written so that it can be carried out, and those of networks in a few words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nndiff.relations.inversion import invert_operations
from nndiff.relations.operations import Permute, Reshape, Slice, Take
from nndiff.relations.permutation import match_labels, spread_operations, structure_permutation

HEADS = np.random.default_rng(0).permutation(8)
PARTIAL = np.concatenate([np.arange(8).reshape(4, 2).T.reshape(-1), np.arange(8, 16)])  # of a head of 16, 8 rotate

ORDERS = {
    "as they are": (np.arange(12), ()),
    "interleaved to halves": (
        np.arange(512).reshape(8, 32, 2).transpose(0, 2, 1).reshape(-1),
        (Reshape((8, 32, 2)), Permute((0, 2, 1)), Reshape((512,))),
    ),
    "channels last": (
        np.arange(60).reshape(3, 4, 5).transpose(1, 2, 0).reshape(-1),
        (Reshape((3, 20)), Permute((1, 0)), Reshape((60,))),
    ),
    "all turned": (
        np.arange(60).reshape(3, 4, 5).transpose(2, 1, 0).reshape(-1),
        (Reshape((3, 4, 5)), Permute((2, 1, 0)), Reshape((60,))),
    ),
    "per head and halves": (
        np.arange(48).reshape(3, 4, 2, 2).transpose(1, 0, 3, 2).reshape(-1),
        (Reshape((3, 4, 2, 2)), Permute((1, 0, 3, 2)), Reshape((48,))),
    ),
    "halves swapped": (np.roll(np.arange(20), 10), (Reshape((2, 10)), Take(0, (1, 0)), Reshape((20,)))),
    "gates": (
        np.arange(40).reshape(4, 10)[[0, 1, 3, 2]].reshape(-1),
        (Reshape((4, 10)), Take(0, (0, 1, 3, 2)), Reshape((40,))),
    ),
    "gates of each layer": (
        np.arange(120).reshape(3, 4, 10)[:, [0, 1, 3, 2]].reshape(-1),
        (Reshape((3, 4, 10)), Take(1, (0, 1, 3, 2)), Reshape((120,))),
    ),
    "channels reversed": (np.arange(3)[::-1], (Take(0, (2, 1, 0)),)),
    "heads": (
        np.arange(128).reshape(8, 16)[HEADS].reshape(-1),
        (Reshape((8, 16)), Take(0, tuple(HEADS.tolist())), Reshape((128,))),
    ),
    "heads and halves": (
        np.arange(128).reshape(8, 16)[HEADS].reshape(8, 2, 8).transpose(0, 2, 1).reshape(-1),
        (Reshape((8, 2, 8)), Take(0, tuple(HEADS.tolist())), Permute((0, 2, 1)), Reshape((128,))),
    ),
    "partly rotated heads": (
        np.add.outer(np.arange(4) * 16, PARTIAL).reshape(-1),
        (Reshape((4, 16)), Take(1, tuple(PARTIAL.tolist())), Reshape((64,))),
    ),
}


def apply_all(operations, array):
    arrays = [array]
    for operation in operations:
        arrays = operation.apply(arrays)
    return arrays[0]


@pytest.mark.parametrize("case", ORDERS)
def test_orders_of_networks_are_written_by_their_structure(case):
    places, expected = ORDERS[case]
    assert structure_permutation(places.tolist()) == expected
    assert np.array_equal(apply_all(expected, np.arange(len(places))), places)


def test_an_order_without_structure_is_written_out():
    places = tuple(np.random.default_rng(3).permutation(60).tolist())
    assert structure_permutation(places) == (Take(0, places),)
    changed = ORDERS["interleaved to halves"][0].copy()
    changed[[100, 300]] = changed[[300, 100]]
    assert structure_permutation(changed.tolist()) == (Take(0, tuple(changed.tolist())),)


@given(st.integers(1, 24).flatmap(lambda length: st.permutations(range(length))))
def test_any_order_is_carried_out_and_undone(places):
    operations = structure_permutation(places)
    numbers = np.arange(len(places))
    assert apply_all(operations, numbers).tolist() == list(places)
    assert np.array_equal(apply_all(invert_operations(operations, (len(places),)), np.array(places)), numbers)


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4).flatmap(
        lambda s: st.tuples(st.just(s), st.permutations(range(len(s))))
    )
)
def test_any_order_of_axes_needs_no_places(case):
    sizes, axes = case
    places = np.arange(np.prod(sizes)).reshape(sizes).transpose(axes).reshape(-1)
    operations = structure_permutation(places.tolist())
    assert not any(isinstance(operation, Take) for operation in operations)
    assert np.array_equal(apply_all(operations, np.arange(len(places))), places)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=24), st.integers(0, 99))
def test_labels_are_matched_whichever_are_equal(labels, seed):
    given_labels = np.array(labels)
    wanted = np.random.default_rng(seed).permutation(given_labels)
    places = match_labels(wanted, given_labels)
    assert sorted(places.tolist()) == list(range(len(labels)))
    assert np.array_equal(given_labels[places], wanted)
    wanted[0] = 7
    assert match_labels(wanted, given_labels) is None


@pytest.mark.parametrize("case", ORDERS)
def test_equal_labels_do_not_hide_a_structure(case):
    places, expected = ORDERS[case]
    labels = np.arange(len(places))
    labels[len(places) // 2] = labels[-1]  # two rows are equal
    matched = match_labels(labels[places], labels)
    assert np.array_equal(labels[matched], labels[places])
    if case not in ("heads and halves", "partly rotated heads", "gates of each layer", "channels reversed"):
        assert structure_permutation(matched.tolist()) == expected


@pytest.mark.parametrize("case", ORDERS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_an_order_can_be_carried_out_along_any_axis(case, axis):
    places, operations = ORDERS[case]
    shape = (*(2, 3)[:axis], len(places), *(2, 3)[axis:])
    array = np.random.default_rng(1).standard_normal(shape)
    spread = spread_operations(operations, shape, axis)
    assert np.array_equal(apply_all(spread, array), np.take(array, places, axis))


def test_other_operations_are_no_order():
    with pytest.raises(ValueError, match="does not order"):
        spread_operations([Slice(0, 0, 1)], (2, 3), 0)
