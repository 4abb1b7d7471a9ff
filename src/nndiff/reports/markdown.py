"""The result as GitHub markdown, to paste into a pull request."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from nndiff.reports import ReportOptions, summary, wording
from nndiff.reports.figures import (
    format_mismatched,
    format_name,
    format_number,
    format_shape,
    format_shapes,
    format_times_noise,
    join_sides,
    measure,
    measure_max_abs,
)
from nndiff.reports.layers import (
    Gap,
    GapSide,
    RecordingView,
    Row,
    choose_details,
    choose_model_rows,
    choose_rows,
    label_pair,
    rank_gradients,
    view_recordings,
)
from nndiff.result import SIDES, Comparison, Finding, Pair, Side
from nndiff.text import printable
from nndiff.tolerance import round_up
from nndiff.verdict import Outcome, Verdict

_LONGEST = 120  # characters of a name
_PLAIN_CODE = re.compile(r"[A-Za-z0-9_.:/()\[\], +=×→-]+")
# all but what is plain in running text; `://` and `www.` would become links
_NOT_PLAIN = re.compile(r"[^\w .,;:?()/+=%×→–…≈✓✗-]|_|:(?=//)|(?<=www)\.")

Section = Callable[[Comparison, ReportOptions], Iterable[str]]


class MarkdownReport:
    """Render the verdict, its cause, the worst rows and what is left over."""

    name = "md"

    def render(self, comparison: Comparison, options: ReportOptions) -> str:
        """Return the whole document."""
        if options.quiet:
            return f"{format_headline(comparison)}\n"
        sections = RECORDING_SECTIONS if wording.shows_layers(comparison) else SECTIONS
        blocks = ["\n".join(section(comparison, options)).strip("\n") for section in sections]
        return "\n\n".join(block for block in blocks if block) + "\n"


def format_code(text: str) -> str:
    """Return a name as code that no markdown, HTML or mention in it can get out of."""
    safe = cut_middle(format_name(text))
    if _PLAIN_CODE.fullmatch(safe) and safe == safe.strip():
        return f"`{safe}`"
    return f"<code>{escape_text(safe)}</code>"


def escape_text(text: str) -> str:
    """Return text with every special character as an HTML entity."""
    return _NOT_PLAIN.sub(lambda match: f"&#{ord(match[0])};", printable(text))


def cut_middle(text: str) -> str:
    """Return text short enough for a table, cut in its middle."""
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[: half - 1]}…{text[-half:]}"


def format_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table without its empty columns; a title that ends in a colon is aligned right."""
    columns = [index for index in range(len(titles)) if any(row[index] for row in rows)]
    if not columns:
        return
    yield _format_cells(titles[index].rstrip(":") for index in columns)
    yield _format_cells("---:" if titles[index].endswith(":") else "---" for index in columns)
    for row in rows:
        yield _format_cells(row[index] for index in columns)


