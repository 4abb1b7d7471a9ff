"""The digest and the statistics of one tensor: in parts that stay in cache, on every core there is.

In C where the extension was built; NumPy does the rest.
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
from nndiff.recording.format.hashes import PART, part_hashes
from nndiff.recording.format.native import native, threads_for, workers
from nndiff.tensors import Stats

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
    hashes: bytes = b""  # of its parts, once it was measured

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
    raw.hashes, moments = _natively(raw, wanted) if native is not None else (b"", None)
    if not raw.hashes or (wanted and moments is None):
        shares = _in_parallel(raw, wanted)
        raw.hashes = b"".join(hashes for hashes, _ in shares)
        moments = [moment for _, found in shares for moment in found]
    digest = hashlib.sha256(head(raw.dtype.name, raw.shape) + raw.hashes).hexdigest()
    return Measured(digest, _stats(raw.flat.size, moments or []) if wanted else None)


def hashes_of(data: NDArray[np.uint8]) -> bytes:
    """Return the hashes of the parts of bytes, in a row."""
    return native.measure(data, -1, threads_for(data.nbytes))[0] if native is not None else part_hashes(data)


def head(dtype: str, shape: Sequence[int]) -> bytes:
    """Return what a digest begins with, so that equal bytes of another shape or type are not equal."""
    return f"nndiff.tensor.2\n{dtype}\n{','.join(map(str, shape))}\n".encode()


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


def _natively(raw: Raw, with_stats: bool) -> tuple[bytes, list[_Moments] | None]:
    """Return the hashes and the moments as the extension finds them, None for what it cannot tell."""
    code = _CODES.get(raw.dtype.name, -1) if with_stats else -1
    hashes, moments = native.measure(raw.flat, code, threads_for(raw.flat.nbytes))
    return hashes, [_Moments(*moments)] if moments is not None else None


_Share = tuple[bytes, list[_Moments]]


def _in_parallel(raw: Raw, with_stats: bool) -> list[_Share]:
    size = PART // raw.dtype.itemsize
    starts = range(0, raw.flat.size, size)

    def share(low: int, high: int) -> _Share:
        elements = raw.flat[low * size : high * size]
        parts = (elements[start : start + size] for start in range(0, elements.size if with_stats else 0, size))
        with np.errstate(all="ignore"):
            return part_hashes(elements.view(np.uint8)), [_moments(raw.dtype.decode(part)) for part in parts]

    if len(starts) * PART <= _ALONE or workers() < 2:
        return [share(0, len(starts))]
    shares = min(workers(), len(starts))
    cut = [len(starts) * number // shares for number in range(shares + 1)]
    waiting = [_pool().submit(share, low, high) for low, high in pairwise(cut[1:])]
    return [share(0, cut[1]), *(each.result() for each in waiting)]


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers(), thread_name_prefix="nndiff-measure")


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
