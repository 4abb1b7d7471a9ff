"""Tolerance as a value that knows where it came from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

from nndiff.dtypes import DType
from nndiff.errors import UsageError

DEFAULT_ATOL = 1e-5
DEFAULT_RTOL = 1e-5

# (rtol, atol) by dtype: the defaults of torch.testing.assert_close, which are about the square
# root of the type's precision. The less precise side of a pair decides.
_AUTO: dict[str, tuple[float, float]] = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5),
    "complex128": (1e-7, 1e-7),
    # torch.testing has no entry for the float8 kinds: one unit of their last place.
    "float8_e4m3fn": (1.25e-1, 1e-5),
    "float8_e4m3fnuz": (1.25e-1, 1e-5),
    "float8_e5m2": (2.5e-1, 1e-5),
    "float8_e5m2fnuz": (2.5e-1, 1e-5),
    "float8_e8m0fnu": (0.0, 0.0),
}


@dataclass(frozen=True)
class Override:
    """Give the tensors that a pattern names a tolerance of their own; None leaves a number as it is."""

    pattern: str
    atol: float | None = None
    rtol: float | None = None


@dataclass(frozen=True)
class Tolerance:
    """Judge |candidate - reference| <= atol + rtol * |reference|, as torch.allclose does.

    Whole numbers and booleans know no rounding: for them rtol is not used and atol is, so
    that the defaults demand equality and a step of one must be asked for.
    """

    atol: float = DEFAULT_ATOL
    rtol: float = DEFAULT_RTOL
    origin: str = "default"
    overrides: tuple[Override, ...] = ()

    def __post_init__(self) -> None:
        for name in ("atol", "rtol"):
            value: Any = getattr(self, name)
            if not (isinstance(value, Real) and float(value) >= 0 and math.isfinite(value)):
                raise UsageError(f"{name} must be a finite number of zero or more, not {value!r}")
            object.__setattr__(self, name, float(value))  # numbers of NumPy are taken, and kept as our own

    def for_pair(self, reference: DType, candidate: DType) -> tuple[float, float]:
        """Return (atol, rtol) for a pair of these dtypes."""
        if reference.exact and candidate.exact:
            return (0.0 if self.origin == "auto" else self.atol, 0.0)
        if self.origin != "auto":
            return self.atol, self.rtol
        rows = [_AUTO[dtype.name] for dtype in (reference, candidate) if dtype.name in _AUTO]
        return max(atol for _, atol in rows), max(rtol for rtol, _ in rows)


AUTO = Tolerance(0.0, 0.0, "auto")


def choose(atol: float | None, rtol: float | None, tolerance: str | None = None) -> Tolerance:
    """Return the tolerance asked for; one number given leaves the other at its default."""
    if tolerance == "auto":
        if atol is not None or rtol is not None:
            raise UsageError("--tolerance auto chooses atol and rtol by dtype: give one or the other, not both")
        return AUTO
    if tolerance is not None:
        raise UsageError(f"unknown tolerance {tolerance!r}: the known one is 'auto'")
    if atol is None and rtol is None:
        return Tolerance()
    return Tolerance(DEFAULT_ATOL if atol is None else atol, DEFAULT_RTOL if rtol is None else rtol, "given")


def typed(needed: float) -> str:
    """Return the options that let pass what needs this as atol and rtol."""
    text = rounded_up(needed)
    return f"--atol {text} --rtol {text}"


def rounded_up(value: float) -> str:
    """Return three digits that are never less than the value, so that what is printed passes."""
    if value == 0:
        return "0"
    near = f"{value:.2e}"
    # equal is enough only for short binary fractions: with others the rule's own rounding may fall short
    if float(near) > value * (1 + 2**-50) or (float(near) == value and (value * 1024).is_integer()):
        return near
    from decimal import ROUND_CEILING, Context, Decimal

    digits = Context(prec=3, rounding=ROUND_CEILING).create_decimal(Decimal(value * (1 + 2**-50)))
    return f"{float(digits):.2e}"
