"""The numbers of one pair, each with its meaning."""

from __future__ import annotations

from dataclasses import dataclass

NAN = float("nan")

# The relative tolerances at which the needed absolute tolerance is kept, so that a saved
# result can be judged again at any of them without reading a tensor.
ENVELOPE_RTOLS: tuple[float, ...] = (0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


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
