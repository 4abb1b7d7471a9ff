"""The sentences every report prints about a part of a result: pairs, leftovers, causes, sides, tolerance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nndiff.names import natural_key
from nndiff.reports.figures import (
    NOTHING,
    describe_noise,
    format_mismatched,
    format_name,
    format_number,
    format_percent,
    format_shape,
    format_size,
    format_typed,
    join_sides,
    measure_max_abs,
)
from nndiff.reports.layers import RecordingView, Row, label_pair, label_site
from nndiff.result import (
    CANDIDATE,
    REFERENCE,
    SIDES,
    Comparison,
    Finding,
    FirstDivergence,
    Leftover,
    LeftoverReason,
    Method,
    OwnError,
    Pair,
    PartingReason,
    SettingDifference,
    Side,
    Totals,
    WeightsAtSite,
)
from nndiff.result_json import is_guess
from nndiff.tensors import MODEL, Slot
from nndiff.text import first_few, plural, printable
from nndiff.verdict import EXTRA_OUTPUTS, Judge, Outcome, Verdict

SIGNS = {
    Verdict.IDENTICAL: "✓",
    Verdict.CLOSE: "≈",
    Verdict.DIFFERENT: "✗",
    Verdict.SHAPE: "✗",
    Verdict.NOT_FINITE: "✗",
    Verdict.NOT_COMPARED: "?",
}
OUTCOME_SIGNS = {Outcome.IDENTICAL: "✓", Outcome.CLOSE: "≈", Outcome.DIFFERENT: "✗", Outcome.NOTHING: "?"}
GUESS_SIGN = "?"
_METHODS = {
    "name": "name",
    "prefix": "prefix",
    "rename": "--rename",
    "map": "--map",
    "only": "the only array",
    "content": "equal content",
    "values": "equal values",
    "cast": "equal values after rounding",
    "group": "values of several tensors",
    "block": "place in a block",
    "weights": "equal weights",
    "module": "their modules",
    "structure": "equal structure",
    "parts": "parts of a fused layer",
    "statistics": "similar statistics",
    "call": "call order",
}
GUESS_NOTE = "values differ, so perhaps not the same layer"
_REASONS = {
    PartingReason.INPUTS_DIFFER: "the two models were given different inputs",
    PartingReason.OWN_ERROR: "its output is out of tolerance while its inputs agree",
    PartingReason.FIRST_OUT: "this is the first output out of tolerance; its inputs were not recorded",
    PartingReason.BETWEEN_SITES: "this is the first output out of tolerance; the cause lies between recorded layers",
    PartingReason.NOT_KEPT: "its values differ; the recording kept too little to say by how much",
    PartingReason.DTYPE: "its values agree, its dtype does not",
    PartingReason.LOSS: "the outputs agree, the loss does not",
    PartingReason.GRADIENT: "the outputs agree; this is the first gradient that does not",
    PartingReason.GRADIENT_MISSING: "one side has no gradient here",
    PartingReason.LOSS_NOT_FINITE: "the loss is NaN or inf, so its gradients mean nothing",
    PartingReason.PARAMETER: "this parameter differs",
    PartingReason.BUFFER: "this buffer differs",
    PartingReason.EXTRA_OUTPUT: "only one side returns this output",
}
_MODEL_LABELS = {
    Slot.MODEL_INPUT: "model input",
    Slot.INPUT: "model input",
    Slot.OUTPUT: "final output",
    Slot.LOSS: "loss",
}


def shows_layers(comparison: Comparison) -> bool:
    """Return True if a report shows layers: for recordings of which anything was compared."""
    return comparison.kind == "recording" and bool(comparison.pairs)


def select_candidate(comparison: Comparison, candidate: Side) -> Comparison:
    """Return the comparison with one candidate alone."""
    label = candidate.label
    firsts = comparison.first_divergences
    return replace(
        comparison,
        candidates=(candidate,),
        judgements={label: comparison.judgements[label]},
        pairs=tuple(comparison.pairs_of(label)),
        leftovers=tuple(comparison.leftovers_of(label)),
        settings=tuple(comparison.settings_of(label)),
        findings=tuple(finding for finding in comparison.findings if finding.candidate in ("", label)),
        first_divergences={label: firsts[label]} if label in firsts else {},
        own_errors=tuple(error for error in comparison.own_errors if error.candidate == label),
        run=tuple(facts for facts in comparison.run if facts.candidate == label),
        modes=comparison.modes.select(label) if comparison.modes else None,
    )


# -- the first divergence and its cause -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Divergence:
    """Hold what is said about the first divergence, ready to print."""

    name: str
    what: str  # classes, size, the candidate's name
    why: str
    facts: tuple[tuple[str, str], ...]  # label and text: where to look


def describe_divergences(comparison: Comparison) -> tuple[Divergence, ...]:
    """Return where each candidate diverges first, in their order; extra outputs are said apart."""
    divergences = []
    for side in comparison.candidates:
        first = comparison.first_divergences.get(side.label)
        if first is not None and first.reason is not PartingReason.EXTRA_OUTPUT:
            divergences.append(_describe_divergence(first, side.label if len(comparison.candidates) > 1 else ""))
    return tuple(divergences)


def _describe_divergence(first: FirstDivergence, against: str) -> Divergence:
    what = [join_sides(*map(printable, first.classes)) if all(first.classes) else printable("".join(first.classes))]
    if first.max_abs is not None:
        what.append(f"max abs {format_number(first.max_abs)}")
        if noise := describe_noise(first.times_noise):
            what.append(noise)
    elif first.verdict is not None:
        what.append(first.verdict.value)
    if first.missing_in:
        what.append(f"missing in the {printable(first.missing_in)}")
    if first.candidate_name and first.candidate_name != first.name:
        what.append(f"in the candidate {printable(first.candidate_name)}")
    if against:
        what.append(f"against {printable(against)}")
    facts = [
        ("look in", _say_module(first)),
        ("source", join_sides(*map(printable, first.sources)) if any(first.sources) else ""),
        ("weights", _compare_weights(first.weights)),
        ("settings", _compare_settings(first.settings)),
        ("between", _say_between(first)),
    ]
    return Divergence(
        name=format_name(first.name),
        what=", ".join(part for part in what if part),
        why=printable(first.why) or _REASONS[first.reason],
        facts=tuple((label, text) for label, text in facts if text),
    )


def _say_module(first: FirstDivergence) -> str:
    if first.module_classes is None:
        return ""
    return f"{format_name(first.module or 'the model')}  {join_sides(*map(printable, first.module_classes))}".rstrip()


def _compare_weights(weights: WeightsAtSite | None) -> str:
    """Say whether the module starts from the same weights: if so, look at what it does with them."""
    if weights is None:
        return ""
    parts = []
    if weights.differing:
        names = first_few([printable(name) for name in weights.differing])
        parts.append(f"{len(weights.differing):,} of {weights.common:,} differ from the start: {names}")
    for role, names_alone in zip(SIDES, (weights.only_reference, weights.only_candidate), strict=True):
        if names_alone:
            parts.append(f"only in the {role}: {first_few([printable(name) for name in names_alone])}")
    return "; ".join(parts) or "equal on both sides, so look at what the module does with them"


def _compare_settings(settings: Mapping[str, tuple[Any, Any]]) -> str:
    parts = []
    for name, values in settings.items():
        texts = [format_typed(value) if isinstance(value, float) else printable(str(value)) for value in values]
        parts.append(f"{printable(name)} {texts[0]} → {texts[1]}")
    return ", ".join(parts)


def _say_between(first: FirstDivergence) -> str:
    """Say at which of the calls inside a composite module the difference comes in."""
    after, before = printable(first.after), printable(first.before)
    if after and before:
        return f"after {after}, which agrees, and before {before}, which does not"
    if after:
        return f"after {after}, the last call inside it: all calls inside agree"
    return f"before {before}, the first that does not agree" if before else ""


_MOST_GIVEN = 6  # tensors that are named: the last ones, which code between calls is most likely to use


@dataclass(frozen=True)
class Fault:
    """Hold a module at fault in words, the cause that was found for it, and others of the very same cause."""

    module: str
    facts: str  # class, own and inherited error, between which calls
    tensors: str  # what goes into code between calls, and what comes out wrong; "" of a whole module
    cause: Finding | None
    alike: tuple[str, ...] = ()  # modules that the same sentence holds for, in order

    @property
    def count(self) -> int:
        """Return how many modules this is about."""
        return 1 + len(self.alike)


def describe_faults(comparison: Comparison) -> tuple[list[Fault], list[Finding]]:
    """Return the modules at fault, first to last, and the findings that are not the cause of one.

    Modules for which the same is proven are one fault, at the place of the first: the same slip in every layer.
    """
    findings = list(comparison.findings)
    faults: dict[OwnError | Finding, Fault] = {}
    for error in comparison.own_errors:
        cause = None
        for finding in findings:
            if finding.where == (error.name,) and finding.candidate in ("", error.candidate):
                cause = finding
                findings.remove(finding)
                break
        names = join_sides(error.module or MODEL, error.candidate_module or MODEL)
        module = printable(f"{error.candidate}: {names}" if len(comparison.candidates) > 1 else names)
        key = error if cause is None else replace(cause, where=())
        if key not in faults:
            facts, tensors = printable(_describe_own_error(error)), printable(_list_tensors(error))
            faults[key] = Fault(module, facts, tensors, cause)
        elif module not in (faults[key].module, *faults[key].alike):
            faults[key] = replace(faults[key], alike=(*faults[key].alike, module))
    return list(faults.values()), findings


def count_faults(faults: Iterable[Fault]) -> str:
    """Return how many modules are at fault."""
    return plural(sum(fault.count for fault in faults), "module")


def _list_tensors(error: OwnError) -> str:
    """Return what goes into code between calls, and what comes out wrong."""
    if not (error.after or error.before):
        return ""
    return f"in {', '.join(error.given[-_MOST_GIVEN:]) or 'none'}; out {error.name}"


def _describe_own_error(error: OwnError) -> str:
    """Return the class, what is wrong by how much, and where in the code of the module."""
    parts = [join_sides(*error.classes)] if any(error.classes) else []
    own = f"own error {format_number(error.max_abs)}"
    if noise := describe_noise(error.times_noise):
        own += f", {noise}"
    if error.inherited is not None and error.inherited != error.max_abs:
        own += f" ({format_number(error.inherited)} with what it inherits)"
    parts.append(own)
    if error.after or error.before:
        parts.append(f"between {error.after or 'its inputs'} and {error.before or 'its output'}")
    elif error.slot.is_gradient:
        parts.append(f"in its backward, at {error.name}")
    if error.also:
        parts.append(f"shows at {plural(len(error.also), 'more site')}")
    return "; ".join(parts)


def describe_finding(finding: Finding) -> str:
    """Return a cause and how sure it is: `norm-eps (90% sure)`."""
    harmless = ", harmless" if finding.harmless else ""
    return f"{printable(finding.cause)} ({finding.confidence:.0%} sure{harmless})"


def end_sentence(text: str) -> str:
    """Return text that ends in a full stop, so that sentences can be joined."""
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def tell_finding(finding: Finding) -> str:
    """Return a finding in one line: cause, evidence, repair."""
    parts = [f"{describe_finding(finding)}: {end_sentence(printable(finding.evidence))}".rstrip(": ")]
    if finding.repair:
        parts.append(f"Repair: {end_sentence(printable(finding.repair))}")
    return " ".join(parts)


def find_causes(comparison: Comparison, candidate: str, *names: str) -> list[Finding]:
    """Return the findings about one of these tensors."""
    causes = []
    for finding in comparison.findings:
        if finding.candidate in ("", candidate) and set(names) & set(finding.where):
            causes.append(finding)
    return causes


# -- pairs ------------------------------------------------------------------------------------------------------------


def sign_of(pair: Pair) -> str:
    """Return ✓, ≈ or ✗; ? where nothing is proven."""
    return GUESS_SIGN if is_guess(pair) and not pair.verdict.passed else SIGNS[pair.verdict]


def describe_verdict(pair: Pair) -> str:
    """Return sign and verdict; a guessed pair that differs is no difference, only a guess."""
    return f"{sign_of(pair)} {'guessed' if is_guess(pair) and not pair.verdict.passed else pair.verdict.value}"


def name_method(method: Method) -> str:
    """Return how two tensors were paired, in words."""
    return _METHODS[method.value]


def describe_pairing(pair: Pair, reference: str = "", candidate: str = "") -> str:
    """Return how a pair was found, if not simply by its name."""
    if pair.method is Method.NAME and pair.certain:
        return ""
    reference, candidate = reference or pair.reference_name, candidate or pair.candidate_name
    other = f": {printable(candidate)}" if candidate != reference else ""
    return ("" if pair.certain else "guessed by ") + name_method(pair.method) + other


def describe_row_pairing(row: Row) -> str:
    """Return how a layer was found, if not simply by its name."""
    pair = row.pairs[0]
    return describe_pairing(pair, row.label, label_site(pair.sites[1])) if pair.sites else describe_pairing(pair)


def describe_relation(pair: Pair) -> str:
    """Return the proven relation: how the pair agrees, or how to accept that it does."""
    if pair.related is None:
        return ""
    text = printable(pair.related.relation.text)
    if pair.related.accepted:
        return f"≈ after {text}" if pair.verdict.passed else f"compared after {text}"
    return f"agrees after {text}: --accept {','.join(kind.value for kind in pair.related.relation.kinds)}"


def describe_guess(pair: Pair) -> str:
    """Return why a guessed pair that differs is evidence only."""
    if not is_guess(pair) or pair.verdict.passed:
        return ""
    return f"paired only by {name_method(pair.method)}; {GUESS_NOTE}"


def describe_guesses(view: RecordingView) -> str:
    """Return why the guessed layers that differ are evidence only; empty where there are none."""
    methods: dict[str, None] = {}
    for row in view.rows:
        for pair in row.pairs:
            if is_guess(pair) and not pair.verdict.passed:
                methods[name_method(pair.method)] = None
    return f"paired only by {' or '.join(methods)}; {GUESS_NOTE}" if methods else ""


def describe_remark(pair: Pair) -> str:
    """Return what a reader must know about a pair beside its numbers."""
    return "; ".join(text for text in (describe_relation(pair), describe_guess(pair)) if text)


def label_model_pair(pair: Pair) -> str:
    """Return what an input or output of the model is called."""
    if pair.sites is None:
        return format_name(pair.name)
    site = pair.sites[0]
    call = f"of call {site.call}" if site.call and not site.module else ""
    return printable(
        " ".join(part for part in (_MODEL_LABELS.get(site.slot, site.slot.value), call, site.path) if part)
    )


def describe_difference(pair: Pair) -> str:
    """Return by how much a pair differs, in one line."""
    if pair.verdict is Verdict.SHAPE:
        return join_sides(format_shape(pair.shape[0]), format_shape(pair.shape[1]))
    if pair.metrics is None:
        return "; ".join(printable(note.text) for note in pair.notes) or "no numbers"
    size = f"max abs {format_number(measure_max_abs(pair))}"
    if noise := describe_noise(pair.times_noise):
        size += f", {noise}"
    if pair.slot is None or not pair.slot.is_gradient:
        size += f", max rel {format_number(pair.metrics.max_rel)}"
    out = f"{format_mismatched(pair)} of {plural(pair.metrics.count, 'element')} out of tolerance"
    return f"{size}, {out} (atol {format_typed(pair.atol)}, rtol {format_typed(pair.rtol)})"


def describe_numbers(pair: Pair, view: RecordingView) -> Iterator[tuple[str, str]]:
    """Yield the numbers of a mismatched pair, line by line."""
    metrics = pair.metrics
    if metrics is None:
        return
    for role, prefix in ((REFERENCE, "ref"), (CANDIDATE, "cand")):
        values = []
        for name in ("mean", "std", "min", "max"):
            values.append(f"{name} {format_number(getattr(metrics, f'{prefix}_{name}')):>10}")
        yield role, "  ".join(values)
    where = f" at {list(metrics.max_abs_index)}" if metrics.max_abs_index is not None else ""
    parts = [f"max abs {format_number(measure_max_abs(pair))}{where}"]
    if noise := describe_noise(pair.times_noise):
        parts.append(noise)
    share = view.share_of_scale(pair) if pair.slot is Slot.GRAD_OUTPUT else None
    if share is not None:
        parts.append(f"{format_number(share)} of the largest gradient")
    parts += [f"mse {format_number(metrics.mse)}", f"rel l2 {format_number(metrics.rel_l2)}"]
    parts += [f"cosine {metrics.cosine:.6f}", f"{format_mismatched(pair)} out"]
    yield "difference", ", ".join(parts)
    percentiles = [f"{name} {format_number(getattr(metrics, name))}" for name in ("p50", "p90", "p95", "p99")]
    yield "percentile", ", ".join(percentiles)
    remark = describe_remark(pair)
    if remark:
        yield "remark", remark


def title_details(pair: Pair) -> str:
    """Return what a pair shown in detail is: layer and direction."""
    direction = "gradient" if pair.slot is Slot.GRAD_OUTPUT else str(pair.slot or "")
    return f"{format_name(label_pair(pair))} {direction}".rstrip()


def rank_pairs(pairs: Iterable[Pair]) -> list[Pair]:
    """Return pairs worst first, guessed ones after those that decide, equals in natural order of their names."""

    def sort_key(pair: Pair) -> tuple[object, ...]:
        rank, inexact, needed = pair.severity
        guessed = is_guess(pair) and not pair.verdict.passed
        size = -math.inf if math.isnan(needed) else -needed
        return guessed, -rank, -inexact, size, natural_key(pair.name), pair.order

    return sorted(pairs, key=sort_key)


def choose_pairs(comparison: Comparison, top: int, verbose: bool) -> tuple[list[Pair], int]:
    """Return the rows a table shows and how many worth showing it leaves out."""
    if verbose:
        return rank_pairs(comparison.pairs), 0
    worst = rank_pairs(comparison.worst())
    return worst[:top], max(0, len(worst) - top)


# -- leftovers --------------------------------------------------------------------------------------------------------


def rank_leftovers(leftovers: Iterable[Leftover], side: str) -> list[Leftover]:
    """Return the leftovers of one side in natural order, those that are no difference last."""
    of_side = [leftover for leftover in leftovers if leftover.side == side]
    return sorted(of_side, key=lambda leftover: (not leftover.counts, natural_key(leftover.name)))


_LEFTOVER_TITLES = {
    LeftoverReason.EXTRA_OUTPUT: "returned as output by this side only",
    LeftoverReason.INNER: "in modules that only one implementation has: no difference",
    LeftoverReason.NOT_RECORDED: "that the other side did not record: not compared",
    LeftoverReason.COMPUTED: "in computed buffers: no difference",
    LeftoverReason.UNREACHED: "never reached: the other recording was cut off",
}


def title_leftovers(leftovers: Sequence[Leftover], side: str) -> str:
    """Return the title of a list of leftovers, with the reasons why some are no difference."""
    counts = Counter(leftover.reason for leftover in leftovers)
    outputs = sum(leftover.is_extra_output for leftover in leftovers)
    gradients = counts[LeftoverReason.EXTRA_OUTPUT] - outputs
    counts[LeftoverReason.EXTRA_OUTPUT] = outputs
    parts = [f"{counts[reason]:,} {text}" for reason, text in _LEFTOVER_TITLES.items() if counts[reason]]
    if gradients:
        parts.insert(1, f"{plural(gradients, 'gradient')} of these outputs")
    if len(leftovers) not in (counts[reason] for reason in _LEFTOVER_TITLES):
        parts.insert(0, f"{len(leftovers):,}")
    return f"only in the {side} ({'; '.join(parts)})"


def rank_settings(settings: Sequence[SettingDifference]) -> list[SettingDifference]:
    """Return settings that differ, those that change the network first."""
    return sorted(settings, key=lambda setting: not setting.changes_network)


def show_setting_values(setting: SettingDifference) -> list[str]:
    """Return the values of both sides for a table."""
    return ["absent" if value is None else printable(value) for value in setting.values]


def explain_leftover(leftover: Leftover) -> str:
    """Return why a tensor is alone, or what may have been meant."""
    other = CANDIDATE if leftover.side == REFERENCE else REFERENCE
    parts = []
    if leftover.same_as:
        parts.append(f"same values as {printable(leftover.same_as)}")
    if leftover.near:
        shape = f" ({format_shape(leftover.near_shape)})" if leftover.near_shape is not None else ""
        parts.append(f"did you mean {printable(leftover.near)}{shape}?")
    if leftover.reason is LeftoverReason.EXTRA_OUTPUT:
        parts.append(f"the {other} does not return it")
    elif leftover.reason is LeftoverReason.NOT_RECORDED:
        parts.append(f"the {other} was recorded without it")
    elif leftover.reason is LeftoverReason.COMPUTED:
        parts.append(f"computed, and not registered by the {other}: no difference")
    elif leftover.reason is LeftoverReason.INNER:
        parts.append("inside the model: no difference")
    elif leftover.reason is LeftoverReason.UNREACHED:
        parts.append(f"never reached: the {other}'s recording was cut off")
    return "; ".join(parts)


def hint_leftover(leftover: Leftover) -> str:
    """Return a hint to find the partner; the title of the list says why the tensor has none."""
    return explain_leftover(replace(leftover, reason=LeftoverReason.NO_PARTNER))


def name_extra_outputs(extra: Sequence[Leftover]) -> str:
    """Name the outputs that only one side returns, those of one container together."""
    parts = []
    for side in SIDES:
        places: Counter[str] = Counter()
        for leftover in extra:
            if leftover.side == side and leftover.site is not None:
                container = leftover.site.path.partition(".")[0]
                places[printable(f"output.{container}" if container else "output", 80)] += 1
        names = [f"{place} ({count:,} tensors)" if count > 1 else place for place, count in places.items()]
        if names:
            parts.append(f"only the {side} returns {first_few(names, 2)}")
    return ", ".join(parts)


def list_extra_outputs(comparison: Comparison) -> Iterator[str]:
    """Say in one line per candidate which outputs only one side returns, and how to let that pass."""
    for side in comparison.candidates:
        leftovers = comparison.leftovers_of(side.label)
        extra = [leftover for leftover in leftovers if leftover.is_extra_output]
        if not extra:
            continue
        text = name_extra_outputs(extra)
        if len(comparison.candidates) > 1:
            text = f"{printable(side.label)}: {text}"
        if EXTRA_OUTPUTS in comparison.rules.accept:
            yield f"{text}; accepted by --accept extra"
        elif comparison.rules.judge is Judge.OUTPUTS:
            yield f"{text}; not counted with --judge outputs"
        else:
            yield f"{text}; ignore this with --accept extra, or judge only common outputs with --judge outputs"


# -- sides, totals, tolerance -----------------------------------------------------------------------------------------


def name_side(side: Side) -> str:
    """Return what a side is called, with the checkpoint whose weights were loaded into its model."""
    return with_checkpoint(side.label, side.meta) if side.kind == "recording" else side.label


def with_checkpoint(label: str, meta: Mapping[str, Any]) -> str:
    """Return a label with the checkpoint named in the facts of a recording."""
    checkpoint = meta.get("checkpoint")
    return f"{label} with {checkpoint}" if isinstance(checkpoint, str) and checkpoint else label


def describe_side(side: Side, layers: bool) -> list[str]:
    """Return what a source is and how much it holds, one fact per column; some may be empty."""
    tensors = plural(side.tensors, "tensor")
    if not layers:
        if side.kind == "recording":
            return [printable(side.kind), tensors, plural(side.elements, "element"), "", format_size(side.nbytes)]
        trainable = f"{side.trainable:,} trainable"
        parameters = plural(side.elements, "parameter")
        return [printable(side.kind), tensors, parameters, trainable, format_size(side.nbytes)]
    model = side.meta.get("model")
    facts = model if isinstance(model, Mapping) else {}
    parameters_of_model = facts.get("parameters")
    mode, seed = _format_fact(side.meta.get("mode")), _format_fact(side.meta.get("seed"))
    return [
        tensors,
        _format_fact(facts.get("class")),
        plural(parameters_of_model, "parameter") if isinstance(parameters_of_model, int) else "",
        f"{mode} mode" if mode else "",
        f"seed {seed}" if seed else "",
        format_size(side.nbytes),
    ]


def _format_fact(value: Any) -> str:
    return printable(str(value), 60) if isinstance(value, (str, int)) else ""


def tally_verdicts(totals: Totals) -> str:
    """Return the counts of all verdicts and the match rate."""
    counts = [
        (totals.identical, Verdict.IDENTICAL),
        (totals.close, Verdict.CLOSE),
        (totals.different, Verdict.DIFFERENT),
        (totals.shape, Verdict.SHAPE),
        (totals.not_finite, Verdict.NOT_FINITE),
        (totals.not_compared, Verdict.NOT_COMPARED),
    ]
    parts = [f"{number:,} {verdict.value}" for number, verdict in counts if number]
    if totals.alone:
        parts.append(f"{totals.alone:,} without a partner")
    return ", ".join([*parts, f"match rate {format_match_rate(totals)}"])


def format_match_rate(totals: Totals) -> str:
    """Return the share that is the same, of all pairs and of what has no partner."""
    return format_percent(totals.matched, totals.comparable) if totals.comparable else NOTHING


def describe_tolerance(comparison: Comparison) -> str:
    """Return the rule of judgement with its origin."""
    tolerance = comparison.tolerance
    if tolerance.origin == "auto":
        rules = dict.fromkeys(_describe_pair_tolerance(pair) for pair in comparison.pairs if pair.metrics)
        text = "auto, by dtype" + (": " + "; ".join(rules) if rules else "")
    elif tolerance.origin == "noise":
        bound = f"{format_typed(tolerance.atol)} + {format_typed(tolerance.rtol)} * |ref|"
        text = f"|cand - ref| <= {tolerance.noise_factor:g} * noise floor, or {bound} without a floor (noise)"
    else:
        bound = f"{format_typed(tolerance.atol)} + {format_typed(tolerance.rtol)} * |ref|"
        text = f"|cand - ref| <= {bound} ({printable(tolerance.origin)})"
    for override in tolerance.overrides:
        numbers = [("atol", override.atol), ("rtol", override.rtol)]
        changes = " ".join(f"{name} {format_typed(value)}" for name, value in numbers if value is not None)
        text += f"; {printable(override.pattern)}: {changes}"
    return text


def _describe_pair_tolerance(pair: Pair) -> str:
    name = printable(join_sides(*pair.dtype))
    if pair.atol == pair.rtol == 0:
        return f"{name} exact"
    return f"{name} atol {format_typed(pair.atol)} rtol {format_typed(pair.rtol)}"


def describe_rules(comparison: Comparison) -> str:
    """Return the options that change what counts as agreement."""
    rules = comparison.rules
    parts = [f"--accept {','.join(printable(kind) for kind in sorted(rules.accept))}"] if rules.accept else []
    if rules.judge is not Judge.ALL:
        parts.append(f"--judge {rules.judge.value}")
    if rules.strict_dtype:
        parts.append("--strict-dtype")
    return " ".join(parts)
