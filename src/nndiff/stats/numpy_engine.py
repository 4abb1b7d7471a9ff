"""The engine in plain NumPy: blocks that stay in cache, accumulators in float64."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import DType
from nndiff.metrics import ENVELOPE_RTOLS, NAN, Metrics
from nndiff.stats.interface import Job, Progress
from nndiff.stats.percentiles import EXACT_LIMIT, BitHistogram, exact_percentiles
from nndiff.stats.sums import Floats, PairBlock, Sums
from nndiff.tensors import TensorRef

BLOCK = 1 << 15  # elements: a handful of float64 temporaries of this size stay in the L2 cache
_PIECE = 1 << 20  # elements read at once; the more, the longer the runs of a view in a file


class NumpyEngine:
    """Measure pairs with NumPy alone."""

    name = "numpy"

    def measure(self, jobs: Iterable[Job], progress: Progress | None = None) -> Iterator[Metrics]:
        """Yield the metrics of each job."""
        for job in jobs:
            with np.errstate(all="ignore"):
                yield _measure_pair(job, progress)


@dataclass
class _PairState:
    """Gather the numbers of one pair, block by block."""

    atol: float
    rtol: float
    done: int = 0
    unequal: int = 0
    mismatched: int = 0
    nonfinite_ref: int = 0
    nonfinite_cand: int = 0
    nonfinite_unequal: int = 0
    max_abs: float = -1.0
    max_abs_at: int = -1
    max_rel: float = 0.0
    needed: float = 0.0
    envelope: list[float] = field(default_factory=lambda: [0.0] * len(ENVELOPE_RTOLS))
    sums: Sums = field(default_factory=Sums)

    def add_block(self, block: _Block) -> Floats:
        """Add a block; return |d| of its pairs that are finite on both sides."""
        self.nonfinite_ref += int(np.count_nonzero(~block.ref_finite))
        self.nonfinite_cand += int(np.count_nonzero(~block.cand_finite))
        same = block.equal | block.both_nan
        self.unequal += int(np.count_nonzero(~same))
        bad = int(np.count_nonzero(~same & ~block.both_finite))
        self.nonfinite_unequal += bad
        self.mismatched += bad
        block.add_to(self.sums)
        size = block.diff_size[block.where]
        if block.where.size:
            ref = block.ref_modulus[block.where]
            self.mismatched += int(np.count_nonzero(~(size <= self.atol + self.rtol * ref)))
            self._add_extremes(block.where, size, ref)
        self.done += block.equal.size
        return size

    def _add_extremes(self, where: NDArray[np.intp], size: Floats, ref: Floats) -> None:
        """Update the largest differences and the tolerances that would let all of them pass."""
        index = int(size.argmax())
        if size[index] > self.max_abs:
            self.max_abs, self.max_abs_at = float(size[index]), self.done + int(where[index])
        if size[index] == 0:
            return
        self.max_rel = max(self.max_rel, float(np.max(np.where(size > 0, size / ref, 0.0))))
        self.needed = max(self.needed, _find_needed_tolerance(size, ref))
        for number, rtol in enumerate(ENVELOPE_RTOLS):
            self.envelope[number] = max(self.envelope[number], _find_needed_tolerance(size, ref, rtol))


def _find_needed_tolerance(size: Floats, ref: Floats, rtol: float | None = None) -> float:
    """Return the atol that lets all pass at this rtol; without one, the tolerance that is both."""
    least = size / (1.0 + ref) if rtol is None else size - rtol * ref
    most = float(least.max())
    if most == math.inf:  # a difference beyond float64
        return most
    near = least >= most - 2.0**-48 * abs(most)
    needed, size, ref = least[near], size[near], ref[near]
    # judging rounds: what is needed, as computed, may fall short of passing by a last digit
    while (short := needed + (needed if rtol is None else rtol) * ref < size).any():
        needed[short] = np.nextafter(needed[short], np.inf)
    return float(needed.max())


class _Block:
    """Hold two blocks as numbers: what is finite, how large, how far apart."""

    def __init__(self, ref: NDArray[Any], cand: NDArray[Any], ref_type: DType, cand_type: DType) -> None:
        self.is_complex = "complex" in (ref_type.kind, cand_type.kind)
        wide = np.complex128 if self.is_complex else np.float64
        ref_raw, cand_raw = ref_type.decode(ref), cand_type.decode(cand)
        self.ref, self.cand = ref_raw.astype(wide), cand_raw.astype(wide)
        self.ref_finite, self.cand_finite = np.isfinite(self.ref), np.isfinite(self.cand)
        self.both_finite = self.ref_finite & self.cand_finite
        self.where = np.flatnonzero(self.both_finite)
        self.both_nan = np.isnan(self.ref) & np.isnan(self.cand)
        if self.is_complex:  # NaN in one part leaves the other to be compared
            self.both_nan &= _is_same(self.ref.real, self.cand.real) & _is_same(self.ref.imag, self.cand.imag)
        if ref_type.exact and cand_type.exact:
            self.equal, self.diff_signed = _subtract_integers(ref_raw, cand_raw)
            self.diff_size = np.abs(self.diff_signed)
        else:
            difference = _subtract_floats(ref_raw, cand_raw, self.ref, self.cand)
            self.equal = (difference == 0) | (~self.ref_finite & (self.ref == self.cand))  # inf - inf is no number
            self.diff_size = np.abs(difference)
            self.diff_signed = self.diff_size if self.is_complex else difference
        self.ref_modulus = np.abs(self.ref)
        self.ref_size = self.ref_modulus if self.is_complex else self.ref
        self.cand_size = np.abs(self.cand) if self.is_complex else self.cand

    def add_to(self, sums: Sums) -> None:
        """Add the finite numbers of each side, of complex ones the moduli, and those of both."""
        sums.add_sides(self.ref_size[self.ref_finite], self.cand_size[self.cand_finite])
        if self.where.size:
            ref, cand = self.ref[self.where].view(np.float64), self.cand[self.where].view(np.float64)
            sums.add_pairs(PairBlock(ref, cand, self.diff_signed[self.where], self.ref_modulus[self.where]))


def _is_same(ref: Floats, cand: Floats) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = (ref == cand) | (np.isnan(ref) & np.isnan(cand))
    return same


def _subtract_floats(ref_raw: NDArray[Any], cand_raw: NDArray[Any], ref: Floats, cand: Floats) -> Floats:
    """Return cand - ref; integers of 64 bits in two parts, as they may have more digits than a float64."""
    if ref_raw.dtype.kind in "iu" and ref_raw.dtype.itemsize == 8:
        high, low = _split_integers(ref_raw)
        return -((high - cand) + low)
    if cand_raw.dtype.kind in "iu" and cand_raw.dtype.itemsize == 8:
        high, low = _split_integers(cand_raw)
        return (high - ref) + low
    return cand - ref


def _split_integers(values: NDArray[Any]) -> tuple[Floats, Floats]:
    limit = 1 << 53  # up to here a double has every digit
    fits = (values <= limit) & ((values >= -limit) if values.dtype.kind == "i" else True)
    low = np.where(fits, values.dtype.type(0), values & values.dtype.type(2047))
    return (values - low).astype(np.float64), low.astype(np.float64)


def _subtract_integers(ref: NDArray[Any], cand: NDArray[Any]) -> tuple[NDArray[np.bool_], Floats]:
    """Return equality and signed difference of integers, exact beyond 2^53 and between signs."""
    if ref.dtype.itemsize < 8 and cand.dtype.itemsize < 8:
        difference = cand.astype(np.int64) - ref.astype(np.int64)
        return difference == 0, difference.astype(np.float64)
    ref_bits, cand_bits = ref.astype(np.uint64), cand.astype(np.uint64)
    negative_ref, negative_cand = _is_negative(ref), _is_negative(cand)
    equal = (ref_bits == cand_bits) & (negative_ref == negative_cand)
    above = np.where(negative_ref == negative_cand, cand_bits > ref_bits, negative_ref)
    upper, lower = np.where(above, cand_bits, ref_bits), np.where(above, ref_bits, cand_bits)
    size = (upper - lower).astype(np.float64)
    # int64 against uint64 can be further apart than 2^64: the wrapped difference lost that much
    size += np.where((negative_ref != negative_cand) & (upper >= lower), 2.0**64, 0.0)
    return equal, np.where(above, size, -size)


def _is_negative(values: NDArray[Any]) -> NDArray[np.bool_]:
    return values < 0 if values.dtype.kind == "i" else np.zeros(values.shape, bool)


def _read_blocks(job: Job) -> Iterator[_Block]:
    reference, candidate = job.reference, job.candidate
    for ref, cand in zip(reference.blocks(_PIECE), candidate.blocks(_PIECE), strict=True):
        for start in range(0, ref.size, BLOCK):
            block = slice(start, start + BLOCK)
            yield _Block(ref[block], cand[block], reference.dtype, candidate.dtype)


def _measure_pair(job: Job, progress: Progress | None) -> Metrics:
    state = _PairState(job.atol, job.rtol)
    is_small = job.reference.count <= EXACT_LIMIT
    all_sizes: list[Floats] = []
    histogram = BitHistogram()
    for block in _read_blocks(job):
        sizes = state.add_block(block)
        if is_small:
            all_sizes.append(sizes)
        else:
            histogram.count_values(sizes)
        if progress:
            progress(block.equal.size)
    if is_small:
        percentiles = exact_percentiles(np.concatenate(all_sizes) if all_sizes else np.empty(0))
    else:
        percentiles = histogram.read_percentiles(lambda: (block.diff_size[block.where] for block in _read_blocks(job)))
    scale = state.sums.find_better_scale()
    if scale:  # squares of numbers so large or small left the range of float64: sum them again, scaled
        state.sums = Sums(scale)
        for block in _read_blocks(job):
            block.add_to(state.sums)
    return _build_metrics(state, job.reference, percentiles)


def _build_metrics(state: _PairState, reference: TensorRef, percentiles: tuple[float, ...]) -> Metrics:
    finite = state.max_abs_at >= 0
    worst = math.inf if state.nonfinite_unequal else 0.0
    index = np.unravel_index(state.max_abs_at, reference.shape) if finite else None
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
        **state.sums.compute_metrics(),
        **dict(zip(("p50", "p90", "p95", "p99"), percentiles, strict=True)),
        needed_tolerance=max(state.needed, worst),
        envelope=tuple(max(value, worst) for value in state.envelope),
    )
