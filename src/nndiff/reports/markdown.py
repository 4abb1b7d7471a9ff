"""The result as GitHub markdown, to paste into a pull request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from nndiff.reports import ReportOptions, recording_markdown, wording
from nndiff.reports.markdown_parts import code, escaped, middle, table
from nndiff.result import Comparison, Finding, Leftover, Pair, Side
from nndiff.verdict import Outcome


class MarkdownReport:
    """Render the verdict, the worst rows and what is left over."""

    name = "md"

    def render(self, comparison: Comparison, options: ReportOptions) -> str:
        """Return the whole document."""
        sections = RECORDING_SECTIONS if wording.is_recording(comparison) else SECTIONS
        shown = sections[:1] if options.quiet else sections
        blocks = ("\n".join(section(comparison, options)).rstrip() for section in shown)
        return "\n\n".join(block for block in blocks if block) + "\n"


def _headline(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    sign = wording.OUTCOME_SIGNS[comparison.outcome]
    yield f"**{sign} nndiff: {wording.headline(comparison)}**"
    if options.quiet:
        return
    if wording.is_recording(comparison):
        yield from recording_markdown.first_divergence(comparison)
        return
    for place in wording.divergences(comparison):
        yield ""
        yield f"First divergence: {code(place)}"


def _facts(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    yield _side(comparison, "reference", comparison.reference)
    if len(comparison.candidates) == 1:
        yield _side(comparison, "candidate", comparison.candidates[0])
    yield f"- tolerance: `{wording.tolerance(comparison)}`"
    if comparison.pairs:
        yield f"- {wording.tally(comparison.totals)}"
    if comparison.outcome is not Outcome.IDENTICAL and comparison.pairs:
        yield f"- passes at: `{wording.passing(comparison)}`"
    yield from (f"- note: {escaped(middle(note))}" for note in wording.notes(comparison))


def _side(comparison: Comparison, role: str, side: Side) -> str:
    if wording.is_recording(comparison):
        return recording_markdown.side(role, side)
    facts = ", ".join(fact for fact in wording.side_counts(side) if fact)
    return f"- {role}: {code(wording.side_name(side))} ({escaped(side.kind)}, {facts})"


def _candidates(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    if len(comparison.candidates) > 1:
        parts = [wording.part_of(comparison, side) for side in comparison.candidates]
        yield from table(("verdict", "candidate", "differ:", "left over:", "passes at:"), map(_candidate, parts))


def _candidate(part: Comparison) -> list[str]:
    totals, needed = part.totals, part.needed_tolerance
    return [
        f"{wording.OUTCOME_SIGNS[part.outcome]} {part.verdict}",
        code(wording.side_name(part.candidates[0])),
        f"{totals.pairs - totals.matched:,} of {totals.pairs:,}",
        f"{totals.only_reference + totals.only_candidate:,}",
        "none" if needed is None else wording.rounded_up(needed),
    ]


def _rows(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    shown, hidden = wording.rows(comparison, options.top, options.verbose)
    many = len(comparison.candidates) > 1
    titles = ("verdict", "tensor", "candidate", "max abs:", "max rel:", "out:", "shape", "dtype", "matched by")
    yield from table(titles, [_row(pair, many) for pair in shown])
    if hidden:
        yield ""
        yield f"and {hidden:,} more"


def _row(pair: Pair, many: bool) -> list[str]:
    return [
        f"{wording.SIGNS[pair.verdict]} {pair.verdict.value}",
        code(pair.name) + (f" {escaped(pair.slot)}" if pair.slot else ""),
        code(pair.candidate) if many else "",
        wording.number(wording.measured(pair, "max_abs")),
        wording.number(wording.measured(pair, "max_rel")),
        wording.mismatched(pair).replace("<", "&lt;").replace(">", "&gt;"),
        wording.both(*map(wording.shape, pair.shape)),
        escaped(wording.both(*pair.dtype)) if pair.dtype[0] != pair.dtype[1] else "",
        escaped(middle(wording.pairing(pair))),
    ]


def _groups(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    rows = []
    for name, pattern in comparison.groups.items():
        totals = comparison.totals_of_group(name)
        rows.append([code(name), code(pattern), f"{totals.pairs:,}", f"{totals.matched:,}", wording.match_rate(totals)])
    yield from table(("group", "pattern", "pairs:", "same:", "match rate:"), rows)


def _findings(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    yield from (_finding(each, wording.finding_about(comparison, each)) for each in comparison.findings)


def _finding(finding: Finding, about: str) -> str:
    harmless = ", harmless" if finding.harmless else ""
    where = ", ".join(map(code, finding.where[:3])) + (" …" if len(finding.where) > 3 else "")
    repair = f" Repair: {escaped(wording.sentence(finding.repair))}" if finding.repair else ""
    sure = f"({finding.confidence:.0%} sure{harmless})"
    against = f" against {code(about)}" if about else ""
    place = f" in {where}" if where else ""
    return (
        f"- **{escaped(finding.cause)}** {sure}{against}{place}: {escaped(wording.sentence(finding.evidence))}{repair}"
    )


def _left(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    for side in ("reference", "candidate"):
        left = wording.ordered(comparison.leftovers, side)
        if left:
            yield from _folded(wording.leftover_title(left, side), left, len(comparison.candidates) > 1)


def _folded(title: str, left: Sequence[Leftover], many: bool) -> Iterator[str]:
    yield from (f"<details><summary>{title}</summary>", "")
    for each in left:
        of = f", against {code(each.candidate)}" if many else ""
        hint = f": {escaped(middle(each.hint))}" if each.hint else ""
        yield f"- {code(each.name)} ({wording.shape(each.shape)} {escaped(each.dtype)}{of}){hint}"
    yield from ("", "</details>")


Section = Callable[[Comparison, ReportOptions], Iterable[str]]
SECTIONS: tuple[Section, ...] = (_headline, _facts, _candidates, _rows, _groups, _findings, _left)
RECORDING_SECTIONS: tuple[Section, ...] = (
    _headline,
    _facts,
    _candidates,
    recording_markdown.summary,
    _findings,
    recording_markdown.model,
    recording_markdown.layers,
    recording_markdown.gradients,
    recording_markdown.others,
    recording_markdown.details,
    _groups,
    _left,
)
