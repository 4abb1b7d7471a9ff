"""Tolerance as a value that knows where it came from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from nndiff.dtypes import DType
from nndiff.errors import UsageError
from nndiff.names import check_pattern, matches_any

DEFAULT_ATOL = 1e-5
DEFAULT_RTOL = 1e-5

# Multiples of the noise floor: harmless rewrites stay below 4, faults begin at 24.
NOISE_FACTOR = 8.0
NOISE_DRAWS = 2  # runs that measure the floor: more cost a run each and raise the largest movement by little

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
    """Give the tensors that a pattern names a tolerance of their own."""

    pattern: str
    atol: float | None = None
    rtol: float | None = None


@dataclass(frozen=True)
class Tolerance:
    """Judge |candidate - reference| <= atol + rtol * |reference|, as torch.allclose does.

    Whole numbers and booleans know no rounding: for them rtol is not used and atol is, so that the defaults demand
    equality and a step of one must be asked for. With the origin `noise`, tensors whose noise floor was measured are
    judged by a multiple of it instead.
    """

    atol: float = DEFAULT_ATOL
    rtol: float = DEFAULT_RTOL
    origin: str = "default"
    overrides: tuple[Override, ...] = ()  # the last that names a tensor decides
    noise_factor: float = NOISE_FACTOR  # how many times its noise floor a tensor may be off

    def __post_init__(self) -> None:
        for name in ("atol", "rtol", "noise_factor"):
            object.__setattr__(self, name, _check_number(name, getattr(self, name)))

    def for_pair(self, names: Sequence[str], reference: DType, candidate: DType) -> tuple[float, float]:
        """Return (atol, rtol) for a pair of these names and dtypes."""
        atol, rtol = self.atol, self.rtol
        exact = reference.exact and candidate.exact
        if self.origin == "auto" and not exact:
            rows = [_AUTO[dtype.name] for dtype in (reference, candidate) if dtype.name in _AUTO]
            atol, rtol = max(row[1] for row in rows), max(row[0] for row in rows)
        elif self.origin == "auto":
            atol = 0.0
        for override in self.overrides:
            if any(matches_any(name, (override.pattern,)) for name in names):
                atol = atol if override.atol is None else override.atol
                rtol = rtol if override.rtol is None else override.rtol
        return atol, 0.0 if exact else rtol

    def for_recorded(
        self,
        names: Sequence[str],
        reference: DType,
        candidate: DType,
        *,
        is_gradient: bool,
        scale: float,
        noise: float | None,
    ) -> tuple[float, float]:
        """Return (atol, rtol) for a pair of recordings, given the scale of its gradient and its noise floor.

        A floor that is infinite says nothing. Gradients have no scale of their own, so they may always be off by some
        times their floor, unless equality is asked for.
        """
        atol, rtol = self.for_pair(names, reference, candidate)
        if noise is None or not math.isfinite(noise) or (reference.exact and candidate.exact):
            return atol * scale, rtol
        if self.origin == "noise" and not self._is_overridden(names):
            return self.noise_factor * noise, 0.0
        if is_gradient and atol > 0:
            return max(atol * scale, self.noise_factor * noise), rtol
        return atol * scale, rtol

    def _is_overridden(self, names: Sequence[str]) -> bool:
        return any(matches_any(name, (override.pattern,)) for override in self.overrides for name in names)


def _check_number(name: str, value: Any) -> float:
    """Return a tolerance as a float of our own: numbers of NumPy are taken."""
    if isinstance(value, bool) or not (isinstance(value, Real) and float(value) >= 0 and math.isfinite(value)):
        raise UsageError(f"{name} must be a finite number of zero or more, not {value!r}")
    return float(value)


AUTO = Tolerance(0.0, 0.0, "auto")

Given = float | str | Mapping[str, float] | Sequence[float | str] | None  # one number, or PATTERN=NUMBER, or several


def choose_tolerance(
    atol: Given = None, rtol: Given = None, tolerance: str | None = None, noise_factor: float | None = None
) -> Tolerance:
    """Return the tolerance asked for; one number given leaves the other at its default.

    Each of atol and rtol is a number, a text `PATTERN=NUMBER` for the tensors a pattern names, several of them, or a
    mapping {pattern: number}. `noise_factor` goes with the tolerance `noise`.
    """
    numbers: dict[str, float | None] = {}
    overrides: list[Override] = []
    for name, given in (("atol", atol), ("rtol", rtol)):
        numbers[name], patterns = _split_patterns(name, given)
        overrides += [Override(pattern, **{name: value}) for pattern, value in patterns]
    if noise_factor is not None and tolerance != "noise":
        raise UsageError("--noise-factor says how many times the noise floor passes: give --tolerance noise too")
    if tolerance == "auto":
        if numbers["atol"] is not None or numbers["rtol"] is not None:
            raise UsageError("--tolerance auto chooses atol and rtol by dtype: give one or the other, not both")
        return replace(AUTO, overrides=tuple(overrides))
    if tolerance == "noise":
        if numbers["atol"] is not None or numbers["rtol"] is not None:
            raise UsageError("--tolerance noise judges by the noise floor: give it, or atol and rtol, not both")
        factor = NOISE_FACTOR if noise_factor is None else noise_factor
        return Tolerance(origin="noise", overrides=tuple(overrides), noise_factor=factor)
    if tolerance is not None:
        raise UsageError(f"unknown tolerance {tolerance!r}: the known ones are 'auto' and 'noise'")
    if numbers == {"atol": None, "rtol": None}:
        return Tolerance(overrides=tuple(overrides))
    return Tolerance(
        DEFAULT_ATOL if numbers["atol"] is None else numbers["atol"],
        DEFAULT_RTOL if numbers["rtol"] is None else numbers["rtol"],
        "given",
        tuple(overrides),
    )


def _split_patterns(name: str, given: Given) -> tuple[float | None, list[tuple[str, float]]]:
    """Return the number for all tensors, if one is given, and those for the tensors of patterns."""
    if given is None:
        return None, []
    if isinstance(given, Mapping):
        return None, [(str(pattern), _check_number(name, value)) for pattern, value in given.items()]
    entries = given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    number: float | None = None
    patterns: list[tuple[str, float]] = []
    for entry in entries:
        if not isinstance(entry, str):
            number = _check_number(name, entry)
            continue
        pattern, equals, digits = entry.rpartition("=")
        try:
            value = _check_number(name, float(digits))
        except ValueError:
            raise UsageError(f"--{name} {entry!r} is not a number or PATTERN=NUMBER, as in 'lm_head.*=1e-3'") from None
        if equals and not pattern:
            raise UsageError(f"--{name} {entry!r} has no pattern before the =")
        if equals:
            check_pattern(pattern)
            patterns.append((pattern, value))
        else:
            number = value
    return number, patterns


def format_options(needed: float) -> str:
    """Return the options that let pass what needs this as atol and rtol."""
    text = round_up(needed)
    return f"--atol {text} --rtol {text}"


def round_up(value: float) -> str:
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
