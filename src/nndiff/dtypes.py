"""Element types: every dtype a checkpoint can hold, without torch and without ml_dtypes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["float", "int", "bool", "complex", "opaque"]


@dataclass(frozen=True)
class DType:
    """Name one element type and how its bytes become numbers.

    `storage` is the NumPy type the bytes are held in. For float types NumPy does not have
    (bfloat16, the float8 kinds) it is an unsigned integer, and `decode` gives the numbers.
    """

    name: str
    storage: np.dtype[Any]
    kind: Kind

    @property
    def itemsize(self) -> int:
        """Return the bytes of one element."""
        return self.storage.itemsize

    @property
    def exact(self) -> bool:
        """Return True if values must agree exactly: integers, booleans and opaque bytes."""
        return self.kind in ("int", "bool", "opaque")

    @property
    def roundoff(self) -> float:
        """Return the unit roundoff, half the distance from 1 to the next number; 0 for types that know no rounding."""
        return _ROUNDOFF.get(self.name, 0.0)

    def half_ulp(self, number: float) -> float:
        """Return half the distance from a number to the next one: what rounding it may do."""
        if number == 0 or not math.isfinite(number):
            return 0.0
        return self.roundoff * math.ldexp(1.0, math.frexp(number)[1] - 1)

    def decode(self, raw: NDArray[Any]) -> NDArray[Any]:
        """Return raw elements as numbers, in a NumPy type that holds them exactly."""
        if self.name == "bfloat16":
            widened: NDArray[np.uint32] = np.left_shift(raw, 16, dtype=np.uint32)
            return widened.view(np.float32)
        if self.name in _FLOAT8:
            return np.take(_build_float8_table(self.name), raw)
        return raw

    def encode(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return numbers as raw elements, rounded to nearest, ties to even, as torch casts."""
        raw: NDArray[Any]
        with np.errstate(all="ignore"):  # what is too large becomes inf, or the largest float8
            if self.name == "bfloat16":
                bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
                rounded = (bits + ((bits >> 16) & 1) + np.uint32(0x7FFF)) >> 16
                raw = np.where(np.isnan(numbers), (bits >> 16) | 0x40, rounded)
            elif self.name in _FLOAT8:
                raw = _encode_float8(self.name, numbers)
            else:
                raw = numbers != 0 if self.kind == "bool" else numbers
            raw = raw.astype(self.storage)
        return raw


# exponent bits, mantissa bits, exponent bias, which codes are not numbers
_FLOAT8: dict[str, tuple[int, int, int, str]] = {
    "float8_e4m3fn": (4, 3, 7, "fn"),
    "float8_e5m2": (5, 2, 15, "ieee"),
    "float8_e4m3fnuz": (4, 3, 8, "fnuz"),
    "float8_e5m2fnuz": (5, 2, 16, "fnuz"),
    "float8_e8m0fnu": (8, 0, 127, "e8m0"),
}

_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "complex128": 2.0**-53,
    "complex64": 2.0**-24,
    **{name: 2.0 ** -(mantissa_bits + 1) for name, (_, mantissa_bits, _, _) in _FLOAT8.items()},
}


@cache
def _build_float8_table(name: str) -> NDArray[np.float32]:
    """Return the 256 values of a float8 kind, by its bit layout."""
    exponent_bits, mantissa_bits, bias, special = _FLOAT8[name]
    codes = np.arange(256)
    if special == "e8m0":
        values = np.ldexp(1.0, codes - bias)
        values[255] = np.nan
        return values.astype(np.float32)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = codes & ((1 << mantissa_bits) - 1)
    normal = np.ldexp(1.0 + mantissa / (1 << mantissa_bits), exponent - bias)
    subnormal = np.ldexp(mantissa / (1 << mantissa_bits), 1 - bias)
    values = np.where(exponent == 0, subnormal, normal)
    values = np.where(codes & 0x80, -values, values)
    if special == "fn":
        values[[0x7F, 0xFF]] = np.nan
    elif special == "fnuz":
        values[0x80] = np.nan
    else:
        top = exponent == (1 << exponent_bits) - 1
        values = np.where(top & (mantissa == 0), np.copysign(np.inf, values), values)
        values = np.where(top & (mantissa != 0), np.nan, values)
    return values.astype(np.float32)


def _encode_float8(name: str, numbers: NDArray[Any]) -> NDArray[Any]:
    """Return the codes of the values of a float8 kind that are nearest to some numbers."""
    table = _build_float8_table(name).astype(np.float64)
    codes = np.flatnonzero(np.isfinite(table))
    codes = codes[np.lexsort((codes, table[codes]))]  # of zero and minus zero, zero first
    values = table[codes]
    wide = np.asarray(numbers, np.float64)
    above = np.clip(np.searchsorted(values, wide), 1, len(values) - 1)
    gaps = values[above] - wide, wide - values[above - 1]
    is_above = (gaps[0] < gaps[1]) | ((gaps[0] == gaps[1]) & (codes[above] % 2 == 0))
    nearest = codes[np.where(is_above, above, above - 1)]
    zero, minus_zero = np.flatnonzero(table == 0)[[0, -1]]
    nearest = np.where(table[nearest] == 0, np.where(np.signbit(wide), minus_zero, zero), nearest)
    for code in np.flatnonzero(np.isinf(table)):
        # half a step beyond the largest number infinity begins
        largest = values[-1] if table[code] > 0 else values[0]
        step = values[-1] - values[-2]
        is_beyond = np.abs(wide) >= np.abs(largest) + step / 2
        nearest = np.where(is_beyond & (np.sign(wide) == np.sign(largest)), code, nearest)
    nearest = np.where(np.isnan(wide), np.flatnonzero(np.isnan(table))[0], nearest)
    return nearest.astype(np.uint8)


def _build_dtypes() -> dict[str, DType]:
    rows: list[tuple[str, str, Kind]] = [
        ("float64", "<f8", "float"),
        ("float32", "<f4", "float"),
        ("float16", "<f2", "float"),
        ("bfloat16", "<u2", "float"),
        ("float8_e4m3fn", "u1", "float"),
        ("float8_e5m2", "u1", "float"),
        ("float8_e4m3fnuz", "u1", "float"),
        ("float8_e5m2fnuz", "u1", "float"),
        ("float8_e8m0fnu", "u1", "float"),
        ("int64", "<i8", "int"),
        ("int32", "<i4", "int"),
        ("int16", "<i2", "int"),
        ("int8", "i1", "int"),
        ("uint64", "<u8", "int"),
        ("uint32", "<u4", "int"),
        ("uint16", "<u2", "int"),
        ("uint8", "u1", "int"),
        ("bool", "u1", "bool"),
        ("complex128", "<c16", "complex"),
        ("complex64", "<c8", "complex"),
    ]
    return {name: DType(name, np.dtype(storage), kind) for name, storage, kind in rows}


DTYPES: dict[str, DType] = _build_dtypes()


def opaque(name: str) -> DType:
    """Return a type whose elements are single bytes that nndiff compares but does not interpret."""
    return DType(name, np.dtype("u1"), "opaque")


def find_dtype(name: str) -> DType:
    """Return the element type of a name; an unknown one is opaque."""
    return DTYPES.get(name) or opaque(name)


def from_numpy(dtype: np.dtype[Any]) -> DType | None:
    """Return the element type of a NumPy (or ml_dtypes) dtype, or None if nndiff has none for it."""
    return DTYPES.get(dtype.name)