def _format_cells(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def format_hidden(number: int) -> Iterator[str]:
    """Yield the line that says how many rows were left out."""
    if number > 0:
        yield from ("", f"and {number:,} more")


def _format_title(text: str, comparison: Comparison, view: RecordingView) -> Iterator[str]:
    yield ""
    yield f"**{text}**" + (f", {format_code(view.candidate.label)}" if len(comparison.candidates) > 1 else "")
    yield ""


# -- verdict, first divergence, findings ------------------------------------------------------------------------------


def format_headline(comparison: Comparison) -> str:
    """Return the headline, bold."""
    return f"**{wording.OUTCOME_SIGNS[comparison.outcome]} nndiff: {escape_text(summary.headline(comparison))}**"


def _show_headline(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    yield format_headline(comparison)
    for divergence in wording.describe_divergences(comparison):
        yield ""
        what = f": {escape_text(cut_middle(divergence.what))}" if divergence.what else ""
        yield f"> **First divergence:** {format_code(divergence.name)}{what}"
        yield ">"  # a quotation, lest its list runs into the next
        yield f"> - why: {escape_text(divergence.why)}"
        for label, text in divergence.facts:
            as_code = label in ("source", "settings")
            yield f"> - {label}: {format_code(text) if as_code else escape_text(text)}"


def _show_findings(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    several = len(comparison.candidates) > 1
    faults, findings = wording.describe_faults(comparison)
    if faults:
        yield from ("**Modules at fault**", "")
        for fault in faults:
            yield f"- {format_code(fault.module)} {escape_text(fault.facts)}"
            if fault.tensors:
                yield f"  - tensors: {escape_text(fault.tensors)}"
            if fault.alike:
                yield f"  and {', '.join(map(format_code, fault.alike))}"
            if fault.cause is not None:
                yield f"  {format_finding(replace(fault.cause, where=()), several=False)}"
        yield ""
    lines = [format_finding(finding, several) for finding in findings]
    lines += [f"- **extra outputs**: {escape_text(sentence)}" for sentence in wording.list_extra_outputs(comparison)]
    if lines:
        yield from ("**Findings**", "", *lines)


def format_finding(finding: Finding, several: bool) -> str:
    """Return a finding as an item of a list."""
    cause = printable(finding.cause)
    certainty = wording.describe_finding(finding).removeprefix(cause)
    text = f"- **{escape_text(cause)}**{escape_text(certainty)}"
    if several and finding.candidate:
        text += f" against {format_code(finding.candidate)}"
    if finding.where:
        text += f" in {', '.join(map(format_code, finding.where[:3]))}{' …' if len(finding.where) > 3 else ''}"
    if finding.evidence:
        text += f": {escape_text(wording.end_sentence(finding.evidence))}"
    if finding.repair:
        text += f" Repair: {escape_text(wording.end_sentence(finding.repair))}"
    return text


# -- sides and facts --------------------------------------------------------------------------------------------------


def _show_facts(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    yield from ("**Compared**", "")  # a title, lest the list runs into that of the findings
    yield _format_side(comparison, "reference", comparison.reference)
    if len(comparison.candidates) == 1:
        yield _format_side(comparison, "candidate", comparison.candidates[0])
    yield f"- tolerance: <code>{escape_text(wording.describe_tolerance(comparison))}</code>"
    rules = wording.describe_rules(comparison)
    if rules:
        yield f"- rules: {format_code(rules)}"
    if comparison.pairs:
        yield f"- {wording.tally_verdicts(comparison.totals)}"
    if comparison.outcome is not Outcome.IDENTICAL and comparison.pairs:
        yield f"- passes at: {escape_text(summary.describe_passing(comparison))}"
    for note in summary.list_notes(comparison):
        yield f"- note: {escape_text(cut_middle(note))}"


def _format_side(comparison: Comparison, role: str, side: Side) -> str:
    facts = [escape_text(fact) for fact in wording.describe_side(side, wording.shows_layers(comparison)) if fact]
    return f"- {role}: {format_code(wording.name_side(side))} ({', '.join(facts)})"


def _show_candidates(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    if len(comparison.candidates) < 2:
        return
    rows = []
    for side in comparison.candidates:
        part = wording.select_candidate(comparison, side)
        totals, needed = part.totals, part.needed_tolerance
        rows.append(
            [
                f"{wording.OUTCOME_SIGNS[part.outcome]} {part.verdict}",
                format_code(wording.name_side(side)),
                f"{totals.pairs - totals.matched:,} of {totals.pairs:,}",
                f"{totals.only_reference + totals.only_candidate:,}",
                "none" if needed is None else round_up(needed),
            ]
        )
    yield from format_table(("verdict", "candidate", "differ:", "left over:", "passes at:"), rows)


# -- the tensors of files ---------------------------------------------------------------------------------------------


def _show_pairs(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    shown, hidden = wording.choose_pairs(comparison, options.top, options.verbose)
    several = len(comparison.candidates) > 1
    titles = [
        "verdict",
        "tensor",
        "candidate",
        "max abs:",
        "x noise:",
        "max rel:",
        "out:",
        "shape",
        "dtype",
        "matched by",
    ]
    rows = []
    for pair in shown:
        rows.append(
            [
                wording.describe_verdict(pair),
                format_code(pair.name),
                format_code(pair.candidate) if several else "",
                format_number(measure_max_abs(pair)),
                format_times_noise(pair),
                format_number(measure(pair, "max_rel")),
                _format_share(pair),
                format_shapes(pair),
                escape_text(join_sides(*pair.dtype)) if pair.dtype[0] != pair.dtype[1] else "",
                escape_text(cut_middle(wording.describe_pairing(pair))),
                escape_text(wording.describe_remark(pair)),
            ]
        )
    yield from format_table([*titles, "remark"], rows)
    yield from format_hidden(hidden)


def _format_share(pair: Pair) -> str:
    return format_mismatched(pair).replace("<", "&lt;").replace(">", "&gt;")


def _show_groups(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    rows = []
    for name, pattern in comparison.groups.items():
        totals = comparison.totals_of_group(name)
        rate = wording.format_match_rate(totals)
        rows.append([format_code(name), format_code(pattern), f"{totals.pairs:,}", f"{totals.matched:,}", rate])
    yield from format_table(("group", "pattern", "pairs:", "same:", "match rate:"), rows)


def _show_settings(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    """Yield the settings beside the weights that differ, those that change the network first."""
    several = len(comparison.candidates) > 1
    settings = wording.rank_settings(comparison.settings)
    shown = settings if options.verbose else settings[: options.top]
    rows = []
    for setting in shown:
        sign = wording.SIGNS[Verdict.DIFFERENT] if setting.changes_network else "harmless"
        values = [escape_text(value) for value in wording.show_setting_values(setting)]
        against = format_code(setting.candidate) if several else ""
        rows.append([sign, format_code(setting.name), against, *values])
    yield from format_table(("", "setting", "compared with", "reference", "candidate"), rows)
    yield from format_hidden(len(settings) - len(shown))


def show_leftovers(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    """Yield the tensors that only one side has."""
    for side in SIDES:
        leftovers = wording.rank_leftovers(comparison.leftovers, side)
        if not leftovers:
            continue
        yield from (f"<details><summary>{wording.title_leftovers(leftovers, side)}</summary>", "")
        for leftover in leftovers:
            against = f", against {format_code(leftover.candidate)}" if len(comparison.candidates) > 1 else ""
            hint = escape_text(wording.explain_leftover(leftover))
            size = f"{format_shape(leftover.shape)} {escape_text(leftover.dtype)}"
            yield f"- {format_code(leftover.name)} ({size}{against})" + (f": {hint}" if hint else "")
        yield from ("", "</details>")


# -- the layers of recordings -----------------------------------------------------------------------------------------


def _show_summary(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    for view in view_recordings(comparison):
        yield from _format_title("Summary", comparison, view)
        yield f"- output: {escape_text(summary.describe_outputs(view))}"
        for rate in view.counts.rates:
            yield f"- {summary.label_rate(rate).replace('_', ' ')}: {escape_text(summary.describe_rate(rate))}"
        if view.unreached:
            yield f"- cut off: {escape_text(summary.describe_cut_off(view))}"
        good, text = summary.close_summary(comparison, view)
        yield f"- {'✓' if good else '✗'} {escape_text(cut_middle(text))}"


_TENSOR_TITLES = ("max abs:", "x noise:", "out:", "rel l2:", "shape", "remark")


def _tensor_row(pair: Pair, name: str) -> list[str]:
    return [
        wording.describe_verdict(pair),
        name,
        format_number(measure_max_abs(pair)),
        format_times_noise(pair),
        _format_share(pair),
        format_number(measure(pair, "rel_l2")),
        format_shapes(pair),
        escape_text(wording.describe_remark(pair)),
    ]


def _show_model(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    for view in view_recordings(comparison):
        shown = view.model if options.verbose else choose_model_rows(view, options.top)
        if shown:
            yield from _format_title("Inputs and outputs", comparison, view)
            rows = [_tensor_row(pair, escape_text(cut_middle(wording.label_model_pair(pair)))) for pair in shown]
            yield from format_table(("verdict", "model", *_TENSOR_TITLES), rows)
            yield from format_hidden(len(view.model) - len(shown))


def _show_layers(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    for view in view_recordings(comparison):
        if not view.rows:
            continue
        yield from _format_title("Layers", comparison, view)
        yield summary.count_layers(view)
        if all(row.worst.verdict is Verdict.IDENTICAL for row in view.rows) and not options.verbose:
            continue
        shown = list(view.rows) if options.verbose else choose_rows(view.rows, max(1, options.top))
        directions = ("forward", "max abs:", "x noise:", "backward", "max abs:", "x noise:")
        titles = ("layer", *directions, "shape", "matched by", "remark")
        has_gradients = any(row.backward for row in view.rows)
        yield ""
        yield from format_table(titles, [_layer_row(row, has_gradients) for row in shown])


def _layer_row(row: Row | Gap, has_gradients: bool) -> list[str]:
    if isinstance(row, Gap):
        return [row.text, *_gap_cells(row.forward), *_gap_cells(row.backward), "", "", ""]
    name = format_code(row.label)
    remarks = dict.fromkeys(wording.describe_remark(pair) for pair in row.pairs)
    return [
        f"**▶ {name} first divergence**" if row.first else name,
        *_direction_cells(row.forward, True),
        *_direction_cells(row.backward, has_gradients),
        format_shapes(row.pairs[0]),
        escape_text(cut_middle(wording.describe_row_pairing(row))),
        escape_text("; ".join(remark for remark in remarks if remark)),
    ]


def _direction_cells(pair: Pair | None, recorded: bool) -> tuple[str, str, str]:
    if pair is None:
        return "–" if recorded else "", "", ""
    return wording.describe_verdict(pair), format_number(measure_max_abs(pair)), format_times_noise(pair)


def _gap_cells(side: GapSide | None) -> tuple[str, str, str]:
    if side is None:
        return "", "", ""
    failing = f" {side.failing:,}" if side.failing else ""
    return wording.SIGNS[side.worst] + failing, format_number(side.max_abs), ""


def _show_gradients(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    """Yield the parameter gradients, mismatches first."""
    for view in view_recordings(comparison):
        unequal = rank_gradients(view)
        if not options.verbose:
            unequal = [pair for pair in unequal if pair.verdict is not Verdict.IDENTICAL]
        shown = unequal if options.verbose else unequal[: options.top]
        if not shown:
            continue
        yield from _format_title("Parameter gradients", comparison, view)
        numbers = ("max abs:", "x noise:", "rel to scale:", "out:")
        titles = ("verdict", "parameter", *numbers, "shape", "matched by", "remark")
        rows = []
        for pair in shown:
            rows.append(
                [
                    wording.describe_verdict(pair),
                    format_code(label_pair(pair)),
                    format_number(measure_max_abs(pair)),
                    format_times_noise(pair),
                    format_number(view.share_of_scale(pair)),
                    _format_share(pair),
                    format_shapes(pair),
                    escape_text(cut_middle(wording.describe_pairing(pair))),
                    escape_text(wording.describe_remark(pair)),
                ]
            )
        yield from format_table(titles, rows)
        yield ""
        yield f"The scale: the largest of all gradients is {format_number(view.counts.gradient_scale)}."
        yield from format_hidden(len(unequal) - len(shown))


def _show_other_pairs(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    for view in view_recordings(comparison):
        pairs = wording.rank_pairs(view.other_pairs)
        if not options.verbose:
            pairs = [pair for pair in pairs if not pair.verdict.passed]
        shown = pairs if options.verbose else pairs[: options.top]
        if shown:
            yield from _format_title("Other tensors", comparison, view)
            rows = [_tensor_row(pair, format_code(pair.name)) for pair in shown]
            yield from format_table(("verdict", "tensor", *_TENSOR_TITLES), rows)
            yield from format_hidden(len(pairs) - len(shown))


def _show_details(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    """Yield all numbers of the worst layers, folded."""
    for view in view_recordings(comparison):
        shown, hidden = choose_details(view, options.top, options.verbose)
        if not shown:
            continue
        against = f", {escape_text(cut_middle(view.candidate.label))}" if len(comparison.candidates) > 1 else ""
        yield from (f"<details><summary>mismatched layers in detail{against}</summary>", "")
        for pair in shown:
            yield f"- {format_code(wording.title_details(pair))}"
            for label, text in wording.describe_numbers(pair, view):
                yield f"  - {label}: {escape_text(' '.join(text.split()))}"
        if hidden:
            yield from ("", hidden)
        yield from ("", "</details>")


SECTIONS: tuple[Section, ...] = (
    _show_headline,
    _show_findings,
    _show_facts,
    _show_candidates,
    _show_settings,
    _show_pairs,
    _show_groups,
    show_leftovers,
)
RECORDING_SECTIONS: tuple[Section, ...] = (
    _show_headline,
    _show_findings,
    _show_facts,
    _show_candidates,
    _show_summary,
    _show_model,
    _show_layers,
    _show_gradients,
    _show_other_pairs,
    _show_details,
    _show_groups,
    show_leftovers,
)
