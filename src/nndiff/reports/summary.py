"""The sentences every report prints about a whole result: headline, why nothing was compared, rates, notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from nndiff.reports.figures import format_name, format_number, format_percent
from nndiff.reports.layers import RecordingView, view_recordings
from nndiff.reports.modes_text import describe_modes
from nndiff.reports.run_wording import describe_runs
from nndiff.reports.wording import OUTCOME_SIGNS, name_extra_outputs, shows_layers
from nndiff.result import (
    CANDIDATE,
    SIDES,
    Comparison,
    LeftoverReason,
    NoteSlug,
    Pair,
    PartingReason,
    Totals,
    count_verdicts,
    decides_alone,
    decides_verdict,
)
from nndiff.result_json import Rate
from nndiff.tensors import Slot
from nndiff.text import counted, plural, printable
from nndiff.tolerance import format_options
from nndiff.verdict import Judge, Outcome, RelationKind, Verdict

_UNITS = {
    "forward": "layer",
    "backward": "layer",
    Slot.PARAM_GRAD.value: "parameter gradient",
    Slot.INPUT.value: "module input",
    Slot.GRAD_INPUT.value: "gradient",
    Slot.PARAM.value: "parameter",
    Slot.MODEL_INPUT_GRAD.value: "input gradient",
    Slot.BUFFER.value: "buffer",
    Slot.BUFFER_BEFORE.value: "initial buffer",
    Slot.RECOMPUTE.value: "recomputed output",
}
_RATE_LABELS = {
    Slot.PARAM_GRAD.value: "parameters",
    Slot.MODEL_INPUT_GRAD.value: "input grad",
    Slot.BUFFER_BEFORE.value: "initial",
    Slot.GRAD_INPUT.value: "grad input",
}
_LONGEST_LIST = 5  # notes of one kind before "and N more"
_FAR = 0.01  # relatively: what rounding does not explain


# -- the headline -----------------------------------------------------------------------------------------------------


def verdict_line(comparison: Comparison) -> tuple[str, str]:
    """Return the first line of a report at a terminal, and the exit status that ends it."""
    return f"{OUTCOME_SIGNS[comparison.outcome]} {headline(comparison)}", f" (exit {comparison.exit_code})"


def headline(comparison: Comparison) -> str:
    """Return the one line that a person reads first."""
    if comparison.kind == "run":
        return describe_runs(comparison)
    if comparison.modes is not None:
        story = describe_modes(comparison)
    elif comparison.outcome is Outcome.NOTHING:
        story = explain_nothing_compared(comparison)
    elif shows_layers(comparison):
        story = _describe_recordings(comparison)
    else:
        story = _describe_tensors(comparison)
    if any(note.slug is NoteSlug.COMPARE_AGAIN for note in comparison.notes):
        story += "; not decided by the saved numbers, so compare again"
    return f"{comparison.verdict}: {story}"


def _describe_tensors(comparison: Comparison) -> str:
    """Say how many tensors agree."""
    explained = _describe_relations(comparison)
    if explained:
        return explained
    several = len(comparison.candidates) > 1
    unit = "pair" if several else "tensor"
    alone = [item for item in comparison.leftovers if item.counts and item.reason is not LeftoverReason.UNREACHED]
    totals = count_verdicts(comparison.pairs, alone)
    related = sum(pair.related is not None and pair.related.accepted for pair in comparison.pairs)
    aside = f", {related:,} after an accepted relation" if related else ""
    if comparison.outcome is Outcome.IDENTICAL:
        return f"{_say_all(totals.pairs, unit, 'has', 'have')} the same values{aside}"
    if comparison.outcome is Outcome.CLOSE:
        same = f", {totals.identical:,} of them identical" if totals.identical else ""
        return f"{_say_all(totals.pairs, unit, 'agrees', 'agree')} within tolerance{same}{aside}"
    story = ", ".join([*_list_differences(totals, unit), *_say_settings(comparison), *_say_incomplete(comparison)])
    if not several:
        return story
    failed = sum(judgement.outcome.exit_code != 0 for judgement in comparison.judgements.values())
    return f"{failed} of {len(comparison.candidates)} candidates differ; {story}"


_KIND_WORDS = {
    RelationKind.LAYOUT: "other layout",
    RelationKind.CAST: "rounded",
    RelationKind.FOLD: "folded",
    RelationKind.VOCAB: "other vocabulary",
    RelationKind.SCALE: "scaled",
    RelationKind.SHIFT: "shifted",
    RelationKind.QUANTISED: "quantised",
}
_CAUSE_WORDS = {
    "rope-layout": "permuted for RoPE",
    "axes-permuted": "with axes permuted",
    "head-order": "with blocks in another order",
    "channel-order": "with channels reversed",
    "flatten-order": "flattened in another order",
    "gate-order": "with gates in another order",
    "halves-swapped": "with halves swapped",
    "rows-permuted": "with rows permuted",
    "batch-norm-folded": "with batch norm folded",
    "weight-norm": "with weight norm",
    "lora": "with LoRA merged",
    "vocab": "with rows added",
    "cast": "rounded",
}


def _describe_relations(comparison: Comparison) -> str:
    """Say that all tensors are the same once proven relations are applied; nothing where one is unexplained.

    `same weights, other layout: 290 of 290 explained (48 permuted for RoPE, 24 fused)`
    """
    kinds: dict[str, None] = {}
    for pair in comparison.pairs:
        if pair.related is not None and pair.related.relation.kind in _KIND_WORDS:
            for kind in pair.related.relation.kinds:
                kinds[_KIND_WORDS[kind]] = None
        elif not pair.verdict.passed:
            return ""
    settings = any(setting.changes_network for setting in comparison.settings)
    alone = any(leftover.counts for leftover in comparison.leftovers)
    if not kinds or comparison.kind != "checkpoint" or len(comparison.candidates) > 1 or settings or alone:
        return ""
    counts = Counter[str]()
    exceptions = 0
    for finding in comparison.findings:
        if finding.cause == "exception":
            exceptions += len(finding.where)
        elif finding.cause not in ("renamed", "tied"):
            counts[_CAUSE_WORDS.get(finding.cause, finding.cause)] += len(finding.where)
    detail = ", ".join(f"{number:,} {words}" for words, number in counts.most_common())
    total = len(comparison.pairs)
    aside = f"; {plural(exceptions, 'exception')}" if exceptions else ""
    return f"same weights, {', '.join(kinds)}: {total:,} of {total:,} explained ({detail}){aside}"


def _list_differences(totals: Totals, unit: str) -> list[str]:
    differing = totals.different + totals.shape + totals.not_finite
    parts = []
    if differing:
        kinds = [(totals.shape, "in shape"), (totals.not_finite, "not finite")]
        detail = ", ".join(f"{number:,} {what}" for number, what in kinds if number)
        verb = "differs" if differing == 1 else "differ"
        parts.append(f"{differing:,} of {plural(totals.pairs, unit)} {verb}" + (f" ({detail})" if detail else ""))
        if totals.close:
            parts.append(f"{totals.close:,} close")
        if totals.identical:
            parts.append(f"{totals.identical:,} identical")
    elif totals.pairs and totals.matched == totals.pairs:
        parts.append(_say_all(totals.pairs, f"paired {unit}", "agrees", "agree"))
    if totals.not_compared:
        parts.append(f"{totals.not_compared:,} not compared")
    if totals.only_reference:
        parts.append(f"{totals.only_reference:,} only in the reference")
    if totals.only_candidate:
        parts.append(f"{totals.only_candidate:,} only in the candidate")
    return parts


def _say_settings(comparison: Comparison) -> Iterator[str]:
    """Say how many settings beside the weights change the network."""
    changing = sum(setting.changes_network for setting in comparison.settings)
    if changing:
        yield f"{plural(changing, 'setting')} {'differs' if changing == 1 else 'differ'}"


def _describe_recordings(comparison: Comparison) -> str:
    """Describe outputs and layers separately: `outputs agree; 4 of 96 layers differ inside`."""
    views = view_recordings(comparison)
    if len(views) == 1:
        return _describe_recording(comparison, views[0])
    failed = sum(judgement.outcome.exit_code != 0 for judgement in comparison.judgements.values())
    if failed:
        return f"{failed} of {len(views)} candidates differ"
    how = "are identical to" if comparison.outcome is Outcome.IDENTICAL else "agree with"
    return f"{_say_all(len(views), 'candidate', how, how)} the reference"


def _describe_recording(comparison: Comparison, view: RecordingView) -> str:
    parts = []
    inputs = [pair for pair in view.model if pair.is_input]
    failing_inputs = sum(not pair.verdict.passed for pair in inputs)
    if failing_inputs:
        parts.append(_say_share_differs(failing_inputs, len(inputs), "model input"))
    if not all(pair.verdict.passed for pair in view.outputs):
        parts.append(_say_outputs_differ(view.outputs, "output"))
    elif view.outputs:
        exact = all(pair.verdict is Verdict.IDENTICAL for pair in view.outputs)
        parts.append("outputs are identical" if exact else "outputs agree")
    if any(pair.slot is Slot.LOSS and not pair.verdict.passed for pair in view.pairs):
        parts.append("the loss differs")
    layers = view.counts.rate("forward")
    differing = layers.total - layers.matched - layers.unreached if layers else 0
    if layers and differing:
        inside = [pair for pair in view.pairs if pair.is_inside and pair.slot is Slot.OUTPUT and pair.decides]
        uncompared = sum(pair.verdict is Verdict.NOT_COMPARED for pair in inside)
        verb = "differs" if differing - uncompared == 1 else "differ"
        if uncompared >= differing:
            parts.append(f"{differing:,} of {plural(layers.total, 'layer')} not compared inside")
        else:
            also = f", {uncompared:,} not compared" if uncompared else ""
            parts.append(f"{differing - uncompared:,} of {plural(layers.total, 'layer')} {verb} inside{also}")
    elif layers and layers.total > layers.unreached:
        reached = layers.total - layers.unreached
        parts.append(f"{_say_all(reached, 'layer', 'agrees', 'agree')} inside")
    if not differing:
        parts += _say_other_slots(view)
    parts += _say_without_partner(comparison, view)
    parts += _say_incomplete(comparison)
    if view.first is not None and view.first.reason is not PartingReason.EXTRA_OUTPUT:
        parts.append(f"first divergence at {format_name(view.first.name)}")
    if comparison.rules.judge is Judge.OUTPUTS and differing and comparison.exit_code == 0:
        parts.append("only outputs are judged")
    return "; ".join(parts)


def _say_other_slots(view: RecordingView) -> Iterator[str]:
    """Say what else inside differs, where all layers agree."""
    for rate in view.counts.rates:
        differing = rate.total - rate.matched - rate.unreached
        if differing and rate.name not in ("forward", "backward"):
            yield _say_share_differs(differing, rate.total, _UNITS.get(rate.name, "tensor"))


def _say_without_partner(comparison: Comparison, view: RecordingView) -> Iterator[str]:
    if view.counts.extra_outputs:
        yield name_extra_outputs(view.counts.extra_outputs)
    alone = 0
    for leftover in view.leftovers:
        alone += leftover.reason is LeftoverReason.NO_PARTNER and decides_alone(leftover, comparison.rules)
    if alone:
        yield f"{plural(alone, 'tensor')} {'has' if alone == 1 else 'have'} no partner"


def _say_incomplete(comparison: Comparison) -> Iterator[str]:
    """Say what could not be compared: recordings that were cut off, outputs that could not be recorded."""
    unreached = comparison.totals.unreached
    sides = {role for side in comparison.candidates for role in comparison.cut_off_sides(side.label)}
    if sides:
        cut = "both recordings were cut off" if len(sides) == 2 else f"the {min(sides)}'s recording was cut off"
        yield f"{unreached:,} never reached: {cut}" if unreached else cut
    elif unreached:
        yield f"{unreached:,} never reached: a recording was cut off"
    names = {name for side in comparison.candidates for _, name, _ in comparison.unread_outputs(side.label)}
    if names:
        yield f"{plural(len(names), 'final output')} not compared"


def _say_all(number: int, unit: str, verb: str, verbs: str) -> str:
    if number == 1:
        return f"the only {unit} {verb}"
    return f"both {unit}s {verbs}" if number == 2 else f"all {number:,} {unit}s {verbs}"


def _say_outputs_differ(outputs: Sequence[Pair], unit: str) -> str:
    """Say how many outputs differ; those of which too little was recorded were not compared."""
    failing = [pair for pair in outputs if not pair.verdict.passed]
    compared = [pair for pair in failing if pair.verdict is not Verdict.NOT_COMPARED]
    if compared:
        also = f", {len(failing) - len(compared):,} not compared" if len(compared) < len(failing) else ""
        return _say_share_differs(len(compared), len(outputs), unit) + also
    if len(outputs) == 1:
        return f"the {unit} was not compared"
    return f"{len(failing):,} of {len(outputs):,} {unit}s {'was' if len(failing) == 1 else 'were'} not compared"


def _say_share_differs(differing: int, total: int, unit: str) -> str:
    if total == 1:
        return f"the {unit} differs"
    if differing == total:
        return _say_all(total, unit, "differs", "differ")
    return f"{differing:,} of {total:,} {unit}s {'differs' if differing == 1 else 'differ'}"


# -- where nothing was compared ---------------------------------------------------------------------------------------


def explain_nothing_compared(comparison: Comparison) -> str:
    """Return why nothing was compared."""
    totals, unread = comparison.totals, list_unread_outputs(comparison)
    if unread:
        more = f", and {len(unread) - 1:,} more" if len(unread) > 1 else ""
        return f"no output of the model could be compared: {unread[0][1]}{more}"
    if totals.pairs and all(pair.is_input for pair in comparison.pairs):
        return "only the inputs of the models have partners, nothing they computed"
    if totals.pairs:
        return f"no element of {plural(totals.pairs, 'pair')} could be compared"
    holds_tensors = comparison.reference.tensors or any(side.tensors for side in comparison.candidates)
    if holds_tensors and any(note.slug is NoteSlug.LEFT_OUT for note in comparison.notes):
        return "--include/--exclude left no tensor to compare"
    parts = []
    if totals.only_reference:
        parts.append(f"{totals.only_reference:,} only in the reference")
    if totals.only_candidate:
        parts.append(f"{totals.only_candidate:,} only in the candidate")
    if not parts:
        return "there are no tensors"
    why = "no tensor has a partner"
    if not comparison.reference.tensors:
        why = "the reference holds no tensors"
    elif not sum(side.tensors for side in comparison.candidates):
        why = "the candidate holds no tensors"
    return f"{why} ({', '.join(parts)})"


def list_unread_outputs(comparison: Comparison) -> list[tuple[str, str]]:
    """Return the outputs of the model that could not be recorded: the name, and a sentence on what it is and where."""
    places: dict[tuple[str, str], dict[str, None]] = {}
    for side in comparison.candidates:
        for role, name, what in comparison.unread_outputs(side.label):
            places.setdefault((name, what), {})[f"the {role}"] = None
    sentences = []
    for (name, what), roles in places.items():
        sentence = f"{printable(name, 80)} is {printable(what, 200)} in {' and '.join(roles)}"
        sentences.append((printable(name, 80), sentence))
    return sentences


def _list_ways_out(comparison: Comparison) -> Iterator[str]:
    """Yield what to do where something could not be compared."""
    unread = [name for side in comparison.candidates for _, name, _ in comparison.unread_outputs(side.label)]
    if unread:
        yield (
            "outputs that are not tensors, arrays or plain values are not recorded: return what is in them, or "
            f"leave them out with --exclude '{printable(unread[0], 80)}'"
        )
        return
    if comparison.outcome is not Outcome.NOTHING:
        return
    if comparison.kind == "run":
        yield "steps are matched by epoch and batch, or else by their number: record both runs at the same steps"
        return
    totals = comparison.totals
    kinds = {side.kind for side in (comparison.reference, *comparison.candidates)}
    if totals.pairs:
        if comparison.kind == "recording" and all(pair.is_input for pair in comparison.pairs):
            yield "a model without modules that returns nothing leaves no trace: let it return what it computes"
        elif comparison.kind == "recording":
            yield "digests and statistics cannot tell how far tensors differ: record again with --keep full or sketch"
    elif "recording" in kinds and len(kinds) > 1:
        yield (
            "a recording holds what layers computed, not weights: compare it with another recording, or with a MODEL "
            "that is fed the recorded inputs (nndiff diff REF.nnrec MODEL --ckpt FILE)"
        )
    elif totals.only_reference and totals.only_candidate:
        what = "layers" if kinds == {"recording"} else "tensors"
        yield f"pair {what} of different names with --rename or --map; --dry-run lists all names"


# -- tolerance ------------------------------------------------------------------------------------------------------


def describe_passing(comparison: Comparison) -> str:
    """Return the smallest tolerance that passes, as options to type; or why there is none."""
    needed = comparison.needed_tolerance
    if needed is not None:
        return format_options(needed)
    counting = [pair for pair in comparison.pairs if decides_verdict(pair, comparison.rules)]
    alone = [leftover for leftover in comparison.leftovers if decides_alone(leftover, comparison.rules)]
    totals = count_verdicts(counting, alone)
    reasons = [
        (totals.shape, "of different shapes"),
        (totals.not_finite, "not finite"),
        (totals.not_compared, "not compared"),
        (sum(pair.differs_only_in_dtype for pair in counting), "of different dtypes"),
        (len(alone) - totals.unreached, "without a partner"),
        (totals.unreached, "never reached"),
        (sum(setting.changes_network for setting in comparison.settings), "settings that differ"),
    ]
    why = ", ".join(f"{number:,} {reason}" for number, reason in reasons if number)
    why = why or ", ".join(_say_incomplete(comparison)) or "nothing compared"
    measured = [pair for pair in counting if pair.metrics and pair.verdict is not Verdict.NOT_FINITE]
    needed = replace(comparison, pairs=tuple(measured), leftovers=(), settings=()).needed_tolerance
    return f"no tolerance ({why})" + (f"; the rest at {format_options(needed)}" if needed else "")


# -- the summary of a recording ---------------------------------------------------------------------------------------


def count_layers(view: RecordingView) -> str:
    """Return how many layers the sides have in common, and how many each has alone."""
    parts = [f"{view.counts.common_layers:,} common"]
    parts += [f"{view.counts.layers_only_in[side]:,} only in the {side}" for side in SIDES]
    return ", ".join(parts)


def label_rate(rate: Rate) -> str:
    """Return what a match rate is labelled with."""
    return _RATE_LABELS.get(rate.name, rate.name)


def describe_rate(rate: Rate) -> str:
    """Return `148 of 150 layers match, 98.67%`."""
    unit = _UNITS.get(rate.name, f"{rate.name} tensor")
    parts = []
    if rate.unreached:
        parts.append(f"{rate.unreached:,} never reached")
    if rate.missing:
        parts.append(f"{rate.missing:,} missing on one side")
    detail = f" ({', '.join(parts)})" if parts else ""
    guesses = f"{rate.guessed:,} only guessed ({rate.guessed_matched:,} agree)" if rate.guessed else ""
    if not rate.total:
        return guesses
    verb = "matches" if rate.matched == 1 or rate.total == 1 else "match"
    share = f"{rate.matched:,} of {plural(rate.total, unit)} {verb}, {format_percent(rate.matched, rate.total)}{detail}"
    return share + (f"; {guesses}" if guesses else "")


def describe_outputs(view: RecordingView) -> str:
    """Return whether the outputs agree, and by how much not."""
    counts = view.counts
    difference = f", max abs {format_number(counts.output_max_abs)}" if counts.output_max_abs is not None else ""
    if counts.outputs_agree is None:
        unread = view.candidate.unread_outputs
        if unread:
            return f"not compared: {counted([printable(name, 80) for name in unread], 'final output')}"
        return "the final output was never reached" if view.unreached else "not recorded on both sides"
    if counts.outputs_agree:
        if len(view.outputs) == 1:
            return f"the final output agrees{difference}"
        return f"{_say_all(len(view.outputs), 'final output', 'agrees', 'agree')}{difference}"
    if all(pair.verdict.passed for pair in view.outputs):
        return "a final output has no partner"
    return f"{_say_outputs_differ(view.outputs, 'final output')}{difference}"


def describe_cut_off(view: RecordingView) -> str:
    """Return how many tensors of each side the other, which was cut off, never reached."""
    parts = []
    for side in SIDES:
        number = sum(leftover.side == side for leftover in view.unreached)
        if number:
            parts.append(f"{plural(number, 'tensor')} of the {side}")
    verb = "was" if len(view.unreached) == 1 else "were"
    return f"{' and '.join(parts)} {verb} never reached: the other recording was cut off"


def close_summary(comparison: Comparison, view: RecordingView) -> tuple[bool, str]:
    """Return whether a candidate passed, and the last line about it."""
    outcome = comparison.outcome_of(view.candidate.label)
    if outcome is Outcome.IDENTICAL:
        return True, "identical"
    if outcome is Outcome.CLOSE:
        return True, "agrees within tolerance"
    if view.first is not None and view.first.reason is not PartingReason.EXTRA_OUTPUT:
        return False, f"first divergence: {format_name(view.first.name)}"
    if outcome is Outcome.NOTHING:
        return False, "nothing the models computed was compared"
    if view.unreached or comparison.cut_off_sides(view.candidate.label):
        return False, "everything recorded on both sides agrees, but a recording was cut off"
    unread = comparison.unread_outputs(view.candidate.label)
    if unread:
        return False, f"everything compared agrees, but {printable(unread[0][1], 80)} could not be compared"
    if all(pair.verdict.passed for pair in view.pairs if decides_verdict(pair, comparison.rules)):
        alone = "; ".join(_say_without_partner(comparison, view))
        return False, f"everything compared agrees, but {alone}" if alone else "different"
    return False, "not everything agrees"


# -- notes ------------------------------------------------------------------------------------------------------------


def list_notes(comparison: Comparison) -> Iterator[str]:
    """Yield what the reader should know besides the numbers, ready to print."""
    yield from _list_ways_out(comparison)
    yield from _limit_list([f"not compared: {sentence}" for _, sentence in list_unread_outputs(comparison)])
    for note in comparison.notes:
        yield printable(note.text)
    for text in comparison.reference.notes:
        yield f"reference: {printable(text)}"
    for side in comparison.candidates:
        role = printable(side.label) if len(comparison.candidates) > 1 else CANDIDATE
        for text in side.notes:
            yield f"{role}: {printable(text)}"
    yield from _note_faint_tensors(comparison)
    yield from _note_nonfinite_tensors(comparison)
    texts = Counter(note.text for pair in comparison.pairs for note in pair.notes)
    yield from _limit_list([f"{plural(number, 'tensor')}: {printable(text)}" for text, number in texts.most_common()])


def _note_faint_tensors(comparison: Comparison) -> Iterator[str]:
    """Name tensors that pass only because all their values are smaller than atol."""
    names = []
    for pair in comparison.pairs:
        metrics = pair.metrics
        if pair.verdict is Verdict.CLOSE and metrics and metrics.rel_l2 > _FAR:
            ends = (metrics.ref_min, metrics.ref_max, metrics.cand_min, metrics.cand_max)
            if max(abs(end) for end in ends) <= pair.atol:
                names.append(printable(pair.name))
    if names:
        verb, passes = ("is", "it passes") if len(names) == 1 else ("are", "they pass")
        yield f"{counted(names, 'tensor')} {verb} smaller than atol, so {passes} with any values: lower --atol to judge"


def _note_nonfinite_tensors(comparison: Comparison) -> Iterator[str]:
    """Say where NaN and inf agree, and where not."""
    agreeing: list[tuple[str, int]] = []
    differing = []
    for pair in comparison.pairs:
        metrics = pair.metrics
        if metrics is None:
            continue
        # where some places differ the saved counts do not tell how many agree
        if metrics.nonfinite_ref and not metrics.nonfinite_unequal:
            agreeing.append((pair.name, metrics.nonfinite_ref))
        if pair.verdict is Verdict.NOT_FINITE:
            numbers = f"{metrics.nonfinite_ref:,} NaN/inf in the reference, {metrics.nonfinite_cand:,} in the candidate"
            verb = "differs" if metrics.nonfinite_unequal == 1 else "differ"
            places = f"{plural(metrics.nonfinite_unequal, 'place')} {verb}"
            differing.append(f"{printable(pair.name, 80)}: {numbers}, {places}")
    if agreeing:
        total = sum(number for _, number in agreeing)
        where = printable(agreeing[0][0], 80) if len(agreeing) == 1 else plural(len(agreeing), "tensor")
        yield f"{total:,} NaN/inf at the same {'place' if total == 1 else 'places'} on both sides, in {where}"
    yield from _limit_list(differing)


def _limit_list(texts: Sequence[str]) -> Iterator[str]:
    yield from texts[:_LONGEST_LIST]
    if len(texts) > _LONGEST_LIST:
        yield f"and {len(texts) - _LONGEST_LIST:,} more like this; the JSON report has all of them"
