"""The orchestrator: open, align, stream, judge. Data flows one way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nndiff.align import Alignment, Match, Rename, align
from nndiff.errors import UsageError
from nndiff.judge import judge
from nndiff.names import matches_any, natural_key, parse_groups, plural, selected
from nndiff.recorded import GradientScale, is_inner, not_asked_for, reached
from nndiff.result import Comparison, Leftover, Pair
from nndiff.shortcuts import Known, known
from nndiff.sources import Source, open_source
from nndiff.stats import Job, Metrics, get_engine
from nndiff.tensors import TensorRef
from nndiff.tolerance import Tolerance, choose

Progress = Callable[[int, int], None]  # elements done, elements in all


@dataclass(frozen=True)
class Rules:
    """Say how names are paired and which of them count."""

    renames: tuple[Rename, ...] = ()
    mapping: Mapping[str, str] = field(default_factory=dict)
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    groups: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Hold what will be compared with what: one reference against one candidate."""

    label: str
    reference: Source
    candidate: Source
    alignment: Alignment
    notes: tuple[str, ...] = ()

    @property
    def recorded(self) -> bool:
        """Tell whether both sides are recordings."""
        return self.reference.kind == self.candidate.kind == "recording"

    def pairs(self) -> Iterator[tuple[Match, TensorRef, TensorRef]]:
        """Yield the pairs: of recordings in order of execution, else in natural order of their names."""
        matches = self.alignment.matches  # in the reference's order already
        for match in matches if self.recorded else sorted(matches, key=lambda each: natural_key(each.reference)):
            yield match, self.reference.tensors[match.reference], self.candidate.tensors[match.candidate]

    def leftovers(self) -> Iterator[Leftover]:
        """Yield the tensors without a partner, in natural order."""
        matches = self.alignment.matches
        for side, source, other, names, paired in (
            (
                "reference",
                self.reference,
                self.candidate,
                self.alignment.only_reference,
                [m.reference for m in matches],
            ),
            (
                "candidate",
                self.candidate,
                self.reference,
                self.alignment.only_candidate,
                [m.candidate for m in matches],
            ),
        ):
            end = reached(source.tensors, paired, other.meta) if self.recorded else math.inf
            for name in sorted(names, key=natural_key):
                tensor = source.tensors[name]
                unreached = tensor.meta.get("order", -1) > end
                idle = self.recorded and (is_inner(tensor) or not_asked_for(tensor, other.meta)) and not unreached
                facts = (tensor.shape, tensor.dtype.name, names[name])
                yield Leftover(self.label, side, name, *facts, not idle, unreached)


def compare_sources(
    reference: Any,
    *candidates: Any,
    atol: float | None = None,
    rtol: float | None = None,
    tolerance: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    rename: Sequence[str] = (),
    mapping: Mapping[str, str] | None = None,
    group: Mapping[str, str] | Sequence[str] = (),
    progress: Progress | None = None,
) -> Comparison:
    """Compare a reference with one or more candidates, each anything that `open_source` opens."""
    rules = Rules(
        tuple(Rename.parse(text) for text in rename),
        dict(mapping or {}),
        tuple(include),
        tuple(exclude),
        dict(group) if isinstance(group, Mapping) else parse_groups(group),
    )
    return run(plan(reference, candidates, rules), choose(atol, rtol, tolerance), rules, progress)


def plan(reference: Any, candidates: Sequence[Any], rules: Rules) -> list[Plan]:
    """Open the sources and pair their tensors, reading no data."""
    if not candidates:
        raise UsageError("a comparison needs a reference and at least one candidate")
    opened = open_source(reference, "reference")
    plans: list[Plan] = []
    for number, candidate in enumerate(candidates, 1):
        source = open_source(candidate, "candidate" if len(candidates) == 1 else f"candidate {number}")
        label = _free_label(source.label, [each.label for each in plans])
        both_recorded = opened.kind == source.kind == "recording"
        full = _pairing(both_recorded)(opened.tensors, source.tensors, rules.renames, rules.mapping)
        plans.append(Plan(label, opened, source, *_filtered(full, rules)))
    return plans


