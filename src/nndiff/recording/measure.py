"""The digest and the statistics of one tensor: in parts that stay in cache, on every core there is.

In C where the extension was built and the machine has what it takes; the way in NumPy and hashlib does the rest.
"""

from __future__ import annotations

import hashlib
import math
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
from nndiff.recording.native import native, threads_for, workers

PART = 1 << 18  # bytes: the leaves of the digest; part of the format
_ALONE = 2 * PART  # below this handing work to another thread costs more than it saves
_PIECE = 8192
_NAN = float("nan")

# what the extension takes statistics of, in the order of the enum Type in stats/native/native.h
_TYPES = (
    *("float64", "float32", "float16", "bfloat16"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
)
_CODES = {**{name: code for code, name in enumerate(_TYPES)}, "bool": _TYPES.index("uint8")}


@dataclass(slots=True)
class Raw:
    """Hold a tensor's elements as they are stored: flat, in C order, little endian."""

    flat: NDArray[Any]  # of dtype.storage
    dtype: DType
    shape: tuple[int, ...]
    check: bytes = b""  # the checksum of the elements, where measuring them gave one on the way

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
    wanted = with_stats and raw.dtype.kind != "opaque"
    leaves, moments = _natively(raw, wanted) if native is not None else (None, None)
    missing = wanted and moments is None
    if leaves is None or missing:
        results = _in_parallel(raw, leaves is None, missing)
        leaves = b"".join(leaf for leaf, _ in results) if leaves is None else leaves
        moments = [moment for _, moment in results if moment] if missing else moments
    digest = hashlib.sha256(head(raw.dtype.name, raw.shape) + leaves).hexdigest()
    return Measured(digest, _stats(raw.flat.size, moments) if moments is not None else None)


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


def _natively(raw: Raw, with_stats: bool) -> tuple[bytes | None, list[_Moments] | None]:
    """Return the leaves and the moments as the extension finds them, None for what it cannot tell."""
    code = _CODES.get(raw.dtype.name, -1) if with_stats else -1
    leaves, raw.check, moments = native.measure(raw.flat, code, threads_for(raw.flat.nbytes))
    return leaves, [_Moments(*moments)] if moments is not None else None


_Part = tuple[bytes, _Moments | None]


def _in_parallel(raw: Raw, with_leaves: bool, with_stats: bool) -> list[_Part]:
    size = PART // raw.dtype.itemsize
    starts = range(0, raw.flat.size, size)

    def share(low: int, high: int) -> list[_Part]:
        parts = (raw.flat[start : start + size] for start in starts[low:high])
        return [_part(part, raw.dtype, with_leaves, with_stats) for part in parts]

    if len(starts) * PART <= _ALONE or workers() < 2:
        return share(0, len(starts))
    shares = min(workers(), len(starts))
    cut = [len(starts) * number // shares for number in range(shares + 1)]
    waiting = [_pool().submit(share, low, high) for low, high in pairwise(cut[1:])]
    found = share(0, cut[1])
    for each in waiting:
        found.extend(each.result())
    return found


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers(), thread_name_prefix="nndiff-measure")


def _part(part: NDArray[Any], dtype: DType, with_leaf: bool, with_stats: bool) -> _Part:
    leaf = hashlib.sha256(part.view(np.uint8).data).digest() if with_leaf else b""
    with np.errstate(all="ignore"):
        return leaf, _moments(dtype.decode(part)) if with_stats else None


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
        centred += part.centred + shift * (finite * part.count / total) * shift  # a square alone may overflow
        mean += shift * (part.count / total)
        squares += part.squares
        low, high, finite = min(low, part.low), max(high, part.high), total
    bad = sum(part.nonfinite for part in parts)
    if finite == 0:
        return Stats(count, bad, _NAN, _NAN, _NAN, _NAN, _NAN, 0.0)
    std = math.sqrt(max(centred, 0.0) / finite)
    return Stats(count, bad, mean, std, low, high, max(abs(low), abs(high)), math.sqrt(squares))
