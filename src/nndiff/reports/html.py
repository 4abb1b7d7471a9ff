"""The result as one html page that needs nothing else: no request, no font, no library.

Version 1: the first.
"""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from nndiff.reports import ReportOptions, recording_html, wording
from nndiff.reports.html_assets import POLICY, SCRIPT, STYLE
from nndiff.reports.html_parts import TABLE_END, capital, class_of, number_cell, safe, table_start
from nndiff.result import Comparison, Finding, Leftover, Pair, Side
from nndiff.verdict import Outcome, Verdict

_STRIP_CELLS = 480  # more pairs than this share cells: each shows its worst
_DETAILED = 1000  # pairs with all their numbers on the page; the JSON report has all of all
_FOLDED = ("envelope", "count")


class HtmlReport:
    """Render the whole result as a page with a table to sort and filter."""

    name = "html"

    def render(self, comparison: Comparison, options: ReportOptions) -> str:
        """Return the whole document."""
        sections = RECORDING_SECTIONS if wording.is_recording(comparison) else SECTIONS
        body = "\n".join(line for section in sections for line in section(comparison))
        return _PAGE.format(policy=POLICY, style=STYLE, title=_title(comparison), body=body, script=SCRIPT)


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="nndiff-format" content="nndiff.html 1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
<script>{script}</script>
</body>
</html>
"""


def _title(comparison: Comparison) -> str:
    labels = ", ".join(side.label for side in comparison.candidates)
    return safe(f"nndiff: {comparison.verdict}: {comparison.reference.label} and {labels}", 200)


def _headline(comparison: Comparison) -> Iterator[str]:
    sign = wording.OUTCOME_SIGNS[comparison.outcome]
    yield f'<h1 class="{class_of(comparison.outcome)}">{sign} {safe(wording.headline(comparison))}</h1>'
    if wording.is_recording(comparison):
        yield from recording_html.first_divergence(comparison)
        return
    for place in wording.divergences(comparison):
        yield f"<p><strong>First divergence</strong> at <code>{safe(place)}</code></p>"


def _facts(comparison: Comparison) -> Iterator[str]:
    side_text = recording_html.side if wording.is_recording(comparison) else _side
    facts = [("reference", side_text(comparison.reference))]
    if len(comparison.candidates) == 1:
        facts.append(("candidate", side_text(comparison.candidates[0])))
    if comparison.pairs:
        facts.append(("pairs", wording.tally(comparison.totals)))
    facts.append(("tolerance", wording.tolerance(comparison)))
    if comparison.pairs and comparison.outcome is not Outcome.IDENTICAL:
        facts.append(("passes at", wording.passing(comparison)))
    facts += [("note", note) for note in wording.notes(comparison)]
    yield '<dl class="facts">'
    yield from (f"<dt>{name}</dt><dd>{safe(said)}</dd>" for name, said in facts)
    yield "</dl>"


def _side(side: Side) -> str:
    facts = [side.kind, *wording.side_counts(side), wording.size(side.nbytes)]
    return f"{wording.side_name(side)} ({', '.join(fact for fact in facts if fact)})"


def _candidates(comparison: Comparison) -> Iterator[str]:
    if len(comparison.candidates) < 2:
        return
    yield "<h2>Candidates</h2>"
    size = "elements" if comparison.kind == "recording" else "parameters"
    yield from table_start(("verdict", "candidate"), ("differ", "left over", "passes at", size, "size"))
    for side in comparison.candidates:
        part = wording.part_of(comparison, side)
        totals, needed = part.totals, part.needed_tolerance
        numbers = [
            f"{totals.pairs - totals.matched:,} of {totals.pairs:,}",
            f"{totals.only_reference + totals.only_candidate:,}",
            "none" if needed is None else wording.rounded_up(needed),
            f"{side.elements:,}",
            wording.size(side.nbytes),
        ]
        sign, name = f"{wording.OUTCOME_SIGNS[part.outcome]} {part.verdict}", safe(wording.side_name(side))
        yield f'<tr><td class="{class_of(part.outcome)}">{sign}</td><td class="name">{name}</td>'
        yield "".join(f'<td class="number">{number}</td>' for number in numbers) + "</tr>"
    yield TABLE_END


def _findings(comparison: Comparison) -> Iterator[str]:
    if comparison.findings:
        yield "<h2>Findings</h2>"
    yield from (_finding(each, wording.finding_about(comparison, each)) for each in comparison.findings)


def _finding(finding: Finding, about: str) -> str:
    harmless = ", harmless" if finding.harmless else ""
    where = ", ".join(f"<code>{safe(name)}</code>" for name in finding.where)
    repair = f" <em>Repair:</em> {safe(wording.sentence(finding.repair))}" if finding.repair else ""
    sure = f'<span class="soft">({finding.confidence:.0%} sure{harmless})</span>'
    place = f" In {where}." if where else ""
    against = f" against <code>{safe(about)}</code>" if about else ""
    evidence = safe(wording.sentence(finding.evidence))
    return f"<p><strong>{safe(finding.cause)}</strong> {sure}{against} {evidence}{repair}{place}</p>"


def _strip(comparison: Comparison) -> Iterator[str]:
    """Show all pairs in their order, one stripe each: where in the network the differences are."""
    for side in comparison.candidates:
        pairs = sorted(wording.part_of(comparison, side).pairs, key=lambda pair: pair.order)
        if len(pairs) > 1:
            many = len(comparison.candidates) > 1
            yield f"<h2>All tensors in order{', ' + safe(side.label, 120) if many else ''}</h2>"
            yield from _stripes(pairs)


def _stripes(pairs: Sequence[Pair]) -> Iterator[str]:
    cells = min(len(pairs), _STRIP_CELLS)
    yield f'<svg class="strip" viewBox="0 0 {cells} 10" preserveAspectRatio="none" role="img" aria-label="tensors">'
    for cell in range(cells):
        share = pairs[cell * len(pairs) // cells : (cell + 1) * len(pairs) // cells]
        pair = max(share, key=lambda each: each.severity)
        height = _height(pair)
        yield (
            f'<rect class="{class_of(pair.verdict)}" x="{cell}" width="1" y="{10 - height:.3g}" height="{height:.3g}">'
            f"<title>{safe(pair.name, 120)}: {pair.verdict.value}</title></rect>"
        )
    yield "</svg>"
    yield '<p class="soft">Taller is further apart, from 1e-12 (low) to 1 (full height), by the tolerance needed.</p>'


def _height(pair: Pair) -> float:
    if pair.metrics is None or (not pair.verdict.passed and pair.metrics.needed_tolerance == math.inf):
        return 10.0
    needed = pair.metrics.needed_tolerance
    if not needed > 0:
        return 1.0
    return 1.0 + 9.0 * min(1.0, max(0.0, (math.log10(needed) + 12) / 12))


def _pairs(comparison: Comparison) -> Iterator[str]:
    pairs = wording.ranked(comparison.pairs)
    if not pairs:
        return
    many = len(comparison.candidates) > 1
    yield "<section><h2>Pairs</h2>"
    yield from _tools(pairs)
    names = ("verdict", "tensor", *(("candidate",) if many else ()))
    yield from table_start(
        names, ("max abs", "max rel", "rmse", "cosine", "out"), ("shape", "dtype", "matched by"), "pairs"
    )
    yield from (_row(pair, many, index < _DETAILED) for index, pair in enumerate(pairs))
    yield TABLE_END + "</section>"


def _tools(pairs: Iterable[Pair]) -> Iterator[str]:
    """Yield the filters; the script shows them, since without it they would do nothing."""
    yield '<div class="tools" hidden><input type="search" id="search" placeholder="filter by name" aria-label="filter">'
    seen = {pair.verdict for pair in pairs}
    for verdict in (verdict for verdict in Verdict if verdict in seen):
        box = f'<input type="checkbox" value="{class_of(verdict)}" checked>'
        yield f'<label class="{class_of(verdict)}">{box} {verdict.value}</label>'
    yield '<span class="soft shown"></span></div>'


def _row(pair: Pair, many: bool, detailed: bool) -> str:
    slug, numbers = class_of(pair.verdict), pair.metrics
    search = safe(f"{pair.name} {pair.candidate_name} {pair.slot or ''}".lower())
    cells = [f'<td class="{slug}">{wording.SIGNS[pair.verdict]} {pair.verdict.value}</td>', _name(pair, detailed)]
    if many:
        cells.append(f'<td class="name">{safe(pair.candidate)}</td>')
    values = [wording.measured(pair, which) for which in ("max_abs", "rmse", "cosine")]
    cells += map(number_cell, (values[0], wording.relative(pair), *values[1:]))
    share = numbers.mismatched / numbers.count if numbers and numbers.count and numbers.mismatched is not None else None
    cells.append(f'<td class="number" data-key="{share}">{html.escape(wording.mismatched(pair))}</td>')
    shape = wording.both(*map(wording.shape, pair.shape))
    cells += [f'<td class="soft">{safe(each)}</td>' for each in (shape, wording.both(*pair.dtype))]
    cells.append(f'<td class="soft wrap">{safe(wording.pairing(pair) or "name")}</td>')
    return f'<tr data-verdict="{slug}" data-search="{search}">{"".join(cells)}</tr>'


def _name(pair: Pair, detailed: bool) -> str:
    slot = f' <span class="soft">{safe(pair.slot)}</span>' if pair.slot else ""
    title, key = safe(wording.name(pair.name)) + slot, safe(pair.name)
    if not detailed or pair.metrics is None or pair.verdict is Verdict.IDENTICAL:
        note = f' <span class="soft">{safe(pair.note)}</span>' if pair.note else ""
        return f'<td class="name" data-key="{key}">{title}{note}</td>'
    return f'<td class="name" data-key="{key}"><details><summary>{title}</summary>{_all_numbers(pair)}</details></td>'


def _all_numbers(pair: Pair) -> str:
    facts = {"atol": wording.short(pair.atol), "rtol": wording.short(pair.rtol)}
    for field in dataclasses.fields(pair.metrics) if pair.metrics else ():
        if field.name not in _FOLDED:
            value = getattr(pair.metrics, field.name)
            measured = isinstance(value, float)
            facts[field.name] = wording.number(wording.measured(pair, field.name)) if measured else str(value)
    rows = "".join(f"<div><dt>{name}</dt><dd>{html.escape(said)}</dd></div>" for name, said in facts.items())
    return (f"<p>{safe(pair.note)}</p>" if pair.note else "") + f"<dl>{rows}</dl>"


def _leftovers(comparison: Comparison) -> Iterator[str]:
    for side in ("reference", "candidate"):
        left = wording.ordered(comparison.leftovers, side)
        if left:
            yield f"<h2>{capital(wording.leftover_title(left, side))}</h2>"
            yield from table_start(("tensor", "shape", "dtype", "compared with", "hint"))
            yield from map(_leftover, left)
            yield TABLE_END


def _leftover(left: Leftover) -> str:
    rest = (wording.shape(left.shape), left.dtype, left.candidate, left.hint)
    return f'<tr><td class="name">{safe(left.name)}</td>' + "".join(f"<td>{safe(each)}</td>" for each in rest) + "</tr>"


def _groups(comparison: Comparison) -> Iterator[str]:
    if not comparison.groups:
        return
    yield "<h2>Groups</h2>"
    yield from table_start(("group", "pattern"), ("pairs", "same", "left over", "match rate"))
    for name, pattern in comparison.groups.items():
        totals = comparison.totals_of_group(name)
        left = totals.only_reference + totals.only_candidate
        numbers = (f"{totals.pairs:,}", f"{totals.matched:,}", f"{left:,}", wording.match_rate(totals))
        yield f'<tr><td>{safe(name)}</td><td class="name">{safe(pattern)}</td>'
        yield "".join(f'<td class="number">{number}</td>' for number in numbers) + "</tr>"
    yield TABLE_END


Section = Callable[[Comparison], Iterable[str]]
SECTIONS: tuple[Section, ...] = (_headline, _facts, _candidates, _findings, _strip, _pairs, _leftovers, _groups)
RECORDING_SECTIONS: tuple[Section, ...] = (
    _headline,
    _facts,
    _candidates,
    _findings,
    recording_html.summary,
    recording_html.model,
    recording_html.error_plot,
    recording_html.layers,
    recording_html.gradients,
    _pairs,
    _leftovers,
    _groups,
)
