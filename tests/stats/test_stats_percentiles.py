"""Percentiles: equal to numpy.percentile up to 2^22 elements, within 0.1 % above."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from stats_pairs import LEVELS, job, measure, native, tensor

from nndiff.stats import Metrics
from nndiff.stats.numpy_engine import NumpyEngine
from nndiff.stats.percentiles import EXACT_LIMIT

pytestmark = pytest.mark.skipif(not LEVELS, reason="built without the native engine")

SHARES = [50, 90, 95, 99]


def of(got: Metrics) -> NDArray[np.float64]:
    return np.array([got.p50, got.p90, got.p95, got.p99])


def distances(ref: NDArray[Any], cand: NDArray[Any]) -> NDArray[np.float64]:
    return np.percentile(np.abs(cand.astype(np.float64) - ref.astype(np.float64)), SHARES)


def noise(kind: str, size: int, random: np.random.Generator) -> NDArray[np.float64]:
    if kind == "normal":
        return random.normal(size=size)
    if kind == "heavy":
        return np.clip(random.standard_cauchy(size), -1e4, 1e4)
    if kind == "octaves":
        return 10.0 ** random.uniform(-9, 3, size)
    if kind == "steps":
        return random.integers(0, 5, size) * 0.125
    if kind == "half zero":
        return np.where(random.random(size) < 0.5, 0.0, random.normal(size=size))
    if kind == "two heaps":
        return np.where(random.random(size) < 0.9, 1e-6, 1.0) * random.normal(size=size)
    if kind == "short":  # few digits, but for some
        return np.where(random.random(size) < 0.8, random.integers(0, 9, size) * 0.0625, random.normal(size=size))
    if kind == "clusters":  # almost the same values again and again
        return random.integers(0, 4, size) * 0.25 * (1 + 1e-9 * random.integers(0, 3, size))
    if kind == "one far out":
        return np.where(np.arange(size) == size // 2, 1e30, random.normal(size=size))
    if kind == "many octaves":
        return 2.0 ** random.uniform(-100, 100, size)
    assert kind == "rows"  # some regions are far noisier than others
    return random.normal(size=size) * np.repeat(10.0 ** random.uniform(-2, 2, 64), -(-size // 64))[:size]


KINDS = [
    *("normal", "heavy", "octaves", "steps", "half zero", "two heaps", "rows"),
    *("short", "clusters", "one far out", "many octaves"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("dtype", "size"), [(np.float32, 16384), (np.float32, 16385), (np.float64, 200_000), (np.float32, EXACT_LIMIT)]
)
def test_exact_up_to_the_limit(dtype: type, size: int, kind: str) -> None:
    random = np.random.default_rng(1)
    ref = random.normal(size=size).astype(dtype)
    cand = (ref + noise(kind, size, random)).astype(dtype)
    got = of(measure(native(), job(tensor(ref), tensor(cand)))[0])
    assert got.tolist() == distances(ref, cand).tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", LEVELS)
def test_exact_of_few(level: str, kind: str) -> None:
    random = np.random.default_rng(5)
    pairs = []
    for size in [*range(1, 70), 97, 500, 1024, 3000, 6144, 16383]:
        ref = np.where(random.random(size) < 0.5, 0.0, random.normal(size=size)).astype(np.float64)
        pairs.append((ref, ref + noise(kind, size, random)))
    for (ref, cand), got in zip(
        pairs, measure(native(level), *(job(tensor(a), tensor(b)) for a, b in pairs)), strict=True
    ):
        assert of(got).tolist() == distances(ref, cand).tolist(), ref.size


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("dtype", "size"), [(np.float32, 9_000_000), (np.float16, EXACT_LIMIT + 1), (np.float64, EXACT_LIMIT + 1)]
)
def test_within_a_thousandth_above_it(dtype: type, size: int, kind: str) -> None:
    random = np.random.default_rng(2)
    ref = random.normal(size=size).astype(dtype)
    far = float(np.finfo(dtype).max) / 2
    cand = np.clip(ref + noise(kind, size, random), -far, far).astype(dtype)
    got = of(measure(native(), job(tensor(ref), tensor(cand)))[0])
    np.testing.assert_allclose(got, distances(ref, cand), rtol=1e-3)


@pytest.mark.parametrize("level", LEVELS)
def test_within_a_thousandth_at_every_width(level: str) -> None:
    random = np.random.default_rng(3)
    ref = random.normal(size=5_000_000).astype(np.float32)
    cand = (ref + random.normal(size=ref.size)).astype(np.float32)
    got = of(measure(native(level), job(tensor(ref), tensor(cand)))[0])
    np.testing.assert_allclose(got, distances(ref, cand), rtol=1e-3)


def rows_of_one_value(size: int) -> NDArray[np.float32]:
    return np.repeat(np.exp(np.random.default_rng(2).normal(size=size // 512 + 1)), 512)[:size].astype(np.float32)


def a_ramp(size: int) -> NDArray[np.float32]:
    return np.linspace(0, 1, size, dtype=np.float32)


def a_ramp_in_a_part(size: int) -> NDArray[np.float32]:
    return np.where(abs(a_ramp(size) - 0.35) < 0.03, 1 + a_ramp(size), 0).astype(np.float32)


@pytest.mark.parametrize("laid", [rows_of_one_value, a_ramp, a_ramp_in_a_part])
@pytest.mark.parametrize("size", [4_343_854, 4_367_171, 7_382_786, 7_432_372])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_neighbours_that_are_alike(dtype: type, size: int, laid: Callable[[int], NDArray[np.float32]]) -> None:
    """Samples side by side are worth less than their number where neighbours are alike."""
    cand = laid(size).astype(dtype)
    ref = np.zeros_like(cand)
    got = of(measure(native(), job(tensor(ref), tensor(cand)))[0])
    np.testing.assert_allclose(got, distances(ref, cand), rtol=1e-3)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("rows", "columns", "wide"), [(1024, 8192, 819), (2048, 4096, 410), (641, 8192, 819)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_columns_that_stand_out(dtype: type, rows: int, columns: int, wide: int, seed: int) -> None:
    """Every block holds the same share of them: only where in it samples are taken decides how many are seen."""
    cand = abs(np.random.default_rng(seed).standard_normal((rows, columns), np.float32))
    cand[:, :wide] *= 10
    cand = cand.astype(dtype)
    ref = np.zeros_like(cand)
    got = of(measure(native(), job(tensor(ref), tensor(cand)))[0])
    np.testing.assert_allclose(got, distances(ref, cand), rtol=1e-3)


@pytest.mark.parametrize("scale", [1e-42, 1e-41, 1e-39])
def test_distances_below_the_normal_floats(scale: float) -> None:
    cand = (scale * np.random.default_rng(6).normal(size=4_300_000)).astype(np.float32)
    ref = np.zeros_like(cand)
    got = of(measure(native(), job(tensor(ref), tensor(cand)))[0])
    np.testing.assert_allclose(got, distances(ref, cand), rtol=1e-3, atol=0)


def test_a_tensor_whose_ends_are_another_world() -> None:
    """The pilots see nothing of a difference that lies between them: the engine must notice and look again."""
    size = 6_000_000
    ref = np.zeros(size, np.float32)
    cand = ref.copy()
    cand[:: 1 << 14] = 1.0  # the first element of every chunk
    cand[3_000_000:3_100_000] = np.random.default_rng(4).normal(size=100_000)
    got = of(measure(native(), job(tensor(ref), tensor(cand)))[0])
    np.testing.assert_allclose(got, distances(ref, cand), rtol=1e-3)


@pytest.mark.parametrize("fraction", [1e-5, 0.4, 0.9999])
def test_with_elements_that_are_not_finite(fraction: float) -> None:
    random = np.random.default_rng(5)
    for size in (100_000, 5_000_000):
        ref = random.normal(size=size).astype(np.float32)
        cand = ref + random.normal(size=size).astype(np.float32)
        cand[random.random(size) < fraction] = np.nan
        seen = ~np.isnan(cand)
        got = of(measure(native(), job(tensor(ref), tensor(cand)))[0])
        np.testing.assert_allclose(got, distances(ref[seen], cand[seen]), rtol=0 if size < EXACT_LIMIT else 1e-3)


def test_the_twin_keeps_the_same_promise() -> None:
    random = np.random.default_rng(6)
    ref = random.normal(size=EXACT_LIMIT + 1).astype(np.float32)
    cand = (ref + random.normal(size=ref.size)).astype(np.float32)
    got = of(measure(NumpyEngine(), job(tensor(ref), tensor(cand)))[0])
    np.testing.assert_allclose(got, distances(ref, cand), rtol=1e-3)
