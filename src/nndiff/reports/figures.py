"""Numbers, shapes and names as text: every report prints them alike."""

from __future__ import annotations

import math

from nndiff.reports.layers import has_difference
from nndiff.result import Pair
from nndiff.tensors import Shape
from nndiff.text import printable

NOTHING = "–"  # stands where there is no number


def format_name(text: str) -> str:
    """Return a name that can be printed and seen."""
    return printable(text) or "(no name)"


def format_number(value: float | None) -> str:
    """Return a measured number for a table."""
    if value is None or math.isnan(value):
        return NOTHING
    return "0" if value == 0 else f"{value:.3e}"


def format_typed(value: float) -> str:
    """Return a number as a person would type it on the command line."""
    return f"{value:.15g}"


def format_percent(part: int, total: int) -> str:
    """Return a share in percent, rounded; 100.00% means all and 0.00% none."""
    if part in (0, total):
        return "100.00%" if part else "0.00%"
    return f"{min(99.99, max(0.01, 100 * part / total)):.2f}%"


def format_shape(shape: Shape) -> str:
    """Return `512×80`; no dimension is a scalar."""
    return "×".join(map(str, shape)) or "scalar"


def format_shapes(pair: Pair) -> str:
    """Return the shape of a pair, or both where they differ."""
    return join_sides(format_shape(pair.shape[0]), format_shape(pair.shape[1]))


def join_sides(reference: str, candidate: str) -> str:
    """Return the text if both sides have the same, else `reference → candidate`."""
    return reference if reference == candidate else f"{reference} → {candidate}"


def format_size(nbytes: int) -> str:
    """Return a number of bytes for people."""
    value = float(nbytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{nbytes} B" if unit == "B" else f"{value:.3g} {unit}"


def format_mismatched(pair: Pair) -> str:
    """Return the share of elements out of tolerance; 0% means none and 100% means all."""
    if pair.metrics is None or pair.metrics.count == 0:
        return NOTHING
    mismatched, count = pair.metrics.mismatched, pair.metrics.count
    if mismatched is None:  # judged again: the count belonged to the old tolerance
        return "?"
    percent = 100 * mismatched / count
    if 0 < percent < 0.1:
        return "<0.1%"
    if percent > 99.9 and mismatched < count:
        return ">99.9%"
    return f"{percent:.1f}%" if mismatched else "0%"


def measure_max_abs(pair: Pair | None) -> float | None:
    """Return the largest difference of a pair; None where there is none to tell."""
    return pair.metrics.max_abs if pair and pair.metrics and has_difference(pair) else None


def format_noise(times: float | None) -> str:
    """Return a multiple of the noise floor; nothing where the floor was not measured."""
    if times is None:
        return ""
    return f"{times:.1f}" if times < 100 else f"{times:,.0f}"


def describe_noise(times: float | None) -> str:
    """Return a multiple of the noise floor in words; nothing where the floor was not measured, or is zero."""
    return "" if times is None or math.isinf(times) else f"{format_noise(times)} times the noise"


def format_times_noise(pair: Pair | None) -> str:
    """Return the largest difference of a pair as a multiple of its noise floor, where that is known."""
    return format_noise(pair.times_noise) if pair and has_difference(pair) else ""


def measure_max_rel(pair: Pair) -> float | None:
    """Return the largest relative difference; None for gradients, which are judged on a common scale."""
    if pair.slot and pair.slot.is_gradient:
        return None
    return measure(pair, "max_rel")


def measure(pair: Pair, name: str) -> float | None:
    """Return one number of a pair; None if it is zero only because NaN and inf are left out of it."""
    value: float | None = getattr(pair.metrics, name, None)
    return None if value == 0 and not has_difference(pair) else value
