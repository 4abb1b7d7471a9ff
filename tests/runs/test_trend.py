from __future__ import annotations

import math

import numpy as np
import pytest

from nndiff.facts.runs import GrowthKind, StepComparison, StepMark, WeightDetails
from nndiff.runs import trend
from nndiff.runs.trend import compare_losses, describe_growth, find_jumps, find_leaders
from nndiff.verdict import Verdict

NUMBERS = np.arange(40) * 10
NOISE = np.exp(0.1 * np.random.default_rng(5).standard_normal(40))


def make_details(l2):
    l2 = np.asarray(l2, float)
    l2 = l2[:, None] if l2.ndim == 1 else l2
    marks = tuple(StepMark(10 * number, 0, 10 * number) for number in range(len(l2)))
    names = tuple(f"layer{number}.weight" for number in range(l2.shape[1]))
    return WeightDetails(marks, names, l2, l2, l2, l2)


@pytest.mark.parametrize(
    ("curve", "kind"),
    [
        (np.zeros(40), GrowthKind.NONE),
        (0.3 * NOISE, GrowthKind.CONSTANT),
        (1e-3 * (NUMBERS + 1) * NOISE, GrowthKind.LINEAR),
        (1e-7 * np.exp(NUMBERS / 30) * NOISE, GrowthKind.EXPONENTIAL),
        (np.minimum(1e-7 * np.exp(NUMBERS / 20), 0.9), GrowthKind.EXPONENTIAL),  # it ends when nothing is in common
        (10.0 ** np.random.default_rng(1).uniform(-6, 0, 40), GrowthKind.IRREGULAR),
        (np.array([0.0, 1e-3, 5.0]), GrowthKind.IRREGULAR),
    ],
)
def test_growth_is_told_by_its_curve(curve, kind):
    growth = describe_growth(NUMBERS[: curve.size], curve)
    assert growth.kind is kind


def test_exponential_growth_says_how_fast():
    growth = describe_growth(NUMBERS, 1e-7 * 2 ** (NUMBERS / 50))
    assert growth.doubling_steps == pytest.approx(50)
    assert describe_growth(NUMBERS, np.full(40, math.nan)) is None
    assert describe_growth(np.array([]), np.array([])) is None


@pytest.mark.parametrize("factor", [1 / 3, 3])
@pytest.mark.parametrize("constant", ["CONSTANT_FACTOR", "LARGEST_RESIDUAL"])
def test_the_thresholds_of_growth(monkeypatch, constant, factor):
    times = NUMBERS / NUMBERS[-1]
    waves, slope = (-1.0) ** np.arange(40), 1 + 999 * times
    curves = [1 + 0.7 * times, 1 + 3 * times, slope * np.exp(0.3 * waves), slope * np.exp(0.9 * waves)]
    kinds = [GrowthKind.CONSTANT, GrowthKind.LINEAR, GrowthKind.LINEAR, GrowthKind.IRREGULAR]
    assert [describe_growth(NUMBERS, curve).kind for curve in curves] == kinds
    monkeypatch.setattr(trend, constant, getattr(trend, constant) * factor)
    assert [describe_growth(NUMBERS, curve).kind for curve in curves] != kinds


def test_a_jump_is_found_with_its_step_and_parameter():
    smooth = np.outer(np.arange(20), [1.0, 2.0, 0.5])
    assert find_jumps(make_details(smooth)) == ()
    assert find_jumps(make_details(2.0 ** np.arange(20))) == (), "doubling from step to step is no jump"
    smooth[12:, 2] += 100
    (jump,) = find_jumps(make_details(smooth))
    assert (jump.mark.number, jump.tensor) == (120, "layer2.weight")
    assert jump.factor > trend.JUMP_FACTOR


@pytest.mark.parametrize("factor", [1 / 3, 3])
def test_the_threshold_of_a_jump(monkeypatch, factor):
    curves = []
    for size in (0.6, 1.7):
        curve = np.arange(20.0)
        curve[12:] += size * trend.JUMP_FACTOR
        curves.append(make_details(curve))
    assert [len(find_jumps(details)) for details in curves] == [0, 1]
    monkeypatch.setattr(trend, "JUMP_FACTOR", trend.JUMP_FACTOR * factor)
    assert [len(find_jumps(details)) for details in curves] != [0, 1]


def test_leaders_have_the_largest_shares():
    leaders = find_leaders(make_details([[0.0, 0.0, 0.0], [3.0, 0.0, 4.0]]))
    assert leaders == (("layer2.weight", 16 / 25), ("layer0.weight", 9 / 25))
    assert find_leaders(make_details(np.zeros((2, 3)))) == ()


def test_the_sign_test_is_the_binomial_one():
    def steps(pairs):
        return [
            StepComparison("c", StepMark(number), Verdict.DIFFERENT, {"loss": pair})
            for number, pair in enumerate(pairs)
        ]

    found = compare_losses(steps([(1.0, 0.9)] * 10 + [(1.0, 1.0)]), "loss")
    assert (found.lower_in_reference, found.lower_in_candidate, found.equal) == (0, 10, 1)
    assert found.p_value == pytest.approx(2 / 1024)
    assert compare_losses(steps([(1.0, 0.9), (0.9, 1.0)]), "loss").p_value == 1
    assert compare_losses(steps([(1.0, 1.0), (math.nan, 1.0)]), "loss") is None
    assert compare_losses(steps([(1.0, 0.9)] * 3000), "loss").p_value == 0
