"""What is known of a pair without measuring it whole: shapes, missing data, digests, statistics, sketches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from nndiff.metrics import ENVELOPE_RTOLS, NAN, Metrics
from nndiff.result import Note, NoteSlug
from nndiff.stats import Job
from nndiff.stats.engine import get_engine
from nndiff.tensors import LateData, MemoryData, TensorRef
from nndiff.verdict import Verdict


@dataclass(frozen=True)
class Known:
    """Hold a verdict that needs no further work."""

    verdict: Verdict
    metrics: Metrics | None = None
    notes: tuple[Note, ...] = ()


def judge_unmeasured(reference: TensorRef, candidate: TensorRef, atol: float, rtol: float) -> Known | None:
    """Return the verdict of a pair that need not or cannot be measured whole, else None."""
    if reference.shape != candidate.shape:
        same_count = Note(NoteSlug.SAME_COUNT, "equal size but another shape: transposed or reshaped?")
        return Known(Verdict.SHAPE, notes=(same_count,) if reference.count == candidate.count else ())
    same_digest = reference.trace.digest is not None and reference.trace.digest == candidate.trace.digest
    if same_digest and reference.dtype == candidate.dtype:
        return Known(Verdict.IDENTICAL, equal_metrics(reference))
    missing = reference.missing or candidate.missing
    if not missing:
        return None
    sketched = _judge_by_sketch(reference, candidate, atol, rtol)
    if sketched is not None:
        return sketched
    if are_stats_apart(reference, candidate, atol, rtol):
        note = Note(NoteSlug.BY_STATISTICS, f"judged by their statistics: {missing}")
        return Known(Verdict.DIFFERENT, notes=(note,))
    return Known(Verdict.NOT_COMPARED, notes=(Note(NoteSlug.NOT_KEPT, missing),))


def equal_metrics(tensor: TensorRef) -> Metrics:
    """Return the numbers of a tensor against its equal, from the statistics that were recorded with it."""
    stats = tensor.trace.stats
    count = tensor.count
    nonfinite = stats.nonfinite if stats else 0
    finite = count - nonfinite
    zero = 0.0 if finite else NAN
    one = 1.0 if finite else NAN
    mean, std, least, most = (stats.mean, stats.std, stats.min, stats.max) if stats else (NAN,) * 4
    return Metrics(
        count=count,
        unequal=0,
        mismatched=0,
        nonfinite_ref=nonfinite,
        nonfinite_cand=nonfinite,
        nonfinite_unequal=0,
        max_abs=zero,
        max_abs_index=(0,) * len(tensor.shape) if count and not nonfinite else None,
        max_rel=zero,
        mean_abs=zero,
        mse=zero,
        rmse=zero,
        rel_mse=zero,
        rel_mae=zero,
        l2=zero,
        rel_l2=zero,
        cosine=one,
        correlation=one,
        sqnr_db=math.inf if finite else NAN,
        p50=zero,
        p90=zero,
        p95=zero,
        p99=zero,
        ref_mean=mean,
        ref_std=std,
        ref_min=least,
        ref_max=most,
        cand_mean=mean,
        cand_std=std,
        cand_min=least,
        cand_max=most,
        diff_mean=zero,
        diff_std=zero,
        needed_tolerance=0.0,
        envelope=(0.0,) * len(ENVELOPE_RTOLS),
    )


def _judge_by_sketch(reference: TensorRef, candidate: TensorRef, atol: float, rtol: float) -> Known | None:
    """Judge by the values that were kept of both sides, at the same places."""
    sketches = take_sketch(reference), take_sketch(candidate)
    if sketches[0] is None or sketches[1] is None or sketches[0].shape != sketches[1].shape:
        return None
    metrics = next(iter(get_engine().measure([Job(sketches[0], sketches[1], atol, rtol)])))
    verdict = metrics.judge(sketches[0].dtype == sketches[1].dtype)
    if sketches[0].count == reference.count:
        return Known(verdict, metrics)
    if verdict is Verdict.IDENTICAL or (verdict.passed and are_stats_apart(reference, candidate, atol, rtol)):
        # the digests differ: what differs are elements that were not kept, and nobody knows by how much
        return None
    metrics = replace(metrics, max_abs_index=_index_in_tensor(metrics.max_abs_index, reference))
    text = f"judged by a sketch of {sketches[0].count:,} of {reference.count:,} elements"
    return Known(verdict, _widen_by_stats(metrics, reference, candidate), (Note(NoteSlug.BY_SKETCH, text),))


def take_sketch(tensor: TensorRef) -> TensorRef | None:
    """Return the sketch that was kept of a tensor, or the one that would have been kept of it."""
    if tensor.trace.sketch is not None or tensor.missing:
        return tensor.trace.sketch
    from nndiff.recording.format.keep_levels import sketch_positions  # what only recordings need

    places = sketch_positions(tensor.count)
    if places.size == tensor.count:
        return tensor
    taken = LateData(lambda: MemoryData(tensor.take(places.tolist())))
    return TensorRef(tensor.name, (places.size,), tensor.dtype, taken)


def _index_in_tensor(index: tuple[int, ...] | None, tensor: TensorRef) -> tuple[int, ...] | None:
    """Return the place in the tensor of a place in its sketch."""
    if index is None:
        return None
    from nndiff.recording.format.keep_levels import sketch_positions  # what only recordings need

    place = sketch_positions(tensor.count)[index[0]]
    return tuple(int(axis) for axis in np.unravel_index(int(place), tensor.shape))


def are_stats_apart(reference: TensorRef, candidate: TensorRef, atol: float, rtol: float) -> bool:
    """Return True if the statistics alone prove that an element is out of tolerance."""
    gap = _measure_stats_gap(reference, candidate)
    return gap is not None and gap.size > atol + rtol * gap.largest


@dataclass(frozen=True)
class _StatsGap:
    """Say how far apart statistics are, and the largest modulus of the reference."""

    size: float
    largest: float


def _measure_stats_gap(reference: TensorRef, candidate: TensorRef) -> _StatsGap | None:
    """Return how far apart the statistics of two tensors are, where both were taken.

    If every |c - r| is within atol + rtol * |r|, then minimum, maximum and mean are within atol + rtol * max |r| of
    each other too.
    """
    ref, cand = reference.trace.stats, candidate.trace.stats
    if ref is None or cand is None:
        return None
    if ref.nonfinite or cand.nonfinite:
        return _StatsGap(math.inf if ref.nonfinite != cand.nonfinite else 0.0, 0.0)
    largest_gap = max(abs(ref.min - cand.min), abs(ref.max - cand.max), abs(ref.mean - cand.mean))
    # a little less than there is, for the rounding of the statistics themselves
    return _StatsGap((largest_gap - 1e-12 * ref.abs_max) / (1 + 1e-9), ref.abs_max)


def _widen_by_stats(metrics: Metrics, reference: TensorRef, candidate: TensorRef) -> Metrics:
    """Return the numbers of a sketch, with the tolerance that the statistics of all elements ask for."""
    gap = _measure_stats_gap(reference, candidate)
    if gap is None or not gap.size > 0:
        return metrics
    envelope = []
    for atol, rtol in zip(metrics.envelope, ENVELOPE_RTOLS, strict=True):
        envelope.append(max(atol, gap.size - rtol * gap.largest))
    return replace(
        metrics,
        max_rel=max(metrics.max_rel, gap.size / gap.largest if gap.largest else math.inf),
        needed_tolerance=max(metrics.needed_tolerance, gap.size / (1 + gap.largest)),
        envelope=tuple(envelope),
    )
