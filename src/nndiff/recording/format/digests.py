"""Digest and statistics of one tensor: in parts that stay in cache, on every core.

The C extension does it where it was built; NumPy gives the same results, more slowly.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import DType
from nndiff.recording.format.hashes import PART, hash_parts
from nndiff.tensors import Stats

_MOST_THREADS = 8
_NATIVE_THREADS_FROM = 1 << 20  # bytes: below this a second thread costs more than it saves
_NUMPY_THREADS_FROM = 2 * PART  # the same for NumPy
_SQUARES_PIECE = 8192  # elements
_NAN = float("nan")

# What the extension takes statistics of, in the order of the enum Type in stats/native/native.h.
_NATIVE_TYPES = (
    *("float64", "float32", "float16", "bfloat16"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
)
NATIVE_CODES = {name: code for code, name in enumerate(_NATIVE_TYPES)} | {"bool": _NATIVE_TYPES.index("uint8")}


def _import_native() -> Any:
    if os.environ.get("NNDIFF_ENGINE") == "numpy" or sys.byteorder != "little":
        return None
    try:
        from nndiff.stats import _native
    except ImportError:
        return None
    return _native if hasattr(_native, "sketch") else None  # a build from older sources lacks it


native = _import_native()  # nndiff.stats._native, or None


@cache
def count_workers() -> int:
    """Return how many threads may work on one tensor."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_MOST_THREADS, cores)


def threads_for(nbytes: int) -> int:
    """Return how many threads the extension should use for this many bytes."""
    return count_workers() if nbytes >= _NATIVE_THREADS_FROM else 1


@dataclass(slots=True)
class RawTensor:
    """Hold a tensor's elements as they are stored: flat, in C order, little endian."""

    flat: NDArray[Any]  # of dtype.storage
    dtype: DType
    shape: tuple[int, ...]
    hashes: bytes = b""  # of its parts, once it was measured

    @property
    def bytes(self) -> memoryview:
        """Return the elements as bytes."""
        return self.flat.view(np.uint8).data if self.flat.size else memoryview(b"")


@dataclass(frozen=True, slots=True)
class Measurement:
    """Hold what one look at a tensor's bytes tells."""

    digest: str
    stats: Stats | None


@dataclass(frozen=True, slots=True)
class _Moments:
    """Hold the sums of one part, over its finite elements."""

    count: int
    nonfinite: int
    mean: float
    centred_squares: float
    squares: float
    low: float
    high: float


def measure_tensor(raw: RawTensor, with_stats: bool = True) -> Measurement:
    """Return digest and statistics of a tensor."""
    with_stats = with_stats and raw.dtype.kind != "opaque"
    hashes: bytes = b""
    moments: list[_Moments] | None = None
    if native is not None:
        code = NATIVE_CODES.get(raw.dtype.name, -1) if with_stats else -1
        hashes, sums = native.measure(raw.flat, code, threads_for(raw.flat.nbytes))
        moments = [_Moments(*sums)] if sums is not None else None
    if not hashes or (with_stats and moments is None):
        hashes, moments = _measure_with_numpy(raw, with_stats)
    raw.hashes = hashes
    digest = hashlib.sha256(digest_header(raw.dtype.name, raw.shape) + hashes).hexdigest()
    return Measurement(digest, _merge_moments(raw.flat.size, moments or []) if with_stats else None)


def compute_hashes(data: NDArray[np.uint8]) -> bytes:
    """Return the hashes of the parts of some bytes, concatenated."""
    if native is None:
        return hash_parts(data)
    hashes: bytes = native.measure(data, -1, threads_for(data.nbytes))[0]
    return hashes


def digest_header(dtype: str, shape: Sequence[int]) -> bytes:
    """Return what a digest begins with, so that equal bytes of another shape or dtype have another digest."""
    return f"nndiff.tensor.2\n{dtype}\n{','.join(map(str, shape))}\n".encode()


