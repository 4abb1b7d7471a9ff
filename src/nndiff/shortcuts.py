"""What is known of a pair without measuring it whole: shapes, missing data, digests, statistics, sketches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from nndiff.judge import judge
from nndiff.stats import ENVELOPE_RTOLS, Job, Metrics, get_engine
from nndiff.stats.metrics import NAN
from nndiff.tensors import LateData, MemoryData, Site, Slot, TensorRef, Trace
from nndiff.verdict import Verdict


@dataclass(frozen=True)
class Known:
    """Hold a verdict that needs no further work."""

    verdict: Verdict
    atol: float
    rtol: float
    metrics: Metrics | None = None
    note: str = ""


def known(reference: TensorRef, candidate: TensorRef, atol: float, rtol: float) -> Known | None:
    """Return the verdict of a pair that need not or cannot be measured whole, else None."""
    if reference.shape != candidate.shape:
        same = reference.count == candidate.count
        return Known(Verdict.SHAPE, atol, rtol, note="the same number of elements" if same else "")
    if _same_digest(reference, candidate):
        return Known(Verdict.IDENTICAL, atol, rtol, equal_metrics(reference))
    if not (reference.missing or candidate.missing):
        return None
    sketched = _by_sketch(reference, candidate, atol, rtol)
    if sketched is not None:
        return sketched
    why = reference.missing or candidate.missing or ""
    if stats_apart(reference, candidate, atol, rtol):
        return Known(Verdict.DIFFERENT, atol, rtol, note=f"judged by their statistics: {why}")
    return Known(Verdict.NOT_COMPARED, atol, rtol, note=why)


def _same_digest(reference: TensorRef, candidate: TensorRef) -> bool:
    digest = reference.trace.digest
    return digest is not None and digest == candidate.trace.digest and reference.dtype == candidate.dtype


def equal_metrics(tensor: TensorRef) -> Metrics:
    """Return the numbers of a tensor against its equal, from the statistics that were recorded with it."""
    stats = tensor.trace.stats
    count = tensor.count
    nonfinite = stats.nonfinite if stats else 0
    finite = count - nonfinite
    zero = 0.0 if finite else NAN
    side = (stats.mean, stats.std, stats.min, stats.max) if stats else (NAN,) * 4
    one = 1.0 if finite else NAN
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
        ref_mean=side[0],
        ref_std=side[1],
        ref_min=side[2],
        ref_max=side[3],
        cand_mean=side[0],
        cand_std=side[1],
        cand_min=side[2],
        cand_max=side[3],
        diff_mean=zero,
        diff_std=zero,
        needed_tolerance=0.0,
        envelope=(0.0,) * len(ENVELOPE_RTOLS),
    )


def _by_sketch(reference: TensorRef, candidate: TensorRef, atol: float, rtol: float) -> Known | None:
    """Judge by the values that were kept of both sides, at the same places."""
    one, other = sketch_of(reference), sketch_of(candidate)
    if one is None or other is None or one.shape != other.shape:
        return None
    metrics = next(iter(get_engine().measure([Job(one, other, atol, rtol)])))
    verdict = judge(metrics, one.dtype == other.dtype)
    if one.count == reference.count:
        return Known(verdict, atol, rtol, metrics)
    if verdict is Verdict.IDENTICAL or (verdict.passed and stats_apart(reference, candidate, atol, rtol)):
        # the digests differ: what differs are elements that were not kept, and nobody knows by how much
        return None
    note = f"judged by a sketch of {one.count:,} of {reference.count:,} elements"
    return Known(verdict, atol, rtol, _with_stats(metrics, reference, candidate), note)


def sketch_of(tensor: TensorRef) -> TensorRef | None:
    """Return the sketch that was kept of a tensor, or the one that would have been kept of it."""
    kept = tensor.trace.sketch
    if isinstance(kept, TensorRef) or tensor.missing:
        return kept
    from nndiff.recording.format.keep_levels import sketch_positions  # what only recordings need

    places = sketch_positions(tensor.count)
    if places.size == tensor.count:
        return tensor

    taken = LateData(lambda: MemoryData(tensor.take(places.tolist())))
    return replace(tensor, shape=(places.size,), data=taken, storage_id=None, site=Site("", Slot.STORED), trace=Trace())


def stats_apart(reference: TensorRef, candidate: TensorRef, atol: float, rtol: float) -> bool:
    """Tell whether the statistics alone prove that an element is out of tolerance."""
    found = _gap(reference, candidate)
    return found is not None and found.size > atol + rtol * found.largest


class _Gap(NamedTuple):
    """Say how far apart statistics are, and the largest modulus of the reference."""

    size: float
    largest: float


def _gap(reference: TensorRef, candidate: TensorRef) -> _Gap | None:
    """Return how far apart the statistics of two tensors are, where both were taken.

    If every |c - r| is within atol + rtol * |r|, then minimum, maximum and mean are within
    atol + rtol * max |r| of each other too.
    """
    one, other = reference.trace.stats, candidate.trace.stats
    if not (one and other):
        return None
    if one.nonfinite or other.nonfinite:
        return _Gap(math.inf if one.nonfinite != other.nonfinite else 0.0, 0.0)
    pairs: list[tuple[Any, Any]] = [(one.min, other.min), (one.max, other.max), (one.mean, other.mean)]
    # a little less than there is, for the rounding of the statistics themselves
    size = max(abs(a - b) for a, b in pairs) - 1e-12 * one.abs_max
    return _Gap(size / (1 + 1e-9), one.abs_max)


def _with_stats(metrics: Metrics, reference: TensorRef, candidate: TensorRef) -> Metrics:
    """Return the numbers of a sketch, with the tolerance that the statistics of all elements ask for."""
    gap = _gap(reference, candidate)
    if gap is None or not gap.size > 0:
        return metrics
    alone = gap.size / gap.largest if gap.largest else math.inf
    return replace(
        metrics,
        max_rel=max(metrics.max_rel, alone),
        needed_tolerance=max(metrics.needed_tolerance, gap.size / (1 + gap.largest)),
        envelope=tuple(
            max(known, gap.size - rtol * gap.largest)
            for known, rtol in zip(metrics.envelope, ENVELOPE_RTOLS, strict=True)
        ),
    )
