"""Facts of tensors that no operation makes equal: what is said of them, and where nothing is."""

from __future__ import annotations

import numpy as np
import pytest

import nndiff


def draw(count: int, seed: int, scale: float = 0.02) -> np.ndarray:
    """Return numbers as transformers draws fresh weights, in rows of 10."""
    return np.random.default_rng(seed).normal(0, scale, (count // 10, 10)).astype(np.float32)


def train(count: int, seed: int = 0) -> np.ndarray:
    """Return numbers as no initialisation draws them."""
    return np.random.default_rng(seed).standard_t(3, (count // 10, 10)).astype(np.float32)


def list_causes(reference, candidate) -> list[str]:
    found = nndiff.compare(reference, candidate)
    assert found.exit_code == 1
    return [finding.cause for finding in found.findings]


@pytest.mark.parametrize(("count", "causes"), [(2000, ["not-loaded"]), (500, [])])
def test_few_elements_show_no_distribution(count, causes):
    assert list_causes({"w": train(count)}, {"w": draw(count, 1)}) == causes


@pytest.mark.parametrize(("deviations", "causes"), [(3, ["not-loaded"]), (8, [])])
def test_weights_that_go_together_are_not_fresh(deviations, causes):
    trained, fresh = train(40_000), draw(40_000, 1)
    rest = trained - np.mean(trained) - np.vdot(trained, fresh) / np.vdot(fresh, fresh) * fresh
    share = deviations / np.sqrt(fresh.size)
    together = share * fresh / np.linalg.norm(fresh) + np.sqrt(1 - share**2) * rest / np.linalg.norm(rest)
    together = (100 * together).astype(np.float32)
    assert np.corrcoef(together.ravel(), fresh.ravel())[0, 1] == pytest.approx(share, rel=0.1)
    assert list_causes({"w": together}, {"w": fresh}) == causes


def test_both_fresh_or_both_trained_say_nothing():
    assert list_causes({"w": train(2000)}, {"w": train(2000, 1)}) == []
    assert list_causes({"w": draw(2000, 0)}, {"w": draw(2000, 1)}) == []


def test_weights_among_fresh_ones_are_not_told_as_fresh():
    fresh = {f"layers.{number}": draw(2000, number) for number in range(3)}
    spoilt = draw(2000, 9)
    spoilt[0, 0] = 1
    assert list_causes({**fresh, "w": draw(2000, 4)}, {**fresh, "w": spoilt}) == []


def test_a_norm_of_ones_was_not_loaded_if_others_were():
    trained, norm = {"w": train(2000)}, np.random.default_rng(0).normal(1, 0.1, 64).astype(np.float32)
    assert list_causes({**trained, "norm": norm}, {**trained, "norm": np.ones_like(norm)}) == ["not-loaded"]
    assert list_causes({**trained, "norm": norm}, {"w": train(2000, 1), "norm": np.ones_like(norm)}) == []
    assert list_causes({**trained, "norm": norm}, {**trained, "norm": np.full_like(norm, 2)}) == ["collapsed"]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_overflow_begins_where_float16_rounds_to_infinity(dtype):
    weights = np.array([1.5, 65519.0, 65520.0, -7e4], np.float32)
    with np.errstate(over="ignore"):
        cast = weights.astype(np.float16).astype(dtype)
    assert list_causes({"w": weights}, {"w": cast}) == ["overflow"]
    cast[0] = np.inf
    assert list_causes({"w": weights}, {"w": cast}) == ["not-finite"]
    cast[0], cast[2:] = np.nan, weights[2:].clip(-6e4, 6e4)
    assert list_causes({"w": weights}, {"w": cast}) == ["not-finite"]


@pytest.mark.parametrize(("decay", "causes"), [(0.007, ["optimizer-step"]), (0.02, [])])
def test_one_step_leaves_rows_that_no_token_asked_for(decay, causes):
    weights = {"embed": train(400).astype(np.float64), "w": train(400, 1).astype(np.float64), "v": train(200, 2)}
    moved = {name: step(array, 0.1) for name, array in weights.items()}
    moved["embed"][5:] = weights["embed"][5:] - decay * 1e-3
    assert list_causes(weights, moved) == causes
    moved["w"][5:], moved["v"][5:] = weights["w"][5:], weights["v"][5:]
    assert list_causes(weights, moved) == []


def step(weights: np.ndarray, spread: float, seed: int = 0) -> np.ndarray:
    """Return weights moved up or down by 1e-3 at most, half of them by less than a share of that."""
    random = np.random.default_rng(seed)
    size = 1e-3 * (1 - spread * random.uniform(size=weights.shape))
    return weights + random.choice([-1, 1], weights.shape) * size


@pytest.mark.parametrize(("spread", "causes"), [(0.1, ["optimizer-step"]), (0.8, [])])
def test_one_step_moves_everything_alike(spread, causes):
    weights = train(400).astype(np.float64)
    assert list_causes({"w": weights}, {"w": step(weights, spread)}) == causes


@pytest.mark.parametrize(("count", "causes"), [(50, ["optimizer-step"]), (20, [])])
def test_small_tensors_show_no_step(count, causes):
    weights = train(count).astype(np.float64)
    assert list_causes({"w": weights}, {"w": step(weights, 0.05)}) == causes


def test_moved_tensors_do_not_hide_what_is_wrong_with_others():
    weights = {name: train(200, seed) for seed, name in enumerate("abcd")}
    moved = {**weights, "a": weights["b"], "b": weights["a"], "c": np.zeros_like(weights["c"])}
    assert list_causes(weights, moved) == ["weights-swapped", "collapsed"]


@pytest.mark.parametrize("bits", [8, 4])
def test_numbers_on_a_grid_are_quantised(bits):
    weights = np.random.default_rng(0).normal(size=(32, 2048)).astype(np.float32)
    groups = weights.reshape(-1, 1024)
    scale = np.abs(groups).max(axis=1, keepdims=True) / (2 ** (bits - 1) - 1)
    rounded = (np.rint(groups / scale) * scale).reshape(weights.shape)
    found = nndiff.compare({"w": weights}, {"w": rounded})
    assert [finding.cause for finding in found.findings] == ["quantised"]
    assert (
        f"{bits} bits in the candidate, groups of 1024, every element within half a step" in found.findings[0].evidence
    )
