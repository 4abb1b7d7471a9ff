"""Percentiles of a stream: exact while it is small, by the bits of its floats when it is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from nndiff.metrics import NAN

Floats = NDArray[np.float64]

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
EXACT_LIMIT = 1 << 22  # up to so many elements the percentiles are those of numpy.percentile

# Non-negative floats sort as their bits do. The first look counts 11 exponent and 5 mantissa bits,
# the second splits the few bins that hold a percentile by 14 bits more: 2^-19 of the value.
_COARSE_SHIFT = 47
_FINE_BITS = 14
_FINE_SHIFT = _COARSE_SHIFT - _FINE_BITS


def exact_percentiles(values: Floats) -> tuple[float, ...]:
    """Return p50, p90, p95 and p99 as numpy.percentile gives them."""
    if values.size == 0:
        return (NAN,) * len(PERCENTILES)
    return tuple(float(value) for value in np.percentile(values, PERCENTILES))


class BitHistogram:
    """Count non-negative values by their leading bits, then look again where it matters."""

    def __init__(self) -> None:
        self._counts = np.zeros(1 << (63 - _COARSE_SHIFT), np.int64)

    def count(self, values: Floats) -> None:
        """Take in a block in the first look."""
        bins = (np.abs(values).view(np.uint64) >> np.uint64(_COARSE_SHIFT)).astype(np.intp)
        self._counts += np.bincount(bins, minlength=self._counts.size)

    def percentiles(self, look_again: Callable[[], Iterable[Floats]]) -> tuple[float, ...]:
        """Return the percentiles, reading the values once more."""
        total = int(self._counts.sum())
        if total == 0:
            return (NAN,) * len(PERCENTILES)
        upto = np.cumsum(self._counts)
        ranks = sorted({rank for percentile in PERCENTILES for rank in _neighbours(percentile, total)})
        bins = {rank: int(np.searchsorted(upto, rank, side="right")) for rank in ranks}
        fine = _fine_counts(sorted(set(bins.values())), look_again())
        values = {
            rank: _value(bins[rank], fine[bins[rank]], rank - (int(upto[bins[rank] - 1]) if bins[rank] else 0))
            for rank in ranks
        }
        return tuple(_between(values, percentile, total) for percentile in PERCENTILES)


def _neighbours(percentile: float, total: int) -> tuple[int, int]:
    position = percentile / 100.0 * (total - 1)
    return math.floor(position), math.ceil(position)


def _between(values: dict[int, float], percentile: float, total: int) -> float:
    position = percentile / 100.0 * (total - 1)
    low, high = _neighbours(percentile, total)
    return values[low] + (values[high] - values[low]) * (position - low)


def _fine_counts(bins: list[int], blocks: Iterable[Floats]) -> dict[int, NDArray[np.int64]]:
    counts = {number: np.zeros(1 << _FINE_BITS, np.int64) for number in bins}
    for block in blocks:
        bits = np.abs(block).view(np.uint64)
        coarse = bits >> np.uint64(_COARSE_SHIFT)
        for number in bins:
            inside = bits[coarse == number] >> np.uint64(_FINE_SHIFT)
            if inside.size:
                counts[number] += np.bincount(
                    (inside & np.uint64((1 << _FINE_BITS) - 1)).astype(np.intp), minlength=1 << _FINE_BITS
                )
    return counts


def _value(coarse: int, fine: NDArray[np.int64], rank: int) -> float:
    """Return the value of the element of this rank inside a coarse bin: its fine bin's lower edge."""
    number = int(np.searchsorted(np.cumsum(fine), rank, side="right"))
    bits = (coarse << _COARSE_SHIFT) | (number << _FINE_SHIFT)
    return float(np.array([bits], np.uint64).view(np.float64)[0])
