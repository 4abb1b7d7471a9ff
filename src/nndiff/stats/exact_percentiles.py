"""Percentiles of large pairs to the last digit: the engine's, which are near, say where to look."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import numpy as np

from nndiff.metrics import Metrics
from nndiff.recording.format.digests import count_workers
from nndiff.stats.percentiles import EXACT_LIMIT, PERCENTILES
from nndiff.stats.places import Floats, Table, import_native, pack_table
from nndiff.tensors import TensorRef

_NAMES = ("p50", "p90", "p95", "p99")
_BRACKET = 2e-3  # of a percentile, to both sides: the engine's are within half of it
_BLOCK = 1 << 18  # elements read at once
_ROOM = 1 / 16  # share of the elements that brackets may hold; where values repeat so often, the engine is exact


def refine_percentiles(metrics: Metrics, reference: TensorRef, candidate: TensorRef) -> Metrics:
    """Return metrics whose percentiles are those of numpy.percentile, also of more elements than the engine sorts."""
    native = import_native()
    near = [getattr(metrics, name) for name in _NAMES]
    if metrics.count <= EXACT_LIMIT or native is None or not all(math.isfinite(value) for value in near):
        return metrics
    brackets = np.array([[value * (1 - _BRACKET), value * (1 + _BRACKET)] for value in near])
    room = int(metrics.count * _ROOM / count_workers())

    def rank_range(start: int, stop: int) -> tuple[Floats, int, list[int]]:
        taken, finite, below = [], 0, [0] * len(_NAMES)
        left = room
        for first in range(start, stop, _BLOCK):
            last = min(stop, first + _BLOCK)
            out = np.empty(min(left, last - first))
            sides = [pack_table(Table(side.read(first, last), side.dtype)) for side in (reference, candidate)]
            counted = native.ranks(*sides[0], *sides[1], brackets, out)
            finite += counted[0]
            left -= counted[1]
            below = [total + count for total, count in zip(below, counted[2:], strict=True)]
            if left < 0:
                break
            taken.append(out[: counted[1]].copy())
        return np.concatenate(taken) if left >= 0 else np.full(1, np.nan), finite, below

    cuts = [metrics.count * worker // count_workers() for worker in range(count_workers() + 1)]
    parts = list(_get_thread_pool().map(rank_range, cuts[:-1], cuts[1:]))
    distances = np.sort(np.concatenate([part[0] for part in parts]))
    finite = sum(part[1] for part in parts)
    if np.isnan(distances[-1:]).any():  # more than there is room for
        return metrics
    exact = dict(zip(_NAMES, near, strict=True))
    for number, name in enumerate(_NAMES):
        low, high = brackets[number]
        inside = distances[np.searchsorted(distances, low) : np.searchsorted(distances, high, "right")]
        position = PERCENTILES[number] / 100 * (finite - 1) - sum(part[2][number] for part in parts)
        before, after = math.floor(position), math.ceil(position)
        if before >= 0 and after < inside.size:
            share = position - before
            exact[name] = float(inside[before] + (inside[after] - inside[before]) * share)
    return replace(metrics, p50=exact["p50"], p90=exact["p90"], p95=exact["p95"], p99=exact["p99"])


@cache
def _get_thread_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count_workers(), thread_name_prefix="nndiff-ranks")
