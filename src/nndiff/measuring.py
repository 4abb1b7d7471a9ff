"""From pairs that were planned to pairs that are judged: every number once, in the order they were planned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nndiff.align import Match
from nndiff.judge import judge
from nndiff.recorded import GradientScale
from nndiff.result import Pair, PairSite
from nndiff.shortcuts import Known, known
from nndiff.stats import Job, Metrics, get_engine
from nndiff.tensors import TensorRef
from nndiff.tolerance import Tolerance

Progress = Callable[[int, int], None]  # elements done, elements in all


@dataclass(frozen=True)
class Row:
    """Hold a pair before it is measured."""

    label: str  # of the candidate
    match: Match
    reference: TensorRef
    candidate: TensorRef


def measured(rows: Sequence[Row], tolerance: Tolerance, progress: Progress | None = None) -> list[Pair]:
    """Measure and judge every row."""
    scales = {label: GradientScale(row.reference for row in rows if row.label == label) for label in _labels(rows)}
    factors = [scales[row.label].of(row.reference) for row in rows]
    works = [_work(row, tolerance, factor) for row, factor in zip(rows, factors, strict=True)]
    jobs = [work for work in works if isinstance(work, Job)]
    numbers = get_engine().measure(jobs, _counting(progress, sum(job.reference.count for job in jobs)))
    pairs = [
        _pair(order, row, work, next(numbers) if isinstance(work, Job) else None, factor)
        for order, (row, work, factor) in enumerate(zip(rows, works, factors, strict=True))
    ]
    if not any(pair.slot == "param_grad" and not pair.verdict.passed for pair in pairs):
        return pairs
    from nndiff.sums_of_gradients import judged_as_sums

    return list(judged_as_sums([(pair, row.reference, row.candidate) for pair, row in zip(pairs, rows, strict=True)]))


def _labels(rows: Sequence[Row]) -> dict[str, None]:
    return dict.fromkeys(row.label for row in rows)


def _work(row: Row, tolerance: Tolerance, scale: float) -> Job | Known:
    """Return the work to do for a pair, or the verdict that needs none."""
    atol, rtol = tolerance.for_pair(row.reference.dtype, row.candidate.dtype)
    atol *= scale
    return known(row.reference, row.candidate, atol, rtol) or Job(row.reference, row.candidate, atol, rtol)


def _pair(order: int, row: Row, work: Job | Known, metrics: Metrics | None, scale: float) -> Pair:
    reference, candidate = row.reference, row.candidate
    same_dtype = reference.dtype.name == candidate.dtype.name
    if isinstance(work, Known):
        verdict, metrics, note = work.verdict, work.metrics, work.note
    else:
        assert metrics is not None
        verdict, note = judge(metrics, same_dtype), ""
    if not (note or same_dtype):
        note = "the dtypes differ; compared after widening both"
    return Pair(
        candidate=row.label,
        reference_name=row.match.reference,
        candidate_name=row.match.candidate,
        matched_by=row.match.matched_by,
        verdict=verdict,
        shape=(reference.shape, candidate.shape),
        dtype=(reference.dtype.name, candidate.dtype.name),
        order=order,
        metrics=metrics,
        atol=work.atol,
        rtol=work.rtol,
        slot=reference.site.slot.value if reference.recorded else None,
        note=note,
        scale=scale,
        site=_site(row),
    )


def _site(row: Row) -> PairSite | None:
    """Return where the tensors of a recording were taken; those of a file were taken nowhere."""
    one, other = row.reference.site, row.candidate.site
    if not (row.reference.recorded and row.candidate.recorded):
        return None
    return PairSite(
        modules=(one.module, other.module),
        slots=(one.slot.value, other.slot.value),
        classes=(one.cls, other.cls),
        call=one.call,
        wholes=(row.reference.trace.whole or row.reference.shape, row.candidate.trace.whole or row.candidate.shape),
    )


def _counting(progress: Progress | None, total: int) -> Callable[[int], None] | None:
    if progress is None:
        return None
    done = 0

    def count(elements: int) -> None:
        nonlocal done
        done += elements
        progress(done, total)

    return count
