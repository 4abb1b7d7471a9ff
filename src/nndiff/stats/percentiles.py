"""Percentiles of a stream: exact while it is small, by the bits of its floats when it is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from nndiff.metrics import NAN

Floats = NDArray[np.float64]

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
EXACT_LIMIT = 1 << 22  # elements; up to so many the percentiles are those of numpy.percentile

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

    def count_values(self, values: Floats) -> None:
        """Count a block in the first look."""
        bins = (np.abs(values).view(np.uint64) >> np.uint64(_COARSE_SHIFT)).astype(np.intp)
        self._counts += np.bincount(bins, minlength=self._counts.size)

    def read_percentiles(self, look_again: Callable[[], Iterable[Floats]]) -> tuple[float, ...]:
        """Return p50, p90, p95 and p99, reading the values once more."""
        total = int(self._counts.sum())
        if total == 0:
            return (NAN,) * len(PERCENTILES)
        # a percentile lies at a position between two ranks; each rank lies in one coarse bin
        positions = [percentile / 100.0 * (total - 1) for percentile in PERCENTILES]
        ends = np.cumsum(self._counts)
        bin_of_rank: dict[int, int] = {}
        for position in positions:
            for rank in (math.floor(position), math.ceil(position)):
                bin_of_rank[rank] = int(np.searchsorted(ends, rank, side="right"))
        fine_counts = _count_finely(sorted(set(bin_of_rank.values())), look_again())
        values = {}
        for rank, coarse in bin_of_rank.items():
            rank_in_bin = rank - (int(ends[coarse - 1]) if coarse else 0)
            values[rank] = _find_value(coarse, fine_counts[coarse], rank_in_bin)
        percentiles = []
        for position in positions:
            low, high = values[math.floor(position)], values[math.ceil(position)]
            percentiles.append(low + (high - low) * (position - math.floor(position)))
        return tuple(percentiles)


def _count_finely(coarse_bins: list[int], blocks: Iterable[Floats]) -> dict[int, NDArray[np.int64]]:
    """Count the values of a few coarse bins by their next bits."""
    counts = {coarse: np.zeros(1 << _FINE_BITS, np.int64) for coarse in coarse_bins}
    fine_mask = np.uint64((1 << _FINE_BITS) - 1)
    for block in blocks:
        bits = np.abs(block).view(np.uint64)
        coarse_bits = bits >> np.uint64(_COARSE_SHIFT)
        for coarse in coarse_bins:
            inside = bits[coarse_bits == coarse] >> np.uint64(_FINE_SHIFT)
            if inside.size:
                counts[coarse] += np.bincount((inside & fine_mask).astype(np.intp), minlength=1 << _FINE_BITS)
    return counts


def _find_value(coarse: int, fine_counts: NDArray[np.int64], rank: int) -> float:
    """Return the value of the element of this rank inside a coarse bin: the lower edge of its fine bin."""
    fine = int(np.searchsorted(np.cumsum(fine_counts), rank, side="right"))
    bits = (coarse << _COARSE_SHIFT) | (fine << _FINE_SHIFT)
    return float(np.array([bits], np.uint64).view(np.float64)[0])
