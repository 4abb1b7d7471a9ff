"""Which pairs that differ are looked at a second time for a relation."""

from __future__ import annotations

import numpy as np
import pytest

import nndiff
from nndiff import proofs
from nndiff.diagnosis.site_pairs import SitePair
from nndiff.dtypes import from_numpy
from nndiff.tensors import MemoryData, TensorRef


def make_correlated(correlation: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a matrix and its transpose, of a matrix so nearly symmetric that the two have this correlation."""
    random = np.random.default_rng(0)
    raw = random.normal(size=(200, 200))
    symmetric, skew = (raw + raw.T) / 2, (raw - raw.T) / 2
    # corr(S + a K, S - a K) = (|S|^2 - a^2 |K|^2) / (|S|^2 + a^2 |K|^2)
    ratio = np.linalg.norm(symmetric) / np.linalg.norm(skew)
    share = ratio * np.sqrt((1 - correlation) / (1 + correlation))
    matrix = symmetric + share * skew
    return matrix, np.ascontiguousarray(matrix.T)


def is_looked_at(pair, *arrays) -> bool:
    """Return whether a recorded pair of these numbers is read again."""
    tensors = [TensorRef("w", array.shape, from_numpy(array.dtype), MemoryData(array)) for array in arrays]
    return proofs.may_be_related(SitePair(pair, *tensors))


@pytest.mark.parametrize(("correlation", "looked_at"), [(0.98, True), (0.5, True), (0.995, False)])
def test_most_pairs_that_differ_are_not_read_again(correlation, looked_at):
    reference, candidate = make_correlated(correlation)
    assert np.corrcoef(reference.ravel(), candidate.ravel())[0, 1] == pytest.approx(correlation, abs=1e-3)
    found = nndiff.compare({"w": reference}, {"w": candidate})
    assert is_looked_at(found.pairs[0], reference, candidate) is looked_at
    scaled = nndiff.compare({"w": reference}, {"w": 1.5 * reference})
    assert is_looked_at(scaled.pairs[0], reference, 1.5 * reference)


@pytest.mark.parametrize(("noise", "looked_at"), [(0.01, True), (0.02, False)])
def test_a_factor_is_looked_for_where_the_cosine_is_that_of_rounding(noise, looked_at):
    random = np.random.default_rng(0)
    reference = random.normal(size=(30, 40))
    candidate = 1.5 * reference * (1 + noise * random.choice([-1, 1], size=reference.shape))
    found = nndiff.compare({"w": reference}, {"w": candidate}, rtol=0.05)
    assert 1 - found.pairs[0].stored.cosine == pytest.approx(noise**2 / 2, rel=0.1)
    assert is_looked_at(found.pairs[0], reference, candidate) is looked_at
