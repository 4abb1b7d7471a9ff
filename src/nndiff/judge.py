"""From numbers to a verdict, at the tolerance measured with or at another one."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import pairwise

from nndiff.metrics import ENVELOPE_RTOLS, Metrics
from nndiff.verdict import Verdict

UNPROVEN = "the saved numbers do not decide at this tolerance: compare the sources again"


def judge(metrics: Metrics, same_dtype: bool) -> Verdict:
    """Judge numbers at the tolerance they were measured with.

    Identical asks for the same dtype and the same values: NaN is the same as NaN at the same
    place, 0.0 the same as -0.0.
    """
    if metrics.nonfinite_unequal:
        return Verdict.NOT_FINITE
    if metrics.mismatched:
        return Verdict.DIFFERENT
    return Verdict.IDENTICAL if metrics.unequal == 0 and same_dtype else Verdict.CLOSE


def rejudge(metrics: Metrics, same_dtype: bool, atol: float, rtol: float) -> tuple[Verdict, str]:
    """Judge saved numbers at another tolerance; the text says where they do not suffice."""
    if metrics.nonfinite_unequal:
        return Verdict.NOT_FINITE, ""
    if metrics.unequal == 0:
        return (Verdict.IDENTICAL if same_dtype else Verdict.CLOSE), ""
    least, most = _needed_atol(metrics, rtol)
    if most <= atol or metrics.needed_tolerance <= min(atol, rtol):
        return Verdict.CLOSE, ""
    decided = least > atol or metrics.needed_tolerance > max(atol, rtol)
    return Verdict.DIFFERENT, "" if decided else UNPROVEN


def _needed_atol(metrics: Metrics, rtol: float) -> tuple[float, float]:
    """Return bounds of the smallest passing atol at this rtol.

    The smallest passing atol is convex and falls with rtol, so between two known points it lies
    above the farther one and below the chord.
    """
    if metrics.max_rel <= rtol:
        return 0.0, 0.0
    above = bisect_right(ENVELOPE_RTOLS, rtol)
    if ENVELOPE_RTOLS[above - 1] == rtol:
        return metrics.envelope[above - 1], metrics.envelope[above - 1]
    least = metrics.envelope[above] if above < len(ENVELOPE_RTOLS) else 0.0
    return least, _chord(_points(metrics), rtol)


_Point = tuple[float, float]  # an rtol, and an atol that passes with it
_LAST_DIGITS = 1 + 2**-40  # what is known to a last digit only


def _points(metrics: Metrics) -> list[_Point]:
    """Return what is known to pass, by rtol: the envelope, the diagonal, and where no atol is needed."""
    needed, alone = metrics.needed_tolerance * _LAST_DIGITS, metrics.max_rel * _LAST_DIGITS
    points = [*zip(ENVELOPE_RTOLS, metrics.envelope, strict=True), (needed, needed), (alone, 0.0)]
    return sorted(point for point in points if all(map(math.isfinite, point)))


def _chord(points: list[_Point], rtol: float) -> float:
    """Return an atol that passes with an rtol, by the nearest points."""
    above = bisect_right(points, (rtol, math.inf))
    if above in (0, len(points)):
        return points[-1][1] if above and points else math.inf
    (low, most), (high, least) = points[above - 1], points[above]
    return most + (least - most) * (rtol - low) / (high - low)


def passing(metrics: Metrics, scale: float = 1.0, exact: bool = False) -> float:
    """Return the smallest t that the numbers prove to pass, with atol = scale * t and rtol = t; inf where none does.

    Exact numbers know no rtol.
    """
    if metrics.nonfinite_unequal:
        return math.inf
    if metrics.unequal == 0:
        return 0.0
    if exact:
        return metrics.max_abs / scale
    needed = metrics.needed_tolerance
    return needed if scale == 1 else min(max(needed / scale, needed), _crossing(_points(metrics), scale))


def _crossing(points: list[_Point], scale: float) -> float:
    """Return where the chords between points come down to the line atol = scale * rtol."""
    for (low, most), (high, least) in pairwise(points):
        if least <= scale * high and high > low:
            fall = (most - least) / (high - low)
            return max(low, (most + fall * low) / (scale + fall))
    return max(points[-1][0], points[-1][1] / scale) if points else math.inf
