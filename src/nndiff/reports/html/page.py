"""The result as one html page that needs nothing else: no request, no font, no library.

Version 1: the first.
Version 2: findings stand under the headline; guessed pairs and relations are marked.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib import resources
from string import Template

from nndiff.reports import ReportOptions, get_report, summary, wording
from nndiff.reports.figures import (
    format_mismatched,
    format_name,
    format_noise,
    format_number,
    format_shape,
    format_shapes,
    format_size,
    format_typed,
    join_sides,
    measure,
    measure_max_abs,
    measure_max_rel,
)
from nndiff.reports.layers import RecordingView, Row, label_pair, rank_gradients, view_recordings
from nndiff.reports.plot import draw_plot
from nndiff.result import SIDES, Comparison, Finding, Pair
from nndiff.result_json import is_guess
from nndiff.text import printable
from nndiff.tolerance import round_up
from nndiff.verdict import Outcome, Verdict

FORMAT = "nndiff.html 2"
_STRIP_CELLS = 480  # more pairs than this share cells: each shows its worst
_DETAILED = 1000  # pairs with all their numbers on the page; the JSON report has all of all
_FOLDED = ("envelope", "count")
TABLE_END = "</tbody></table></div>"
_FRAME_HEIGHT = 640  # pixels of a notebook cell

Section = Callable[[Comparison], Iterable[str]]


class HtmlReport:
    """Render the whole result as a page with tables to sort and filter."""

    name = "html"

    def render(self, comparison: Comparison, options: ReportOptions) -> str:
        """Return the whole document."""
        sections = RECORDING_SECTIONS if wording.shows_layers(comparison) else SECTIONS
        return render_page(comparison, sections)


def render_page(comparison: Comparison, sections: Iterable[Section], more_style: str = "") -> str:
    """Return the page of these sections."""
    body = "\n".join(line for section in sections for line in section(comparison))
    labels = ", ".join(side.label for side in comparison.candidates)
    title = escape_html(f"nndiff: {comparison.verdict}: {comparison.reference.label} and {labels}", 200)
    style, script = read_asset("report.css") + more_style, read_asset("report.js")
    # Nothing but these two texts: no request leaves the page, and no name can become script or style.
    policy = (
        f"default-src 'none'; style-src {_hash_source(style)}; script-src {_hash_source(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    page = Template(read_asset("report.html"))
    return page.substitute(policy=policy, format=FORMAT, title=title, style=style, body=body, script=script)


def render_html(comparison: Comparison) -> str:
    """Return the report for a notebook cell: the page in a frame, so that its style and script stay its own."""
    page = html.escape(get_report("html").render(comparison, ReportOptions()))
    return (
        f'<iframe srcdoc="{page}" sandbox="allow-scripts" title="nndiff report" width="100%" '
        f'height="{_FRAME_HEIGHT}" style="border: 0; resize: vertical; overflow: auto"></iframe>'
    )


def read_asset(name: str) -> str:
    """Return a file that stands beside this one."""
    return resources.files("nndiff.reports.html").joinpath(name).read_text(encoding="utf-8")


def _hash_source(text: str) -> str:
    """Return the Content-Security-Policy hash of an inline text."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def escape_html(text: str, limit: int | None = None) -> str:
    """Return text escaped for HTML, attributes included."""
    return html.escape(printable(text, limit))


def css_class(verdict: Verdict | Outcome) -> str:
    """Return the class of a verdict."""
    return str(verdict.value).replace(" ", "-")


def start_table(columns: Sequence[tuple[str, bool]], name: str = "") -> str:
    """Return the head of a table of (title, is a number); one with a name can be sorted."""
    identifier = f' id="{name}"' if name else ""
    heads = []
    for title, is_number in columns:
        kind = ' class="number"' if is_number else ""
        heads.append(f'<th scope="col"{kind}>{title}</th>')
    return f'<div class="scroll"><table{identifier}><thead><tr>{"".join(heads)}</tr></thead><tbody>'


def text_columns(*titles: str) -> list[tuple[str, bool]]:
    """Return columns of text."""
    return [(title, False) for title in titles]


def number_columns(*titles: str) -> list[tuple[str, bool]]:
    """Return columns of numbers."""
    return [(title, True) for title in titles]


