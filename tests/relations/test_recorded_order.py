"""Orders and repeats of what was computed: every slice found again within tolerance, and nothing by chance."""

from __future__ import annotations

import numpy as np
import pytest
from relation_tensors import ATOL, RTOL, tensor
from relation_tensors import check as check_arrays

from nndiff.relations import recorded_order, repeated
from nndiff.tensors import Slot


def output(array):
    return tensor(np.asarray(array, np.float32), slot=Slot.OUTPUT, module="layer", with_stats=True)


def check(relation, reference, candidate):
    check_arrays(relation, *([tensor.numpy() for tensor in side] for side in (reference, candidate)))


@pytest.fixture
def random():
    return np.random.default_rng(0)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_slices_in_another_order_but_for_rounding(random, axis):
    reference = random.standard_normal((5, 7, 12))
    places = random.permutation(reference.shape[axis])
    candidate = np.take(reference, np.argsort(places), axis) + 1e-6 * random.standard_normal(reference.shape)
    sides = [output(reference)], [output(candidate)]
    check(recorded_order.prove(*sides, ATOL, RTOL), *sides)


def test_slices_that_rounding_exchanges_are_sorted_again(random):
    reference = np.repeat(random.standard_normal((1, 200)), 6, 0)
    reference[:, :6] += np.eye(6)  # apart in one element each
    candidate = reference[::-1] + 4e-6 * random.uniform(-1, 1, reference.shape)
    sides = [output(reference)], [output(candidate)]
    check(recorded_order.prove(*sides, ATOL, RTOL), *sides)


def test_one_element_out_of_tolerance_is_no_order(random):
    reference = random.standard_normal((5, 12))
    candidate = reference[:, ::-1].copy()
    candidate[2, 3] += 1e-3
    assert recorded_order.prove([output(reference)], [output(candidate)], ATOL, RTOL) is None


def test_single_numbers_in_another_order_prove_nothing(random):
    reference = random.standard_normal(12)
    assert recorded_order.prove([output(reference)], [output(reference[::-1])], ATOL, RTOL) is None


def test_a_known_order_is_followed_along_the_axis_on_which_it_holds(random):
    reference, places = random.standard_normal((12, 12)), random.permutation(12)
    known = recorded_order.prove([output(reference)], [output(reference[places])], ATOL, RTOL)
    weight = random.standard_normal((5, 12))
    sides = [output(weight)], [output(weight[:, places])]
    check(recorded_order.follow(*sides, ATOL, RTOL, [known]), *sides)
    others = [output(weight)], [output(weight[:, ::-1])]
    assert recorded_order.follow(*others, ATOL, RTOL, [known]) is None


@pytest.mark.parametrize("block", [1, 2, 6])
@pytest.mark.parametrize("is_turned", [False, True])
def test_blocks_repeated_along_an_axis(random, block, is_turned):
    short = random.standard_normal((3, 6, 2))
    long = np.repeat(short.reshape(3, 6 // block, 1, block, 2), 2, 2).reshape(3, 12, 2)
    sides = ([output(short)], [output(long)])[:: -1 if is_turned else 1]
    check(repeated.prove(*sides, ATOL, RTOL), *sides)
    long[0, 0, 0] += 1e-3
    assert repeated.prove([output(short)], [output(long)], ATOL, RTOL) is None


def test_the_gradient_of_what_is_repeated_is_a_sum(random):
    copies = random.standard_normal((2, 3, 4, 5)).astype(np.float32)
    sides = (
        [tensor(copies.sum(1).reshape(8, 5), slot=Slot.PARAM_GRAD, module="layer")],
        [tensor(copies.reshape(24, 5), slot=Slot.PARAM_GRAD, module="layer")],
    )
    check(repeated.prove(*sides, ATOL, RTOL), *sides)
