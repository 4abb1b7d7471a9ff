"""The sentences every report prints about training runs: where they part, how the distance grows, who leads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nndiff.facts.run_summary import CurveKind, choose_loss, largest_error, split_evenly
from nndiff.facts.runs import (
    Growth,
    GrowthKind,
    Jump,
    Quantity,
    RunDivergence,
    RunFacts,
    SignTest,
    StepComparison,
    StepMark,
)
from nndiff.reports.figures import NOTHING, format_name, format_number, format_percent, format_size
from nndiff.result import Comparison, Side
from nndiff.text import counted, first_few, plural, printable
from nndiff.verdict import Outcome, Verdict

QUANTITY_LABELS = {
    Quantity.INITIAL_WEIGHTS: "initial weights",
    Quantity.DATA: "data",
    Quantity.LOSS: "loss",
    Quantity.GRADIENTS: "gradients",
    Quantity.WEIGHTS: "weights",
    Quantity.OPTIMIZER: "optimizer state",
}
_PARTED = {
    Quantity.INITIAL_WEIGHTS: "the weights differ before the first step",
    Quantity.DATA: "the batches differ first",
    Quantity.LOSS: "the loss differs first",
    Quantity.GRADIENTS: "gradients differ first",
    Quantity.WEIGHTS: "weights differ first",
    Quantity.OPTIMIZER: "the optimizer state differs first",
}
_ADVICE = {
    Quantity.INITIAL_WEIGHTS: "start both from the same checkpoint, or with the same seed",
    Quantity.DATA: "look at the data: order, sampling, augmentation",
    Quantity.LOSS: "look at the forward pass and the loss function",
    Quantity.GRADIENTS: "look at the backward pass",
    Quantity.WEIGHTS: "look at the update: optimizer, its settings, clipping, frozen parameters",
    Quantity.OPTIMIZER: "look at the optimizer's state: its settings, and whether it was restored",
}
NEVER, NOT_RECORDED = "never", "not recorded"
_UNLIKELY = 0.01  # one pair of equally good trainings in a hundred looks so one-sided
_MOST_LEADERS = 5
_MOST_JUMPS = 5


# -- names ------------------------------------------------------------------------------------------------------------


def name_step(mark: StepMark) -> str:
    """Return what a step is called: by epoch and batch where they are known."""
    if mark.epoch is not None and mark.batch is not None:
        return f"epoch {mark.epoch}, batch {mark.batch}"
    if mark.number < 0:
        return "the initial state"
    return f"step {mark.number}" if mark.epoch is None else f"epoch {mark.epoch}, step {mark.number}"


def describe_run(side: Side) -> list[str]:
    """Return what a run is and how much it holds, one fact per column; some may be empty."""
    facts = []
    for name in ("steps", "keep", "model", "optimizer"):
        value = side.meta.get(name)
        if name == "steps" and isinstance(value, int):
            facts.append(plural(value, "step"))
        else:
            facts.append(printable(value, 40) if isinstance(value, str) else "")
    parameters = plural(side.elements, "parameter") if side.elements else ""
    return [*facts, parameters, format_size(side.nbytes) if side.nbytes else ""]


# -- the headline -----------------------------------------------------------------------------------------------------


def describe_runs(comparison: Comparison) -> str:
    """Return the headline of a comparison of runs."""
    outcome, totals = comparison.outcome, comparison.totals
    if outcome is Outcome.NOTHING:
        return f"{comparison.verdict}: {explain_nothing(comparison)}"
    several = len(comparison.candidates) > 1
    if outcome is Outcome.DIFFERENT:
        causes = list_harmless_causes(comparison)
        verdict = f"{comparison.verdict} by {' and '.join(causes)} only (harmless)" if causes else comparison.verdict
        return f"{verdict}: {_describe_parting(comparison)}"
    steps = f"{plural(totals.pairs, 'step')}"
    where = f"all {len(comparison.candidates)} candidates agree at {steps}" if several else f"all {steps} agree"
    if totals.pairs == 1:
        where = "the only step agrees"
    if outcome is Outcome.IDENTICAL:
        return f"{comparison.verdict}: {_swap_verb(where, 'bit-identical')}"
    same = f", {totals.identical:,} of them bit-identical" if totals.identical else ""
    return f"{comparison.verdict}: {where} within tolerance{same}"


def _swap_verb(sentence: str, state: str) -> str:
    if sentence.endswith("agrees"):
        return f"{sentence.removesuffix('agrees')}is {state}"
    return sentence.replace(" agree", f" are {state}", 1)


def _describe_parting(comparison: Comparison) -> str:
    """Say where the trainings part; of several candidates, how many do and where the first does."""
    facts = next((facts for facts in comparison.run if facts.first_divergence), None)
    failed = sum(judgement.outcome.exit_code != 0 for judgement in comparison.judgements.values())
    start = ""
    if len(comparison.candidates) > 1:
        start = f"{failed} of {len(comparison.candidates)} candidates part from the reference; "
    if facts is None or facts.first_divergence is None:
        return start + _describe_rest(comparison)
    first = facts.first_divergence
    who = printable(facts.candidate, 60) + " parts" if start else "the trainings part"
    where = f" in {format_name(first.tensor)}" if first.tensor is not None else ""
    if first.quantity is Quantity.INITIAL_WEIGHTS:
        return f"{start}{who} from the start: {_PARTED[first.quantity]}{', farthest' + where if where else ''}"
    return f"{start}{who} at {name_step(first.mark)}: {_PARTED[first.quantity]}{where}"


def _describe_rest(comparison: Comparison) -> str:
    """Say what differs where no step is out of tolerance: tensors of one side alone, or such as were not kept."""
    totals = comparison.totals
    differing = totals.pairs - totals.matched
    parts = []
    if differing or not comparison.leftovers:
        parts.append(f"{differing:,} of {plural(totals.pairs, 'step')} {'differs' if differing == 1 else 'differ'}")
    elif totals.pairs:
        parts.append(
            f"what both have agrees at {'the only step' if totals.pairs == 1 else f'all {totals.pairs:,} steps'}"
        )
    if comparison.leftovers:
        names = [format_name(leftover.name) for leftover in comparison.leftovers]
        parts.append(f"{counted(names, 'tensor')} {'has' if len(names) == 1 else 'have'} no partner")
    return ", ".join(parts)


def list_harmless_causes(comparison: Comparison) -> list[str]:
    """Return the causes by which alone all candidates that differ do so, if they are harmless; else nothing."""
    causes: dict[str, None] = {}
    for label, judgement in comparison.judgements.items():
        if judgement.outcome.exit_code == 0:
            continue
        findings = [finding for finding in comparison.findings if finding.candidate in ("", label)]
        if not findings or not all(finding.harmless for finding in findings):
            return []
        causes.update(dict.fromkeys(printable(finding.cause) for finding in findings))
    return list(causes)


def explain_nothing(comparison: Comparison) -> str:
    """Return why nothing was compared."""
    totals = comparison.totals
    if totals.pairs:
        return f"no value of {plural(totals.pairs, 'common step')} could be compared"
    counts = ((totals.only_reference, "reference"), (totals.only_candidate, "candidate"))
    parts = [f"{number:,} only in the {side}" for number, side in counts if number]
    return "the runs have no step in common" + (f" ({', '.join(parts)})" if parts else "")


# -- where they part --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parting:
    """Hold what is said about the first divergence of two runs, ready to print."""

    name: str
    what: str
    why: str


def describe_partings(comparison: Comparison) -> list[Parting]:
    """Return where each candidate parts from the reference, in their order."""
    several = len(comparison.candidates) > 1
    partings = []
    for facts in comparison.run:
        is_explained = any(finding.candidate in ("", facts.candidate) for finding in comparison.findings)
        if facts.first_divergence:
            partings.append(_describe_divergence(facts, facts.first_divergence, several, is_explained))
    return partings


def _describe_divergence(facts: RunFacts, first: RunDivergence, several: bool, is_explained: bool) -> Parting:
    """Return where one candidate parts, what is still equal there, and, where no finding says it, where to look."""
    name = name_step(first.mark)
    if first.mark.number >= 0 and first.mark.epoch is not None and first.mark.batch is not None:
        name += f" (step {first.mark.number})"
    what = [QUANTITY_LABELS[first.quantity]]
    if first.tensor is not None:
        what.append(f"farthest out: {format_name(first.tensor)}")
    if several:
        what.append(f"against {printable(facts.candidate, 60)}")
    earlier: list[str] = []
    unknown: list[str] = []
    for quantity in Quantity:
        if quantity is first.quantity:
            break
        (unknown if quantity in facts.unknown else earlier).append(QUANTITY_LABELS[quantity])
    why = []
    if earlier:
        verb = "agrees" if earlier in (["loss"], ["data"]) else "agree"
        why.append(f"{_join_words(earlier)} {verb} up to here")
    if unknown:
        verb = "was" if unknown in (["loss"], ["data"]) else "were"
        why.append(f"{_join_words(unknown)} {verb} not recorded")
    why.append("see the finding" if is_explained else _ADVICE[first.quantity])
    return Parting(name, ", ".join(what), "; ".join(why))


def _join_words(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def list_quantities(facts: RunFacts) -> list[tuple[str, str, str, str]]:
    """Return, in causal order: quantity, first step not bit-equal, first step out of tolerance, why it is unknown."""
    rows = []
    for quantity in Quantity:
        unequal, out = facts.first_unequal.get(quantity), facts.parting.get(quantity)
        reason = facts.unknown.get(quantity)
        if reason is None and quantity not in facts.first_unequal and quantity not in facts.parting:
            reason = ""
        if reason is not None and unequal is None and out is None:
            rows.append((QUANTITY_LABELS[quantity], NOT_RECORDED, NOTHING, printable(reason)))
            continue
        first = name_step(unequal) if unequal else NOTHING if out else NEVER
        rows.append((QUANTITY_LABELS[quantity], first, name_step(out) if out else NEVER, printable(reason or "")))
    return rows


# -- how far, how fast, who -------------------------------------------------------------------------------------------


def format_value(value: float, kind: CurveKind) -> str:
    """Return a number of a curve."""
    if math.isnan(value):
        return "NaN"
    if kind is CurveKind.DISTANCE or math.isinf(value):
        return format_number(value)
    if kind is CurveKind.COSINE:
        return format_cosine(value)
    return f"{value:.6g}"


def format_cosine(value: float) -> str:
    """Return a cosine; one too near to 1 for six digits as its distance from 1."""
    if 0 < 1 - value < 1e-6:
        return f"1-{1 - value:.1e}"
    return "1" if value == 1 else f"{value:.6f}"


def list_sentences(facts: RunFacts) -> Iterator[tuple[str, str]]:
    """Yield what the curves show, each with a label: growth, jumps, leading parameters, the better side, errors."""
    if facts.growth is not None:
        yield "growth", describe_growth(facts.growth)
    for jump in facts.jumps[:_MOST_JUMPS]:
        yield "jump", describe_jump(jump)
    if len(facts.jumps) > _MOST_JUMPS:
        yield "jump", f"and {len(facts.jumps) - _MOST_JUMPS:,} more; the JSON report has all of them"
    if facts.leaders:
        shares = [f"{format_name(name)} {_format_share(share)}" for name, share in facts.leaders[:_MOST_LEADERS]]
        yield "led by", f"{', '.join(shares)} of the squared distance at the last step"
    if facts.sign_test is not None and facts.sign_test.lower_in_reference + facts.sign_test.lower_in_candidate:
        yield "better", describe_sign_test(facts.sign_test, choose_loss(facts.steps) or "loss")
    error = largest_error(facts)
    if error > 0:
        yield "sketches", f"L2 is estimated from sketches, with a standard error of {100 * error:.2g}% at most"
    alone = describe_unmatched(facts)
    if alone:
        yield "unmatched", alone


def _format_share(share: float) -> str:
    return f"{100 * share:.1f}%" if math.isfinite(share) else NOTHING


def describe_growth(growth: Growth) -> str:
    """Say how the distance of the weights grows."""
    span = f"from {format_number(growth.first)} to {format_number(growth.last)} (relative L2)"
    if growth.kind is GrowthKind.NONE:
        return "the weights stay the same"
    if growth.kind is GrowthKind.CONSTANT:
        return f"the distance of the weights stays about constant, {span}"
    if growth.kind is GrowthKind.LINEAR:
        return f"the distance of the weights grows linearly, {span}"
    if growth.kind is GrowthKind.IRREGULAR:
        return f"the distance of the weights follows no simple law, {span}"
    doubling = f", doubling every {growth.doubling_steps:.3g} steps" if growth.doubling_steps is not None else ""
    return f"the distance of the weights grows exponentially, {span}{doubling}"


def describe_jump(jump: Jump) -> str:
    """Say where the distance suddenly grows."""
    factor = f"{jump.factor:.3g} times the usual increase"
    return f"{name_step(jump.mark)}: {factor}, led by {format_name(jump.tensor)}"


def describe_sign_test(test: SignTest, loss: str) -> str:
    """Say whether one side is consistently better, with the test."""
    name = printable(loss, 40)
    counts = f"{name} is lower in the reference at {test.lower_in_reference:,}, in the candidate at "
    counts += f"{test.lower_in_candidate:,}, equal at {plural(test.equal, 'step')}"
    chance = f"sign test, p = {test.p_value:.2g}"
    if test.p_value >= _UNLIKELY:
        return f"{counts}; neither side is consistently better ({chance})"
    side = "reference" if test.lower_in_reference > test.lower_in_candidate else "candidate"
    return f"{counts}; the {side} is consistently better ({chance})"


def describe_unmatched(facts: RunFacts) -> str:
    """Say which steps only one side has."""
    parts = []
    for side, marks in (("reference", facts.only_reference_steps), ("candidate", facts.only_candidate_steps)):
        if marks:
            names = [name_step(mark) for mark in marks]
            parts.append(f"{plural(len(marks), 'step')} only in the {side} ({first_few(names, 2, '; ')})")
    return ", ".join(parts) + ("; not counted as a difference" if parts else "")


def tally_steps(comparison: Comparison) -> str:
    """Return the counts of the steps by verdict."""
    totals = comparison.totals
    counts = [
        (totals.identical, Verdict.IDENTICAL),
        (totals.close, Verdict.CLOSE),
        (totals.different + totals.shape, Verdict.DIFFERENT),
        (totals.not_finite, Verdict.NOT_FINITE),
        (totals.not_compared, Verdict.NOT_COMPARED),
    ]
    parts = [f"{number:,} {verdict.value}" for number, verdict in counts if number]
    rate = f"match rate {format_percent(totals.matched, totals.pairs)}" if totals.pairs else "none in common"
    return ", ".join([*parts, rate])


# -- steps ------------------------------------------------------------------------------------------------------------


def choose_steps(facts: RunFacts, most: int) -> list[StepComparison]:
    """Return the steps worth a row, in order: where something happens first, jumps, both ends, and some between."""
    steps = facts.steps
    if len(steps) <= most:
        return list(steps)
    places = {step.mark.number: place for place, step in enumerate(steps)}
    marks = [facts.first_divergence.mark] if facts.first_divergence else []
    marks += [mark for parting in (facts.parting, facts.first_unequal) for mark in parting.values() if mark]
    marks += [jump.mark for jump in facts.jumps]
    wanted = [places[mark.number] for mark in marks if mark.number in places]
    wanted += [0, len(steps) - 1]
    chosen = set(list(dict.fromkeys(wanted))[:most])
    spare = most - len(chosen)
    for share in split_evenly(range(len(steps)), spare) if spare else ():
        chosen.add(share[0])
    return [steps[place] for place in sorted(chosen)]
