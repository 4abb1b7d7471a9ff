"""Hashes of what a tensor holds: equal for tensors of the same values, whatever their order, shape and dtype.

The hash of a value v is mix(b XOR k), where mix(x) = fold(fold(x * f0) * f1) and fold(x) = x XOR (x >> 32), all modulo
2**64. If float32 can hold v exactly, b is its 32 bits there (0 for -0, 0x7FC00000 for every NaN) and k the first key.
Else, b is the 64 bits of v in float64 and k the second key. Whole numbers beyond 2**53 take their own 64 bits and the
third key. A complex number is two values, opaque elements are bytes.

`values` is the sum of the hashes of all elements: tensors that are permuted or reshaped have the same, and that of
several tensors joined is the sum of theirs. `placed` is the sum of hash times place, counted from one, in C order: two
tensors for which both are equal hold the same values in the same order. Both up to a chance of about 2**-64.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import DTYPES, DType
from nndiff.tensors import TensorRef

try:
    from nndiff.stats import native_engine

    native = None if os.environ.get("NNDIFF_ENGINE") == "numpy" else native_engine
except ImportError:  # not built here
    native = None

ALL_BITS = (1 << 64) - 1
_KEYS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, 0x8CB92BA72F3D8DD7)  # native/types.c
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_NAN = 0x7FC00000
_LARGEST_WHOLE = 1 << 53  # whole numbers up to here are exact in float64
_MAPPED = 1 << 25  # bytes of a file that are mapped at once
_READ = 1 << 20  # elements read at once where a file cannot be mapped
_SAMPLES, _SAMPLE = 16, 32  # places of a sample, and elements read at each


class Rounding(IntEnum):
    """Name what values are rounded to before they are hashed; the order of native/content.h."""

    NOTHING = 0
    FLOAT32 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    FLOAT8_E4M3FN = 4
    FLOAT8_E5M2 = 5


@dataclass(frozen=True)
class _Format:
    """Describe a float type: bits of the mantissa, least normal exponent, largest number, what lies above it."""

    mantissa: int
    least: int
    largest: float
    above: float


_FORMATS = {
    Rounding.FLOAT16: _Format(10, -14, 65504.0, np.inf),
    Rounding.BFLOAT16: _Format(7, -126, (2 - 2.0**-7) * 2.0**127, np.inf),
    Rounding.FLOAT8_E4M3FN: _Format(3, -6, 448.0, 448.0),
    Rounding.FLOAT8_E5M2: _Format(2, -14, 57344.0, np.inf),
}


@dataclass(frozen=True)
class ContentHash:
    """Hold the two sums of a tensor and the number of its elements."""

    values: int
    placed: int
    count: int

    @property
    def key(self) -> tuple[int, int]:
        """Return what tensors of the same values have in common."""
        return self.values, self.count


def hash_content(tensor: TensorRef, rounding: Rounding = Rounding.NOTHING) -> ContentHash:
    """Return the hash of a tensor, each value rounded first if asked; floats only are rounded."""
    values = placed = at = 0
    if tensor.dtype.kind != "float":
        rounding = Rounding.NOTHING
    dtype = _numbers_of(tensor.dtype)
    for piece in _read_pieces(tensor, dtype):
        if native is not None:
            sums = native.sum_content(piece, dtype.name, rounding, at)
        else:
            sums = _sum_numpy(piece, dtype, rounding, at)
        values, placed, at = values + sums[0], placed + sums[1], at + piece.size
    return ContentHash(values & ALL_BITS, placed & ALL_BITS, tensor.count)


def is_constant(tensor: TensorRef, content: ContentHash) -> bool:
    """Return True if all elements of a tensor of this content are alike."""
    if tensor.count < 2:
        return True
    dtype = _numbers_of(tensor.dtype)
    first = np.ascontiguousarray(tensor.read(0, 1)).view(dtype.storage)
    value, _ = _sum_numpy(first, dtype, Rounding.NOTHING, 0)
    return content.values == content.count * value & ALL_BITS


def sample_values(tensor: TensorRef) -> NDArray[Any]:
    """Return a few hundred elements of a tensor that is not empty, from all over it."""
    step = max(_SAMPLE, tensor.count // _SAMPLES)
    starts = range(0, tensor.count, step)
    sample = np.concatenate([tensor.read(start, min(start + _SAMPLE, tensor.count)) for start in starts])
    return tensor.dtype.decode(sample)


def find_roundings(tensor: TensorRef) -> tuple[Rounding, ...]:
    """Return the types that a sample of the elements was rounded to: those that change none of them."""
    if tensor.dtype.kind != "float" or not tensor.count:
        return ()
    numbers = sample_values(tensor)
    fitting = []
    for rounding in Rounding:
        if rounding is not Rounding.NOTHING and np.array_equal(
            round_values(numbers, rounding), numbers, equal_nan=True
        ):
            fitting.append(rounding)
    return tuple(fitting)


def round_values(numbers: NDArray[Any], rounding: Rounding) -> NDArray[np.float32]:
    """Return numbers rounded to the nearest of a type, ties to even, as torch casts them; held in float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        floats: NDArray[np.float32] = numbers.astype(np.float32)
    target = _FORMATS.get(rounding)
    if target is None:
        return floats
    dropped = 23 - target.mantissa
    bits = floats.view(np.uint32)
    size = bits & np.uint32(0x7FFFFFFF)
    half = np.uint32((1 << (dropped - 1)) - 1)
    odd = (size >> np.uint32(dropped)) & np.uint32(1)
    rounded = (size + half + odd) >> np.uint32(dropped) << np.uint32(dropped)
    magnitude = size.view(np.float32)
    shifter = np.float32(2.0 ** (target.least - target.mantissa + 23))
    with np.errstate(over="ignore", invalid="ignore"):
        small = (magnitude + shifter) - shifter
        out = np.where(magnitude < np.float32(2.0**target.least), small, rounded.view(np.float32))
        out = np.where(out > np.float32(target.largest), np.float32(target.above), out)
    out = np.where(np.isnan(magnitude), magnitude, out)
    signed: NDArray[np.float32] = np.copysign(out, floats, dtype=np.float32)
    return signed