def _measure_with_numpy(raw: RawTensor, with_stats: bool) -> tuple[bytes, list[_Moments]]:
    """Return the hashes and the moments of all parts; several threads share the parts of a large tensor."""
    part_size = PART // raw.dtype.itemsize
    part_count = len(range(0, raw.flat.size, part_size))

    def measure_parts(first: int, last: int) -> tuple[bytes, list[_Moments]]:
        elements = raw.flat[first * part_size : last * part_size]
        moments = []
        with np.errstate(all="ignore"):
            if with_stats:
                for start in range(0, elements.size, part_size):
                    moments.append(_sum_part(raw.dtype.decode(elements[start : start + part_size])))
            return hash_parts(elements.view(np.uint8)), moments

    if part_count * PART <= _NUMPY_THREADS_FROM or count_workers() < 2:
        return measure_parts(0, part_count)
    shares = min(count_workers(), part_count)
    cuts = [part_count * share // shares for share in range(shares + 1)]
    waiting = [_get_thread_pool().submit(measure_parts, first, last) for first, last in pairwise(cuts[1:])]
    hashes, moments = measure_parts(0, cuts[1])
    for future in waiting:
        next_hashes, next_moments = future.result()
        hashes += next_hashes
        moments += next_moments
    return hashes, moments


@cache
def _get_thread_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count_workers(), thread_name_prefix="nndiff-measure")


def _sum_part(values: NDArray[Any]) -> _Moments:
    if values.dtype.kind == "c":
        values = np.abs(values.astype(np.complex128))
    low, high = float(values.min()), float(values.max())  # NaN shows in both, an infinity in one
    numbers = values.astype(np.float64)
    if not (math.isfinite(low) and math.isfinite(high)):
        numbers = numbers[np.isfinite(numbers)]
        if numbers.size == 0:
            return _Moments(0, values.size, 0.0, 0.0, 0.0, math.inf, -math.inf)
        low, high = float(numbers.min()), float(numbers.max())
    count = numbers.size
    mean = float(numbers.sum()) / count
    squares = _sum_squares(numbers)
    centred = squares - count * mean * mean
    if not centred > 1e-6 * squares:  # cancelled: the numbers lie close together, far from zero
        numbers -= mean
        centred = _sum_squares(numbers)
    return _Moments(count, values.size - count, mean, centred, squares, low, high)


def _sum_squares(numbers: NDArray[np.float64]) -> float:
    """Return the sum of squares, in pieces so small that no BLAS starts threads of its own for them."""
    in_pieces = numbers.size - numbers.size % _SQUARES_PIECE
    tail = numbers[in_pieces:]
    total = float(tail @ tail)
    rows = numbers[:in_pieces].reshape(-1, _SQUARES_PIECE)
    if in_pieces and hasattr(np, "vecdot"):  # NumPy 2: all pieces in one call
        return total + float(np.vecdot(rows, rows).sum())
    return total + math.fsum(float(row @ row) for row in rows)


def _merge_moments(count: int, parts: Sequence[_Moments]) -> Stats:
    finite, nonfinite, mean, centred, squares = 0, 0, 0.0, 0.0, 0.0
    low, high = math.inf, -math.inf
    for moments in parts:
        nonfinite += moments.nonfinite
        if moments.count == 0:
            continue
        total = finite + moments.count
        shift = moments.mean - mean
        centred += moments.centred_squares + shift * (finite * moments.count / total) * shift  # shift**2 may overflow
        mean += shift * (moments.count / total)
        squares += moments.squares
        low, high, finite = min(low, moments.low), max(high, moments.high), total
    if finite == 0:
        return Stats(count, nonfinite, _NAN, _NAN, _NAN, _NAN, _NAN, 0.0)
    std = math.sqrt(max(centred, 0.0) / finite)
    return Stats(count, nonfinite, mean, std, low, high, max(abs(low), abs(high)), math.sqrt(squares))
