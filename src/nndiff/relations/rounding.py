"""Rounding to the float types of checkpoints: what a number becomes, and which numbers become it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from nndiff.relations.relation import Array


@dataclass(frozen=True)
class FloatFormat:
    """Describe a binary float type."""

    digits: int  # bits of the significand, with the leading one that is not stored
    least: int  # exponent of the smallest normal number
    largest: float  # finite
    beyond: float  # what larger numbers become


FORMATS = {
    "float64": FloatFormat(53, -1022, 1.7976931348623157e308, inf),
    "float32": FloatFormat(24, -126, 3.4028234663852886e38, inf),
    "bfloat16": FloatFormat(8, -126, 3.3895313892515355e38, inf),
    "float16": FloatFormat(11, -14, 65504.0, inf),
    "float8_e4m3fn": FloatFormat(4, -6, 448.0, 448.0),
    "float8_e5m2": FloatFormat(3, -14, 57344.0, inf),
}
NUMPY_FORMATS = ("float64", "float32", "float16")  # NumPy rounds to these itself


def measure_spacing(numbers: Array, name: str) -> Array:
    """Return how far apart the numbers of a type are around some numbers, in float64."""
    float_format = FORMATS[name]
    exponents = np.where(numbers == 0, float_format.least, np.frexp(np.asarray(numbers, np.float64))[1] - 1)
    spacing: Array = np.ldexp(1.0, np.maximum(exponents, float_format.least) - (float_format.digits - 1))
    return spacing


def round_numbers(numbers: Array, name: str) -> Array:
    """Return numbers as a type holds them, ties to even as in torch; bfloat16 and float8 values are in float32."""
    with np.errstate(all="ignore"):
        if name in NUMPY_FORMATS:
            return numbers.astype(name)
        if name == "bfloat16" and numbers.dtype == np.float32:
            return _round_to_bfloat16(numbers)
        spacing = measure_spacing(numbers, name)
        rounded = np.rint(numbers.astype(np.float64) / spacing) * spacing
        float_format = FORMATS[name]
        beyond = np.abs(rounded) > float_format.largest
        return np.where(beyond, np.copysign(float_format.beyond, rounded), rounded).astype(np.float32)


def _round_to_bfloat16(numbers: Array) -> Array:
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    rounded = (bits + ((bits >> 16) & 1) + np.uint32(0x7FFF)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(numbers), numbers, rounded.view(np.float32))


def bound_preimages(values: Array, name: str) -> tuple[Array, Array]:
    """Return between which numbers, in float64, those lie that become some values when they are rounded to a type.

    Short types are often rounded to from float32, not from the exact number: that moves the bounds by as much.
    """
    wide = values.astype(np.float64)
    with np.errstate(all="ignore"):
        first_rounding = 2.0**-24 if FORMATS[name].digits < FORMATS["float32"].digits else 2.0**-50
        spacing = measure_spacing(wide, name)
        outwards = spacing / 2 + np.abs(wide) * first_rounding
        # below a power of two numbers are twice as dense
        is_power = (np.abs(np.frexp(wide)[0]) == 0.5) & (np.abs(wide) > 2.0 ** FORMATS[name].least)
        inwards = np.where(is_power, outwards - spacing / 4, outwards)
        return wide - np.where(wide > 0, inwards, outwards), wide + np.where(wide < 0, inwards, outwards)
