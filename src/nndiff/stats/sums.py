"""Sums over a pair and the numbers made of them, in float64 whatever the size of the elements."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nndiff.metrics import NAN

Floats = NDArray[np.float64]

# Largest elements between these leave room for squares, for their sums and for the squares of last digits.
_LEAST, _MOST = 2.0**-400, 2.0**480


class Scale(NamedTuple):
    """Hold the powers of two by which numbers are divided before they are squared."""

    ref: int = 0  # where both sides are finite
    cand: int = 0
    diff: int = 0
    all_ref: int = 0  # finite on that side
    all_cand: int = 0


_PLAIN = Scale()


class PairBlock(NamedTuple):
    """Hold finite numbers of a block, a complex number as two."""

    ref: Floats
    cand: Floats
    diff: Floats  # signed; of complex numbers the modulus
    ref_size: Floats  # |r|


@dataclass
class Mean:
    """Hold a mean in two numbers: that of large numbers close together has more digits than one."""

    high: float = 0.0
    low: float = 0.0

    def move_by(self, shift: float) -> None:
        """Add to it; the digits that the first number cannot hold go to the second."""
        total = self.high + shift
        back = total - self.high
        lost = (self.high - (total - back)) + (shift - back) + self.low
        self.high = total + lost
        self.low = lost - (self.high - total)

    def distance_to(self, mean: Mean) -> float:
        """Return how far another mean lies above this one."""
        return (mean.high - self.high) + (mean.low - self.low)


def _centre_values(values: Floats) -> tuple[Mean, Floats]:
    """Return the mean of values and the values minus their mean."""
    rough = float(values.mean())
    around = values - rough
    off = float(around.mean())
    return Mean(rough, off), around - off


@dataclass
class Moments:
    """Hold count, mean and centred square sum of a stream, merged block by block (Chan)."""

    count: int = 0
    mean: Mean = field(default_factory=Mean)
    m2: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add_values(self, values: Floats, exponent: int = 0) -> None:
        """Add a block of finite values, divided by a power of two."""
        if values.size == 0:
            return
        mean, around = _centre_values(_scale_down(values, exponent))
        if not self.count:
            self.mean = mean  # a shift from zero would round it
        shift = self.mean.distance_to(mean)
        total = self.count + values.size
        # the square alone may overflow
        self.m2 += float(around @ around) + shift * (self.count * values.size / total) * shift
        self.mean.move_by(shift * (values.size / total))
        self.count = total
        self.low = min(self.low, float(values.min()))
        self.high = max(self.high, float(values.max()))

    def summarise(self, exponent: int = 0) -> tuple[float, float, float, float]:
        """Return mean, population std, min and max."""
        if self.count == 0:
            return NAN, NAN, NAN, NAN
        if self.low == self.high:  # a rounded mean would leave a trace of variance
            return self.low, 0.0, self.low, self.high
        std = math.sqrt(max(self.m2, 0.0) / self.count)
        return _scale_up(self.mean.high, exponent), _scale_up(std, exponent), self.low, self.high

    @property
    def largest(self) -> float:
        """Return the largest modulus."""
        return max(abs(self.low), abs(self.high)) if self.count else 0.0


@dataclass
class Comoment:
    """Hold the centred product sums of two streams, for the correlation."""

    count: int = 0
    mean_a: Mean = field(default_factory=Mean)
    mean_b: Mean = field(default_factory=Mean)
    aa: float = 0.0
    bb: float = 0.0
    ab: float = 0.0

    def add_pairs(self, a: Floats, b: Floats) -> None:
        """Add a block of pairs."""
        mean_a, around_a = _centre_values(a)
        mean_b, around_b = _centre_values(b)
        if not self.count:
            self.mean_a, self.mean_b = mean_a, mean_b
        shift_a, shift_b = self.mean_a.distance_to(mean_a), self.mean_b.distance_to(mean_b)
        total = self.count + a.size
        weight = self.count * a.size / total
        self.aa += float(around_a @ around_a) + shift_a * weight * shift_a
        self.bb += float(around_b @ around_b) + shift_b * weight * shift_b
        self.ab += float(around_a @ around_b) + shift_a * weight * shift_b
        self.mean_a.move_by(shift_a * (a.size / total))
        self.mean_b.move_by(shift_b * (a.size / total))
        self.count = total


@dataclass
class Sums:
    """Gather the sums of one pair, block by block."""

    scale: Scale = _PLAIN
    pairs: int = 0
    abs: float = 0.0
    sq: float = 0.0
    ref_abs: float = 0.0
    ref_sq: float = 0.0
    cand_sq: float = 0.0
    dot: float = 0.0
    largest_ref: float = 0.0  # |r| of the pairs
    largest_cand: float = 0.0
    largest_diff: float = 0.0
    ref: Moments = field(default_factory=Moments)
    cand: Moments = field(default_factory=Moments)
    diff: Moments = field(default_factory=Moments)
    comoment: Comoment = field(default_factory=Comoment)

    def add_sides(self, ref: Floats, cand: Floats) -> None:
        """Add what is finite on each side."""
        self.ref.add_values(ref, self.scale.all_ref)
        self.cand.add_values(cand, self.scale.all_cand)

    def add_pairs(self, block: PairBlock) -> None:
        """Add what is finite on both sides; there is at least one."""
        self.largest_ref = max(self.largest_ref, float(np.abs(block.ref).max()))
        self.largest_cand = max(self.largest_cand, float(np.abs(block.cand).max()))
        self.largest_diff = max(self.largest_diff, float(np.abs(block.diff).max()))
        ref, cand = _scale_down(block.ref, self.scale.ref), _scale_down(block.cand, self.scale.cand)
        size = np.abs(_scale_down(block.diff, self.scale.diff))
        ref_size = _scale_down(block.ref_size, self.scale.ref)
        self.pairs += size.size
        self.diff.add_values(block.diff, self.scale.diff)
        self.abs += float(size.sum())
        self.sq += float(size @ size)
        self.ref_abs += float(ref_size.sum())
        self.ref_sq += float(ref @ ref)
        self.cand_sq += float(cand @ cand)
        self.dot += float(ref @ cand)
        self.comoment.add_pairs(ref, cand)

    def find_better_scale(self) -> Scale | None:
        """Return how to divide where squares leave the range of float64, or None where they do not."""
        sizes = (self.largest_ref, self.largest_cand, self.largest_diff, self.ref.largest, self.cand.largest)
        if all(size == 0 or _LEAST <= size <= _MOST for size in sizes):
            return None
        return Scale(*[math.frexp(size)[1] if math.isfinite(size) else 0 for size in sizes])

    def compute_metrics(self) -> dict[str, float]:
        """Return the metrics that are made of sums."""
        ref_mean, ref_std, ref_min, ref_max = self.ref.summarise(self.scale.all_ref)
        cand_mean, cand_std, cand_min, cand_max = self.cand.summarise(self.scale.all_cand)
        diff_mean, diff_std, _, _ = self.diff.summarise(self.scale.diff)
        return {
            **self._compute_pair_metrics(),
            "ref_mean": ref_mean,
            "ref_std": ref_std,
            "ref_min": ref_min,
            "ref_max": ref_max,
            "cand_mean": cand_mean,
            "cand_std": cand_std,
            "cand_min": cand_min,
            "cand_max": cand_max,
            "diff_mean": diff_mean,
            "diff_std": diff_std,
        }

    def _compute_pair_metrics(self) -> dict[str, float]:
        exponent, relative_exponent = self.scale.diff, self.scale.diff - self.scale.ref
        count = self.pairs or 1
        mse, rel_mse = self.sq / count, _divide(self.sq, self.ref_sq)
        varies = self.ref.low != self.ref.high and self.cand.low != self.cand.high
        metrics = {
            "mean_abs": _scale_up(self.abs / count, exponent),
            "mse": _scale_up(mse, 2 * exponent),
            "rmse": _scale_up(math.sqrt(mse), exponent),
            "rel_mse": _scale_up(rel_mse, 2 * relative_exponent),
            "rel_mae": _scale_up(_divide(self.abs, self.ref_abs), relative_exponent),
            "l2": _scale_up(math.sqrt(self.sq), exponent),
            "rel_l2": _scale_up(math.sqrt(rel_mse), relative_exponent),
            "cosine": _compute_cosine(self.dot, self.ref_sq, self.cand_sq, self.sq),
            "correlation": _compute_cosine(
                self.comoment.ab, self.comoment.aa, self.comoment.bb if varies else 0.0, self.sq
            ),
            "sqnr_db": _compute_decibels(self.ref_sq, self.sq, -relative_exponent),
        }
        return metrics if self.pairs else dict.fromkeys(metrics, NAN)


def _scale_down(values: Floats, exponent: int) -> Floats:
    return np.ldexp(values, -exponent) if exponent else values


def _scale_up(value: float, exponent: int) -> float:
    return float(np.ldexp(value, exponent)) if exponent else value


def _divide(numerator: float, denominator: float) -> float:
    if denominator == 0:
        return 0.0 if numerator == 0 else math.inf
    return numerator / denominator


def _compute_cosine(dot: float, aa: float, bb: float, diff_sq: float) -> float:
    """Return the cosine; 1 for equal sides, undefined where a side has no length."""
    if diff_sq == 0:
        return 1.0
    length = math.sqrt(aa) * math.sqrt(bb)
    if not (length > 0 and math.isfinite(length) and math.isfinite(dot)):
        return NAN
    return max(-1.0, min(1.0, dot / length))


def _compute_decibels(signal: float, noise: float, exponent: int) -> float:
    if noise == 0:
        return math.inf
    ratio = signal / noise
    if ratio > 0:
        return 10.0 * math.log10(ratio) + 20.0 * exponent * math.log10(2.0)
    return NAN if math.isnan(ratio) else -math.inf
