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

    def move(self, by: float) -> None:
        """Add to it; the digits that the first number cannot hold go to the second."""
        total = self.high + by
        back = total - self.high
        lost = (self.high - (total - back)) + (by - back) + self.low
        self.high = total + lost
        self.low = lost - (self.high - total)

    def away(self, other: Mean) -> float:
        """Return how far the other lies above."""
        return (other.high - self.high) + (other.low - self.low)


def _centred(values: Floats) -> tuple[Mean, Floats]:
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

    def add(self, values: Floats, exponent: int = 0) -> None:
        """Take in a block of finite values, divided by a power of two."""
        if values.size == 0:
            return
        mean, around = _centred(_divided(values, exponent))
        self.mean = self.mean if self.count else mean  # a shift from zero would round it
        shift = self.mean.away(mean)
        total = self.count + values.size
        # the square alone may overflow
        self.m2 += float(around @ around) + shift * (self.count * values.size / total) * shift
        self.mean.move(shift * (values.size / total))
        self.count = total
        self.low = min(self.low, float(values.min()))
        self.high = max(self.high, float(values.max()))

    def summary(self, exponent: int = 0) -> tuple[float, float, float, float]:
        """Return mean, population std, min and max."""
        if self.count == 0:
            return NAN, NAN, NAN, NAN
        if self.low == self.high:  # a rounded mean would leave a trace of variance
            return self.low, 0.0, self.low, self.high
        std = math.sqrt(max(self.m2, 0.0) / self.count)
        return _times(self.mean.high, exponent), _times(std, exponent), self.low, self.high

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

    def add(self, a: Floats, b: Floats) -> None:
        """Take in a block of pairs."""
        mean_a, ca = _centred(a)
        mean_b, cb = _centred(b)
        if not self.count:
            self.mean_a, self.mean_b = mean_a, mean_b
        da, db = self.mean_a.away(mean_a), self.mean_b.away(mean_b)
        total = self.count + a.size
        weight = self.count * a.size / total
        self.aa += float(ca @ ca) + da * weight * da
        self.bb += float(cb @ cb) + db * weight * db
        self.ab += float(ca @ cb) + da * weight * db
        self.mean_a.move(da * (a.size / total))
        self.mean_b.move(db * (a.size / total))
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
    largest: tuple[float, float, float] = (0.0, 0.0, 0.0)  # |r|, |c|, |d| of the pairs
    ref: Moments = field(default_factory=Moments)
    cand: Moments = field(default_factory=Moments)
    diff: Moments = field(default_factory=Moments)
    both: Comoment = field(default_factory=Comoment)

    def add_sides(self, ref: Floats, cand: Floats) -> None:
        """Take in what is finite on each side."""
        self.ref.add(ref, self.scale.all_ref)
        self.cand.add(cand, self.scale.all_cand)

    def add_pairs(self, block: PairBlock) -> None:
        """Take in what is finite on both sides; there is at least one."""
        found = zip(self.largest, (block.ref, block.cand, block.diff), strict=True)
        self.largest = tuple(max(most, float(np.abs(each).max())) for most, each in found)  # type: ignore[assignment]
        ref, cand = _divided(block.ref, self.scale.ref), _divided(block.cand, self.scale.cand)
        size = np.abs(_divided(block.diff, self.scale.diff))
        ref_size = _divided(block.ref_size, self.scale.ref)
        self.pairs += size.size
        self.diff.add(block.diff, self.scale.diff)
        self.abs += float(size.sum())
        self.sq += float(size @ size)
        self.ref_abs += float(ref_size.sum())
        self.ref_sq += float(ref @ ref)
        self.cand_sq += float(cand @ cand)
        self.dot += float(ref @ cand)
        self.both.add(ref, cand)

    def better_scale(self) -> Scale | None:
        """Return how to divide where squares leave the range of float64, or None where they do not."""
        sizes = (*self.largest, self.ref.largest, self.cand.largest)
        if all(size == 0 or _LEAST <= size <= _MOST for size in sizes):
            return None
        return Scale(*(math.frexp(size)[1] if math.isfinite(size) else 0 for size in sizes))

    def numbers(self) -> dict[str, float]:
        """Return the metrics that are made of sums."""
        ref, cand = self.ref.summary(self.scale.all_ref), self.cand.summary(self.scale.all_cand)
        diff = self.diff.summary(self.scale.diff)
        sides = {
            f"{side}_{name}": value
            for side, found in (("ref", ref), ("cand", cand))
            for name, value in zip(("mean", "std", "min", "max"), found, strict=True)
        }
        varies = self.ref.low != self.ref.high and self.cand.low != self.cand.high
        return self._of_pairs(varies) | sides | {"diff_mean": diff[0], "diff_std": diff[1]}

    def _of_pairs(self, varies: bool) -> dict[str, float]:
        step, rel = self.scale.diff, self.scale.diff - self.scale.ref
        count = self.pairs or 1
        mse, ratio = self.sq / count, _ratio(self.sq, self.ref_sq)
        made = {
            "mean_abs": _times(self.abs / count, step),
            "mse": _times(mse, 2 * step),
            "rmse": _times(math.sqrt(mse), step),
            "rel_mse": _times(ratio, 2 * rel),
            "rel_mae": _times(_ratio(self.abs, self.ref_abs), rel),
            "l2": _times(math.sqrt(self.sq), step),
            "rel_l2": _times(math.sqrt(ratio), rel),
            "cosine": _angle(self.dot, self.ref_sq, self.cand_sq, self.sq),
            "correlation": _angle(self.both.ab, self.both.aa, self.both.bb if varies else 0.0, self.sq),
            "sqnr_db": _decibel(self.ref_sq, self.sq, -rel),
        }
        return made if self.pairs else dict.fromkeys(made, NAN)


def _divided(values: Floats, exponent: int) -> Floats:
    return np.ldexp(values, -exponent) if exponent else values


def _times(value: float, exponent: int) -> float:
    return float(np.ldexp(value, exponent)) if exponent else value


def _ratio(part: float, whole: float) -> float:
    if whole == 0:
        return 0.0 if part == 0 else math.inf
    return part / whole


def _angle(dot: float, aa: float, bb: float, apart: float) -> float:
    """Return the cosine; 1 for equal sides, undefined where a side has no length."""
    if apart == 0:
        return 1.0
    length = math.sqrt(aa) * math.sqrt(bb)
    if not (length > 0 and math.isfinite(length) and math.isfinite(dot)):
        return NAN
    return max(-1.0, min(1.0, dot / length))


def _decibel(signal: float, noise: float, exponent: int) -> float:
    if noise == 0:
        return math.inf
    ratio = signal / noise
    if ratio > 0:
        return 10.0 * math.log10(ratio) + 20.0 * exponent * math.log10(2.0)
    return NAN if math.isnan(ratio) else -math.inf
