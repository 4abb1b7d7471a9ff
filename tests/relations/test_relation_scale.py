"""Scale: one factor for every element, found and proven; constants and near-misses are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from relation_tensors import ATOL, RTOL, check, tensor

from nndiff.relations import measure_related, prove, read_factor, scale
from nndiff.relations.operations import Multiply
from nndiff.relations.relation import Relation
from nndiff.tensors import Stats, Trace
from nndiff.verdict import RelationKind

ONE = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)


def found(one, other, atol=ATOL, rtol=RTOL, hints=()):
    plain = scale.prove([tensor(one)], [tensor(other)], atol, rtol, hints)
    known = scale.prove([tensor(one, with_stats=True)], [tensor(other, with_stats=True)], atol, rtol, hints)
    assert plain == known  # statistics only spare the reading
    return plain


@pytest.mark.parametrize("factor", [2.0, 0.5, -1.0, -3.0, 1 / 3, 1024.0, 1e-6, 1e20, 1.001])
def test_one_factor_is_found(factor):
    other = (ONE * factor).astype(np.float64)
    relation = found(ONE, other)
    assert relation.kind is RelationKind.SCALE
    assert read_factor(relation) == pytest.approx(factor, rel=1e-6)
    check(relation, [ONE], [other])
    assert prove(tensor(ONE), tensor(other), ATOL, RTOL) == relation
    assert measure_related(relation, [tensor(ONE)], [tensor(other)], ATOL, RTOL).mismatched == 0


def test_one_wrong_element_is_no_factor():
    for place in (0, 17, 29):
        other = 2 * ONE
        other.reshape(-1)[place] += 1e-3
        assert found(ONE, other) is None


def test_equal_direction_but_for_one_small_element_is_no_factor():
    one = np.ones(100_000)
    one[7] = 2.0
    other = 3 * one
    other[50_000] *= 1.001
    assert np.dot(one, other) / np.linalg.norm(one) / np.linalg.norm(other) > 1 - 1e-9
    assert found(one, other) is None


@pytest.mark.parametrize("factor", [1.0, 1 + 5e-6])
def test_a_factor_of_one_is_none(factor):
    assert found(ONE, ONE * np.float64(factor)) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.ones(5), 2 * np.ones(5)),
        (np.float64(1.5), np.float64(3)),
        (np.zeros(5), np.zeros(5)),
        (np.arange(5.0), np.zeros(5)),
        (np.zeros(5), np.arange(5.0)),
        (np.zeros((0, 2)), np.zeros((0, 2))),
        (np.array([True, False]), np.array([False, True])),
        (1e-8 * ONE, 1e3 * ONE[::-1]),  # the reference is nothing at this tolerance
        (np.full(4, np.nan), np.full(4, np.nan)),
        (ONE, 2 * ONE[:, :4]),
    ],
)
def test_nothing_is_shown_by_what_fits_any_factor(one, other):
    assert found(one, other) is None


def test_a_constant_confirms_a_hint():
    hint = found(ONE, 2 * ONE)
    assert found(np.ones(3), np.full(3, 2.0), hints=[hint]) is hint
    assert found(np.ones(3), np.full(3, 2.1), hints=[hint]) is None


def test_what_is_not_finite_stays_in_its_place():
    one = ONE.copy()
    one[0, 0], one[1, 1], one[2, 2] = np.nan, np.inf, -np.inf
    other = -2 * one
    check(found(one, other), [one], [other])
    other[1, 1] = np.inf
    assert found(one, other) is None


@pytest.mark.parametrize("kind", [np.complex64, np.float16, np.int32])
def test_other_kinds_of_numbers(kind):
    one = (100 * ONE).astype(kind)
    check(found(one, one * kind(2)), [one], [one * kind(2)])


@given(st.floats(1e-200, 1e200), st.floats(-1e100, 1e100).filter(lambda factor: abs(factor) > 1e-100))
def test_numbers_of_any_size(size, factor):
    one = size * np.array([1.0, -2.0, 0.5, 3.0])
    with np.errstate(all="ignore"):
        other = one * factor
    relation = found(one, other, 0.0, 1e-9)
    if np.isfinite(other).all() and np.abs(other).min() > 1e-300 and abs(factor - 1) > 1e-8:
        assert read_factor(relation) == pytest.approx(factor)


def test_only_a_scale_has_a_factor():
    assert read_factor(Relation(RelationKind.LAYOUT, candidate=(Multiply(2.0),))) is None
    assert read_factor(Relation(RelationKind.SCALE)) is None


@pytest.mark.parametrize(
    ("size", "trusted"), [(0.5e-150, False), (2e-150, True), (1.0, True), (0.5e150, True), (2e150, False)]
)
def test_lengths_are_trusted_where_squares_are(size, trusted):
    assert (scale.LEAST_SQUARED, scale.MOST_SQUARED) == (1e-150, 1e150)
    stats = Stats(4, 0, 0.0, 0.0, 0.0, size, size, size)
    wrong = replace(stats, l2=1.1 * size)  # as if squares had been lost
    sides = [replace(tensor(ONE), trace=Trace(stats=side)) for side in (stats, wrong)]
    assert scale.statistics_exclude_factor(*sides, 0.0, RTOL) is trusted
