"""Operations that change values: rounding, factors and shifts along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from nndiff.relations.operations import Fields, describe_factor, widen
from nndiff.relations.relation import ROUND, Array
from nndiff.relations.rounding import FORMATS, round_numbers


@dataclass(frozen=True)
class Round:
    """Round every element to a float type, ties to even."""

    op: ClassVar[str] = ROUND
    dtype: str

    @classmethod
    def load(cls, fields: Fields) -> Round:
        """Return a stored one."""
        return cls(fields.read_word("dtype", list(FORMATS)))

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        return f"round to {self.dtype}"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays after it, in the type itself, or in float32 where NumPy has no such type."""
        return [round_numbers(check_real(array), self.dtype) for array in arrays]


@dataclass(frozen=True)
class MultiplyAlong:
    """Multiply with one factor for each place along an axis."""

    op: ClassVar[str] = "multiply_along"
    axis: int
    factors: tuple[float, ...]

    @classmethod
    def load(cls, fields: Fields) -> MultiplyAlong:
        """Return a stored one."""
        return cls(fields.read_axis("axis"), fields.read_factors("factors"))

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        if set(self.factors) <= {1.0, -1.0}:
            return f"flip the sign of {self.factors.count(-1.0)} of {len(self.factors)} places along axis {self.axis}"
        distinct = [describe_factor(factor) for factor in sorted(set(self.factors))]
        if len(distinct) <= 2:
            return f"multiply by {' or '.join(distinct)} along axis {self.axis}"
        return f"multiply by {len(self.factors)} factors from {distinct[0]} to {distinct[-1]} along axis {self.axis}"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays after it, in float64 or complex128."""
        return [widen(array) * spread_along(self.factors, self.axis, array) for array in arrays]


@dataclass(frozen=True)
class Shift:
    """Add one number to every element."""

    op: ClassVar[str] = "shift"
    number: float

    @classmethod
    def load(cls, fields: Fields) -> Shift:
        """Return a stored one."""
        return cls(fields.read_factor("number"))

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        return f"add {self.number:.6g}"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays after it, in float64 or complex128."""
        return [widen(array) + self.number for array in arrays]


@dataclass(frozen=True)
class ShiftAlong:
    """Add one number for each place along an axis."""

    op: ClassVar[str] = "shift_along"
    axis: int
    numbers: tuple[float, ...]

    @classmethod
    def load(cls, fields: Fields) -> ShiftAlong:
        """Return a stored one."""
        return cls(fields.read_axis("axis"), fields.read_numbers("numbers"))

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        low, high = min(self.numbers, default=0.0), max(self.numbers, default=0.0)
        return f"add {len(self.numbers)} numbers from {low:.6g} to {high:.6g} along axis {self.axis}"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays after it, in float64 or complex128."""
        return [widen(array) + spread_along(self.numbers, self.axis, array) for array in arrays]


def check_real(array: Array) -> Array:
    """Return an array of real numbers; raise ValueError for complex ones."""
    if np.iscomplexobj(array):
        raise ValueError("complex numbers have no order")
    return array


def spread_along(numbers: Sequence[float], axis: int, array: Array) -> Array:
    """Return numbers in the shape in which each goes with one place along an axis of an array."""
    if array.ndim <= axis or array.shape[axis] != len(numbers):
        raise ValueError(f"shape {array.shape} has no {len(numbers)} places along axis {axis}")
    return np.asarray(numbers, np.float64).reshape((len(numbers),) + (1,) * (array.ndim - axis - 1))


VALUE_OPERATIONS: tuple[Any, ...] = (Round, MultiplyAlong, Shift, ShiftAlong)
