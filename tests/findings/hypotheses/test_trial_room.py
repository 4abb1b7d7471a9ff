"""How far numbers may be from what a side made: some multiples of the noise, and a share of the error."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from layer_trials import Code, draw, make_trial


@pytest.mark.parametrize(("multiple", "is_made"), [(5, True), (20, False)])
def test_what_is_made_is_within_multiples_of_the_noise(multiple, is_made):
    trial = make_trial(Code(torch.sin), Code(lambda x: x.sin() + 1), draw(5, 20))
    assert trial.gives_reference(trial.reference_values + multiple * trial.noise) == is_made


@pytest.mark.parametrize(("share", "is_made"), [(0.06, True), (0.2, False)])
def test_what_is_left_is_a_small_share_of_the_error(share, is_made):
    trial = make_trial(Code(torch.sin), Code(lambda x: x.sin() + 0.5), draw(5, 20), noise=1.0)
    assert trial.gives_candidate(trial.candidate_values + share * 0.5) == is_made


def test_noise_grows_with_what_is_made():
    trial = make_trial(Code(torch.sin), Code(lambda x: 1000 * x.sin()), draw(5, 20))
    assert trial.gives_candidate(trial.candidate_values + 1000 * trial.noise)
    assert not trial.gives_reference(trial.reference_values + 1000 * trial.noise)


def test_an_error_without_size_leaves_the_noise():
    other_shape = make_trial(Code(torch.sin), Code(lambda x: x.sin()[:, :7]), draw(5, 20))
    assert other_shape.gives_candidate(other_shape.candidate_values)
    assert not other_shape.gives_candidate(other_shape.reference_values)
    hole = make_trial(Code(torch.sin), Code(lambda x: torch.where(x > 1, math.nan, x.sin())), draw(5, 20))
    values = np.where(np.isnan(hole.candidate_values), math.nan, hole.reference_values + hole.noise)
    assert hole.gives_candidate(values)
    assert not hole.gives_candidate(hole.reference_values)


def test_what_is_infinite_must_be_so_on_the_same_side():
    trial = make_trial(Code(lambda x: x / 0), Code(lambda x: -x / 0), draw(5, 20))
    assert trial.gives_candidate(trial.candidate_values)
    assert not trial.gives_candidate(trial.reference_values)
