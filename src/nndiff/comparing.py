"""The orchestrator: open, align, stream, judge. Data flows one way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nndiff.align import Alignment, Match, Rename, align
from nndiff.errors import UsageError
from nndiff.judge import judge
from nndiff.names import matches_any, natural_key, parse_groups, selected
from nndiff.result import Comparison, Leftover, Pair, Side
from nndiff.sources import Source, open_source
from nndiff.stats import Job, Metrics, get_engine
from nndiff.tensors import TensorRef
from nndiff.tolerance import Tolerance, choose
from nndiff.verdict import Verdict

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

    def pairs(self) -> Iterator[tuple[Match, TensorRef, TensorRef]]:
        """Yield the pairs in natural order of their names."""
        for match in sorted(self.alignment.matches, key=lambda each: natural_key(each.reference)):
            yield match, self.reference.tensors[match.reference], self.candidate.tensors[match.candidate]

    def leftovers(self) -> Iterator[Leftover]:
        """Yield the tensors without a partner, in natural order."""
        for side, source, names in (
            ("reference", self.reference, self.alignment.only_reference),
            ("candidate", self.candidate, self.alignment.only_candidate),
        ):
            for name in sorted(names, key=natural_key):
                tensor = source.tensors[name]
                yield Leftover(self.label, side, name, tensor.shape, tensor.dtype.name, names[name])


def compare(
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
    r"""Compare a reference with one or more candidates.

    Each side is a path (checkpoint, folder, recording; `FILE::key` chooses a part), a mapping of
    names to arrays or tensors, or a module. Returns the result; nothing is printed.

        nndiff.compare("a.nemo", "b.ckpt").verdict
        nndiff.compare(model_a, model_b.state_dict(), rename=[r"^encoder\.=>"])
    """
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
        full = align(opened.tensors, source.tensors, rules.renames, rules.mapping)
        plans.append(Plan(label, opened, source, *_filtered(full, rules)))
    return plans


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
    notes = (*full.notes, f"left out by --include/--exclude: {dropped} of {before} names", *_idle(full, rules))
    return kept, notes


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
    rows = [(each, *row) for each in plans for row in each.pairs()]
    jobs = [_job(row, tolerance) for row in rows]
    work = [job for job in jobs if isinstance(job, Job)]
    numbers = get_engine().measure(work, _counting(progress, sum(job.reference.count for job in work)))
    pairs = [
        _pair(order, *row, job, next(numbers) if isinstance(job, Job) else None)
        for order, (row, job) in enumerate(zip(rows, jobs, strict=True))
    ]
    return Comparison(
        kind="checkpoint",
        reference=plans[0].reference.side(),
        candidates=tuple(_labelled(each) for each in plans),
        tolerance=tolerance,
        pairs=tuple(pairs),
        leftovers=tuple(left for each in plans for left in each.leftovers()),
        groups=rules.groups,
        notes=tuple(dict.fromkeys(note for each in plans for note in each.notes)),
    )


def _labelled(plan: Plan) -> Side:
    return replace(plan.candidate.side(), label=plan.label)


def _job(row: tuple[Plan, Match, TensorRef, TensorRef], tolerance: Tolerance) -> Job | Verdict:
    """Return the work to do for a pair, or the verdict that needs none."""
    _, _, reference, candidate = row
    if reference.shape != candidate.shape:
        return Verdict.SHAPE
    if reference.missing or candidate.missing:
        return Verdict.NOT_COMPARED
    return Job(reference, candidate, *tolerance.for_pair(reference.dtype, candidate.dtype))


def _pair(
    order: int,
    plan: Plan,
    match: Match,
    reference: TensorRef,
    candidate: TensorRef,
    job: Job | Verdict,
    metrics: Metrics | None,
) -> Pair:
    same_dtype = reference.dtype.name == candidate.dtype.name
    verdict = job if isinstance(job, Verdict) else judge(metrics, same_dtype) if metrics else Verdict.NOT_COMPARED
    return Pair(
        candidate=plan.label,
        reference_name=match.reference,
        candidate_name=match.candidate,
        matched_by=match.matched_by,
        verdict=verdict,
        shape=(reference.shape, candidate.shape),
        dtype=(reference.dtype.name, candidate.dtype.name),
        order=order,
        metrics=metrics,
        atol=job.atol if isinstance(job, Job) else 0.0,
        rtol=job.rtol if isinstance(job, Job) else 0.0,
        note=_note(reference, candidate, same_dtype),
    )


def _note(reference: TensorRef, candidate: TensorRef, same_dtype: bool) -> str:
    if reference.missing or candidate.missing:
        return reference.missing or candidate.missing or ""
    if reference.shape != candidate.shape:
        return "the same number of elements" if reference.count == candidate.count else ""
    return "" if same_dtype else "the dtypes differ; compared after widening both"


def _counting(progress: Progress | None, total: int) -> Callable[[int], None] | None:
    if progress is None:
        return None
    done = 0

    def count(elements: int) -> None:
        nonlocal done
        done += elements
        progress(done, total)

    return count
