"""Squared errors by channel and token: C, its NumPy twin, and plain NumPy agree."""

from __future__ import annotations

import numpy as np
import pytest

from nndiff.dtypes import DTYPES
from nndiff.stats import places
from nndiff.stats.places import Grid, Table, add_errors

RANDOM = np.random.default_rng(5)


def make_table(values: np.ndarray, dtype: str) -> Table:
    if dtype == "bfloat16":
        return Table((values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16), DTYPES[dtype])
    return Table(values.astype(dtype), DTYPES[dtype])


@pytest.mark.parametrize("engine", ["", "numpy"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (37, 5, 1), (3, 1100, 1), (4, 3, 7), (2, 3, 1030), (5, 1, 16)])
@pytest.mark.parametrize(
    "dtypes", [("float32", "float32"), ("float64", "float16"), ("bfloat16", "float32"), ("int8", "float32")]
)
def test_errors_are_those_of_numpy(
    monkeypatch: pytest.MonkeyPatch, engine: str, shape: tuple[int, int, int], dtypes: tuple[str, str]
) -> None:
    monkeypatch.setenv("NNDIFF_ENGINE", engine)
    values = RANDOM.normal(size=shape) * 3
    ref, cand = make_table(values.ravel(), dtypes[0]), make_table(np.clip(values + 0.1, -2, 2).ravel(), dtypes[1])
    numbers = [side.dtype.decode(side.raw).astype(np.float64).reshape(shape) for side in (ref, cand)]
    if dtypes[1] == "float32" and cand.raw.size > 2:
        cand.raw[1], numbers[1].reshape(-1)[1] = np.nan, np.nan
        cand.raw[2], numbers[1].reshape(-1)[2] = np.inf, np.inf
    squares = (numbers[1] - numbers[0]) ** 2
    squares[~np.isfinite(squares)] = 0.0
    by_channel, by_token = np.ones(shape[1]), np.zeros(shape[0] * shape[2])
    clipped = add_errors(ref, cand, Grid(shape[1], shape[2]), (-2.0, 2.0), by_channel, by_token)
    np.testing.assert_allclose(by_channel, 1 + squares.sum(axis=(0, 2)), rtol=1e-12)  # added to what is there
    np.testing.assert_allclose(by_token, squares.sum(axis=1).ravel(), rtol=1e-12)
    at_high, at_low = (numbers[1] == 2) & (numbers[0] > 2), (numbers[1] == -2) & (numbers[0] < -2)
    assert clipped == np.count_nonzero(at_high | at_low)
    assert shape[0] * shape[1] < 100 or clipped > 0


def test_sizes_that_do_not_fit_are_refused() -> None:
    native = pytest.importorskip("nndiff.stats._native")
    data, sums = np.zeros(12, np.float32).view(np.uint8), np.zeros(3)
    good = [data, 1, data, 1, 3, 1, 0.0, 0.0, sums, np.zeros(4)]
    assert native.places(*good) == 0
    for position, value in (
        (1, 4),
        (1, -1),
        (2, data[:-1]),
        (4, 0),
        (4, 5),
        (5, 1 << 62),
        (8, np.zeros(2)),
        (9, np.zeros(3)),
    ):
        with pytest.raises(ValueError, match="do not fit"):
            native.places(*good[:position], value, *good[position + 1 :])


def test_the_test_above_saw_the_native_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNDIFF_ENGINE", "numpy")
    assert places.import_native() is None
