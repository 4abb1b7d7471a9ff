"""The result as GitHub markdown, to paste into a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from nndiff.names import printable
from nndiff.reports import ReportOptions, wording
from nndiff.result import Comparison, Finding, Leftover, Pair, Side
from nndiff.verdict import Outcome

_LONGEST = 120  # characters of a name
_PLAIN_CODE = re.compile(r"[A-Za-z0-9_.:/()\[\], +=×→-]+")
# all but what is plain in running text; `://` and `www.` would become links
_NOT_PLAIN = re.compile(r"[^\w .,;:?()/+=%×→–…-]|_|:(?=//)|(?<=www)\.")


class MarkdownReport:
    """Render the verdict, the worst rows and what is left over."""

    name = "md"

    def render(self, comparison: Comparison, options: ReportOptions) -> str:
        """Return the whole document."""
        sections = (_headline,) if options.quiet else (_headline, _facts, _candidates, _rows, _groups, _findings, _left)
        blocks = ("\n".join(section(comparison, options)) for section in sections)
        return "\n\n".join(block for block in blocks if block) + "\n"


def code(text: str) -> str:
    """Return a name as code that no markdown, HTML or mention in it can get out of."""
    safe = _middle(wording.name(text))
    if _PLAIN_CODE.fullmatch(safe) and safe == safe.strip():
        return f"`{safe}`"
    return f"<code>{escaped(safe)}</code>"


def escaped(text: str) -> str:
    """Return text in which every character that could mean something is an HTML entity."""
    return _NOT_PLAIN.sub(lambda match: f"&#{ord(match[0])};", printable(text))


def _middle(text: str) -> str:
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[: half - 1]}…{text[-half:]}"


def _headline(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    sign = wording.OUTCOME_SIGNS[comparison.outcome]
    yield f"**{sign} nndiff: {wording.headline(comparison)}**"
    place = wording.divergence(comparison)
    if place is not None and not options.quiet:
        yield ""
        yield f"First divergence: {code(place)}"


def _facts(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    yield _side("reference", comparison.reference)
    if len(comparison.candidates) == 1:
        yield _side("candidate", comparison.candidates[0])
    yield f"- tolerance: `{wording.tolerance(comparison)}`"
    if comparison.pairs:
        yield f"- {wording.tally(comparison.totals)}"
    if comparison.outcome is not Outcome.IDENTICAL and comparison.pairs:
        yield f"- passes at: `{wording.passing(comparison)}`"
    yield from (f"- note: {escaped(_middle(note))}" for note in wording.notes(comparison))


def _side(role: str, side: Side) -> str:
    facts = f"{wording.plural(side.tensors, 'tensor')}, {wording.plural(side.elements, 'parameter')}"
    return f"- {role}: {code(side.label)} ({escaped(side.kind)}, {facts}, {side.trainable:,} trainable)"


def _candidates(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    if len(comparison.candidates) > 1:
        parts = [wording.part_of(comparison, side) for side in comparison.candidates]
        yield from _table(("verdict", "candidate", "differ:", "left over:", "passes at:"), map(_candidate, parts))


def _candidate(part: Comparison) -> list[str]:
    totals, needed = part.totals, part.needed_tolerance
    return [
        f"{wording.OUTCOME_SIGNS[part.outcome]} {part.verdict}",
        code(part.candidates[0].label),
        f"{totals.pairs - totals.matched:,} of {totals.pairs:,}",
        f"{totals.only_reference + totals.only_candidate:,}",
        "none" if needed is None else wording.rounded_up(needed),
    ]


def _rows(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    shown, hidden = wording.rows(comparison, options.top, options.verbose)
    many = len(comparison.candidates) > 1
    titles = ("verdict", "tensor", "candidate", "max abs:", "max rel:", "out:", "shape", "dtype", "matched by")
    yield from _table(titles, [_row(pair, many) for pair in shown])
    if hidden:
        yield ""
        yield f"and {hidden:,} more"


def _row(pair: Pair, many: bool) -> list[str]:
    numbers = pair.metrics
    return [
        f"{wording.SIGNS[pair.verdict]} {pair.verdict.value}",
        code(pair.name) + (f" {escaped(pair.slot)}" if pair.slot else ""),
        code(pair.candidate) if many else "",
        wording.number(numbers.max_abs if numbers else None),
        wording.number(numbers.max_rel if numbers else None),
        wording.mismatched(pair).replace("<", "&lt;").replace(">", "&gt;"),
        wording.both(*map(wording.shape, pair.shape)),
        escaped(wording.both(*pair.dtype)) if pair.dtype[0] != pair.dtype[1] else "",
        escaped(_middle(wording.pairing(pair))),
    ]


def _groups(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    rows = []
    for name, pattern in comparison.groups.items():
        totals = comparison.totals_of_group(name)
        rows.append([code(name), code(pattern), f"{totals.pairs:,}", f"{totals.matched:,}", wording.match_rate(totals)])
    yield from _table(("group", "pattern", "pairs:", "same:", "match rate:"), rows)


def _findings(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    yield from map(_finding, comparison.findings)


def _finding(finding: Finding) -> str:
    harmless = ", harmless" if finding.harmless else ""
    where = ", ".join(map(code, finding.where[:3])) + (" …" if len(finding.where) > 3 else "")
    repair = f" Repair: {escaped(finding.repair)}" if finding.repair else ""
    sure = f"({finding.confidence:.0%} sure{harmless})"
    return f"- **{escaped(finding.cause)}** {sure} in {where}: {escaped(finding.evidence)}{repair}"


def _left(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    for side in ("reference", "candidate"):
        left = wording.ordered(comparison.leftovers, side)
        if left:
            yield from _folded(wording.leftover_title(left, side), left, len(comparison.candidates) > 1)


def _folded(title: str, left: Sequence[Leftover], many: bool) -> Iterator[str]:
    yield from (f"<details><summary>{title}</summary>", "")
    for each in left:
        of = f", against {code(each.candidate)}" if many else ""
        hint = f": {escaped(_middle(each.hint))}" if each.hint else ""
        yield f"- {code(each.name)} ({wording.shape(each.shape)} {escaped(each.dtype)}{of}){hint}"
    yield from ("", "</details>")


def _table(titles: Sequence[str], rows: Iterable[list[str]]) -> Iterator[str]:
    """Yield a table without its empty columns; a title that ends in a colon is aligned right."""
    kept = list(rows)
    columns = [index for index in range(len(titles)) if any(row[index] for row in kept)]
    if columns:
        yield _cells(titles[index].rstrip(":") for index in columns)
        yield _cells("---:" if titles[index].endswith(":") else "---" for index in columns)
    yield from (_cells(row[index] for index in columns) for row in kept)


def _cells(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
