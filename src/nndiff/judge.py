"""From numbers to a verdict, at the tolerance measured with or at another one."""

from __future__ import annotations

from bisect import bisect_right

from nndiff.stats.metrics import ENVELOPE_RTOLS, Metrics
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
    low_rtol, low_atol = ENVELOPE_RTOLS[above - 1], metrics.envelope[above - 1]
    if low_rtol == rtol:
        return low_atol, low_atol
    if above == len(ENVELOPE_RTOLS):
        return 0.0, low_atol
    high_rtol, high_atol = ENVELOPE_RTOLS[above], metrics.envelope[above]
    share = (rtol - low_rtol) / (high_rtol - low_rtol)
    return high_atol, low_atol + (high_atol - low_atol) * share
