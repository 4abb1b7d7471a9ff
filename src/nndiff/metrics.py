"""The numbers of one pair, each with its meaning, and the tolerances they prove to pass or fail."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from nndiff.verdict import Verdict

NAN = float("nan")

# The relative tolerances at which the needed absolute tolerance is kept, so that a saved
# result can be judged again at any of them without reading a tensor.
ENVELOPE_RTOLS: tuple[float, ...] = (0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)

_LAST_DIGITS = 1 + 2**-40  # needed_tolerance and max_rel are known to a last digit only


@dataclass(frozen=True, slots=True)
class Metrics:
    """Hold every number of one pair.

    Let r be the reference, c the candidate and d = c - r. Numbers of the pair (d, products) are over the elements
    that are finite on both sides, numbers of one side (mean, std, min, max) over the elements finite on that side.
    NaN stands for "undefined": no such element, no variance.

    Complex numbers: maxima, percentiles and tolerance use the modulus; means, stds, min and max are those of the
    modulus (for d: the modulus of d); cosine and correlation take a complex number as two real ones.

    Equal sides have cosine and correlation 1, even if they are constant; otherwise both are NaN where a side has no
    length or no variance. Squares that float64 cannot hold are summed on another scale: their root is right, their
    mean (mse) may be 0 or inf. Only a |d| beyond float64 is inf, and makes every number of d inf or NaN.

    Integers beyond 2^53 keep every digit in d and are rounded to float64 elsewhere. Sums are made in float64. For
    bfloat16 pairs of more than 2^22 elements, sixteen elements at a time are first added in float32: that is exact
    unless some are far smaller than others, and then loses about 1e-8 of a sum of moduli or squares, at most 1e-6.
    """

    count: int  # elements
    unequal: int  # elements that are not the same value; NaN is the same as NaN, inf as inf
    # elements out of tolerance, or not finite on one side and not the same on the other; None in a
    # result judged again at a tolerance it was not measured with
    mismatched: int | None
    nonfinite_ref: int  # NaN or inf in the reference
    nonfinite_cand: int
    nonfinite_unequal: int  # places where one side is not finite and the other is not the same
    max_abs: float  # largest |d|
    max_abs_index: tuple[int, ...] | None  # where, first place in C order; None where nothing is finite
    max_rel: float  # largest |d| / |r|; inf where r is 0 and d is not
    mean_abs: float  # mean |d|, also called MAE
    mse: float  # mean d^2
    rmse: float
    rel_mse: float  # sum d^2 / sum r^2
    rel_mae: float  # sum |d| / sum |r|
    l2: float  # sqrt(sum d^2)
    rel_l2: float  # l2 / sqrt(sum r^2)
    cosine: float
    correlation: float  # Pearson's
    sqnr_db: float  # 10 log10(sum r^2 / sum d^2); inf where d is all zero
    p50: float  # percentiles of |d|: those of numpy.percentile up to 2^22 elements, within 0.1 % above
    p90: float
    p95: float
    p99: float
    ref_mean: float
    ref_std: float  # population, as numpy.std
    ref_min: float
    ref_max: float
    cand_mean: float
    cand_std: float
    cand_min: float
    cand_max: float
    diff_mean: float  # mean of the signed d
    diff_std: float
    needed_tolerance: float  # smallest t that passes as atol = rtol = t, to a last digit; inf where no tolerance would
    envelope: tuple[float, ...]  # for each of ENVELOPE_RTOLS the smallest atol that passes

    def judge(self, same_dtype: bool) -> Verdict:
        """Judge the numbers at the tolerance they were measured with.

        Identical asks for the same dtype and the same values: NaN is the same as NaN at the same place, 0.0 the same
        as -0.0.
        """
        if self.nonfinite_unequal:
            return Verdict.NOT_FINITE
        if self.mismatched:
            return Verdict.DIFFERENT
        return Verdict.IDENTICAL if self.unequal == 0 and same_dtype else Verdict.CLOSE

    def judge_at(self, same_dtype: bool, atol: float, rtol: float) -> tuple[Verdict, bool]:
        """Judge saved numbers at another tolerance; False where they do not suffice to decide."""
        if self.nonfinite_unequal:
            return Verdict.NOT_FINITE, True
        if self.unequal == 0:
            return (Verdict.IDENTICAL if same_dtype else Verdict.CLOSE), True
        least, most = self.needed_atol(rtol)
        if most <= atol or self.needed_tolerance <= min(atol, rtol):
            return Verdict.CLOSE, True
        return Verdict.DIFFERENT, least > atol or self.needed_tolerance > max(atol, rtol)

    def needed_atol(self, rtol: float) -> tuple[float, float]:
        """Return bounds of the smallest atol that passes at this rtol.

        The smallest passing atol is convex and falls with rtol, so between two known points it lies above the farther
        one and below the chord.
        """
        if self.max_rel <= rtol:
            return 0.0, 0.0
        above = bisect_right(ENVELOPE_RTOLS, rtol)
        if ENVELOPE_RTOLS[above - 1] == rtol:
            return self.envelope[above - 1], self.envelope[above - 1]
        least = self.envelope[above] if above < len(ENVELOPE_RTOLS) else 0.0
        points = self._passing_points()
        above = bisect_right(points, (rtol, math.inf))
        if above in (0, len(points)):
            return least, points[-1][1] if above and points else math.inf
        (low, low_atol), (high, high_atol) = points[above - 1], points[above]
        return least, low_atol + (high_atol - low_atol) * (rtol - low) / (high - low)

    def passes_at(self, scale: float = 1.0, exact: bool = False) -> float:
        """Return the smallest t proven to pass with atol = scale * t and rtol = t; inf where none is.

        Whole numbers and booleans are `exact`: they know no rtol.
        """
        if self.nonfinite_unequal:
            return math.inf
        if self.unequal == 0:
            return 0.0
        if exact:
            return self.max_abs / scale
        needed = self.needed_tolerance
        if scale == 1:
            return needed
        # where the chords between known points come down to the line atol = scale * rtol
        points = self._passing_points()
        crossing = max(points[-1][0], points[-1][1] / scale) if points else math.inf
        for (low, low_atol), (high, high_atol) in pairwise(points):
            if high_atol <= scale * high and high > low:
                fall = (low_atol - high_atol) / (high - low)
                crossing = max(low, (low_atol + fall * low) / (scale + fall))
                break
        return min(max(needed / scale, needed), crossing)

    def _passing_points(self) -> list[tuple[float, float]]:
        """Return (rtol, atol) known to pass, by rtol: the envelope, the diagonal, and where no atol is needed."""
        needed, relative = self.needed_tolerance * _LAST_DIGITS, self.max_rel * _LAST_DIGITS
        points = [*zip(ENVELOPE_RTOLS, self.envelope, strict=True), (needed, needed), (relative, 0.0)]
        return sorted(point for point in points if math.isfinite(point[0]) and math.isfinite(point[1]))
