"""Arrays that lie otherwise: cut, turned and put together again in every usual way; found only where it is so."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from nndiff.findings.rearranged import Sides, Way, in_order, merges, rearranged

# shape of the reference, and what makes the candidate's array of it
WAYS = {
    "channels first against tokens": ((2, 6, 4, 4), lambda x: x.reshape(2, 6, 16).transpose(0, 2, 1)),
    "many channels against tokens": ((2, 32, 8, 8), lambda x: x.reshape(2, 32, 64).transpose(0, 2, 1)),
    "heads": ((2, 9, 24), lambda x: x.reshape(2, 9, 4, 6).transpose(0, 2, 1, 3)),
    "heads of sizes that are all alike": ((8, 8, 64), lambda x: x.reshape(8, 8, 8, 8).transpose(0, 2, 1, 3)),
    "heads and rows in one": ((4, 16, 64), lambda x: x.reshape(4, 16, 8, 8).transpose(0, 2, 1, 3).reshape(32, 16, 8)),
    "query, key and value apart": ((2, 9, 24), lambda x: x.reshape(2, 9, 3, 2, 4).transpose(2, 0, 3, 1, 4)),
    "time first": ((4, 7, 6), lambda x: x.transpose(1, 0, 2)),
    "time first, flat": ((4, 7, 6), lambda x: x.transpose(1, 0, 2).reshape(28, 6)),
    "an axis of one elsewhere": ((2, 1, 9, 8), lambda x: x.transpose(0, 3, 2, 1)),
    "an axis of one dropped": ((2, 1, 9, 8), lambda x: x[:, 0].transpose(0, 2, 1)),
    "pixels shuffled": (
        (2, 12, 4, 4),
        lambda x: x.reshape(2, 3, 2, 2, 4, 4).transpose(0, 1, 4, 2, 5, 3).reshape(2, 3, 8, 8),
    ),
    "windows": (
        (2, 14, 14, 5),
        lambda x: x.reshape(2, 2, 7, 2, 7, 5).transpose(0, 1, 3, 2, 4, 5).reshape(8, 49, 5),
    ),
    "patches": (
        (2, 3, 16, 16),
        lambda x: x.reshape(2, 3, 4, 4, 4, 4).transpose(0, 2, 4, 1, 3, 5).reshape(2, 16, 48),
    ),
    "patches of a film": (
        (2, 3, 4, 8, 8),
        lambda x: x.reshape(2, 3, 2, 2, 2, 4, 2, 4).transpose(0, 2, 4, 6, 1, 3, 5, 7).reshape(2, 8, 96),
    ),
    "one long axis": ((150, 160), lambda x: np.ascontiguousarray(x.T).reshape(-1)),
}


def normalised(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / centred.std(-1, keepdims=True)


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


VALUES = {
    "random": lambda x: x,
    "half of them zero": lambda x: np.maximum(x, 0),
    "few of them not zero": lambda x: np.where(x > 1.5, x, 0),
    "normalised": normalised,
    "softmax": softmax,
    "signs": np.sign,
    "whole numbers": lambda x: (10 * x).astype(np.int32),
    "truths": lambda x: x > 0.3,
    "as large as they come": lambda x: 3e307 * x,
    "complex": lambda x: x + 1j * x[::-1],
    "with what is no number": lambda x: np.where(x > 1, np.nan, np.where(x < -1.5, np.inf, x)),
}


def both(way, values="random", seed=0):
    shape, form = WAYS[way]
    numbers = VALUES[values](np.random.default_rng(seed).standard_normal(shape))
    shorter = {"truths": np.bool_, "complex": np.complex64, "as large as they come": np.float64}
    one = numbers.astype(shorter.get(values, np.float32))
    return one, np.ascontiguousarray(form(one))


def found(one, other, atol=1e-5, rtol=1e-5):
    return rearranged(Sides(one, other, atol, rtol))


def puts_right(way: Way, case: str) -> bool:
    shape, form = WAYS[case]
    places = np.arange(int(np.prod(shape))).reshape(shape)
    return np.array_equal(way.laid(np.ascontiguousarray(form(places))).reshape(shape), places)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("case", WAYS)
def test_the_very_way_is_found_whatever_the_values(case, values):
    way = found(*both(case, values))
    assert way is not None
    assert puts_right(way, case)


@pytest.mark.parametrize("case", WAYS)
def test_rounding_hides_no_way(case):
    one, other = both(case)
    noise = 1e-6 * np.random.default_rng(1).standard_normal(other.shape).astype(np.float32)
    way = found(one, other + noise)
    assert way is not None
    assert puts_right(way, case)


@pytest.mark.parametrize("values", ["random", "half of them zero", "softmax", "truths"])
@pytest.mark.parametrize("case", WAYS)
def test_one_wrong_element_is_no_agreement(case, values):
    one, other = both(case, values)
    for place in (0, other.size // 3, other.size - 1):
        wrong = other.copy()
        wrong.reshape(-1)[place] = ~wrong.reshape(-1)[place] if values == "truths" else 0.37
        assert found(one, wrong) is None


@pytest.mark.parametrize("case", WAYS)
def test_other_values_are_no_agreement(case):
    assert found(both(case, seed=0)[0], both(case, seed=1)[1]) is None


@pytest.mark.parametrize("case", WAYS)
def test_the_same_elements_in_disorder_are_no_agreement(case):
    one, other = both(case)
    np.random.default_rng(2).shuffle(other.reshape(-1))
    assert found(one, other) is None


@pytest.mark.parametrize("value", [0.0, 1.0, np.nan])
@pytest.mark.parametrize("case", WAYS)
def test_constants_prove_nothing(case, value):
    one, other = both(case)
    assert found(np.full_like(one, value), np.full_like(other, value)) is None
    if value == value:
        noise = 1e-6 * np.random.default_rng(1).standard_normal(one.shape).astype(np.float32)
        assert found(value + noise, np.full_like(other, value)) is None


def test_of_one_shape_only_whole_axes_change_places():
    one = np.random.default_rng(0).standard_normal((4, 4, 16))
    assert found(one, np.ascontiguousarray(one.transpose(1, 0, 2))).how == "permute(1, 0, 2)"
    mixed = one.reshape(4, 4, 4, 4).transpose(0, 1, 3, 2).reshape(one.shape)
    assert found(one, mixed) is None


def test_a_way_is_told_as_people_write_it():
    one, other = both("channels first against tokens")
    assert found(one, other).how == "reshape to [2, 4, 4, 6], permute(0, 3, 1, 2)"
    assert found(other, one).how == "permute(0, 2, 3, 1), reshape to [2, 16, 6]"
    assert found(*both("heads")).how == "permute(0, 2, 1, 3), reshape to [2, 9, 24]"
    assert found(*both("an axis of one elsewhere")).how == "permute(0, 3, 2, 1)"
    assert in_order((4, 6), (24,)).how == "reshape"


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        ((8, 3, 4, 4), (8, 48), True),
        ((2, 5, 6), (10, 6), True),
        ((2, 5, 1), (2, 5), True),
        ((2, 5), (5, 2), False),
        ((2, 6, 4), (4, 12), False),
        ((2, 8, 4, 4), (2, 16, 8), False),
        ((), (1, 1), True),
        ((2, 3), (2,), False),
    ],
)
def test_shapes_that_are_neighbouring_axes_put_together_are_known(one, other, wanted):
    assert merges(one, other) is wanted
    assert merges(other, one) is wanted


@pytest.mark.parametrize("sizes", [((720, 720), (720 * 720,)), ((2,) * 12, (64, 64)), ((16, 64, 64), (64, 32, 32))])
def test_the_search_ends_where_nothing_tells(sizes):
    random = np.random.default_rng(0)
    one, other = (1e-3 * random.standard_normal(size) for size in sizes)
    one.reshape(-1)[1] = 5.0
    assert found(one, other, atol=0.1) is None


def test_no_more_is_held_than_the_two_arrays_and_a_little():
    one = np.random.default_rng(0).standard_normal((16, 64, 64, 64), dtype=np.float32)
    other = np.ascontiguousarray(one.reshape(16, 64, 4096).transpose(0, 2, 1))
    tracemalloc.start()
    try:
        assert found(one, other) is not None
        assert tracemalloc.get_traced_memory()[1] < one.nbytes
    finally:
        tracemalloc.stop()