def number_cell(value: float | None) -> str:
    """Return the cell of a measured number, with its full value to sort by."""
    key = "" if value is None else repr(value).replace("inf", "Infinity")  # as parseFloat reads it
    return f'<td class="number" data-key="{key}">{format_number(value)}</td>'


def text_cell(text: str, kind: str = "soft") -> str:
    """Return a cell of text."""
    return f'<td class="{kind}">{escape_html(text)}</td>'


def _verdict_cell(pair: Pair) -> str:
    kind = "guessed" if is_guess(pair) and not pair.verdict.passed else css_class(pair.verdict)
    return f'<td class="{kind}">{wording.describe_verdict(pair)}</td>'


def _share_cell(pair: Pair) -> str:
    metrics = pair.metrics
    share = ""
    if metrics and metrics.count and metrics.mismatched is not None:
        share = repr(metrics.mismatched / metrics.count)
    return f'<td class="number" data-key="{share}">{html.escape(format_mismatched(pair))}</td>'


def format_facts(facts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a list of labels and texts."""
    yield '<dl class="facts">'
    for label, text in facts:
        yield f"<dt>{escape_html(label)}</dt><dd>{escape_html(text)}</dd>"
    yield "</dl>"


def format_title(text: str, comparison: Comparison, label: str) -> str:
    """Return a title, with the candidate where there are several."""
    return f"<h2>{text}{', ' + escape_html(label, 120) if len(comparison.candidates) > 1 else ''}</h2>"


# -- verdict, first divergence, findings ------------------------------------------------------------------------------


def _show_headline(comparison: Comparison) -> Iterator[str]:
    sign, kind = wording.OUTCOME_SIGNS[comparison.outcome], css_class(comparison.outcome)
    yield f'<h1 class="{kind}">{sign} {escape_html(summary.headline(comparison))}</h1>'
    for divergence in wording.describe_divergences(comparison):
        what = f" <span>{escape_html(divergence.what)}</span>" if divergence.what else ""
        name = escape_html(divergence.name)
        yield f'<div class="parting"><p>First divergence at <strong><code>{name}</code></strong>{what}</p>'
        yield from format_facts([("why", divergence.why), *divergence.facts])
        yield "</div>"
    for sentence in wording.list_extra_outputs(comparison):
        yield f"<p>Extra outputs: {escape_html(sentence)}</p>"


def show_findings(comparison: Comparison) -> Iterator[str]:
    """Yield all findings."""
    faults, findings = wording.describe_faults(comparison)
    if faults:
        yield "<h2>Modules at fault</h2>"
    for fault in faults:
        yield f"<p><strong><code>{escape_html(fault.module)}</code></strong> {escape_html(fault.facts)}</p>"
        if fault.tensors:
            yield f'<p class="soft">Tensors: {escape_html(fault.tensors)}</p>'
        if fault.alike:
            yield f"<p>and {', '.join(f'<code>{escape_html(name)}</code>' for name in fault.alike)}</p>"
        if fault.cause is not None:
            yield format_finding(replace(fault.cause, where=()), several=False)
    if findings:
        yield "<h2>Findings</h2>"
    for finding in findings:
        yield format_finding(finding, len(comparison.candidates) > 1)


def format_finding(finding: Finding, several: bool) -> str:
    """Return a finding as a paragraph."""
    cause = printable(finding.cause)
    certainty = wording.describe_finding(finding).removeprefix(cause).strip()
    parts = [f'<strong>{escape_html(cause)}</strong> <span class="soft">{escape_html(certainty)}</span>']
    if several and finding.candidate:
        parts.append(f"against <code>{escape_html(finding.candidate)}</code>")
    if finding.evidence:
        parts.append(escape_html(wording.end_sentence(finding.evidence)))
    if finding.repair:
        parts.append(f"<em>Repair:</em> {escape_html(wording.end_sentence(finding.repair))}")
    if finding.where:
        where = ", ".join(f"<code>{escape_html(name)}</code>" for name in finding.where)
        parts.append(f"In {where}.")
    return f"<p>{' '.join(parts)}</p>"


# -- sides and facts --------------------------------------------------------------------------------------------------


def _show_facts(comparison: Comparison) -> Iterator[str]:
    sides = [("reference", comparison.reference)]
    if len(comparison.candidates) == 1:
        sides.append(("candidate", comparison.candidates[0]))
    facts = []
    for role, side in sides:
        details = [fact for fact in wording.describe_side(side, wording.shows_layers(comparison)) if fact]
        facts.append((role, f"{wording.name_side(side)} ({', '.join(details)})"))
    if comparison.pairs:
        facts.append(("pairs", wording.tally_verdicts(comparison.totals)))
    facts.append(("tolerance", wording.describe_tolerance(comparison)))
    if wording.describe_rules(comparison):
        facts.append(("rules", wording.describe_rules(comparison)))
    if comparison.pairs and comparison.outcome is not Outcome.IDENTICAL:
        facts.append(("passes at", summary.describe_passing(comparison)))
    facts += [("note", note) for note in summary.list_notes(comparison)]
    yield from format_facts(facts)


def _show_candidates(comparison: Comparison) -> Iterator[str]:
    if len(comparison.candidates) < 2:
        return
    yield "<h2>Candidates</h2>"
    size = "elements" if comparison.kind == "recording" else "parameters"
    numbers = number_columns("differ", "left over", "passes at", size, "size")
    yield start_table([*text_columns("verdict", "candidate"), *numbers])
    for side in comparison.candidates:
        part = wording.select_candidate(comparison, side)
        totals, needed = part.totals, part.needed_tolerance
        cells = [
            f"{totals.pairs - totals.matched:,} of {totals.pairs:,}",
            f"{totals.only_reference + totals.only_candidate:,}",
            "none" if needed is None else round_up(needed),
            f"{side.elements:,}",
            format_size(side.nbytes),
        ]
        sign = f"{wording.OUTCOME_SIGNS[part.outcome]} {part.verdict}"
        name = escape_html(wording.name_side(side))
        yield f'<tr><td class="{css_class(part.outcome)}">{sign}</td><td class="name">{name}</td>'
        yield "".join(f'<td class="number">{cell}</td>' for cell in cells) + "</tr>"
    yield TABLE_END


# -- all tensors ------------------------------------------------------------------------------------------------------


def _show_strip(comparison: Comparison) -> Iterator[str]:
    """Yield all pairs in their order, one stripe each: where in the network the differences are."""
    for side in comparison.candidates:
        pairs = sorted(comparison.pairs_of(side.label), key=lambda pair: pair.order)
        if len(pairs) < 2:
            continue
        yield format_title("All tensors in order", comparison, side.label)
        cells = min(len(pairs), _STRIP_CELLS)
        yield f'<svg class="strip" viewBox="0 0 {cells} 10" preserveAspectRatio="none" role="img" aria-label="tensors">'
        for cell in range(cells):
            share = pairs[cell * len(pairs) // cells : (cell + 1) * len(pairs) // cells]
            pair = max(share, key=lambda item: item.severity)
            height = _stripe_height(pair)
            yield (
                f'<rect class="{css_class(pair.verdict)}" x="{cell}" width="1" y="{10 - height:.3g}" '
                f'height="{height:.3g}"><title>{escape_html(pair.name, 120)}: {pair.verdict.value}</title></rect>'
            )
        yield "</svg>"
        yield '<p class="soft">Height shows the tolerance needed, from 1e-12 (low) to 1 (full height).</p>'


def _stripe_height(pair: Pair) -> float:
    if pair.metrics is None or (not pair.verdict.passed and pair.metrics.needed_tolerance == math.inf):
        return 10.0
    needed = pair.metrics.needed_tolerance
    if not needed > 0:
        return 1.0
    return 1.0 + 9.0 * min(1.0, max(0.0, (math.log10(needed) + 12) / 12))


def _show_pairs(comparison: Comparison) -> Iterator[str]:
    pairs = wording.rank_pairs(comparison.pairs)
    if not pairs:
        return
    several = len(comparison.candidates) > 1
    yield "<section><h2>Pairs</h2>"
    # the script shows the filters, since without it they would do nothing
    yield '<div class="tools" hidden><input type="search" id="search" placeholder="filter by name" aria-label="filter">'
    verdicts = {pair.verdict for pair in pairs}
    for verdict in Verdict:
        if verdict in verdicts:
            box = f'<input type="checkbox" value="{css_class(verdict)}" checked>'
            yield f'<label class="{css_class(verdict)}">{box} {verdict.value}</label>'
    yield '<span class="soft shown"></span></div>'
    columns = text_columns("verdict", "tensor", *(["candidate"] if several else []))
    columns += number_columns("max abs", *_noise_titles(pairs), "max rel", "rmse", "cosine", "out")
    columns += text_columns("shape", "dtype", "matched by")
    yield start_table(columns, "pairs")
    for index, pair in enumerate(pairs):
        yield _format_pair(pair, several, bool(_noise_titles(pairs)), detailed=index < _DETAILED)
    yield TABLE_END + "</section>"


def _noise_titles(pairs: Iterable[Pair | None]) -> list[str]:
    """Return the title of the column for multiples of the noise floor, if one was measured."""
    return ["x noise"] if any(pair is not None and pair.noise is not None for pair in pairs) else []


def _size_cells(pair: Pair, with_noise: bool) -> str:
    """Return the largest difference, and how many times the noise floor it is."""
    times = pair.times_noise if measure_max_abs(pair) is not None else None
    return number_cell(measure_max_abs(pair)) + (_times_cell(times) if with_noise else "")


def _times_cell(times: float | None) -> str:
    key = "" if times is None else repr(times).replace("inf", "Infinity")
    return f'<td class="number" data-key="{key}">{format_noise(times)}</td>'


def _format_pair(pair: Pair, several: bool, with_noise: bool, detailed: bool) -> str:
    search = escape_html(f"{pair.name} {pair.candidate_name} {pair.slot or ''}".lower())
    cells = [_verdict_cell(pair), _name_cell(pair, detailed)]
    if several:
        cells.append(text_cell(pair.candidate, "name"))
    cells += [
        _size_cells(pair, with_noise),
        number_cell(measure_max_rel(pair)),
        number_cell(measure(pair, "rmse")),
        number_cell(measure(pair, "cosine")),
        _share_cell(pair),
        text_cell(format_shapes(pair)),
        text_cell(join_sides(*pair.dtype)),
        text_cell(wording.describe_pairing(pair) or "name", "soft wrap"),
    ]
    return f'<tr data-verdict="{css_class(pair.verdict)}" data-search="{search}">{"".join(cells)}</tr>'


def _name_cell(pair: Pair, detailed: bool) -> str:
    """Return the name, with its remarks and, where it is not identical, all its numbers folded below it."""
    title = escape_html(format_name(pair.name))
    remarks = [note.text for note in pair.notes]
    remark = wording.describe_remark(pair)
    if remark:
        remarks.insert(0, remark)
    text = f' <span class="soft">{escape_html("; ".join(remarks))}</span>' if remarks else ""
    key = escape_html(pair.name)
    if not detailed or pair.metrics is None or pair.verdict is Verdict.IDENTICAL:
        return f'<td class="name" data-key="{key}">{title}{text}</td>'
    numbers = _list_numbers(pair)
    return f'<td class="name" data-key="{key}"><details><summary>{title}{text}</summary>{numbers}</details></td>'


def _list_numbers(pair: Pair) -> str:
    numbers = {"atol": format_typed(pair.atol), "rtol": format_typed(pair.rtol)}
    for field in dataclasses.fields(pair.metrics) if pair.metrics else ():
        value = getattr(pair.metrics, field.name)
        if field.name not in _FOLDED and value is not None:
            numbers[field.name] = format_number(measure(pair, field.name)) if isinstance(value, float) else str(value)
    rows = [f"<div><dt>{name}</dt><dd>{html.escape(text)}</dd></div>" for name, text in numbers.items()]
    return f"<dl>{''.join(rows)}</dl>"


def _show_settings(comparison: Comparison) -> Iterator[str]:
    """Yield the settings beside the weights that differ, those that change the network first."""
    if not comparison.settings:
        return
    yield "<h2>Settings</h2>"
    yield start_table(text_columns("", "setting", "compared with", "reference", "candidate"))
    for setting in wording.rank_settings(comparison.settings):
        kind = css_class(Verdict.DIFFERENT) if setting.changes_network else "soft"
        sign = wording.SIGNS[Verdict.DIFFERENT] if setting.changes_network else "harmless"
        cells = [text_cell(sign, kind), text_cell(setting.name, "name"), text_cell(setting.candidate)]
        cells += [text_cell(value, "wrap") for value in wording.show_setting_values(setting)]
        yield f"<tr>{''.join(cells)}</tr>"
    yield TABLE_END


def show_leftovers(comparison: Comparison) -> Iterator[str]:
    """Yield the tensors that only one side has."""
    for side in SIDES:
        leftovers = wording.rank_leftovers(comparison.leftovers, side)
        if not leftovers:
            continue
        title = wording.title_leftovers(leftovers, side)
        yield f"<h2>{title[:1].upper()}{title[1:]}</h2>"
        yield start_table(text_columns("tensor", "shape", "dtype", "compared with", "why"))
        for leftover in leftovers:
            cells = [
                text_cell(leftover.name, "name"),
                text_cell(format_shape(leftover.shape)),
                text_cell(leftover.dtype),
                text_cell(leftover.candidate),
                text_cell(wording.explain_leftover(leftover), "wrap"),
            ]
            yield f"<tr>{''.join(cells)}</tr>"
        yield TABLE_END


def _show_groups(comparison: Comparison) -> Iterator[str]:
    if not comparison.groups:
        return
    yield "<h2>Groups</h2>"
    yield start_table([*text_columns("group", "pattern"), *number_columns("pairs", "same", "left over", "match rate")])
    for name, pattern in comparison.groups.items():
        totals = comparison.totals_of_group(name)
        alone = totals.only_reference + totals.only_candidate
        cells = (f"{totals.pairs:,}", f"{totals.matched:,}", f"{alone:,}", wording.format_match_rate(totals))
        yield f'<tr><td>{escape_html(name)}</td><td class="name">{escape_html(pattern)}</td>'
        yield "".join(f'<td class="number">{cell}</td>' for cell in cells) + "</tr>"
    yield TABLE_END


# -- the layers of recordings -----------------------------------------------------------------------------------------


def _show_summary(comparison: Comparison) -> Iterator[str]:
    """Yield the match rates and the verdict."""
    for view in view_recordings(comparison):
        yield format_title("Summary", comparison, view.candidate.label)
        facts = [("output", summary.describe_outputs(view)), ("layers", summary.count_layers(view))]
        facts += [(summary.label_rate(rate), summary.describe_rate(rate)) for rate in view.counts.rates]
        if view.unreached:
            facts.append(("cut off", summary.describe_cut_off(view)))
        yield from format_facts(facts)
        good, text = summary.close_summary(comparison, view)
        yield f'<p class="{"identical" if good else "different"}">{"✓" if good else "✗"} {escape_html(text)}</p>'


def _show_model(comparison: Comparison) -> Iterator[str]:
    """Yield what went into the models and what came out."""
    for view in view_recordings(comparison):
        if not view.model:
            continue
        yield format_title("Inputs and outputs", comparison, view.candidate.label)
        noise = _noise_titles(view.model)
        numbers = number_columns("max abs", *noise, "rel l2", "cosine", "out")
        yield start_table([*text_columns("verdict", "model"), *numbers, *text_columns("shape", "remark")])
        for pair in view.model:
            cells = [
                _verdict_cell(pair),
                text_cell(wording.label_model_pair(pair), "name"),
                _size_cells(pair, bool(noise)),
                number_cell(measure(pair, "rel_l2")),
                number_cell(measure(pair, "cosine")),
                _share_cell(pair),
                text_cell(format_shapes(pair)),
                text_cell(wording.describe_remark(pair), "soft wrap"),
            ]
            yield f"<tr>{''.join(cells)}</tr>"
        yield TABLE_END


def _show_plot(comparison: Comparison) -> Iterator[str]:
    """Yield the error of every layer in order of execution."""
    for view in view_recordings(comparison):
        lines = list(draw_plot(view.rows, comparison.tolerance.atol))
        if lines:
            yield format_title("Error by layer", comparison, view.candidate.label)
            yield from lines


def format_tools(what: str) -> str:
    """Return the filters; the script shows them, since without it they would do nothing."""
    prompt = f"filter by {what}"
    return (
        f'<div class="tools" hidden><input type="search" placeholder="{prompt}" aria-label="{prompt}">'
        '<label><input type="checkbox" class="only"> only mismatches</label><span class="soft shown"></span></div>'
    )


def _show_layers(comparison: Comparison) -> Iterator[str]:
    """Yield every layer in order of execution, forward and backward side by side."""
    for view in view_recordings(comparison):
        if not view.rows:
            continue
        yield "<section>" + format_title("Layers in order of execution", comparison, view.candidate.label)
        yield format_tools("layer")
        noise = _noise_titles(pair for row in view.rows for pair in row.pairs)
        sizes = number_columns("max abs", *noise)
        columns = [("n", True), ("layer", False), ("forward", False), *sizes, ("backward", False), *sizes]
        yield start_table([*columns, *text_columns("shape", "matched by", "remark")])
        for index, row in enumerate(view.rows):
            yield _format_layer(index, row, view.first is not None, bool(noise))
        yield TABLE_END + "</section>"


def _format_layer(index: int, row: Row, has_first: bool, with_noise: bool) -> str:
    kind = ' class="first"' if row.first else ' class="inherited"' if has_first and not row.passed else ""
    passed = ' data-passed="1"' if row.passed else ""
    mark = ' <span class="different">▶ first divergence</span>' if row.first else ""
    label = escape_html(row.label)
    cells = [
        f'<td class="number soft" data-key="{index}">{index + 1}</td>',
        f'<td class="name" data-key="{label}">{escape_html(format_name(row.label))}{mark}</td>',
    ]
    for pair in (row.forward, row.backward):
        if pair is None:
            cells.append('<td class="soft">–</td>' + '<td class="number"></td>' * (1 + with_noise))
        else:
            cells.append(_verdict_cell(pair) + _size_cells(pair, with_noise))
    remarks = dict.fromkeys(wording.describe_remark(pair) for pair in row.pairs)
    cells += [
        text_cell(format_shapes(row.pairs[0])),
        text_cell(wording.describe_row_pairing(row) or "name", "soft wrap"),
        text_cell("; ".join(remark for remark in remarks if remark), "soft wrap"),
    ]
    return f'<tr{kind}{passed} data-search="{escape_html(row.label.lower())}">{"".join(cells)}</tr>'


def _show_gradients(comparison: Comparison) -> Iterator[str]:
    """Yield the parameter gradients, mismatches first."""
    for view in view_recordings(comparison):
        if not view.parameter_gradients:
            continue
        yield "<section>" + format_title("Parameter gradients", comparison, view.candidate.label)
        scale = format_number(view.counts.gradient_scale)
        yield f'<p class="soft">Relative to the scale: the largest of all gradients is {scale}.</p>'
        yield format_tools("parameter")
        noise = _noise_titles(view.parameter_gradients)
        numbers = number_columns("max abs", *noise, "rel to scale", "cosine", "out")
        yield start_table([*text_columns("verdict", "parameter"), *numbers, *text_columns("shape", "matched by")])
        for pair in rank_gradients(view):
            yield _format_gradient(pair, view, bool(noise))
        yield TABLE_END + "</section>"


def _format_gradient(pair: Pair, view: RecordingView, with_noise: bool) -> str:
    label = label_pair(pair)
    passed = ' data-passed="1"' if pair.verdict.passed else ""
    remark = wording.describe_remark(pair)
    note = f' <span class="soft">{escape_html(remark)}</span>' if remark else ""
    cells = [
        _verdict_cell(pair),
        f'<td class="name" data-key="{escape_html(label)}">{escape_html(format_name(label))}{note}</td>',
        _size_cells(pair, with_noise),
        number_cell(view.share_of_scale(pair)),
        number_cell(measure(pair, "cosine")),
        _share_cell(pair),
        text_cell(format_shapes(pair)),
        text_cell(wording.describe_pairing(pair) or "name", "soft wrap"),
    ]
    return f'<tr{passed} data-search="{escape_html(label.lower())}">{"".join(cells)}</tr>'


SECTIONS: tuple[Section, ...] = (
    _show_headline,
    show_findings,
    _show_facts,
    _show_candidates,
    _show_settings,
    _show_strip,
    _show_pairs,
    show_leftovers,
    _show_groups,
)
RECORDING_SECTIONS: tuple[Section, ...] = (
    _show_headline,
    show_findings,
    _show_facts,
    _show_candidates,
    _show_summary,
    _show_model,
    _show_plot,
    _show_layers,
    _show_gradients,
    _show_pairs,
    show_leftovers,
    _show_groups,
)
