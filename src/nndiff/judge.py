"""From numbers to verdicts: of one pair, and of one candidate. Four rules, no others (docs/judgement.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from nndiff.errors import UsageError
from nndiff.facts.modes import ModeFacts, Threshold
from nndiff.metrics import Metrics
from nndiff.result import (
    Judgement,
    Leftover,
    Note,
    NoteSlug,
    Pair,
    Rules,
    SettingDifference,
    Side,
    decides_alone,
    decides_verdict,
)
from nndiff.tensors import Site, Slot
from nndiff.tolerance import Tolerance
from nndiff.verdict import EXTRA_OUTPUTS, Judge, Outcome, RelationKind, Verdict

# No tolerance takes part in the proof: bit for bit, or within half a step.
EXACT = (RelationKind.TIED, RelationKind.MASK, RelationKind.QUANTISED)
PROVEN_WITHIN_ROUNDING = (RelationKind.QUANTISED, RelationKind.FOLD)
ACCEPTED_INSIDE = (RelationKind.LAYOUT, RelationKind.FOLD)  # for inner outputs, parameters and buffers of recordings

NO_FLOOR = Note(NoteSlug.NOISE_NOT_MEASURED, "it has no finite noise floor, so it is judged at the default tolerance")


def parse_accept(kinds: Iterable[str]) -> frozenset[str]:
    """Return the kinds that --accept names, given one by one or joined by commas."""
    known = [*(kind.value for kind in RelationKind), EXTRA_OUTPUTS]
    named = [kind.strip() for text in kinds for kind in text.split(",")]
    for kind in named:
        if kind not in known:
            raise UsageError(f"--accept {kind!r} is not a kind of relation: known are {', '.join(known)}")
    return frozenset(named)


def parse_judge(text: str) -> Judge:
    """Return what --judge names."""
    known = [judge.value for judge in Judge]
    if text not in known:
        raise UsageError(f"--judge {text!r} is unknown: known are {', '.join(known)}")
    return Judge(text)


def is_accepted(kind: RelationKind, site: Site | None, rules: Rules) -> bool:
    """Return True if a proven relation of this kind counts as agreement: rule 2."""
    if kind is RelationKind.TIED or kind.value in rules.accept:
        return True
    if kind is RelationKind.MASK:  # a mask is something that models are given or hold, not what they return
        return site is not None and (site.belongs_inside or site.slot is Slot.MODEL_INPUT)
    return site is not None and site.belongs_inside and kind in ACCEPTED_INSIDE


def judge_numbers(metrics: Metrics, dtypes: tuple[str, str], rules: Rules) -> Verdict:
    """Return the verdict that measured numbers give a pair."""
    same_dtype = dtypes[0] == dtypes[1]
    if rules.strict_dtype and not same_dtype:
        return Verdict.DIFFERENT
    return metrics.judge(same_dtype)


def require_noise(tolerance: Tolerance, floors: Iterable[float | None]) -> None:
    """Raise UsageError if noise floors are to judge and there are none."""
    if tolerance.origin == "noise" and all(floor is None for floor in floors):
        raise UsageError(
            "--tolerance noise judges by the noise floor of the reference, and none was measured: record the reference "
            "with nndiff record --noise (nndiff.record(..., noise=2))"
        )


def note_missing_floor(pair: Pair, tolerance: Tolerance) -> Pair:
    """Return a pair with a note if it is to be judged by its noise floor and has none that says anything."""
    notes = tuple(note for note in pair.notes if note.slug is not NoteSlug.NOISE_NOT_MEASURED)
    has_floor = pair.noise is not None and math.isfinite(pair.noise)
    if tolerance.origin == "noise" and not has_floor and not pair.is_exact:
        notes = (*notes, NO_FLOOR)
    return replace(pair, notes=notes) if notes != pair.notes else pair


def judge_related(kind: RelationKind, metrics: Metrics, dtypes: tuple[str, str], rules: Rules) -> Verdict:
    """Return the verdict that the numbers after an accepted relation give a pair.

    Quantised weights agree if every element is within half a step, folded ones if they are within the rounding of their
    type: that is what the relation proves.
    """
    verdict = judge_numbers(metrics, dtypes, rules)
    is_proof_enough = kind in PROVEN_WITHIN_ROUNDING and not rules.strict_dtype
    return Verdict.CLOSE if is_proof_enough and verdict is Verdict.DIFFERENT else verdict


def judge_candidate(
    pairs: Sequence[Pair],
    leftovers: Sequence[Leftover],
    rules: Rules,
    reference: Side,
    candidate: Side,
    settings: Sequence[SettingDifference] = (),
) -> Judgement:
    """Return the verdict on one candidate: rules 1, 3 and 4."""
    deciding = [pair for pair in pairs if decides_verdict(pair, rules)]
    alone = sum(decides_alone(leftover, rules) for leftover in leftovers)
    outcome = _weigh(deciding, alone)
    if outcome.exit_code == 0 and (reference.unread_outputs or candidate.unread_outputs):
        # an output that nobody could read may differ
        compared_output = any(pair.is_final_output for pair in pairs)
        outcome = Outcome.DIFFERENT if compared_output else Outcome.NOTHING
    if outcome.exit_code == 0 and (reference.was_cut_off or candidate.was_cut_off):
        outcome = Outcome.DIFFERENT  # nobody knows what would have come
    if outcome.exit_code == 0 and any(setting.changes_network for setting in settings):
        outcome = Outcome.DIFFERENT  # the same weights, in another network
    if not any(pair.sites for pair in pairs):
        return Judgement(outcome)
    everything = Rules(rules.accept, Judge.ALL, rules.strict_dtype)
    outside = [pair for pair in pairs if pair.is_outside and pair.decides]
    alone_outside = sum(decides_alone(leftover, everything) and not leftover.is_inside for leftover in leftovers)
    inside = [pair for pair in pairs if pair.is_inside and pair.decides and pair.slot is Slot.OUTPUT]
    return Judgement(
        outcome,
        outside=_weigh(outside, alone_outside),
        inside_compared=len(inside),
        inside_different=sum(not pair.verdict.passed for pair in inside),
    )


def apply_thresholds(judgement: Judgement, mode: ModeFacts, thresholds: Sequence[Threshold]) -> Judgement:
    """Return the verdict on a mode: where there are requirements they decide, and a mode that failed meets none."""
    if judgement.outcome is Outcome.NOTHING:
        return judgement
    if mode.failed is not None or mode.unmet:
        return replace(judgement, outcome=Outcome.DIFFERENT)
    if thresholds and judgement.outcome is Outcome.DIFFERENT:
        return replace(judgement, outcome=Outcome.CLOSE)
    return judgement


def _weigh(pairs: Sequence[Pair], alone: int) -> Outcome:
    """Judge pairs and the number of tensors without a partner together.

    A tensor without a partner is a difference. No element compared is never a pass, unless something is already known
    to differ; what both models were fed is equal by construction and says nothing of them.
    """
    verdicts = {pair.verdict for pair in pairs}
    compared = 0
    for pair in pairs:
        if pair.metrics is not None and not pair.is_input:
            compared += pair.metrics.count
    if compared == 0 and not verdicts & {Verdict.SHAPE, Verdict.DIFFERENT, Verdict.NOT_FINITE}:
        return Outcome.NOTHING
    if alone or not all(verdict.passed for verdict in verdicts):
        return Outcome.DIFFERENT
    return Outcome.CLOSE if Verdict.CLOSE in verdicts else Outcome.IDENTICAL
