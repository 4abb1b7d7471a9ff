"""The sections of the report at a terminal: the verdict first, then why."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from nndiff.reports import ReportOptions, wording
from nndiff.reports.grid import ALWAYS, Cell, Column, lines, shorten
from nndiff.reports.terminal_parts import LABEL, OUTCOME_STYLES, STYLES, Section, entry, more, name_width
from nndiff.result import Comparison, Finding, Leftover, Pair, Side
from nndiff.text import first_few, printable
from nndiff.verdict import Outcome

NARROWEST = 40


def document(comparison: Comparison, options: ReportOptions) -> str:
    """Return the whole report."""
    width = max(NARROWEST, options.width or NARROWEST * 2)
    console = plain_console(width, bool(options.color))
    for number, blocks in enumerate(_blocks(comparison, options, width)):
        if number:
            console.print()
        console.print(Group(*blocks))
    return printed(console)


def printed(console: Console) -> str:
    """Return what was printed to such a console, without blanks at the ends of lines."""
    text = console.file.getvalue()  # type: ignore[attr-defined]  # it is our StringIO
    return "".join(line.rstrip() + "\n" for line in text.split("\n")[:-1])


def plain_console(width: int, color: bool) -> Console:
    """Return a console that prints into memory and takes text for text."""
    # an environment of its own: whether colour is wanted was decided where the report goes
    return Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        force_jupyter=False,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
        _environ={},
    )


def _blocks(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[list[RenderableType]]:
    for section in recording_sections() if wording.is_recording(comparison) else SECTIONS:
        blocks = list(section(comparison, options, width))
        if blocks:
            yield blocks


def _verdict(comparison: Comparison) -> Text:
    verdict, status = wording.verdict_line(comparison)
    return Text(verdict, f"bold {OUTCOME_STYLES[comparison.outcome]}").append(status, "not bold default dim")


def _headline(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    yield _verdict(comparison)
    for place in wording.divergences(comparison):
        yield entry("diverges", Text(f"first at {place}", "bold"))


def _sides(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    many = len(comparison.candidates) > 1
    shown = [comparison.reference] if many else [comparison.reference, *comparison.candidates]
    roles = ["reference", "candidate"]
    columns = [
        Column("", ALWAYS),
        Column("", ALWAYS, least=max(10, width // 3)),
        Column("", 1),
        Column("", 5, right=True),
        Column("", 4, right=True),
        Column("", 2, right=True),
        Column("", 3, right=True),
    ]
    yield from lines(columns, [_side_row(role, side) for role, side in zip(roles, shown, strict=False)], width)


def _side_row(role: str, side: Side) -> list[Cell]:
    return [
        Cell(role.ljust(LABEL - 2), "dim"),
        Cell(wording.name(wording.side_name(side))),
        Cell(printable(side.kind), "dim"),
        *map(Cell, wording.side_counts(side), ("", "", "dim")),
        Cell(wording.size(side.nbytes), "dim"),
    ]


def _candidates(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    if len(comparison.candidates) < 2:
        return
    columns = [
        Column("verdict", 9),
        Column("candidate", ALWAYS, least=name_width(width)),
        Column("differ", 8, right=True),
        Column("left over", 3, right=True),
        Column("max abs", 6, right=True),
        Column("passes at", 5, right=True),
        Column("elements" if comparison.kind == "recording" else "parameters", 2, right=True),
        Column("size", 1, right=True),
    ]
    yield from lines(
        columns, [_candidate_row(wording.part_of(comparison, each)) for each in comparison.candidates], width
    )


def _candidate_row(comparison: Comparison) -> list[Cell]:
    totals, outcome, (side,) = comparison.totals, comparison.outcome, comparison.candidates
    largest = wording.largest(comparison.pairs)
    needed = comparison.needed_tolerance
    left = totals.only_reference + totals.only_candidate
    return [
        Cell(f"{wording.OUTCOME_SIGNS[outcome]} {outcome.value}", OUTCOME_STYLES[outcome]),
        Cell(wording.name(wording.side_name(side))),
        Cell(f"{totals.pairs - totals.matched:,} of {totals.pairs:,}"),
        Cell(f"{left:,}" if left else ""),
        Cell(wording.number(largest)),
        Cell("none" if needed is None else wording.rounded_up(needed)),
        Cell(f"{side.elements:,}", "dim"),
        Cell(wording.size(side.nbytes), "dim"),
    ]


def _facts(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    if comparison.pairs:
        yield entry("tensors" if len(comparison.candidates) == 1 else "pairs", wording.tally(comparison.totals))
    yield entry("tolerance", wording.tolerance(comparison))
    if comparison.outcome is not Outcome.IDENTICAL and comparison.pairs:
        yield entry("passes at", wording.passing(comparison))
    for note in wording.notes(comparison):
        yield entry("note", shorten(note, 4 * width))


def _rows(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    shown, hidden = wording.rows(comparison, options.top, options.verbose)
    columns = [
        Column("verdict", 90),
        Column("tensor", ALWAYS, least=name_width(width)),
        Column("slot", 70),
        Column("candidate", 60, least=9),
        Column("max abs", 80, right=True),
        Column("max rel", 50, right=True),
        Column("out", 65, right=True),
        Column("shape", 40),
        Column("dtype", 30),
        Column("matched by", 20, least=10),
    ]
    if shown:
        many = len(comparison.candidates) > 1
        yield from lines(columns, [_row(pair, many) for pair in shown], width)
    if hidden:
        yield more(hidden)


def _row(pair: Pair, many: bool) -> list[Cell]:
    return [
        Cell(f"{wording.SIGNS[pair.verdict]} {pair.verdict.value}", STYLES[pair.verdict]),
        Cell(wording.name(pair.name)),
        Cell(printable(pair.slot or ""), "dim"),
        Cell(printable(pair.candidate) if many else "", "dim"),
        Cell(wording.number(wording.measured(pair, "max_abs"))),
        Cell(wording.number(wording.measured(pair, "max_rel"))),
        Cell(wording.mismatched(pair)),
        Cell(wording.both(*map(wording.shape, pair.shape)), "dim"),
        Cell(printable(wording.both(*pair.dtype)) if pair.dtype[0] != pair.dtype[1] else "", "dim"),
        Cell(wording.pairing(pair), "dim"),
    ]


def _leftovers(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    for side in ("reference", "candidate"):
        left = wording.ordered(comparison.leftovers, side)
        if left:
            yield Text(f"  {wording.leftover_title(left, side)}", "bold")
            yield from _leftover_lines(left, options, width, many=len(comparison.candidates) > 1)


def _leftover_lines(
    left: Sequence[Leftover], options: ReportOptions, width: int, many: bool
) -> Iterator[RenderableType]:
    columns = [
        Column("", ALWAYS, least=12),
        Column("", 7),
        Column("", 5),
        Column("", 6, least=8),
        Column("", 8, least=max(12, width // 4)),
    ]
    shown = left if options.verbose else left[: options.top]
    if shown:
        yield from lines(columns, [_leftover_row(each, many) for each in shown], width, indent=4)
    if len(shown) < len(left):
        yield more(len(left) - len(shown), indent=4)


def _leftover_row(left: Leftover, many: bool) -> list[Cell]:
    return [
        Cell(wording.name(left.name), "" if left.counts else "dim"),
        Cell(wording.shape(left.shape), "dim"),
        Cell(printable(left.dtype), "dim"),
        Cell(printable(left.candidate) if many else "", "dim"),
        Cell(printable(left.hint), "cyan"),
    ]


def _groups(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    if not comparison.groups:
        return
    columns = [
        Column("group", ALWAYS, least=8),
        Column("pattern", 2, least=8),
        Column("pairs", 5, right=True),
        Column("same", 4, right=True),
        Column("left over", 3, right=True),
        Column("match rate", 6, right=True),
    ]
    yield from lines(columns, [_group_row(comparison, name) for name in comparison.groups], width)


def _group_row(comparison: Comparison, name: str) -> list[Cell]:
    totals = comparison.totals_of_group(name)
    left = totals.only_reference + totals.only_candidate
    same = totals.pairs > 0 and totals.matched == totals.pairs and not left
    return [
        Cell(printable(name)),
        Cell(printable(comparison.groups[name]), "dim"),
        Cell(f"{totals.pairs:,}"),
        Cell(f"{totals.matched:,}"),
        Cell(f"{left:,}" if left else ""),
        Cell(wording.match_rate(totals) if totals.pairs else "–", "green" if same else "red"),
    ]


def _findings(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    for finding in comparison.findings:
        yield _finding(finding, wording.finding_about(comparison, finding), width)


def _finding(finding: Finding, about: str, width: int) -> RenderableType:
    harmless = ", harmless" if finding.harmless else ""
    title = Text("  finding  ", "dim").append(printable(finding.cause), "not dim bold")
    title.append(f" ({finding.confidence:.0%} sure{harmless})", "dim")
    title.append(f" {printable(about)}" if about else "")
    where = first_few([shorten(printable(name), 3 * width) for name in finding.where])  # names wrap; few are so long
    facts = [("where", where), ("evidence", printable(finding.evidence)), ("repair", printable(finding.repair))]
    return Group(title, *(Padding(entry(label, text), (0, 0, 0, 2)) for label, text in facts if text))


# What a report is made of, in order; a section with nothing to say yields nothing.
SECTIONS: tuple[Section, ...] = (_headline, _sides, _candidates, _facts, _rows, _leftovers, _groups, _findings)


def recording_sections() -> tuple[Section, ...]:
    """Return what a report of recordings is made of, in order."""
    from nndiff.reports import recording_terminal  # late: checkpoints need nothing of it

    return (
        lambda comparison, options, width: (
            _verdict(comparison),
            *recording_terminal.first_divergence(comparison, options, width),
        ),
        recording_terminal.sides,
        _candidates,
        _facts,
        recording_terminal.model,
        recording_terminal.layers,
        recording_terminal.gradients,
        recording_terminal.others,
        recording_terminal.details,
        _leftovers,
        _groups,
        _findings,
        recording_terminal.summary,
    )