def _pairing(recorded: bool) -> Callable[..., Alignment]:
    """Return the way names are paired; what only recordings need is imported only for them."""
    if not recorded:
        return align
    from nndiff.align.sites import align_sites

    return align_sites


def _free_label(label: str, taken: Iterable[str]) -> str:
    free, number = label, 2
    while free in taken:
        free, number = f"{label} ({number})", number + 1
    return free


def _filtered(full: Alignment, rules: Rules) -> tuple[Alignment, tuple[str, ...]]:
    """Return the alignment of the names that count, and notes on what does not."""
    if not (rules.include or rules.exclude):
        return full, full.notes
    matches = tuple(match for match in full.matches if _counts(rules, match.reference, match.candidate))
    only_reference = {name: hint for name, hint in full.only_reference.items() if _counts(rules, name)}
    only_candidate = {name: hint for name, hint in full.only_candidate.items() if _counts(rules, name)}
    kept = Alignment(matches, only_reference, only_candidate)
    before = len(full.matches) + len(full.only_reference) + len(full.only_candidate)
    dropped = before - len(matches) - len(only_reference) - len(only_candidate)
    left_out = f"left out by --include/--exclude: {dropped:,} of {plural(before, 'name')}"
    return kept, (*full.notes, left_out, *_idle(full, rules))


def _counts(rules: Rules, *names: str) -> bool:
    """Tell whether a pair counts: let in by either name, shut out by none."""
    return any(selected(name, rules.include, ()) for name in names) and all(
        selected(name, (), rules.exclude) for name in names
    )


def _idle(full: Alignment, rules: Rules) -> Iterator[str]:
    names = [name for match in full.matches for name in (match.reference, match.candidate)]
    names += [*full.only_reference, *full.only_candidate]
    for pattern in (*rules.include, *rules.exclude):
        if not any(matches_any(name, (pattern,)) for name in names):
            yield f"the pattern {pattern!r} names no tensor"


def run(plans: Sequence[Plan], tolerance: Tolerance, rules: Rules, progress: Progress | None = None) -> Comparison:
    """Measure and judge every pair of the plans."""
    rows = [Row(each, *row) for each in plans for row in each.pairs()]
    scale = GradientScale(row.reference for row in rows)
    works = [_work(row, tolerance, scale.of(row.reference)) for row in rows]
    jobs = [work for work in works if isinstance(work, Job)]
    numbers = get_engine().measure(jobs, _counting(progress, sum(job.reference.count for job in jobs)))
    pairs = [
        _pair(order, row, work, next(numbers) if isinstance(work, Job) else None, scale.of(row.reference))
        for order, (row, work) in enumerate(zip(rows, works, strict=True))
    ]
    recorded = all(each.recorded for each in plans)
    comparison = Comparison(
        kind="recording" if recorded else "checkpoint",
        reference=plans[0].reference.side(),
        candidates=tuple(replace(each.candidate.side(), label=each.label) for each in plans),
        tolerance=tolerance,
        pairs=tuple(pairs),
        leftovers=tuple(left for each in plans for left in each.leftovers()),
        groups=rules.groups,
        notes=tuple(dict.fromkeys(note for each in plans for note in each.notes)),
    )
    if not recorded:
        return comparison
    from nndiff.explain import explain

    sources = {each.label: (each.reference, each.candidate) for each in plans}
    return explain(comparison, sources, [(row.reference, row.candidate) for row in rows])


@dataclass(frozen=True)
class Row:
    """Hold a pair before it is measured."""

    plan: Plan
    match: Match
    reference: TensorRef
    candidate: TensorRef


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
        candidate=row.plan.label,
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
        slot=reference.meta.get("slot"),
        note=note,
        scale=scale,
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
