"""A curve in one line of text: a block for each few steps."""

from __future__ import annotations

import math

from nndiff.facts.run_summary import Curve, CurveKind, fits_log_axis

BLOCKS = "▁▂▃▄▅▆▇█"
NOT_FINITE = "×"


def draw_sparkline(curve: Curve, width: int, limits: tuple[float, float] | None = None) -> str:
    """Return the values of a curve in at most `width` characters, between these limits or their own.

    A distance that spans decades is drawn on a logarithmic scale, with the lowest block for zero alone.
    """
    numbers = curve.numbers
    is_log = curve.kind is CurveKind.DISTANCE and fits_log_axis(numbers)
    if is_log:
        numbers = [math.log10(value) for value in numbers if value > 0]
    low, high = limits or (min(numbers, default=0.0), max(numbers, default=0.0))
    text = ""
    for _, value in curve.thin(width):
        if not math.isfinite(value):
            text += NOT_FINITE
        elif is_log:
            text += BLOCKS[0] if value <= 0 else _choose_block(math.log10(value), low, high, first=1)
        else:
            text += _choose_block(value, low, high)
    return text


def _choose_block(value: float, low: float, high: float, first: int = 0) -> str:
    """Return the block of a value between the limits; a curve without ups and downs is low."""
    share = (value / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.0  # halves: no overflow
    return BLOCKS[first + round(min(1.0, max(0.0, share)) * (len(BLOCKS) - 1 - first))]