def _numbers_of(dtype: DType) -> DType:
    """Return the dtype as whose numbers elements are hashed: parts of complex ones, bytes of unknown ones."""
    if dtype.kind == "complex":
        return DTYPES["float32" if dtype.itemsize == 8 else "float64"]
    return DTYPES["uint8"] if dtype.kind in ("bool", "opaque") else dtype


def _read_pieces(tensor: TensorRef, dtype: DType) -> Iterator[NDArray[Any]]:
    """Yield the elements of a tensor, flat and as they are stored."""
    for block in tensor.blocks(_READ):
        yield np.ascontiguousarray(block, tensor.dtype.storage).view(dtype.storage)


def _sum_numpy(piece: NDArray[Any], dtype: DType, rounding: Rounding, at: int) -> tuple[int, int]:
    """Return both sums of elements in NumPy."""
    numbers = dtype.decode(piece)
    if rounding is not Rounding.NOTHING:
        numbers = round_values(numbers, rounding)
    hashes = _hash_values(numbers)
    places = np.arange(at + 1, at + 1 + hashes.size, dtype=np.uint64)
    return int(hashes.sum(dtype=np.uint64)), int((hashes * places).sum(dtype=np.uint64))


def _hash_values(numbers: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the hash of every number."""
    large = np.zeros(numbers.shape, bool)
    if numbers.dtype.kind in "iu" and numbers.dtype.itemsize == 8:
        large = numbers > _LARGEST_WHOLE
        if numbers.dtype.kind == "i":
            large |= numbers < -_LARGEST_WHOLE
    with np.errstate(over="ignore", invalid="ignore"):
        floats = numbers.astype(np.float32)
    bits = floats.view(np.uint32).astype(np.uint64)
    bits[floats == 0] = 0
    bits[np.isnan(floats)] = _NAN
    words: NDArray[np.uint64] = bits ^ np.uint64(_KEYS[0])
    if numbers.dtype.itemsize >= 4 and numbers.dtype != np.float32:
        doubles = numbers.astype(np.float64)
        inexact = (floats.astype(np.float64) != doubles) & ~np.isnan(doubles)
        words[inexact] = doubles[inexact].view(np.uint64) ^ np.uint64(_KEYS[1])
        words[large] = numbers[large].astype(np.uint64) ^ np.uint64(_KEYS[2])
    for factor in _FACTORS:
        words *= np.uint64(factor)
        words ^= words >> np.uint64(32)
    return words
