"""A saved result at another tolerance: judged from the numbers it holds, or "compare again"."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from nndiff.judge import is_accepted, judge_candidate
from nndiff.metrics import Metrics
from nndiff.result import (
    Comparison,
    Finding,
    FirstDivergence,
    Note,
    NoteSlug,
    Pair,
    PartingReason,
    Rules,
    decides_verdict,
)
from nndiff.tensors import Slot
from nndiff.tolerance import Tolerance
from nndiff.verdict import RelationKind, Verdict

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
    (`lasting_causes`).
    """
    pairs = tuple(_judge_pair_at(pair, tolerance, comparison.rules) for pair in comparison.pairs)
    judgements, firsts = {}, {}
    findings: list[Finding] = []
    for side in comparison.candidates:
        mine = [pair for pair in pairs if pair.candidate == side.label]
        leftovers = comparison.leftovers_of(side.label)
        judgement = judge_candidate(mine, leftovers, comparison.rules, comparison.reference, side)
        judgements[side.label] = judgement
        known = comparison.first_divergences.get(side.label)
        first = None
        if judgement.outcome.exit_code:
            still_first = known is not None and _is_still_first(known, comparison.pairs_of(side.label), mine)
            first = known if still_first else _find_first_failing(mine, comparison.rules)
            if first is not None:
                firsts[side.label] = first
        for finding in comparison.findings:
            if finding.candidate in (side.label, "") and (
                finding.harmless or finding.cause in lasting_causes or (first is not None and first is known)
            ):
                findings.append(finding)
    notes = [note for note in comparison.notes if note.slug is not NoteSlug.COMPARE_AGAIN]
    undecided = any(pair.has_note(NoteSlug.COMPARE_AGAIN) and decides_verdict(pair, comparison.rules) for pair in pairs)
    # parameters without a partner may be the same in another form at a larger tolerance: nobody looked
    unproven = any(leftover.counts and leftover.is_inside for leftover in comparison.leftovers)
    if undecided or (unproven and tolerance != comparison.tolerance):
        notes.append(Note(NoteSlug.COMPARE_AGAIN, COMPARE_AGAIN))
    return replace(
        comparison,
        tolerance=tolerance,
        pairs=pairs,
        judgements=judgements,
        first_divergences=firsts,
        findings=tuple(dict.fromkeys(findings)),
        notes=tuple(notes),
    )


def _judge_pair_at(pair: Pair, tolerance: Tolerance, rules: Rules) -> Pair:
    """Return a pair judged at another tolerance; a note says where its numbers do not decide."""
    names = [*pair.reference_name.split(" + "), *pair.candidate_name.split(" + ")]
    atol, rtol = tolerance.for_pair(names, *pair.dtypes)
    # a scale above 1 is what rounding comes to: that does not grow with the tolerance
    atol = max(atol * min(pair.scale, 1.0), min(atol * pair.scale, pair.atol))
    if (atol, rtol) == (pair.atol, pair.rtol):
        return pair
    looser = atol > pair.atol or rtol > pair.rtol
    tighter = atol < pair.atol or rtol < pair.rtol
    notes = tuple(note for note in pair.notes if note.slug is not NoteSlug.COMPARE_AGAIN)
    if pair.metrics is None:
        # shapes stay what they are; what statistics tell apart they may not at a larger tolerance
        verdict, decided = pair.verdict, not (looser and pair.verdict is Verdict.DIFFERENT)
    elif rules.strict_dtype and pair.dtype[0] != pair.dtype[1]:
        verdict, decided = Verdict.DIFFERENT, True
    else:
        verdict, decided = pair.metrics.judge_at(pair.dtype[0] == pair.dtype[1], atol, rtol)
        if not decided and not tighter and pair.verdict.passed:
            verdict, decided = Verdict.CLOSE, True
        if not decided and not looser and not pair.verdict.passed and pair.metrics.mismatched is not None:
            decided = True
    if pair.has_note(NoteSlug.SUM_OF_GRADIENTS) and verdict is Verdict.CLOSE and tighter:
        verdict, decided = Verdict.DIFFERENT, False  # the gradients it is the sum of may be out now
    if looser and not verdict.passed and _may_be_related(pair, rules):
        decided = False  # at a larger tolerance another layout may be proven: nobody looked
    if not decided:
        notes = (*notes, Note(NoteSlug.COMPARE_AGAIN, COMPARE_AGAIN))
    judged = replace(pair, verdict=verdict, atol=atol, rtol=rtol, notes=notes)
    if pair.related and pair.related.accepted:
        return replace(judged, related=replace(pair.related, metrics=_forget_count(pair.related.metrics, verdict)))
    return replace(judged, stored=_forget_count(pair.stored, verdict) if pair.stored else None)


def _forget_count(metrics: Metrics, verdict: Verdict) -> Metrics:
    """Return numbers without the count of mismatches, which was taken at another tolerance."""
    return replace(metrics, mismatched=0 if verdict.passed else None)


def _may_be_related(pair: Pair, rules: Rules) -> bool:
    """Return True if a relation that would be accepted may hold: axes can be exchanged, or the shape is another."""
    site = pair.sites[0] if pair.sites else None
    if pair.related is not None or not is_accepted(RelationKind.LAYOUT, site, rules):
        return False
    if pair.shape[0] != pair.shape[1]:
        return True
    sizes = [size for size in pair.shape[0] if size > 1]
    return len(set(sizes)) < len(sizes)


def _is_still_first(known: FirstDivergence, before: list[Pair], now: list[Pair]) -> bool:
    """Return True if a place found at one tolerance is the first at another: still out, and none newly before it."""
    failed_before = {pair.name for pair in before if not pair.verdict.passed}
    failing = [pair for pair in now if not pair.verdict.passed]
    at_place = [pair for pair in failing if pair.name == known.name]
    if known.verdict is not None and not at_place:
        return False
    order = at_place[0].order if at_place else -1
    return all(0 <= order <= pair.order for pair in failing if pair.name not in failed_before)


def _find_first_failing(pairs: list[Pair], rules: Rules) -> FirstDivergence | None:
    """Return the first pair that is out, one kind of tensor after the other; what went into it is not saved."""
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
                why="the first that is out of tolerance; a saved result does not tell what went into it",
                max_abs=pair.metrics.max_abs if pair.metrics else None,
                module=reference.module,
                candidate_module=candidate.module,
                call=reference.call,
                classes=(reference.cls, candidate.cls),
            )
    return None
