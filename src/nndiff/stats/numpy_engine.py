"""The engine in plain NumPy: blocks that stay in cache, accumulators in float64."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import DType
from nndiff.stats.interface import Job, Progress
from nndiff.stats.metrics import ENVELOPE_RTOLS, NAN, Metrics
from nndiff.stats.percentiles import EXACT_LIMIT, BitHistogram, exact_percentiles
from nndiff.tensors import TensorRef

Floats = NDArray[np.float64]
BLOCK = 1 << 15  # elements: a handful of float64 temporaries of this size stay in the L2 cache


class NumpyEngine:
    """Measure pairs with NumPy alone."""

    name = "numpy"

    def measure(self, jobs: Iterable[Job], progress: Progress | None = None) -> Iterator[Metrics]:
        """Yield the metrics of each job."""
        for job in jobs:
            with np.errstate(all="ignore"):
                yield _measure(job, progress)


@dataclass
class Moments:
    """Hold count, mean and centred square sum of a stream, merged block by block (Chan)."""

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add(self, values: Floats) -> None:
        """Take in a block of finite values."""
        if values.size == 0:
            return
        mean = float(values.mean())
        centred = values - mean
        m2 = float(centred @ centred)
        shift = mean - self.mean
        total = self.count + values.size
        self.m2 += m2 + shift * (self.count * values.size / total) * shift  # the square alone may overflow
        self.mean += shift * (values.size / total)
        self.count = total
        self.low = min(self.low, float(values.min()))
        self.high = max(self.high, float(values.max()))

    def summary(self) -> tuple[float, float, float, float]:
        """Return mean, population std, min and max."""
        if self.count == 0:
            return NAN, NAN, NAN, NAN
        if self.low == self.high:  # a rounded mean would leave a trace of variance
            return self.low, 0.0, self.low, self.high
        return self.mean, math.sqrt(max(self.m2, 0.0) / self.count), self.low, self.high


@dataclass
class Comoment:
    """Hold the centred product sums of two streams, for the correlation."""

    count: int = 0
    mean_a: float = 0.0
    mean_b: float = 0.0
    aa: float = 0.0
    bb: float = 0.0
    ab: float = 0.0

    def add(self, a: Floats, b: Floats) -> None:
        """Take in a block of pairs."""
        if a.size == 0:
            return
        mean_a, mean_b = float(a.mean()), float(b.mean())
        ca, cb = a - mean_a, b - mean_b
        da, db = mean_a - self.mean_a, mean_b - self.mean_b
        total = self.count + a.size
        weight = self.count * a.size / total
        self.aa += float(ca @ ca) + da * weight * da
        self.bb += float(cb @ cb) + db * weight * db
        self.ab += float(ca @ cb) + da * weight * db
        self.mean_a += da * (a.size / total)
        self.mean_b += db * (a.size / total)
        self.count = total


@dataclass
class _State:
    """Gather one pair, block by block."""

    atol: float
    rtol: float
    done: int = 0
    unequal: int = 0
    mismatched: int = 0
    nonfinite_ref: int = 0
    nonfinite_cand: int = 0
    nonfinite_unequal: int = 0
    finite: int = 0
    max_abs: float = -1.0
    max_abs_at: int = -1
    max_rel: float = 0.0
    needed: float = 0.0
    envelope: list[float] = field(default_factory=lambda: [0.0] * len(ENVELOPE_RTOLS))
    sum_abs: float = 0.0
    sum_sq: float = 0.0
    sum_ref_abs: float = 0.0
    sum_ref_sq: float = 0.0
    sum_cand_sq: float = 0.0
    dot: float = 0.0
    ref: Moments = field(default_factory=Moments)
    cand: Moments = field(default_factory=Moments)
    diff: Moments = field(default_factory=Moments)
    both: Comoment = field(default_factory=Comoment)

    def add(self, block: _Block) -> Floats:
        """Take in a block; return |d| of its pairs that are finite on both sides."""
        self.nonfinite_ref += int(np.count_nonzero(~block.ref_finite))
        self.nonfinite_cand += int(np.count_nonzero(~block.cand_finite))
        pair_finite = block.ref_finite & block.cand_finite
        same = block.equal | block.both_nan
        self.unequal += int(np.count_nonzero(~same))
        bad = int(np.count_nonzero(~same & ~pair_finite))
        self.nonfinite_unequal += bad
        self.mismatched += bad
        self.ref.add(block.ref_size[block.ref_finite])
        self.cand.add(block.cand_size[block.cand_finite])
        where = np.flatnonzero(pair_finite)
        size = block.diff_size[where]
        if where.size:
            self._add_pairs(block, where, size)
        self.done += block.equal.size
        return size

    def _add_pairs(self, block: _Block, where: NDArray[np.intp], size: Floats) -> None:
        ref = block.ref_modulus[where]
        self.finite += where.size
        self.mismatched += int(np.count_nonzero(~(size <= self.atol + self.rtol * ref)))
        self._add_extremes(where, size, ref)
        self.diff.add(block.diff_signed[where])
        parts_ref, parts_cand = block.parts(where)
        self.sum_abs += float(size.sum())
        self.sum_sq += float(size @ size)
        self.sum_ref_abs += float(ref.sum())
        self.sum_ref_sq += float(parts_ref @ parts_ref)
        self.sum_cand_sq += float(parts_cand @ parts_cand)
        self.dot += float(parts_ref @ parts_cand)
        self.both.add(parts_ref, parts_cand)

    def _add_extremes(self, where: NDArray[np.intp], size: Floats, ref: Floats) -> None:
        at = int(size.argmax())
        if size[at] > self.max_abs:
            self.max_abs, self.max_abs_at = float(size[at]), self.done + int(where[at])
        if size[at] == 0:
            return
        self.max_rel = max(self.max_rel, float(np.max(np.where(size > 0, size / ref, 0.0))))
        self.needed = max(self.needed, float(np.max(size / (1.0 + ref))))
        for number, rtol in enumerate(ENVELOPE_RTOLS):
            self.envelope[number] = max(self.envelope[number], float(np.max(size - rtol * ref)))


class _Block:
    """Hold two blocks as numbers: what is finite, how large, how far apart."""

    def __init__(self, ref: NDArray[Any], cand: NDArray[Any], ref_type: DType, cand_type: DType) -> None:
        self.is_complex = "complex" in (ref_type.kind, cand_type.kind)
        wide = np.complex128 if self.is_complex else np.float64
        ref_raw, cand_raw = ref_type.decode(ref), cand_type.decode(cand)
        self.ref, self.cand = ref_raw.astype(wide), cand_raw.astype(wide)
        self.ref_finite, self.cand_finite = np.isfinite(self.ref), np.isfinite(self.cand)
        self.both_nan = np.isnan(self.ref) & np.isnan(self.cand)
        if self.is_complex:  # NaN in one part leaves the other to be compared
            self.both_nan &= _same(self.ref.real, self.cand.real) & _same(self.ref.imag, self.cand.imag)
        if ref_type.exact and cand_type.exact:
            self.equal, self.diff_signed = _whole_difference(ref_raw, cand_raw)
            self.diff_size = np.abs(self.diff_signed)
        else:
            self.equal = self.ref == self.cand
            difference = self.cand - self.ref
            self.diff_size = np.abs(difference)
            self.diff_signed = self.diff_size if self.is_complex else difference
        self.ref_modulus = np.abs(self.ref)
        self.ref_size = self.ref_modulus if self.is_complex else self.ref
        self.cand_size = np.abs(self.cand) if self.is_complex else self.cand

    def parts(self, where: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """Return both sides as real numbers, a complex one as two."""
        return self.ref[where].view(np.float64), self.cand[where].view(np.float64)


def _same(one: Floats, other: Floats) -> NDArray[np.bool_]:
    equal: NDArray[np.bool_] = (one == other) | (np.isnan(one) & np.isnan(other))
    return equal


def _whole_difference(ref: NDArray[Any], cand: NDArray[Any]) -> tuple[NDArray[np.bool_], Floats]:
    """Return equality and signed difference of whole numbers, exact beyond 2^53 and between signs."""
    if ref.dtype.itemsize < 8 and cand.dtype.itemsize < 8:
        whole = cand.astype(np.int64) - ref.astype(np.int64)
        return whole == 0, whole.astype(np.float64)
    ref_bits, cand_bits = ref.astype(np.uint64), cand.astype(np.uint64)
    negative_ref, negative_cand = _negative(ref), _negative(cand)
    equal = (ref_bits == cand_bits) & (negative_ref == negative_cand)
    above = np.where(negative_ref == negative_cand, cand_bits > ref_bits, negative_ref)
    upper, lower = np.where(above, cand_bits, ref_bits), np.where(above, ref_bits, cand_bits)
    size = (upper - lower).astype(np.float64)
    # int64 against uint64 can be further apart than 2^64: the wrapped difference lost that much
    size += np.where((negative_ref != negative_cand) & (upper >= lower), 2.0**64, 0.0)
    return equal, np.where(above, size, -size)


def _negative(values: NDArray[Any]) -> NDArray[np.bool_]:
    return values < 0 if values.dtype.kind == "i" else np.zeros(values.shape, bool)


def _blocks(reference: TensorRef, candidate: TensorRef) -> Iterator[_Block]:
    for start in range(0, reference.count, BLOCK):
        stop = min(start + BLOCK, reference.count)
        yield _Block(reference.read(start, stop), candidate.read(start, stop), reference.dtype, candidate.dtype)


def _measure(job: Job, progress: Progress | None) -> Metrics:
    state = _State(job.atol, job.rtol)
    small = job.reference.count <= EXACT_LIMIT
    kept: list[Floats] = []
    histogram = BitHistogram()
    for block in _blocks(job.reference, job.candidate):
        sizes = state.add(block)
        if small:
            kept.append(sizes)
        else:
            histogram.count(sizes)
        if progress:
            progress(block.equal.size)
    if small:
        percentiles = exact_percentiles(np.concatenate(kept) if kept else np.empty(0))
    else:
        percentiles = histogram.percentiles(lambda: _sizes(job))
    return _metrics(state, job.reference, percentiles)


def _sizes(job: Job) -> Iterator[Floats]:
    for block in _blocks(job.reference, job.candidate):
        yield block.diff_size[block.ref_finite & block.cand_finite]


def _metrics(state: _State, reference: TensorRef, percentiles: tuple[float, ...]) -> Metrics:
    finite = state.finite
    worst = math.inf if state.nonfinite_unequal else 0.0
    ref, cand = state.ref.summary(), state.cand.summary()
    diff_mean, diff_std, _, _ = state.diff.summary()
    mse = state.sum_sq / finite if finite else NAN
    l2 = math.sqrt(state.sum_sq)
    varies = ref[2] != ref[3] and cand[2] != cand[3]
    index = np.unravel_index(state.max_abs_at, reference.shape) if state.max_abs_at >= 0 else None
    return Metrics(
        count=state.done,
        unequal=state.unequal,
        mismatched=state.mismatched,
        nonfinite_ref=state.nonfinite_ref,
        nonfinite_cand=state.nonfinite_cand,
        nonfinite_unequal=state.nonfinite_unequal,
        max_abs=state.max_abs if finite else NAN,
        max_abs_index=None if index is None else tuple(int(axis) for axis in index),
        max_rel=state.max_rel if finite else NAN,
        mean_abs=state.sum_abs / finite if finite else NAN,
        mse=mse,
        rmse=math.sqrt(mse) if finite else NAN,
        rel_mse=_ratio(state.sum_sq, state.sum_ref_sq, finite),
        rel_mae=_ratio(state.sum_abs, state.sum_ref_abs, finite),
        l2=l2 if finite else NAN,
        rel_l2=math.sqrt(_ratio(state.sum_sq, state.sum_ref_sq, finite)),
        cosine=_angle(state.dot, state.sum_ref_sq, state.sum_cand_sq, state.sum_sq, finite),
        correlation=_angle(state.both.ab, state.both.aa, state.both.bb if varies else 0.0, state.sum_sq, finite),
        sqnr_db=_decibel(state.sum_ref_sq, state.sum_sq, finite),
        **dict(zip(("p50", "p90", "p95", "p99"), percentiles, strict=True)),
        ref_mean=ref[0],
        ref_std=ref[1],
        ref_min=ref[2],
        ref_max=ref[3],
        cand_mean=cand[0],
        cand_std=cand[1],
        cand_min=cand[2],
        cand_max=cand[3],
        diff_mean=diff_mean,
        diff_std=diff_std,
        needed_tolerance=max(state.needed, worst),
        envelope=tuple(max(value, worst) for value in state.envelope),
    )


def _ratio(part: float, whole: float, finite: int) -> float:
    if not finite:
        return NAN
    if whole == 0:
        return 0.0 if part == 0 else math.inf
    return part / whole


def _angle(dot: float, aa: float, bb: float, apart: float, finite: int) -> float:
    """Return the cosine; 1 for equal sides, undefined where a side has no length."""
    if not finite:
        return NAN
    if apart == 0:
        return 1.0
    length = math.sqrt(aa) * math.sqrt(bb)
    if not (length > 0 and math.isfinite(length) and math.isfinite(dot)):
        return NAN  # no length on a side, or sums beyond float64
    return max(-1.0, min(1.0, dot / length))


def _decibel(signal: float, noise: float, finite: int) -> float:
    if not finite:
        return NAN
    if noise == 0:
        return math.inf
    ratio = signal / noise
    return 10.0 * math.log10(ratio) if ratio > 0 else NAN if math.isnan(ratio) else -math.inf
