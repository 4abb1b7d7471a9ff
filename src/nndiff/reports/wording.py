"""What every report says in the same words: headline, sides, tolerance, notes, the cells of a row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from nndiff.names import natural_key
from nndiff.recorded import GRADIENTS
from nndiff.reports import nothing
from nndiff.result import Comparison, Finding, Leftover, Pair, Side, Totals, count
from nndiff.metrics import Metrics
from nndiff.tensors import Shape
from nndiff.text import counted, printable
from nndiff.text import plural as plural  # every report says numbers so
from nndiff.tolerance import rounded_up as rounded_up  # every report says tolerances so
from nndiff.tolerance import format_options
from nndiff.verdict import Outcome, Verdict

SIGNS = {
    Verdict.IDENTICAL: "✓",
    Verdict.CLOSE: "≈",
    Verdict.DIFFERENT: "✗",
    Verdict.SHAPE: "✗",
    Verdict.NOT_FINITE: "✗",
    Verdict.NOT_COMPARED: "?",
}
OUTCOME_SIGNS = {Outcome.IDENTICAL: "✓", Outcome.CLOSE: "≈", Outcome.DIFFERENT: "✗", Outcome.NOTHING: "?"}
_LONGEST_LIST = 5  # notes of one kind before "and N more"


def is_recording(comparison: Comparison) -> bool:
    """Tell whether layers are to be shown: of recordings, where there is anything at all."""
    return comparison.kind == "recording" and bool(comparison.pairs)


def verdict_line(comparison: Comparison) -> tuple[str, str]:
    """Return the first line of a report at a terminal, and the exit status that ends it."""
    return f"{OUTCOME_SIGNS[comparison.outcome]} {headline(comparison)}", f" (exit {comparison.exit_code})"


def headline(comparison: Comparison) -> str:
    """Return the one line that a person reads first."""
    return f"{comparison.verdict}: {_story(comparison)}"


def _story(comparison: Comparison) -> str:
    totals, many = _that_count(comparison), len(comparison.candidates) > 1
    unit = "pair" if many else "tensor"
    if comparison.outcome is Outcome.NOTHING:
        return nothing.why(comparison)
    if comparison.outcome is Outcome.IDENTICAL:
        return f"{_all(totals.pairs, unit, 'has', 'have')} the same values{_aside(comparison)}"
    if comparison.outcome is Outcome.CLOSE:
        same = f", {totals.identical:,} of them identical" if totals.identical else ""
        return f"{_all(totals.pairs, unit, 'agrees', 'agree')} within tolerance{same}{_aside(comparison)}"
    story = ", ".join([*_differences(totals, unit), *_cut_off(comparison), *_unread(comparison)])
    if many:
        failed = sum(comparison.outcome_of(side.label).exit_code != 0 for side in comparison.candidates)
        return f"{failed} of {plural(len(comparison.candidates), 'candidate')} differ; {story}"
    return story


def _aside(comparison: Comparison) -> str:
    """Return what a pass must not be silent about."""
    causes = Counter(each.cause for each in comparison.findings for _ in each.where if each.harmless)
    unseen = "; parameters in another form were not compared" if causes["restructured"] else ""
    idle = causes["gradients-idle"]
    verb = "differs" if idle == 1 else "differ"
    return unseen + (f"; {plural(idle, 'gradient')} inside {verb} to no effect" if idle else "")


def _that_count(comparison: Comparison) -> Totals:
    """Return the counts without leftovers that are only listed or were never reached."""
    return count(comparison.pairs, (left for left in comparison.leftovers if left.counts and not left.unreached))


def _cut_off(comparison: Comparison) -> Iterator[str]:
    unreached = comparison.totals.unreached
    if unreached:
        yield f"{unreached:,} never reached: {'a' if len(comparison.candidates) > 1 else 'the'} recording was cut off"
    elif comparison.most_cut_off:
        yield cut_off(comparison.most_cut_off)


def cut_off(many: int) -> str:
    """Return that one recording or both were cut off."""
    return "both recordings were cut off" if many == 2 else "a recording was cut off"


def _unread(comparison: Comparison) -> Iterator[str]:
    names = {each.name for side in comparison.candidates for each in comparison.unread(side.label)}
    if names:
        yield f"{plural(len(names), 'final output')} not compared"


def _differences(totals: Totals, unit: str) -> list[str]:
    differ = totals.different + totals.shape + totals.not_finite
    parts = []
    if differ:
        kinds = [(totals.shape, "in shape"), (totals.not_finite, "not finite")]
        detail = ", ".join(f"{many:,} {what}" for many, what in kinds if many)
        verb = "differ" if totals.pairs > 1 else "differs"
        parts.append(f"{differ:,} of {plural(totals.pairs, unit)} {verb}" + (f" ({detail})" if detail else ""))
    elif totals.pairs and totals.matched == totals.pairs:
        parts.append(_all(totals.pairs, f"paired {unit}", "agrees", "agree"))
    parts += [f"{number:,} {what}" for number, what in _agreeing(totals) if number and differ]
    if totals.not_compared:
        parts.append(f"{totals.not_compared:,} not compared")
    if totals.only_reference or totals.only_candidate:
        parts.append(_leftover_counts(totals))
    return parts


def _agreeing(totals: Totals) -> list[tuple[int, str]]:
    return [(totals.close, "close"), (totals.identical, "identical")]


def _leftover_counts(totals: Totals) -> str:
    counts = [(totals.only_reference, "only in the reference"), (totals.only_candidate, "only in the candidate")]
    return ", ".join(f"{number:,} {where}" for number, where in counts if number)


def _all(number: int, unit: str, verb: str, verbs: str) -> str:
    if number == 1:
        return f"the only {unit} {verb}"
    return f"both {unit}s {verbs}" if number == 2 else f"all {number:,} {unit}s {verbs}"


def side_name(side: Side) -> str:
    """Return what a side is called, with the checkpoint whose weights were loaded into its model."""
    return with_checkpoint(side.label, side.meta) if side.kind == "recording" else side.label


def with_checkpoint(label: str, meta: Mapping[str, Any]) -> str:
    """Return a label with the checkpoint a recording tells of."""
    checkpoint = meta.get("checkpoint")
    return f"{label} with {checkpoint}" if isinstance(checkpoint, str) and checkpoint else label


def side_counts(side: Side) -> list[str]:
    """Return how much a source holds; what was recorded of a run is no parameters."""
    tensors = plural(side.tensors, "tensor")
    if side.kind == "recording":
        return [tensors, plural(side.elements, "element"), ""]
    return [tensors, plural(side.elements, "parameter"), f"{side.trainable:,} trainable"]


def tally(totals: Totals) -> str:
    """Return the counts of all verdicts and the match rate."""
    counts = {verdict: getattr(totals, verdict.value.replace(" ", "_")) for verdict in Verdict}
    parts = [f"{number:,} {verdict.value}" for verdict, number in counts.items() if number]
    return ", ".join([*parts, f"match rate {match_rate(totals)}"])


def match_rate(totals: Totals) -> str:
    """Return the share of pairs that are the same; what was never reached is not."""
    return percent(totals.matched, totals.comparable)


def percent(part: int, whole: int) -> str:
    """Return a share in percent, rounded; 100.00% means all and 0.00% none."""
    if part in (0, whole):
        return "100.00%" if part else "0.00%"
    return f"{min(99.99, max(0.01, 100 * part / whole)):.2f}%"


def ranked(pairs: Iterable[Pair]) -> list[Pair]:
    """Return pairs worst first, equals in natural order of their names."""

    def key(pair: Pair) -> tuple[object, ...]:
        rank, rounded, needed = pair.severity
        return -rank, -rounded, -math.inf if math.isnan(needed) else -needed, natural_key(pair.name), pair.order

    return sorted(pairs, key=key)


def rows(comparison: Comparison, top: int, verbose: bool) -> tuple[list[Pair], int]:
    """Return the rows a table shows and how many worth showing it leaves out."""
    if verbose:
        return ranked(comparison.pairs), 0
    worst = ranked(comparison.worst())
    return worst[:top], max(0, len(worst) - top)


def ordered(leftovers: Iterable[Leftover], side: str) -> list[Leftover]:
    """Return the leftovers of one side in natural order, those that are only listed last."""
    mine = (left for left in leftovers if left.side == side)
    return sorted(mine, key=lambda left: (not left.counts, natural_key(left.name)))


def leftover_title(left: list[Leftover], side: str) -> str:
    """Return the title of a list of leftovers, saying how many of them are no difference."""
    listed = sum(not each.counts for each in left)
    unreached = sum(each.unreached for each in left)
    aside = f"; {listed:,} inside the model, no difference" if listed else ""
    aside += f"; {unreached:,} never reached: the other recording was cut off" if unreached else ""
    return f"only in the {side} ({len(left):,}{aside})"


def part_of(comparison: Comparison, candidate: Side) -> Comparison:
    """Return the comparison with one candidate alone."""
    return replace(
        comparison,
        candidates=(candidate,),
        pairs=tuple(pair for pair in comparison.pairs if pair.candidate == candidate.label),
        leftovers=tuple(left for left in comparison.leftovers if left.candidate == candidate.label),
        findings=tuple(each for each in comparison.findings if each.candidate in ("", candidate.label)),
        first_divergences={
            label: first for label, first in comparison.first_divergences.items() if label == candidate.label
        },
        aside=tuple(pair for pair in comparison.aside if pair.candidate == candidate.label),
        latent=tuple(each for each in comparison.latent if each.candidate == candidate.label),
    )


def finding_about(comparison: Comparison, finding: Finding) -> str:
    """Return which candidate a finding is about, where there are several."""
    return finding.candidate if len(comparison.candidates) > 1 else ""


def sentence(text: str) -> str:
    """Return text that ends as a sentence does, for what stands in a row with others."""
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def name(text: str) -> str:
    """Return a name that can be printed and seen."""
    return printable(text) or "(no name)"


def number(value: float | None) -> str:
    """Return a measured number for a table."""
    if value is None or math.isnan(value):
        return "–"
    return "0" if value == 0 else f"{value:.3e}"


def relative(pair: Pair) -> float | None:
    """Return the largest relative difference; none of gradients, which are measured by the scale of all of them."""
    return None if pair.slot in GRADIENTS else measured(pair, "max_rel")


def measured(pair: Pair, which: str) -> float | None:
    """Return one number of a pair; none where it is zero because what is not finite does not enter it."""
    value: float | None = getattr(pair.metrics, which, None)
    return None if value == 0 and pair.verdict is Verdict.NOT_FINITE else value


def largest(pairs: Iterable[Pair]) -> float | None:
    """Return the largest difference of all pairs that have one."""
    sizes = (measured(pair, "max_abs") for pair in pairs)
    return max((size for size in sizes if size is not None and not math.isnan(size)), default=None)


def short(value: float) -> str:
    """Return a number as a person would type it on the command line."""
    return f"{value:.15g}"


def mismatched(pair: Pair) -> str:
    """Return the share of elements out of tolerance; 0% means none and 100% means all."""
    if pair.metrics is None or pair.metrics.count == 0:
        return "–"
    bad, count = pair.metrics.mismatched, pair.metrics.count
    if bad is None:  # judged again: the count belonged to the old tolerance
        return "?"
    percent = 100 * bad / count
    if 0 < percent < 0.1:
        return "<0.1%"
    return ">99.9%" if percent > 99.9 and bad < count else f"{percent:.1f}%" if bad else "0%"


def shape(dimensions: Shape) -> str:
    """Return `512×80`; no dimension is a scalar."""
    return "×".join(map(str, dimensions)) or "scalar"


def both(first: str, second: str) -> str:
    """Return one text for both sides, or what became of it."""
    return first if first == second else f"{first} → {second}"


def pairing(pair: Pair) -> str:
    """Return how a pair was found, if not simply by its name."""
    if pair.matched_by == "name":
        return ""
    other = f": {printable(pair.candidate_name)}" if pair.candidate_name != pair.reference_name else ""
    return printable(pair.matched_by) + other


def size(nbytes: int) -> str:
    """Return a number of bytes for people."""
    value = float(nbytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{nbytes} B" if unit == "B" else f"{value:.3g} {unit}"


def tolerance(comparison: Comparison) -> str:
    """Return the rule of judgement with its origin."""
    rule = comparison.tolerance
    if rule.origin != "auto":
        return f"|cand - ref| <= {short(rule.atol)} + {short(rule.rtol)} * |ref| ({printable(rule.origin)})"
    by_dtype = dict.fromkeys(_auto(pair) for pair in comparison.pairs if pair.metrics)
    return "auto, by dtype" + (": " + "; ".join(by_dtype) if by_dtype else "")


def _auto(pair: Pair) -> str:
    name = printable(both(*pair.dtype))
    return f"{name} exact" if pair.atol == pair.rtol == 0 else f"{name} atol {short(pair.atol)} rtol {short(pair.rtol)}"


def passing(comparison: Comparison) -> str:
    """Return the smallest tolerance that passes, as options to type; or why there is none."""
    needed = comparison.needed_tolerance
    if needed is not None:
        return format_options(needed)
    totals = _that_count(comparison)
    reasons = [
        (totals.shape, "of another shape"),
        (totals.not_finite, "not finite"),
        (totals.not_compared, "not compared"),
        (totals.only_reference + totals.only_candidate, "without a partner"),
        (comparison.totals.unreached, "never reached"),
    ]
    why = ", ".join(f"{many:,} {reason}" for many, reason in reasons if many)
    why = why or ", ".join([*_cut_off(comparison), *_unread(comparison)]) or "nothing compared"
    return f"no tolerance ({why}){_rest(comparison)}"


def _rest(comparison: Comparison) -> str:
    """Return what the pairs need that a tolerance can help."""
    pairs = tuple(pair for pair in comparison.pairs if pair.metrics and pair.verdict is not Verdict.NOT_FINITE)
    needed = replace(comparison, pairs=pairs, leftovers=()).needed_tolerance
    return f"; the rest at {format_options(needed)}" if needed else ""


def notes(comparison: Comparison) -> Iterator[str]:
    """Yield what the reader should know besides the numbers, ready to print."""
    yield from nothing.ways_out(comparison)
    yield from _some([f"not compared: {told}" for told in nothing.unread(comparison)])
    yield from map(printable, comparison.notes)
    yield from (f"reference: {printable(note)}" for note in comparison.reference.notes)
    for side in comparison.candidates:
        role = printable(side.label) if len(comparison.candidates) > 1 else "candidate"
        yield from (f"{role}: {printable(note)}" for note in side.notes)
    yield from _faint(comparison)
    yield from _not_finite_alike(comparison)
    broken = ((pair, pair.metrics) for pair in comparison.pairs if pair.verdict is Verdict.NOT_FINITE)
    yield from _some([_not_finite(pair, numbers) for pair, numbers in broken if numbers])
    said = Counter(pair.note for pair in comparison.pairs if pair.note)
    yield from _some([f"{plural(number, 'tensor')}: {printable(note)}" for note, number in said.most_common()])


_FAR = 0.01  # relatively: what rounding does not explain


def _faint(comparison: Comparison) -> Iterator[str]:
    """Tell what passes only because it is small: no value of it could be told from zero."""
    names = [printable(pair.name) for pair in comparison.pairs if pair.verdict is Verdict.CLOSE and _is_faint(pair)]
    if names:
        lie, pass_, hold = ("lies", "passes", "it holds") if len(names) == 1 else ("lie", "pass", "they hold")
        yield f"{counted(names, 'tensor')} {lie} wholly below the tolerance and {pass_} whatever {hold}: see --atol"


def _is_faint(pair: Pair) -> bool:
    numbers = pair.metrics
    if numbers is None or not numbers.rel_l2 > _FAR:
        return False
    return max(map(abs, (numbers.ref_min, numbers.ref_max, numbers.cand_min, numbers.cand_max))) <= pair.atol


def _not_finite_alike(comparison: Comparison) -> Iterator[str]:
    agreed = [pair for pair in comparison.pairs if _alike(pair)]
    if agreed:
        many = sum(map(_alike, agreed))
        where = printable(agreed[0].name, 80) if len(agreed) == 1 else plural(len(agreed), "tensor")
        yield f"{many:,} NaN/inf at the same {'place' if many == 1 else 'places'} on both sides, in {where}"


def _alike(pair: Pair) -> int:
    numbers = pair.metrics
    # where some places disagree the saved counts do not tell how many agree
    return numbers.nonfinite_ref if numbers and not numbers.nonfinite_unequal else 0


def _not_finite(pair: Pair, numbers: Metrics) -> str:
    counts = f"{numbers.nonfinite_ref:,} NaN/inf in the reference, {numbers.nonfinite_cand:,} in the candidate"
    return f"{printable(pair.name, 80)}: {counts}, {plural(numbers.nonfinite_unequal, 'place')} not the same"


def _some(texts: list[str]) -> Iterator[str]:
    yield from texts[:_LONGEST_LIST]
    if len(texts) > _LONGEST_LIST:
        yield f"and {len(texts) - _LONGEST_LIST:,} more of this kind; the JSON report has all"


def divergences(comparison: Comparison) -> Iterator[str]:
    """Yield where each candidate parts first, with the plain facts known about that place."""
    many = len(comparison.candidates) > 1
    for side in comparison.candidates:
        found = comparison.first_divergences.get(side.label)
        if found is not None:
            facts = [f"{key} {_fact(value)}" for key, value in found.items() if key != "name" and _is_plain(value)]
            against = f", against {side.label}" if many else ""
            yield printable(str(found.get("name", "?")) + (f" ({', '.join(facts)})" if facts else "") + against)


def _is_plain(value: object) -> bool:
    return isinstance(value, (str, int, float)) and value != ""


def _fact(value: object) -> str:
    return number(value) if isinstance(value, float) else str(value)
