"""Compare sources: open, align, measure, prove relations, judge, explain. Data flows one way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nndiff.align import FusedMatch, Match, Rename
from nndiff.checkpoints import relate_checkpoints
from nndiff.diagnosis.noise import Bounds, RecordedTolerance
from nndiff.diagnosis.site_pairs import SitePair
from nndiff.files import unchanged
from nndiff.judge import judge_candidate, judge_numbers, note_missing_floor, parse_accept, parse_judge, require_noise
from nndiff.metrics import Metrics
from nndiff.names import matches_any, parse_groups
from nndiff.plan import PairingRules, Plan, plan_comparison
from nndiff.proofs import apply_relation, count_tied_once, relate_recordings
from nndiff.result import (
    Comparison,
    Finding,
    FirstDivergence,
    Judgement,
    Leftover,
    Method,
    Note,
    NoteSlug,
    Pair,
    Relation,
    Rules,
    SettingDifference,
    Side,
)
from nndiff.stats import Job
from nndiff.stats.engine import get_engine
from nndiff.stats.shortcuts import judge_unmeasured
from nndiff.tensors import Slot, TensorRef
from nndiff.tolerance import Given, Tolerance, choose_tolerance
from nndiff.verdict import Judge, Verdict

Progress = Callable[[int, int], None]  # elements done, elements in all


def compare_sources(
    reference: Any,
    *candidates: Any,
    atol: Given = None,
    rtol: Given = None,
    tolerance: str | None = None,
    noise_factor: float | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    rename: Sequence[Any] = (),
    mapping: Mapping[str, str] | None = None,
    group: Mapping[str, str] | Sequence[str] = (),
    accept: Iterable[str] = (),
    judge: str = Judge.ALL.value,
    strict_dtype: bool = False,
    content: bool = True,
    progress: Progress | None = None,
) -> Comparison:
    """Compare a reference with one or more candidates, each anything that `open_source` opens."""
    options = read_options(
        atol=atol,
        rtol=rtol,
        tolerance=tolerance,
        noise_factor=noise_factor,
        include=include,
        exclude=exclude,
        rename=rename,
        mapping=mapping,
        group=group,
        accept=accept,
        judge=judge,
        strict_dtype=strict_dtype,
        content=content,
    )
    plans = plan_comparison(reference, candidates, options.pairing)
    return run_plans(plans, options.tolerance, options.rules, options.pairing.groups, progress)


@dataclass(frozen=True)
class CompareOptions:
    """Hold how tensors are paired, measured and judged."""

    pairing: PairingRules
    tolerance: Tolerance
    rules: Rules


def read_options(
    *,
    atol: Given = None,
    rtol: Given = None,
    tolerance: str | None = None,
    noise_factor: float | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    rename: Sequence[Any] = (),
    mapping: Mapping[str, str] | None = None,
    group: Mapping[str, str] | Sequence[str] = (),
    accept: Iterable[str] = (),
    judge: str = Judge.ALL.value,
    strict_dtype: bool = False,
    content: bool = True,
) -> CompareOptions:
    """Return the options of a comparison, checked."""
    pairing = PairingRules(
        tuple(Rename.parse(rule) for rule in rename),
        dict(mapping or {}),
        tuple(include),
        tuple(exclude),
        dict(group) if isinstance(group, Mapping) else parse_groups(group),
        content=content,
    )
    rules = Rules(parse_accept(accept), parse_judge(judge), strict_dtype)
    return CompareOptions(pairing, choose_tolerance(atol, rtol, tolerance, noise_factor), rules)


def run_plans(
    plans: Sequence[Plan],
    tolerance: Tolerance,
    rules: Rules,
    groups: Mapping[str, str],
    progress: Progress | None = None,
) -> Comparison:
    """Measure, judge and explain what was planned."""
    require_noise(tolerance, (tensor.trace.noise for plan in plans for tensor in plan.reference.tensors.values()))
    with unchanged():
        rows: list[_Row] = []
        for plan in plans:
            rows += _prepare_rows(plan, tolerance)
        _measure_rows(rows, progress)
        parts = [_judge_plan(plan, [row for row in rows if row.plan is plan], tolerance, rules) for plan in plans]
    pairs: list[Pair] = []
    firsts: dict[str, FirstDivergence] = {}
    for part in parts:
        if part.first is not None:
            firsts[part.candidate.label] = replace(part.first, order=part.first.order + len(pairs))
        for pair in part.pairs:
            pairs.append(replace(pair, order=len(pairs)))
    notes: dict[Note, None] = dict.fromkeys(_note_idle_tolerances(tolerance, pairs))
    for part in parts:
        for note in part.notes:
            if not all(note in other.notes for other in parts):  # not about all candidates
                note = replace(note, text=f"{part.candidate.label}: {note.text}")
            notes[note] = None
    return Comparison(
        kind="recording" if all(plan.recorded for plan in plans) else "checkpoint",
        reference=parts[0].reference,
        candidates=tuple(part.candidate for part in parts),
        tolerance=tolerance,
        pairs=tuple(pairs),
        judgements={part.candidate.label: part.judgement for part in parts},
        leftovers=tuple(leftover for part in parts for leftover in part.leftovers),
        findings=tuple(finding for part in parts for finding in part.findings),
        first_divergences=firsts,
        groups=groups,
        notes=tuple(notes),
        rules=rules,
        settings=tuple(setting for part in parts for setting in part.settings),
    )


def _note_idle_tolerances(tolerance: Tolerance, pairs: Sequence[Pair]) -> Iterator[Note]:
    """Yield the patterns of --atol and --rtol that no compared tensor matches."""
    for pattern in dict.fromkeys(override.pattern for override in tolerance.overrides):
        if not any(matches_any(name, (pattern,)) for pair in pairs for name in pair.names):
            text = f"the pattern {pattern!r} of a tolerance matches no tensor"
            yield Note(NoteSlug.RULE_WITHOUT_EFFECT, text)


@dataclass
class _Row:
    """Hold a pair on its way: the tensors as they are compared, the tolerance, then the numbers."""

    plan: Plan
    match: Match
    reference: TensorRef
    candidate: TensorRef
    bounds: Bounds
    metrics: Metrics | None = None
    verdict: Verdict | None = None
    notes: tuple[Note, ...] = ()
    relation: Relation | None = None  # of a part of a fused layer: how it is taken out of the whole


@dataclass(frozen=True)
class _Part:
    """Hold the result of one candidate."""

    reference: Side
    candidate: Side
    pairs: list[Pair]
    leftovers: list[Leftover]
    judgement: Judgement
    first: FirstDivergence | None = None
    findings: tuple[Finding, ...] = ()
    notes: tuple[Note, ...] = ()
    settings: tuple[SettingDifference, ...] = ()


def _prepare_rows(plan: Plan, tolerance: Tolerance) -> list[_Row]:
    """Return the pairs of a plan, ready to be measured: parts of fused layers cut out, each with its tolerance."""
    rows = []
    if not plan.recorded:
        for match, reference, candidate in plan.pairs():
            names = (match.reference, match.candidate)
            bounds = Bounds(*tolerance.for_pair(names, reference.dtype, candidate.dtype))
            rows.append(_Row(plan, match, reference, candidate, bounds))
        return rows
    recorded = RecordedTolerance(tolerance, plan.reference, plan.candidate)
    for match, reference, candidate in plan.pairs():
        bounds = recorded.choose_bounds([reference], [candidate], (match.reference, match.candidate))
        rows.append(_Row(plan, match, reference, candidate, bounds))
    for layer in _group_fused(plan):
        rows += _cut_fused_layer(plan, layer, recorded)
    return sorted(rows, key=lambda row: row.reference.trace.order)


_TELLING_FIRST = (Slot.PARAM, Slot.OUTPUT, Slot.GRAD_OUTPUT, Slot.PARAM_GRAD)  # of how parts lie in a fused layer


def _group_fused(plan: Plan) -> Iterable[list[FusedMatch]]:
    """Return the tensors of each fused layer together."""
    layers: dict[tuple[str, ...], list[FusedMatch]] = {}
    for match in plan.alignment.fused:
        wholes, others = plan.reference.tensors, plan.candidate.tensors
        if not match.whole_is_reference:
            wholes, others = others, wholes
        modules = wholes[match.whole].site.module, *(others[name].site.module for name in match.parts)
        layers.setdefault((match.group,) if match.group else modules, []).append(match)
    return layers.values()


def _cut_fused_layer(plan: Plan, layer: Sequence[FusedMatch], recorded: RecordedTolerance) -> Iterator[_Row]:
    """Yield one row for each part of every tensor of a fused layer; certain where it is proven how the parts lie.

    They lie in one way in all tensors of the layer: the first that proves it decides for the others, so that a
    gradient whose parts are exchanged is wrong, and the parts of a bias, single numbers, are found at all.
    """
    from nndiff.relations import fused as fused_layers

    def rank(fused: FusedMatch) -> tuple[int, int]:
        whole = (plan.reference if fused.whole_is_reference else plan.candidate).tensors[fused.whole]
        return _TELLING_FIRST.index(whole.site.slot), -whole.count

    layout: fused_layers.PartLayout | None = None
    for fused in sorted(layer, key=rank):
        sources = (plan.reference, plan.candidate) if fused.whole_is_reference else (plan.candidate, plan.reference)
        whole = sources[0].tensors[fused.whole]
        parts = [sources[1].tensors[name] for name in fused.parts]
        sides = ([whole], parts) if fused.whole_is_reference else (parts, [whole])
        atol, rtol = recorded.choose_bounds(*sides)[:2]
        following = fused_layers.follow_layout(layout, *sides, atol, rtol) if layout else None
        relation, proven = following or (fused_layers.prove(*sides, atol, rtol), True)
        if relation is not None and layout is None:
            layout = fused_layers.read_layout(relation, parts)
        related = (
            fused_layers.relate_parts(relation, parts)
            if relation
            else fused_layers.natural_parts(whole, parts, fused.whole_is_reference)
        )
        for part, label, part_relation in zip(parts, fused.labels, related or (), strict=bool(related)):
            operations = part_relation.reference if fused.whole_is_reference else part_relation.candidate
            piece = fused_layers.cut_part(whole, operations, f"{whole.name}.[{label}]")
            sides_of_part = (piece, part) if fused.whole_is_reference else (part, piece)
            match = Match(sides_of_part[0].name, sides_of_part[1].name, Method.PARTS, certain=relation is not None)
            stored = [whole] if fused.whole_is_reference else [part]  # scale and floor are those of the recorded tensor
            bounds = recorded.choose_bounds(stored, sides_of_part[1:], (match.reference, match.candidate))
            yield _Row(plan, match, *sides_of_part, bounds, relation=part_relation if relation and proven else None)


def _measure_rows(rows: Sequence[_Row], progress: Progress | None) -> None:
    """Measure every row that must be, all in one pass over the engine."""
    waiting: list[_Row] = []
    for row in rows:
        known = judge_unmeasured(row.reference, row.candidate, row.bounds.atol, row.bounds.rtol)
        if known is None:
            waiting.append(row)
        else:
            row.verdict, row.metrics, row.notes = known.verdict, known.metrics, known.notes
    jobs = [Job(row.reference, row.candidate, row.bounds.atol, row.bounds.rtol) for row in waiting]
    for row, metrics in zip(waiting, get_engine().measure(jobs, _count_progress(progress, jobs)), strict=True):
        row.metrics = metrics


def _count_progress(progress: Progress | None, jobs: Sequence[Job]) -> Callable[[int], None] | None:
    if progress is None:
        return None
    total, done = sum(job.reference.count for job in jobs), 0

    def count(elements: int) -> None:
        nonlocal done
        done += elements
        progress(done, total)

    return count


def _make_pair(row: _Row, tolerance: Tolerance, rules: Rules) -> Pair:
    dtypes = (row.reference.dtype.name, row.candidate.dtype.name)
    verdict = row.verdict
    if verdict is None or (rules.strict_dtype and dtypes[0] != dtypes[1] and verdict.passed):
        assert row.metrics is not None  # what was not known before was measured
        verdict = judge_numbers(row.metrics, dtypes, rules)
    notes = row.notes
    if dtypes[0] != dtypes[1] and row.metrics is not None:
        notes = (*notes, Note(NoteSlug.DTYPES_DIFFER, "the dtypes differ; compared after widening both"))
    pair = Pair(
        candidate=row.plan.label,
        reference_name=row.match.reference,
        candidate_name=row.match.candidate,
        method=row.match.method,
        certain=row.match.certain,
        verdict=verdict,
        shape=(row.reference.shape, row.candidate.shape),
        dtype=dtypes,
        order=0,
        stored=row.metrics,
        atol=row.bounds.atol,
        rtol=row.bounds.rtol,
        scale=row.bounds.scale,
        noise=row.bounds.noise,
        sites=(row.reference.site, row.candidate.site) if row.plan.recorded else None,
        notes=notes,
    )
    pair = note_missing_floor(pair, tolerance)
    if row.relation is None or row.metrics is None:
        return pair
    return apply_relation(pair, row.relation, row.metrics, rules)


def _judge_plan(plan: Plan, rows: Sequence[_Row], tolerance: Tolerance, rules: Rules) -> _Part:
    """Judge and explain one candidate."""
    pairs: Sequence[SitePair] = [
        SitePair(_make_pair(row, tolerance, rules), row.reference, row.candidate) for row in rows
    ]
    leftovers = plan.leftovers()
    reference, candidate = plan.reference.side(), replace(plan.candidate.side(), label=plan.label)
    if plan.recorded:
        from nndiff.diagnosis.loss_check import drop_meaningless_gradients  # what only recordings need

        pairs = drop_meaningless_gradients(pairs, leftovers, plan.reference.meta, plan.candidate.meta)
    relate = relate_recordings if plan.recorded else relate_checkpoints
    related = relate(plan, pairs, leftovers, tolerance, rules)
    pairs, leftovers, notes = related.pairs, related.leftovers, (*plan.notes, *related.notes)
    if plan.recorded and not all(site.passed for site in pairs):
        from nndiff.cancelling import relate_cancelling

        pairs = relate_cancelling(plan, pairs, tolerance, rules)
    reference, candidate = count_tied_once(reference, candidate, related.tied)
    pairs = [replace(site, pair=replace(site.pair, order=order)) for order, site in enumerate(pairs)]
    judged = [site.pair for site in pairs]
    judgement = judge_candidate(judged, leftovers, rules, reference, candidate, plan.settings)
    if not plan.recorded:
        findings: tuple[Finding, ...] = ()
        if plan.settings or any(
            site.pair.related or not site.passed or site.pair.method.is_by_content for site in pairs
        ):
            from nndiff.findings.checkpoints import explain_checkpoints  # files that are the same do without

            explained_files = explain_checkpoints(plan, pairs, leftovers)
            findings = tuple(replace(finding, candidate=plan.label) for finding in explained_files)
        return _Part(reference, candidate, judged, leftovers, judgement, None, findings, notes, plan.settings)
    from nndiff.findings import explain_candidate  # what only recordings need

    explained = explain_candidate(
        plan.reference, plan.candidate, pairs, leftovers, judgement, rules, plan.label, plan.alignment.against_names
    )
    notes = (*notes, *explained.notes)
    return _Part(reference, candidate, judged, leftovers, judgement, explained.first, explained.findings, notes)
