"""Percentiles of more elements than the engine sorts, against numpy.percentile."""

from __future__ import annotations

import numpy as np
import pytest

from nndiff.sources import open_source
from nndiff.stats import Job
from nndiff.stats.engine import get_engine
from nndiff.stats.exact_percentiles import refine_percentiles
from nndiff.stats.percentiles import EXACT_LIMIT
from nndiff.stats.places import import_native

PERCENTILES = (50, 90, 95, 99)
COUNT = EXACT_LIMIT + 12_345


@pytest.mark.skipif(import_native() is None, reason="the engine in NumPy has them exact enough")
@pytest.mark.parametrize("noise", [0.01, 1e-30, 1e12])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_percentiles_of_large_pairs_are_those_of_numpy(dtype: str, noise: float) -> None:
    random = np.random.default_rng(0)
    reference = random.standard_normal(COUNT) if noise > 1e-20 else np.zeros(COUNT)
    candidate = (reference + noise * random.standard_normal(COUNT)).astype(dtype)
    reference = reference.astype(dtype)
    candidate[[5, 4_000_000]] = np.nan, np.inf
    ref, cand = (open_source({"x": array}).tensors["x"] for array in (reference, candidate))
    metrics = next(iter(get_engine().measure([Job(ref, cand, 0.0, 0.0)])))
    refined = refine_percentiles(metrics, ref, cand)
    sizes = np.abs(candidate.astype(np.float64) - reference.astype(np.float64))
    expected = np.percentile(sizes[np.isfinite(sizes)], PERCENTILES)
    found = [getattr(refined, f"p{share}") for share in PERCENTILES]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert refined.mse == metrics.mse
    if noise == 0.01:  # the test can fail
        near = [getattr(metrics, f"p{share}") for share in PERCENTILES]
        assert max(abs(near / expected - 1)) > 1e-6


def test_values_that_repeat_leave_the_numbers_as_they_are() -> None:
    reference = np.zeros(COUNT, np.float32)
    candidate = reference.copy()
    candidate[::3] = 1.0
    ref, cand = (open_source({"x": array}).tensors["x"] for array in (reference, candidate))
    metrics = next(iter(get_engine().measure([Job(ref, cand, 0.0, 0.0)])))
    refined = refine_percentiles(metrics, ref, cand)
    assert [getattr(refined, f"p{share}") for share in PERCENTILES] == [0.0, 1.0, 1.0, 1.0]
