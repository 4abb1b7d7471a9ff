"""A saved result at another tolerance: judged from the numbers it holds, or "compare again"."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from nndiff.errors import UsageError
from nndiff.judge import (
    EXACT,
    PROVEN_WITHIN_ROUNDING,
    apply_thresholds,
    is_accepted,
    judge_candidate,
    note_missing_floor,
    require_noise,
)
from nndiff.metrics import Metrics
from nndiff.relations.layout import is_rearrangement
from nndiff.relations.proof import shrink_tolerance
from nndiff.result import (
    Comparison,
    Finding,
    FirstDivergence,
    Leftover,
    Note,
    NoteSlug,
    Pair,
    PartingReason,
    Rules,
    Side,
    decides_verdict,
)
from nndiff.tensors import Slot
from nndiff.tolerance import Tolerance
from nndiff.verdict import Outcome, RelationKind, Verdict

COMPARE_AGAIN = "the saved numbers do not decide at this tolerance: compare the sources again"
_SLOT_ORDER = (  # one kind after the other
    Slot.MODEL_INPUT,
    Slot.PARAM,
    Slot.BUFFER_BEFORE,
    Slot.OUTPUT,
    Slot.LOSS,
    Slot.GRAD_OUTPUT,
    Slot.PARAM_GRAD,
    Slot.MODEL_INPUT_GRAD,
    Slot.BUFFER,
)


def judge_at(comparison: Comparison, tolerance: Tolerance, lasting_causes: Collection[str] = ()) -> Comparison:
    """Return a result with its pairs judged at another tolerance.

    Findings stay where the first divergence does; elsewhere those whose cause holds at any tolerance
    (`lasting_causes`). What the saved numbers do not decide fails, and a note says to compare again.
    """
    require_noise(tolerance, (pair.noise for pair in comparison.pairs))
    if comparison.kind == "run":
        return _judge_runs_at(comparison, tolerance)
    pairs = tuple(_judge_pair_at(pair, tolerance, comparison.rules) for pair in comparison.pairs)
    judgements, firsts = {}, {}
    findings: list[Finding] = []
    is_open = False
    for side in comparison.candidates:
        candidate_pairs = [pair for pair in pairs if pair.candidate == side.label]
        leftovers = comparison.leftovers_of(side.label)
        judgement = judge_candidate(
            candidate_pairs, leftovers, comparison.rules, comparison.reference, side, comparison.settings_of(side.label)
        )
        if comparison.modes is not None:
            judgement = apply_thresholds(judgement, comparison.modes.get_mode(side.label), comparison.modes.thresholds)
        judgements[side.label] = judgement
        is_open = is_open or _hangs_on_open_pairs(comparison, tolerance, side, candidate_pairs, leftovers)
        known = comparison.first_divergences.get(side.label)
        first = None
        if judgement.outcome.exit_code:
            still_first = known is not None and _is_still_first(known, comparison.pairs_of(side.label), candidate_pairs)
            first = known if still_first else _find_first_failing(candidate_pairs, comparison.rules)
            if first is not None:
                firsts[side.label] = first
        for finding in comparison.findings:
            if finding.candidate in (side.label, "") and (
                finding.harmless or finding.cause in lasting_causes or (first is not None and first is known)
            ):
                findings.append(finding)
    notes = [note for note in comparison.notes if note.slug is not NoteSlug.COMPARE_AGAIN]
    failed_before = {pair.name for pair in comparison.pairs if not pair.verdict.passed}
    if any(not pair.verdict.passed and pair.name not in failed_before for pair in pairs):
        notes = [note for note in notes if note.slug is not NoteSlug.SETTINGS_WITHOUT_EFFECT]
    if is_open:
        notes.append(Note(NoteSlug.COMPARE_AGAIN, COMPARE_AGAIN))
    return replace(
        comparison,
        tolerance=tolerance,
        pairs=pairs,
        judgements=judgements,
        first_divergences=firsts,
        findings=tuple(dict.fromkeys(findings)),
        own_errors=tuple(error for error in comparison.own_errors if judgements[error.candidate].outcome.exit_code),
        notes=tuple(notes),
    )


def _judge_runs_at(comparison: Comparison, tolerance: Tolerance) -> Comparison:
    """Return a comparison of runs at another tolerance, where its verdict holds at any."""
    before, now = comparison.tolerance, tolerance
    is_same = (before.atol, before.rtol, before.overrides) == (now.atol, now.rtol, now.overrides)
    if is_same or comparison.outcome in (Outcome.IDENTICAL, Outcome.NOTHING):
        return replace(comparison, tolerance=tolerance)
    raise UsageError(
        "a saved comparison of training runs does not hold the numbers to judge it at another tolerance: compare the "
        "runs again, nndiff diff RUN_REF RUN_CAND --atol ... --rtol ..."
    )


def _hangs_on_open_pairs(
    comparison: Comparison, tolerance: Tolerance, side: Side, pairs: list[Pair], leftovers: list[Leftover]
) -> bool:
    """Return True if the exit status of a candidate depends on what the saved numbers do not decide."""
    rest = leftovers
    if comparison.kind == "recording" and _may_be_looser(comparison.tolerance, tolerance):
        rest = [leftover for leftover in leftovers if not _may_find_partner(leftover)]
    exit_codes = set()
    for verdict, remaining in ((Verdict.CLOSE, rest), (Verdict.DIFFERENT, leftovers)):
        assumed = []
        for pair in pairs:
            assumed.append(replace(pair, verdict=verdict) if pair.has_note(NoteSlug.COMPARE_AGAIN) else pair)
        settings = comparison.settings_of(side.label)
        judgement = judge_candidate(assumed, remaining, comparison.rules, comparison.reference, side, settings)
        exit_codes.add(judgement.outcome.exit_code)
    return len(exit_codes) > 1


def _may_be_looser(before: Tolerance, now: Tolerance) -> bool:
    """Return False if a tolerance is known to be no larger than another for any pair."""
    kinds = [tolerance.origin if tolerance.origin in ("auto", "noise") else "numbers" for tolerance in (before, now)]
    same_kind = before.overrides == now.overrides and kinds[0] == kinds[1]
    is_tighter = now.atol <= before.atol and now.rtol <= before.rtol and now.noise_factor <= before.noise_factor
    return not (same_kind and is_tighter)


def _may_find_partner(leftover: Leftover) -> bool:
    """Return True if a relation proven at a larger tolerance may give a tensor a partner."""
    return leftover.site is not None and leftover.site.slot in (Slot.PARAM, Slot.PARAM_GRAD)


def _judge_pair_at(pair: Pair, tolerance: Tolerance, rules: Rules) -> Pair:
    """Return a pair judged at another tolerance; a note says where its numbers do not decide."""
    is_gradient = pair.slot is not None and pair.slot.is_gradient
    atol, rtol = tolerance.for_recorded(
        pair.names, *pair.dtypes, is_gradient=is_gradient, scale=pair.scale, noise=pair.noise
    )
    pair = note_missing_floor(pair, tolerance)
    if (atol, rtol) == (pair.atol, pair.rtol):
        return pair
    was_open = pair.has_note(NoteSlug.COMPARE_AGAIN)  # then nobody knows what held at the tolerance before either
    looser = atol > pair.atol or rtol > pair.rtol or was_open
    tighter = atol < pair.atol or rtol < pair.rtol or was_open
    pair = replace(pair, notes=tuple(note for note in pair.notes if note.slug is not NoteSlug.COMPARE_AGAIN))
    if pair.related and pair.related.accepted and pair.stored is not None:
        verdict, _ = _judge_numbers_at(replace(pair, related=None), atol, rtol, rules)
        if verdict.passed:  # nobody looks for a relation of what agrees as it is
            pair = replace(pair, related=None)
    verdict, decided = _judge_numbers_at(pair, atol, rtol, rules)
    if not decided and not tighter and pair.verdict.passed:
        verdict, decided = Verdict.CLOSE, True
    if not decided and not looser and not pair.verdict.passed and _is_measured(pair):
        decided = True
    if pair.metrics is None and pair.verdict is Verdict.DIFFERENT:
        decided = not looser  # what statistics tell apart they may not at a larger tolerance
    if pair.verdict is Verdict.NOT_COMPARED and pair.has_note(NoteSlug.NOT_KEPT):
        decided = not tighter  # and what they do not, they may at a smaller one
    if verdict.passed:
        decided = decided and not _may_lose_proof(pair, atol, rtol, looser)
    elif _may_be_proven(pair, looser or pair.verdict.passed, rules):
        decided = False
    if not decided:
        pair = replace(pair, notes=(*pair.notes, Note(NoteSlug.COMPARE_AGAIN, COMPARE_AGAIN)))
        verdict = Verdict.DIFFERENT if verdict.passed else verdict
    judged = replace(pair, verdict=verdict, atol=atol, rtol=rtol)
    if pair.related and pair.related.accepted:
        return replace(judged, related=replace(pair.related, metrics=_forget_count(pair.related.metrics, verdict)))
    return replace(judged, stored=_forget_count(pair.stored, verdict) if pair.stored else None)


def _judge_numbers_at(pair: Pair, atol: float, rtol: float, rules: Rules) -> tuple[Verdict, bool]:
    """Return the verdict that the numbers of a pair give it, and whether they decide."""
    if pair.metrics is None:
        return pair.verdict, True  # shapes stay what they are
    same_dtype = pair.dtype[0] == pair.dtype[1]
    if rules.strict_dtype and not same_dtype:
        return Verdict.DIFFERENT, True
    verdict, decided = pair.metrics.judge_at(same_dtype, atol, rtol)
    if pair.related and pair.related.accepted and pair.related.relation.kind in PROVEN_WITHIN_ROUNDING:
        is_certain = pair.related.relation.kind in EXACT  # a fold may have been proven at the tolerance alone
        return (verdict, decided or is_certain) if verdict.passed else (Verdict.CLOSE, is_certain)
    return verdict, decided


def _is_measured(pair: Pair) -> bool:
    """Return True if the numbers of a pair were counted at the tolerance it was judged at."""
    return pair.metrics is not None and pair.metrics.mismatched is not None


def _forget_count(metrics: Metrics, verdict: Verdict) -> Metrics:
    """Return numbers without the count of mismatches, which was taken at another tolerance."""
    return replace(metrics, mismatched=0 if verdict.passed else None)


def _may_lose_proof(pair: Pair, atol: float, rtol: float, looser: bool) -> bool:
    """Return True if a pair passes by a proof that may not hold at another tolerance.

    Where all elements are alike within tolerance, a relation proves nothing.
    """
    if not (pair.related and pair.related.accepted) or pair.related.relation.kind in EXACT:
        return False
    numbers = pair.related.metrics
    low, high = numbers.ref_min, numbers.ref_max
    if not looser or high - low > 2 * (atol + rtol * max(abs(low), abs(high))):
        return False
    if not is_rearrangement(pair.related.relation):
        return True
    # compared again, a layout is proven at a smaller tolerance, at which the elements are not all alike
    verdict, decided = numbers.judge_at(pair.dtype[0] == pair.dtype[1], *shrink_tolerance(low, high, atol, rtol))
    return not (decided and verdict.passed)


def _may_be_proven(pair: Pair, nobody_looked: bool, rules: Rules) -> bool:
    """Return True if a pair that fails may pass by a relation that is proven at this tolerance."""
    if pair.related and pair.related.accepted:
        return pair.related.relation.kind not in EXACT  # another one may hold, or the pair be a mere guess
    if not nobody_looked or pair.verdict is Verdict.NOT_COMPARED:
        return False
    site = pair.sites[0] if pair.sites else None
    if is_accepted(RelationKind.SCALE, site, rules) and pair.shape[0] == pair.shape[1]:
        return True
    if not is_accepted(RelationKind.LAYOUT, site, rules):
        return False
    sizes = [size for size in pair.shape[0] if size > 1]
    can_exchange_axes = len(set(sizes)) < len(sizes)
    return can_exchange_axes or pair.shape[0] != pair.shape[1]


def _is_still_first(known: FirstDivergence, before: list[Pair], now: list[Pair]) -> bool:
    """Return True if a first divergence is still the first: it still fails, and nothing before it fails anew."""
    failed_before = {pair.name for pair in before if not pair.verdict.passed}
    failing = [pair for pair in now if not pair.verdict.passed]
    at_place = [pair for pair in failing if pair.name == known.name]
    if known.verdict is not None and not at_place:
        return False
    order = at_place[0].order if at_place else -1
    return all(0 <= order <= pair.order for pair in failing if pair.name not in failed_before)


def _find_first_failing(pairs: list[Pair], rules: Rules) -> FirstDivergence | None:
    """Return the first pair out of tolerance, by kind of tensor and then by order; its inputs are not saved."""
    failing = [pair for pair in pairs if pair.sites and not pair.verdict.passed and decides_verdict(pair, rules)]
    for slot in _SLOT_ORDER:
        for pair in sorted(failing, key=lambda failed: failed.order):
            if pair.sites is None or pair.slot is not slot:
                continue
            reference, candidate = pair.sites
            return FirstDivergence(
                candidate=pair.candidate,
                name=pair.reference_name,
                candidate_name=pair.candidate_name,
                order=pair.order,
                slot=slot,
                reason=PartingReason.FIRST_OUT,
                verdict=pair.verdict,
                why="this is the first out of tolerance; a saved result does not hold its inputs",
                max_abs=pair.metrics.max_abs if pair.metrics else None,
                times_noise=pair.times_noise,
                module=reference.module,
                candidate_module=candidate.module,
                call=reference.call,
                classes=(reference.cls, candidate.cls),
            )
    return None
