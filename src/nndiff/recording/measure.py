"""The digest and the statistics of one tensor: in parts that stay in cache, on every core there is."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import DType
from nndiff.recording.events import Stats

PART = 1 << 18  # bytes: the leaves of the digest; part of the format
_ALONE = 2 * PART  # below this handing work to another thread costs more than it saves
_PIECE = 8192
_NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Raw:
    """Hold a tensor's elements as they are stored: flat, in C order, little endian."""

    flat: NDArray[Any]  # of dtype.storage
    dtype: DType
    shape: tuple[int, ...]

    @property
    def bytes(self) -> memoryview:
        """Return the elements as bytes."""
        return self.flat.view(np.uint8).data if self.flat.size else memoryview(b"")


@dataclass(frozen=True, slots=True)
class Measured:
    """Hold what is known of a tensor once its bytes have been seen."""

    digest: str
    stats: Stats | None


def measure(raw: Raw, with_stats: bool = True) -> Measured:
    """Return digest and statistics of a tensor."""
    per_part = PART // raw.dtype.itemsize
    starts = range(0, raw.flat.size, per_part)
    wanted = with_stats and raw.dtype.kind != "opaque"
    results = _in_parallel(raw, starts, per_part, wanted)
    digest = hashlib.sha256(head(raw.dtype.name, raw.shape))
    for leaf, _ in results:
        digest.update(leaf)
    moments = [moment for _, moment in results if moment]
    return Measured(digest.hexdigest(), _stats(raw.flat.size, moments) if wanted else None)


def head(dtype: str, shape: Sequence[int]) -> bytes:
    """Return what a digest begins with, so that equal bytes of another shape or type are not equal."""
    return f"nndiff.tensor.1\n{dtype}\n{','.join(map(str, shape))}\n".encode()


@dataclass(frozen=True, slots=True)
class _Moments:
    """Hold the sums of one part: count, mean and centred squares of the finite elements, squares, extremes."""

    count: int
    nonfinite: int
    mean: float
    centred: float
    squares: float
    low: float
    high: float


_Part = tuple[bytes, _Moments | None]


def _in_parallel(raw: Raw, starts: range, size: int, with_stats: bool) -> list[_Part]:
    if len(starts) * PART <= _ALONE or _workers() < 2:
        return _parts(raw, starts, size, with_stats)
    shares = min(_workers(), len(starts))
    cut = [len(starts) * number // shares for number in range(shares + 1)]
    waiting = [_pool().submit(_parts, raw, starts[low:high], size, with_stats) for low, high in pairwise(cut[1:])]
    found = _parts(raw, starts[: cut[1]], size, with_stats)
    for each in waiting:
        found.extend(each.result())
    return found


@cache
def _workers() -> int:
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_workers(), thread_name_prefix="nndiff-measure")


def _parts(raw: Raw, starts: range, size: int, with_stats: bool) -> list[_Part]:
    found: list[_Part] = []
    with np.errstate(all="ignore"):
        for start in starts:
            part = raw.flat[start : start + size]
            leaf = hashlib.sha256(part.view(np.uint8).data).digest()
            found.append((leaf, _moments(raw.dtype.decode(part)) if with_stats else None))
    return found


def _moments(values: NDArray[Any]) -> _Moments:
    if values.dtype.kind == "c":
        values = np.abs(values.astype(np.complex128))
    low, high = float(values.min()), float(values.max())  # NaN goes through both, infinities show in one
    numbers = values.astype(np.float64)
    if not (math.isfinite(low) and math.isfinite(high)):
        numbers = numbers[np.isfinite(numbers)]
        if numbers.size == 0:
            return _Moments(0, values.size, 0.0, 0.0, 0.0, math.inf, -math.inf)
        low, high = float(numbers.min()), float(numbers.max())
    count = numbers.size
    mean = float(numbers.sum()) / count
    squares = _square_sum(numbers)
    centred = squares - count * mean * mean
    if not centred > 1e-6 * squares:  # cancelled: the numbers lie close together, far from zero
        numbers -= mean
        centred = _square_sum(numbers)
    return _Moments(count, values.size - count, mean, centred, squares, low, high)


def _square_sum(numbers: NDArray[np.float64]) -> float:
    """Return the sum of squares, in pieces so small that no BLAS wakes threads of its own for them."""
    whole = numbers.size - numbers.size % _PIECE
    rest = numbers[whole:]
    total = float(rest @ rest)
    if whole and hasattr(np, "vecdot"):  # NumPy 2: all pieces in one call
        rows = numbers[:whole].reshape(-1, _PIECE)
        return total + float(np.vecdot(rows, rows).sum())
    return total + math.fsum(float(row @ row) for row in numbers[:whole].reshape(-1, _PIECE))


def _stats(count: int, parts: Sequence[_Moments]) -> Stats:
    finite, mean, centred, squares = 0, 0.0, 0.0, 0.0
    low, high = math.inf, -math.inf
    for part in parts:
        if part.count == 0:
            continue
        total = finite + part.count
        shift = part.mean - mean
        centred += part.centred + shift * shift * (finite * part.count / total)
        mean += shift * (part.count / total)
        squares += part.squares
        low, high, finite = min(low, part.low), max(high, part.high), total
    bad = sum(part.nonfinite for part in parts)
    if finite == 0:
        return Stats(count, bad, _NAN, _NAN, _NAN, _NAN, _NAN, 0.0)
    std = math.sqrt(max(centred, 0.0) / finite)
    return Stats(count, bad, mean, std, low, high, max(abs(low), abs(high)), math.sqrt(squares))
