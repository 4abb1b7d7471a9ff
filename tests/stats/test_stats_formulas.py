"""Both engines against formulas written out in NumPy, independently of either."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from stats_pairs import LEVELS, job, measure, native, raw, tensor

from nndiff.dtypes import DTYPES
from nndiff.stats import ENVELOPE_RTOLS, Engine, Metrics
from nndiff.stats.numpy_engine import NumpyEngine

ENGINES = ["numpy", *LEVELS]


def engine(name: str) -> Engine:
    return NumpyEngine() if name == "numpy" else native(name)


def numbers(values: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    return DTYPES[dtype].decode(values).astype(np.float64)


def expect(got: Metrics, r: NDArray[np.float64], c: NDArray[np.float64], atol: float, rtol: float) -> None:
    """Check every metric of two finite arrays."""
    d = c - r
    size, ref = np.abs(d).ravel(), np.abs(r).ravel()
    near = {"rel": 1e-9, "abs": 1e-300}
    assert got.count == r.size
    assert got.unequal == np.count_nonzero(r != c)
    assert got.mismatched == np.count_nonzero(~np.isclose(c, r, rtol=rtol, atol=atol))
    assert (got.nonfinite_ref, got.nonfinite_cand, got.nonfinite_unequal) == (0, 0, 0)
    assert got.max_abs == size.max()
    assert got.max_abs_index == np.unravel_index(size.argmax(), r.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        assert got.max_rel == np.nanmax(np.where(size > 0, size / ref, 0.0))
    assert got.mean_abs == pytest.approx(math.fsum(size) / r.size, **near)
    assert got.mse == pytest.approx(math.fsum(size**2) / r.size, **near)
    assert got.rmse == pytest.approx(math.sqrt(math.fsum(size**2) / r.size), **near)
    assert got.rel_mse == pytest.approx(math.fsum(size**2) / math.fsum(ref**2), **near)
    assert got.rel_mae == pytest.approx(math.fsum(size) / math.fsum(ref), **near)
    assert got.l2 == pytest.approx(math.sqrt(math.fsum(size**2)), **near)
    assert got.rel_l2 == pytest.approx(math.sqrt(math.fsum(size**2) / math.fsum(ref**2)), **near)
    lengths = math.sqrt(math.fsum(r.ravel() ** 2)) * math.sqrt(math.fsum(c.ravel() ** 2))
    assert got.cosine == pytest.approx(math.fsum((r * c).ravel()) / lengths, abs=1e-12)
    assert got.correlation == pytest.approx(np.corrcoef(r.ravel(), c.ravel())[0, 1], abs=1e-9)
    assert got.sqnr_db == pytest.approx(10 * math.log10(math.fsum(ref**2) / math.fsum(size**2)), abs=1e-9)
    assert (got.p50, got.p90, got.p95, got.p99) == tuple(np.percentile(size, [50, 90, 95, 99]))
    for side, x in (("ref", r), ("cand", c)):
        assert getattr(got, f"{side}_mean") == pytest.approx(math.fsum(x.ravel()) / x.size, rel=1e-9, abs=1e-13)
        assert getattr(got, f"{side}_std") == pytest.approx(x.std(), rel=1e-9)
        assert (getattr(got, f"{side}_min"), getattr(got, f"{side}_max")) == (x.min(), x.max())
    assert got.diff_mean == pytest.approx(math.fsum(d.ravel()) / d.size, rel=1e-9, abs=1e-13 * size.max())
    assert got.diff_std == pytest.approx(d.std(), rel=1e-9)
    last = {"rel": 2.0**-50, "abs": 0.0}  # a last digit more where it would not pass when judged
    assert got.needed_tolerance == pytest.approx((size / (1 + ref)).max(), **last)
    assert got.envelope == pytest.approx([max(0.0, (size - k * ref).max()) for k in ENVELOPE_RTOLS], **last)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("shape", [(7,), (3, 5, 11), (64, 64), (130, 300)])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int8", "int32", "uint16"])
def test_every_metric(dtype: str, shape: tuple[int, ...], name: str) -> None:
    random = np.random.default_rng(1)
    if dtype == "bfloat16":
        ref, cand = (
            (random.normal(size=shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for _ in range(2)
        )
    else:
        ref, cand = ((random.normal(size=shape) * 40 + 50).astype(DTYPES[dtype].storage) for _ in range(2))
    got = measure(engine(name), job(tensor(ref, dtype), tensor(cand, dtype), 1e-2, 1e-2))[0]
    expect(got, numbers(ref, dtype), numbers(cand, dtype), 1e-2, 1e-2)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("place", [0, 1, 63, 64, 2047, 2048, 16383, 16384, 99_999])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_a_planted_difference_is_found_where_it_is(dtype: str, place: int, name: str) -> None:
    ref = raw(dtype, 100_000) if dtype == "int64" else np.full(100_000, 0x3F80, DTYPES[dtype].storage)
    cand = ref.copy()
    cand[place] += 1
    got = measure(
        engine(name), job(tensor(ref.reshape(100, 10, 100), dtype), tensor(cand.reshape(100, 10, 100), dtype))
    )[0]
    assert got.max_abs_index == (place // 1000, place // 100 % 10, place % 100)
    assert got.unequal == 1


@pytest.mark.parametrize("name", ENGINES)
def test_of_equal_maxima_the_first_counts(name: str) -> None:
    ref = np.zeros(200_000, np.float32)
    cand = ref.copy()
    cand[[777, 778, 5000, 120_001, 199_999]] = [-1, 1, 1, 1, -1]
    for dtype in (np.float32, np.float64):
        got = measure(engine(name), job(tensor(ref.astype(dtype)), tensor(cand.astype(dtype))))[0]
        assert got.max_abs_index == (777,)


@pytest.mark.parametrize("name", ENGINES)
def test_nothing_finite_and_nothing_at_all(name: str) -> None:
    for ref in (np.full((2, 3), np.nan, np.float32), np.empty((0, 3), np.float32)):
        got = measure(engine(name), job(tensor(ref), tensor(ref)))[0]
        assert got.max_abs_index is None
        assert all(math.isnan(value) for value in (got.max_abs, got.p50, got.mse, got.ref_mean, got.cosine))
        assert (got.unequal, got.nonfinite_ref, got.needed_tolerance) == (0, ref.size, 0.0)


@pytest.mark.parametrize("name", ENGINES)
def test_a_constant_has_no_variance(name: str) -> None:
    ref = np.full(5000, 0.1, np.float64)
    got = measure(engine(name), job(tensor(ref), tensor(ref + np.arange(5000))))[0]
    assert (got.ref_mean, got.ref_std) == (0.1, 0.0)
    assert math.isnan(got.correlation)
    assert got.cosine > 0


@pytest.mark.parametrize("name", ENGINES)
def test_a_nan_on_one_side_is_no_tolerance(name: str) -> None:
    ref = np.ones(100, np.float32)
    cand = ref.copy()
    cand[3] = np.nan
    got = measure(engine(name), job(tensor(ref), tensor(cand)))[0]
    assert (got.nonfinite_ref, got.nonfinite_cand, got.nonfinite_unequal, got.mismatched) == (0, 1, 1, 1)
    assert got.needed_tolerance == math.inf
    assert set(got.envelope) == {math.inf}
    assert got.max_abs == 0.0


BFLOAT16_SPREADS = {
    "normal": lambda random, size: random.normal(size=size),
    "far from zero": lambda random, size: 200 + random.normal(size=size),
    "hardly any spread": lambda random, size: 128 + random.integers(0, 2, size),
    "many octaves": lambda random, size: random.normal(size=size) * 2.0 ** random.integers(-30, 30, size),
    "one large beside many small": lambda random, size: np.where(np.arange(size) % 16 == 3, 1.0, 1e-6),
    "squares below float32": lambda random, size: 1e-25 * random.normal(size=size),
    "squares beyond float32": lambda random, size: 1e25 * random.normal(size=size),
    "smallest": lambda random, size: 1e-39 * random.normal(size=size),
}


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize("spread", BFLOAT16_SPREADS)
def test_sums_of_large_bfloat16_pairs(spread: str, name: str) -> None:
    """Above 2^22 elements sixteen are summed in float32 first: seven digits stay right, at the worst six."""
    size = (1 << 22) + 77
    random = np.random.default_rng(0)
    r = BFLOAT16_SPREADS[spread](random, size).astype(np.float32)
    c = (r * (1 + 0.01 * random.normal(size=size))).astype(np.float32)
    ref, cand = ((side.view(np.uint32) >> 16).astype(np.uint16) for side in (r, c))
    got = measure(engine(name), job(tensor(ref, "bfloat16"), tensor(cand, "bfloat16")))[0]
    r64, c64 = numbers(ref, "bfloat16"), numbers(cand, "bfloat16")
    d = c64 - r64
    near = {"rel": 1e-6 if spread == "one large beside many small" else 1e-7, "abs": 1e-300}
    assert got.unequal == np.count_nonzero(d)
    assert got.mean_abs == pytest.approx(np.abs(d).mean(), **near)
    assert got.mse == pytest.approx((d**2).mean(), **near)
    assert got.rel_l2 == pytest.approx(np.linalg.norm(d) / np.linalg.norm(r64), **near)
    assert got.ref_mean == pytest.approx(r64.mean(), rel=0, abs=near["rel"] * np.abs(r64).mean())
    assert got.diff_mean == pytest.approx(d.mean(), rel=0, abs=near["rel"] * np.abs(d).mean())
    assert got.ref_std == pytest.approx(r64.std(), rel=1e-6)
    assert got.cand_std == pytest.approx(c64.std(), rel=1e-6)
    assert got.diff_std == pytest.approx(d.std(), rel=1e-6)
    assert 1 - got.cosine == pytest.approx(1 - r64 @ c64 / (np.linalg.norm(r64) * np.linalg.norm(c64)), rel=1e-5)
    assert 1 - got.correlation == pytest.approx(1 - np.corrcoef(r64, c64)[0, 1], rel=1e-5)
