"""Compare sources: open, align, measure, prove relations, judge, explain. Data flows one way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nndiff.align import FusedMatch, Match, Rename
from nndiff.diagnosis.site_pairs import SitePair
from nndiff.files import unchanged
from nndiff.judge import is_accepted, judge_candidate, judge_numbers, parse_accept, parse_judge
from nndiff.metrics import Metrics
from nndiff.names import looks_trainable, matches_any, parse_groups
from nndiff.plan import PairingRules, Plan, plan_comparison
from nndiff.result import (
    CANDIDATE,
    JOINT,
    REFERENCE,
    Comparison,
    Finding,
    FirstDivergence,
    Judgement,
    Leftover,
    Method,
    Note,
    NoteSlug,
    Pair,
    Related,
    Relation,
    Rules,
    Side,
)
from nndiff.stats import Job
from nndiff.stats.engine import get_engine
from nndiff.stats.shortcuts import judge_unmeasured
from nndiff.tensors import Shape, Site, Slot, TensorRef
from nndiff.text import counted
from nndiff.tolerance import Given, Tolerance, choose_tolerance
from nndiff.verdict import Judge, RelationKind, Verdict

if TYPE_CHECKING:
    from nndiff.relations import Relation as ProvenRelation

Progress = Callable[[int, int], None]  # elements done, elements in all


def compare_sources(
    reference: Any,
    *candidates: Any,
    atol: Given = None,
    rtol: Given = None,
    tolerance: str | None = None,
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
    pairing = PairingRules(
        tuple(Rename.parse(rule) for rule in rename),
        dict(mapping or {}),
        tuple(include),
        tuple(exclude),
        dict(group) if isinstance(group, Mapping) else parse_groups(group),
        content,
    )
    rules = Rules(parse_accept(accept), parse_judge(judge), strict_dtype)
    plans = plan_comparison(reference, candidates, pairing)
    return run_plans(plans, choose_tolerance(atol, rtol, tolerance), rules, pairing.groups, progress)


def run_plans(
    plans: Sequence[Plan],
    tolerance: Tolerance,
    rules: Rules,
    groups: Mapping[str, str],
    progress: Progress | None = None,
) -> Comparison:
    """Measure, judge and explain what was planned."""
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
    atol: float
    rtol: float
    scale: float = 1.0
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


def _prepare_rows(plan: Plan, tolerance: Tolerance) -> list[_Row]:
    """Return the pairs of a plan, ready to be measured: parts of fused layers cut out, gradients on their scale."""
    rows = [_make_row(plan, tolerance, match, reference, candidate) for match, reference, candidate in plan.pairs()]
    if not plan.recorded:
        return rows
    from nndiff.diagnosis.noise import GradientScale  # what only recordings need

    scales = GradientScale(plan.reference.tensors.values())
    for row in rows:
        row.scale = scales.of(row.reference, row.atol)
    for layer in _group_fused(plan):
        rows += _cut_fused_layer(plan, layer, tolerance, scales.of)
    for row in rows:
        row.atol *= row.scale
    return sorted(rows, key=lambda row: row.reference.trace.order)


def _make_row(
    plan: Plan,
    tolerance: Tolerance,
    match: Match,
    reference: TensorRef,
    candidate: TensorRef,
    relation: Relation | None = None,
) -> _Row:
    names = (match.reference, match.candidate)
    atol, rtol = tolerance.for_pair(names, reference.dtype, candidate.dtype)
    return _Row(plan, match, reference, candidate, atol, rtol, relation=relation)


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


def _cut_fused_layer(
    plan: Plan, layer: Sequence[FusedMatch], tolerance: Tolerance, scale_of: Callable[[TensorRef], float]
) -> Iterator[_Row]:
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
        atol, rtol = tolerance.for_pair((fused.whole, *fused.parts), whole.dtype, parts[0].dtype)
        scale = max(map(scale_of, sides[0]))
        following = fused_layers.follow_layout(layout, *sides, atol * scale, rtol) if layout else None
        relation, proven = following or (fused_layers.prove(*sides, atol * scale, rtol), True)
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
            row = _make_row(plan, tolerance, match, *sides_of_part, part_relation if relation and proven else None)
            row.scale = scale if fused.whole_is_reference else scale_of(part)
            yield row


def _measure_rows(rows: Sequence[_Row], progress: Progress | None) -> None:
    """Measure every row that must be, all in one pass over the engine."""
    waiting: list[_Row] = []
    for row in rows:
        known = judge_unmeasured(row.reference, row.candidate, row.atol, row.rtol)
        if known is None:
            waiting.append(row)
        else:
            row.verdict, row.metrics, row.notes = known.verdict, known.metrics, known.notes
    jobs = [Job(row.reference, row.candidate, row.atol, row.rtol) for row in waiting]
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


def _make_pair(row: _Row, rules: Rules) -> Pair:
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
        atol=row.atol,
        rtol=row.rtol,
        scale=row.scale,
        sites=(row.reference.site, row.candidate.site) if row.plan.recorded else None,
        notes=notes,
    )
    if row.relation is None or row.metrics is None:
        return pair
    return _apply_relation(pair, row.relation, row.metrics, rules)


def _apply_relation(pair: Pair, relation: Relation, metrics: Metrics, rules: Rules, fits: bool = True) -> Pair:
    """Return a pair with a proven relation; where its kind is accepted, the numbers after it are judged.

    One that does not fit what else is known of the tensors is shown, and accepted only where the user says so.
    """
    site = pair.sites[0] if pair.sites and fits else None
    accepted = is_accepted(relation.kind, site, rules)
    notes = tuple(note for note in pair.notes if note.slug is not NoteSlug.SAME_COUNT)  # its question is answered
    pair = replace(pair, related=Related(relation, metrics, accepted), notes=notes)
    return replace(pair, verdict=judge_numbers(metrics, pair.dtype, rules)) if accepted else pair


def _judge_plan(plan: Plan, rows: Sequence[_Row], tolerance: Tolerance, rules: Rules) -> _Part:
    """Judge and explain one candidate."""
    pairs: Sequence[SitePair] = [SitePair(_make_pair(row, rules), row.reference, row.candidate) for row in rows]
    leftovers = plan.leftovers()
    if plan.recorded:
        pairs = _judge_gradients(plan, pairs, leftovers, rules)
    if not all(site.passed for site in pairs):
        pairs = _lay_out_gradients(_prove_pairs(plan, pairs, rules), rules)
    reference, candidate = plan.reference.side(), replace(plan.candidate.side(), label=plan.label)
    notes = plan.notes
    if any(leftover.counts for leftover in leftovers):
        related = _relate_leftovers(plan, pairs, leftovers, tolerance, rules)
        pairs, leftovers, notes = [*pairs, *related.pairs], related.leftovers, (*notes, *related.notes)
        reference, candidate = _count_tied_once(reference, candidate, related.tied)
    pairs = [replace(site, pair=replace(site.pair, order=order)) for order, site in enumerate(pairs)]
    judged = [site.pair for site in pairs]
    judgement = judge_candidate(judged, leftovers, rules, reference, candidate)
    if not plan.recorded:
        return _Part(reference, candidate, judged, leftovers, judgement, notes=notes)
    from nndiff.findings import explain_candidate  # what only recordings need

    explained = explain_candidate(
        plan.reference, plan.candidate, pairs, leftovers, judgement, rules, plan.label, plan.alignment.against_names
    )
    notes = (*notes, *explained.notes)
    return _Part(reference, candidate, judged, leftovers, judgement, explained.first, explained.findings, notes)


def _judge_gradients(
    plan: Plan, pairs: Sequence[SitePair], leftovers: Sequence[Leftover], rules: Rules
) -> Sequence[SitePair]:
    """Return the pairs, gradients judged by what they are: sums of many terms, or meaningless without a finite loss."""
    from nndiff.diagnosis.loss_check import drop_meaningless_gradients  # what only recordings need
    from nndiff.diagnosis.noise import judge_bias_gradients

    judged = []
    for site, pair in zip(pairs, judge_bias_gradients(pairs), strict=True):
        is_refused = rules.strict_dtype and pair.dtype[0] != pair.dtype[1]
        judged.append(site if is_refused else replace(site, pair=pair))
    pairs = judged
    return drop_meaningless_gradients(pairs, leftovers, plan.reference.meta, plan.candidate.meta)


MOST_READ = 1 << 28  # elements in all that are read to look for relations: some ten seconds
# By these numbers most pairs that differ need no second look: trained apart, their elements go together (no axes are
# permuted), and not by one factor.
UNPERMUTED_CORRELATION = 0.99
SCALED_COSINE = 1e-4  # what rounding to bfloat16 leaves of a cosine of 1
_MOST_HINTS = 8  # relations of other tensors that are tried first
NOT_SEARCHED = Note(
    NoteSlug.NOT_SEARCHED, "too large to look for a relation (a transpose, a factor), so there may be one"
)


def _prove_pairs(plan: Plan, pairs: Sequence[SitePair], rules: Rules) -> list[SitePair]:
    """Return the pairs, those that differ with the relation that makes them agree, where one is proven.

    Elements that are all alike fit many relations: such tensors are tried again with those that others have.
    """
    from nndiff import relations

    proven = list(pairs)
    layouts: dict[tuple[Shape, Shape], list[relations.Relation]] = {}  # proven for tensors of the same shapes
    scales: list[relations.Relation] = []
    read = 0
    for attempt in ("all", "constants"):
        for index, site in enumerate(proven):
            pair, reference, candidate = site.pair, [site.reference], [site.candidate]
            if pair.verdict.passed or pair.related or pair.verdict is Verdict.NOT_COMPARED:
                continue
            if pair.has_note(NoteSlug.NOT_SEARCHED) or not _may_be_related(site):
                continue
            hints = [*layouts.get(pair.shape, ()), *scales]
            if attempt == "constants" and not (hints and _is_constant(site.reference)):
                continue
            if read > MOST_READ or relations.are_too_large(*reference, *candidate):
                proven[index] = replace(site, pair=replace(pair, notes=(*pair.notes, NOT_SEARCHED)))
                continue
            read += site.reference.count + site.candidate.count
            relation = relations.prove(reference, candidate, pair.atol, pair.rtol, hints)
            if relation is None:
                continue
            known = scales if relation.kind is RelationKind.SCALE else layouts.setdefault(pair.shape, [])
            if relation not in known and len(known) < _MOST_HINTS:
                known.append(relation)
            metrics = relations.measure_related(relation, reference, candidate, pair.atol, pair.rtol)
            fits = site.slot is not Slot.PARAM_GRAD or _fits_parameter(plan, site, relation)
            proven[index] = replace(site, pair=_apply_relation(pair, relation, metrics, rules, fits))
    return proven


_SLOT_OF_VALUE = {Slot.PARAM_GRAD: Slot.PARAM, Slot.GRAD_OUTPUT: Slot.OUTPUT}


def _lay_out_gradients(pairs: Sequence[SitePair], rules: Rules) -> list[SitePair]:
    """Return the pairs, gradients that differ measured in the layout of what they are the gradients of.

    The gradient of a transposed weight is the transposed gradient: that needs no proof, and the numbers of gradients
    laid side by side in two layouts would mean nothing.
    """
    from nndiff import relations

    layouts: dict[tuple[Site, Site], relations.Relation] = {}
    for site in pairs:
        related = site.pair.related
        if related is not None and related.accepted and relations.is_rearrangement(related.relation):
            layouts[site.reference.site, site.candidate.site] = related.relation
    laid_out = []
    for site in pairs:
        pair, slot = site.pair, _SLOT_OF_VALUE.get(site.slot)
        if slot is not None and not pair.verdict.passed and pair.related is None:
            relation = layouts.get((replace(site.reference.site, slot=slot), replace(site.candidate.site, slot=slot)))
            if relation is not None and all(relations.is_readable(tensor) for tensor in site.tensors):
                metrics = relations.measure_related(relation, [site.reference], [site.candidate], pair.atol, pair.rtol)
                site = replace(site, pair=_apply_relation(pair, relation, metrics, rules))
        laid_out.append(site)
    return laid_out


def _fits_parameter(plan: Plan, gradient: SitePair, relation: ProvenRelation) -> bool:
    """Return False if the parameters of two gradients are known not to lie as these do.

    A gradient has the layout of its parameter: that of the very same parameter cannot be permuted. Where all that is
    known of the parameters is that they are not the same, they may lie as the gradients do.
    """
    from nndiff.recording.format.weights import read_held_tensors
    from nndiff.relations import measure_related

    pair = gradient.pair
    if relation.kind is not RelationKind.LAYOUT or pair.shape[0] != pair.shape[1]:
        return True  # a sum, an expansion, another shape: the parameters cannot be the same
    values: list[TensorRef] = []
    held = []
    for source, tensor in ((plan.reference, gradient.reference), (plan.candidate, gradient.candidate)):
        value = source.tensors.get(replace(tensor.site, slot=Slot.PARAM).name)
        if value is not None and not value.missing:
            values.append(value)
        held.append(read_held_tensors(source.meta).get(f"{tensor.site.module}.{tensor.site.tensor}".lstrip(".")))
    if len(values) == 2:
        atol = pair.atol / pair.scale if pair.scale else pair.atol  # the gradient's scale is not the parameter's
        return measure_related(relation, [values[0]], [values[1]], atol, pair.rtol).mismatched == 0
    return held[0] is None or held[0] != held[1]


def _may_be_related(site: SitePair) -> bool:
    """Return False if the numbers of a pair speak against every relation: then its elements are not read again."""
    numbers = site.pair.stored
    if numbers is None or site.reference.dtype.kind != site.candidate.dtype.kind:
        return True  # other shapes, or a mask
    if 1 - abs(numbers.cosine) < SCALED_COSINE:
        return True
    sizes = [size for size in site.reference.shape if size > 1]
    return len(set(sizes)) < len(sizes) and not numbers.correlation > UNPERMUTED_CORRELATION


def _is_constant(tensor: TensorRef) -> bool:
    stats = tensor.trace.stats
    return stats is not None and stats.min == stats.max


ScaledTolerance = tuple[float, float, float]  # atol on the scale of the tensors, rtol, and that scale


@dataclass(frozen=True)
class _RelatedLeftovers:
    """Hold the pairs that were made of tensors without a partner, and what is still without."""

    pairs: list[SitePair]
    leftovers: list[Leftover]
    tied: list[tuple[str, TensorRef]]  # side, and the tensor that is another one under a second name
    notes: list[Note]


def _relate_leftovers(
    plan: Plan, pairs: Sequence[SitePair], leftovers: Sequence[Leftover], tolerance: Tolerance, rules: Rules
) -> _RelatedLeftovers:
    """Pair tensors without a partner by proven relations: tied, stacked or fused, weight norm."""
    from nndiff.diagnosis.noise import GradientScale  # what only recordings need
    from nndiff.relations import relate_leftovers

    sources = {REFERENCE: plan.reference, CANDIDATE: plan.candidate}
    found = _RelatedLeftovers([], [], [], [])
    gone: set[tuple[str, str]] = set()  # side and name of what has a partner now
    for side, tensor, site in _pair_tied(plan, pairs, leftovers, tolerance, rules):
        found.pairs.append(site)
        found.tied.append((side, tensor))
        gone.add((side, tensor.name))
    if plan.recorded:
        free: dict[str, list[TensorRef]] = {REFERENCE: [], CANDIDATE: []}
        for leftover in leftovers:
            if leftover.counts and (leftover.side, leftover.name) not in gone:
                free[leftover.side].append(sources[leftover.side].tensors[leftover.name])
        modules = {candidate: reference for reference, candidate in plan.alignment.modules.items()}
        scales = GradientScale(plan.reference.tensors.values())

        def scaled_tolerance(references: Sequence[TensorRef], candidates: Sequence[TensorRef]) -> ScaledTolerance:
            names = [tensor.name for tensor in (*references, *candidates)]
            atol, rtol = tolerance.for_pair(names, references[0].dtype, candidates[0].dtype)
            scale = max(scales.of(tensor, atol) for tensor in references)
            return atol * scale, rtol, scale

        def tolerance_of(references: Sequence[TensorRef], candidates: Sequence[TensorRef]) -> tuple[float, float]:
            return scaled_tolerance(references, candidates)[:2]

        def value_of(gradient: TensorRef) -> TensorRef | None:
            name = replace(gradient.site, slot=Slot.PARAM).name
            for source in sources.values():
                if source.tensors.get(gradient.name) is gradient:
                    return source.tensors.get(name)
            return None

        paired = [tensor for site in pairs for tensor in (site.reference, site.candidate)]
        related = relate_leftovers(
            free[REFERENCE], free[CANDIDATE], modules.get, tolerance_of, paired=paired, value_of=value_of
        )
        for group in related.groups:
            atol, rtol, scale = scaled_tolerance(group.reference, group.candidate)
            pair = _make_related_pair(plan, group.reference, group.candidate, atol, rtol, scale)
            pair = _apply_relation(pair, group.relation, group.measure(atol, rtol), rules)
            found.pairs.append(SitePair(pair, group.reference[0], group.candidate[0]))
            gone |= {(REFERENCE, tensor.name) for tensor in group.reference}
            gone |= {(CANDIDATE, tensor.name) for tensor in group.candidate}
        if related.unread:
            text = f"{counted(related.unread, 'tensor')} without a partner: too large to look for a relation"
            found.notes.append(Note(NoteSlug.NOT_SEARCHED, text))
    for leftover in leftovers:
        if (leftover.side, leftover.name) not in gone:
            found.leftovers.append(leftover)
    return found


def _pair_tied(
    plan: Plan, pairs: Sequence[SitePair], leftovers: Sequence[Leftover], tolerance: Tolerance, rules: Rules
) -> Iterator[tuple[str, TensorRef, SitePair]]:
    """Yield tensors without a partner that are a paired one under a second name, each with its pair."""
    from nndiff.relations import measure_related, prove_tied

    for leftover in leftovers:
        if not leftover.counts or (leftover.site is not None and leftover.site.slot is not Slot.PARAM):
            continue
        on_reference = leftover.side == REFERENCE
        tensor = (plan.reference if on_reference else plan.candidate).tensors[leftover.name]
        for site in pairs:
            twin, partner = (site.reference, site.candidate) if on_reference else (site.candidate, site.reference)
            if not site.pair.certain or (leftover.site is not None and twin.site.slot is not leftover.site.slot):
                continue  # what a module computes may be equal to a parameter, and is none
            relation = prove_tied(tensor, twin)
            if relation is None:
                continue
            sides = (tensor, partner) if on_reference else (partner, tensor)
            atol, rtol = tolerance.for_pair((sides[0].name, sides[1].name), sides[0].dtype, sides[1].dtype)
            if tensor.shape != partner.shape or tensor.missing or partner.missing:
                break
            pair = _make_related_pair(plan, [sides[0]], [sides[1]], atol, rtol)
            metrics = measure_related(relation, [sides[0]], [sides[1]], atol, rtol)
            yield leftover.side, tensor, SitePair(_apply_relation(pair, relation, metrics, rules), *sides)
            break


def _make_related_pair(
    plan: Plan,
    references: Sequence[TensorRef],
    candidates: Sequence[TensorRef],
    atol: float,
    rtol: float,
    scale: float = 1.0,
) -> Pair:
    """Return the pair of tensors that a relation brings together; several on a side go by all their names."""
    reference, candidate = references[0], candidates[0]
    return Pair(
        candidate=plan.label,
        reference_name=JOINT.join(tensor.name for tensor in references),
        candidate_name=JOINT.join(tensor.name for tensor in candidates),
        method=Method.CONTENT,
        certain=True,
        verdict=Verdict.DIFFERENT if reference.shape == candidate.shape else Verdict.SHAPE,
        shape=(reference.shape, candidate.shape),
        dtype=(reference.dtype.name, candidate.dtype.name),
        order=0,
        atol=atol,
        rtol=rtol,
        scale=scale,
        sites=(reference.site, candidate.site) if plan.recorded else None,
    )


def _count_tied_once(reference: Side, candidate: Side, tied: Sequence[tuple[str, TensorRef]]) -> tuple[Side, Side]:
    """Return both sides with tensors that are stored under a second name counted once."""
    sides = {REFERENCE: reference, CANDIDATE: candidate}
    for role, tensor in tied:
        side = sides[role]
        trainable = side.trainable - (tensor.count if looks_trainable(tensor.name, tensor.dtype) else 0)
        sides[role] = replace(side, elements=side.elements - tensor.count, trainable=trainable)
    return sides[REFERENCE], sides[CANDIDATE]
