"""Thresholds of the families about attention, positions and structure: each fails here when it moves threefold."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from attention_trials import build_trial, make_ref
from nndiff.diagnosis.trials import Given
from nndiff.findings.hypotheses.attention import _list_nice_numbers
from nndiff.findings.hypotheses.attention_search import _are_copies
from nndiff.findings.hypotheses.linear_sums import Term, find_factors, name_factor
from nndiff.findings.hypotheses.positions import Angles, AngleSetup, Spread, _compute_angles, _gives_angles

RANDOM = np.random.default_rng(0)


def test_a_solved_number_is_a_short_one_if_it_is_near():
    assert 0.5 in _list_nice_numbers(0.5 * (1 + 6e-4))
    assert 0.5 not in _list_nice_numbers(0.5 * (1 + 1.8e-3))


def test_halves_of_cosines_are_copies():
    values = np.zeros((1, 3, 4))
    for gap, same in ((6e-7, True), (1.8e-6, False)):
        values[..., 2:] = gap
        assert _are_copies(values, slice(0, 2), slice(2, None)) is same


def test_a_small_factor_is_none():
    given = Given("x", True, "", make_ref(torch.zeros(1)))
    terms = [Term(given, ("x",), RANDOM.normal(size=(8, 64))) for _ in range(2)]
    for factor, count in ((6e-4, 1), (1.8e-3, 2)):
        factors = find_factors(terms, terms[0].values + factor * terms[1].values, [1.0])
        assert factors is not None
        assert len(factors) == count


def test_a_factor_near_a_usual_one_is_that():
    assert name_factor(0.5 * (1 + 6e-4), [0.5, 1.0]) == 0.5
    assert name_factor(0.5 * (1 + 1.8e-3), [0.5, 1.0]) != 0.5


@pytest.mark.parametrize(("roundings", "given"), [(2.5, True), (8.0, False)])
def test_angles_may_be_rounded(roundings, given):
    setup = AngleSetup(np.arange(20.0), (None, None), 8)
    angles = Angles("cosines", Spread.HALVES, 10000.0)
    computed = _compute_angles(setup, angles)
    assert computed is not None
    made = torch.from_numpy(computed[0] + roundings * 2.0**-24 * (1 + np.abs(computed[1])))
    trial = build_trial(nn.Identity(), nn.Identity(), made, made + 1, [], 0.0, 1.0)
    assert _gives_angles(trial, setup, angles, 0) is given
