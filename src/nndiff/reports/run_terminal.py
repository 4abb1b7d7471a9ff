"""The report on training runs at a terminal: verdict and findings first, then where they part, curves and steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from nndiff.facts.run_summary import CurveKind, choose_loss, draw_curves, share_limits
from nndiff.facts.runs import ALL, RunFacts, StepComparison
from nndiff.reports import ReportOptions, run_wording, summary, wording
from nndiff.reports.figures import NOTHING, format_name, format_number
from nndiff.reports.sparkline import draw_sparkline
from nndiff.reports.tables import ALWAYS, Cell, Column, format_table, shorten
from nndiff.reports.terminal import TerminalReport
from nndiff.reports.terminal_sections import (
    FIRST_MARK,
    LABEL_WIDTH,
    NARROWEST,
    OUTCOME_STYLES,
    STYLES,
    format_entry,
    get_printed,
    make_console,
    name_width,
    show_finding,
    show_leftovers,
)
from nndiff.result import Comparison
from nndiff.text import plural, printable
from nndiff.verdict import Outcome

_NARROWEST_CURVE, _WIDEST_CURVE = 8, 40
_SIDE_CURVES = ("weights.buffers.cosine", "optimizer.all.cosine")  # shown by --verbose alone
Section = Callable[[Comparison, ReportOptions, int], Iterable[RenderableType]]


class RunTerminalReport:
    """Render a comparison of runs as text, in colour where that is wanted."""

    name = "terminal"

    def render(self, comparison: Comparison, options: ReportOptions) -> str:
        """Return the whole document; quiet is one line."""
        if options.quiet:
            return TerminalReport().render(comparison, options)
        width = max(NARROWEST, options.width or NARROWEST * 2)
        console = make_console(width, bool(options.color))
        first = True
        for section in SECTIONS:
            blocks = list(section(comparison, options, width))
            if blocks and not first:
                console.print()
            if blocks:
                console.print(Group(*blocks))
                first = False
        return get_printed(console)


def _name_candidate(comparison: Comparison, facts: RunFacts) -> str:
    """Return the addition to a title that says which candidate, where there are several."""
    return f", {printable(facts.candidate, 60)}" if len(comparison.candidates) > 1 else ""


def _is_dull(comparison: Comparison, facts: RunFacts, options: ReportOptions) -> bool:
    """Return True if there is nothing to show of a candidate but that it is equal."""
    return comparison.outcome_of(facts.candidate) is Outcome.IDENTICAL and not options.verbose


def _separate(comparison: Comparison, facts: RunFacts) -> Iterator[RenderableType]:
    """Yield an empty line before what belongs to another candidate than the first."""
    if facts is not comparison.run[0]:
        yield Text("")


def _show_headline(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    verdict, status = summary.verdict_line(comparison)
    style = f"bold {OUTCOME_STYLES[comparison.outcome]}"
    yield Text(shorten(verdict, 8 * width), style).append(status, "not bold default dim")
    for finding in comparison.findings:
        yield from show_finding(finding, len(comparison.candidates) > 1, width)
    for parting in run_wording.describe_partings(comparison):
        title = Text(parting.name, "bold").append(f"  {shorten(parting.what, 3 * width)}", "not bold")
        yield format_entry(f"{FIRST_MARK} first at", title)
        yield format_entry("why", parting.why)


def _show_sides(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    sides = [("reference", comparison.reference)]
    if len(comparison.candidates) == 1:
        sides.append(("candidate", comparison.candidates[0]))
    columns = [Column("", ALWAYS), Column("", ALWAYS, least=max(10, width // 3))]
    columns += [Column("", keep, right=right) for keep, right in ((6, True), (5, False), (1, False), (4, False))]
    columns += [Column("", keep, right=True) for keep in (3, 2)]
    rows = []
    for role, side in sides:
        facts = [Cell(fact, "dim") for fact in run_wording.describe_run(side)]
        rows.append([Cell(role.ljust(LABEL_WIDTH - 2), "dim"), Cell(format_name(side.label)), *facts])
    yield from format_table(columns, rows, width)


def _show_candidates(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    if len(comparison.candidates) < 2:
        return
    columns = [
        Column("verdict", 9, brief=1),
        Column("candidate", ALWAYS, least=name_width(width)),
        Column("steps out", 8, right=True),
        Column("parts at", 7),
        Column("by", 6),
    ]
    rows = []
    for side in comparison.candidates:
        part = wording.select_candidate(comparison, side)
        totals = part.totals
        first = part.run[0].first_divergence if part.run else None
        rows.append(
            [
                Cell(f"{wording.OUTCOME_SIGNS[part.outcome]} {part.verdict}", OUTCOME_STYLES[part.outcome]),
                Cell(format_name(side.label)),
                Cell(f"{totals.pairs - totals.matched:,} of {totals.pairs:,}"),
                Cell(run_wording.name_step(first.mark) if first else ""),
                Cell(run_wording.QUANTITY_LABELS[first.quantity] if first else ""),
            ]
        )
    yield from format_table(columns, rows, width)


def _show_quantities(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    """Yield where each quantity parts, in causal order."""
    for facts in comparison.run:
        if not facts.steps or _is_dull(comparison, facts, options):
            continue
        yield from _separate(comparison, facts)
        columns = [
            Column(f"in causal order{_name_candidate(comparison, facts)}", ALWAYS, least=15),
            Column("not bit-equal at", 8),
            Column("out of tolerance at", 9),
            Column("", 1, below=True),
        ]
        rows = []
        for quantity, unequal, out, remark in run_wording.list_quantities(facts):
            style = "red" if out not in (run_wording.NEVER, NOTHING) else ""
            rows.append([Cell(quantity), Cell(unequal), Cell(out, style), Cell(remark, "dim")])
        yield from format_table(columns, rows, width)


def _show_curves(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    """Yield mean, extremes, last value and a small picture of each curve."""
    for facts in comparison.run:
        curves = [curve for curve in draw_curves(facts) if curve.key not in _SIDE_CURVES or options.verbose]
        if _is_dull(comparison, facts, options):
            curves = [curve for curve in curves if curve.kind is CurveKind.LEVEL]
        if not curves:
            continue
        yield from _separate(comparison, facts)
        # what the curve leaves for the numbers: four of ten columns, and the label
        spare = width - 4 - max(len(curve.label) for curve in curves) - 4 * 12
        curve_width = min(_WIDEST_CURVE, max(_NARROWEST_CURVE, spare))
        columns = [
            Column(f"over {plural(len(facts.steps), 'step')}{_name_candidate(comparison, facts)}", ALWAYS, least=20),
            Column("mean", 9, right=True),
            Column("min", 4, right=True),
            Column("max", 8, right=True),
            Column("last", 3, right=True),
            Column("curve", 7),
        ]
        rows = []
        for curve in curves:
            spread = curve.spread
            if spread is None:
                continue
            numbers = [spread.mean, spread.low, spread.high, spread.last]
            cells = [Cell(run_wording.format_value(number, curve.kind)) for number in numbers]
            picture = draw_sparkline(curve, curve_width, share_limits(curve, curves))
            rows.append([Cell(printable(curve.label)), *cells, Cell(picture, "cyan")])
        yield from format_table(columns, rows, width)


def _show_sentences(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    several = len(comparison.candidates) > 1
    for facts in comparison.run:
        sentences = list(run_wording.list_sentences(facts))
        if sentences and several:
            yield Text(f"  {printable(facts.candidate, 60)}", "bold", no_wrap=True)
        for label, sentence in sentences:
            yield format_entry(label, shorten(sentence, 6 * width))


def _show_facts(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    yield format_entry("steps", run_wording.tally_steps(comparison))
    yield format_entry("tolerance", wording.describe_tolerance(comparison))
    for note in summary.list_notes(comparison):
        yield format_entry("note", shorten(note, 4 * width))


def _show_steps(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    """Yield the steps where something happens, and some between."""
    for facts in comparison.run:
        if _is_dull(comparison, facts, options):
            continue
        yield from _separate(comparison, facts)
        shown = list(facts.steps) if options.verbose else run_wording.choose_steps(facts, options.top)
        loss = choose_loss(facts.steps)
        columns = [
            Column("verdict", 35, brief=1),
            Column(f"step{_name_candidate(comparison, facts)}", ALWAYS, least=22),
            Column("weight L2", 80, right=True),
            Column("rel L2", 40, right=True),
            Column("cosine", 50, right=True),
            Column("grad rel L2", 60, right=True),
            Column("loss ref", 65, right=True),
            Column("loss cand", 64, right=True),
            Column("farthest", 30, least=12),
        ]
        rows = [_step_row(step, loss, facts) for step in shown]
        if rows:
            yield from format_table(columns, rows, width)
        if len(shown) < len(facts.steps):
            hidden = len(facts.steps) - len(shown)
            yield Text(f"  {hidden:,} more steps: use --top or --verbose", "dim")


def _step_row(step: StepComparison, loss: str | None, facts: RunFacts) -> list[Cell]:
    weights, gradients = step.groups.get(ALL), (step.gradients or {}).get(ALL)
    losses = step.scalars.get(loss) if loss is not None else None
    is_first = facts.first_divergence is not None and facts.first_divergence.mark.number == step.mark.number
    return [
        Cell(f"{wording.SIGNS[step.verdict]} {step.verdict.value}", STYLES[step.verdict]),
        Cell(f"{FIRST_MARK + ' ' if is_first else ''}{run_wording.name_step(step.mark)}", "bold" if is_first else ""),
        Cell(format_number(weights.l2) if weights else ""),
        Cell(format_number(weights.rel_l2) if weights else ""),
        Cell(run_wording.format_cosine(weights.cosine) if weights and not math.isnan(weights.cosine) else ""),
        Cell(format_number(gradients.rel_l2) if gradients else ""),
        Cell(run_wording.format_value(losses[0], CurveKind.LEVEL) if losses else ""),
        Cell(run_wording.format_value(losses[1], CurveKind.LEVEL) if losses else ""),
        Cell(format_name(weights.max_l2_name) if weights and weights.max_l2_name is not None else "", "dim"),
    ]


SECTIONS: tuple[Section, ...] = (
    _show_headline,
    _show_sides,
    _show_candidates,
    _show_quantities,
    _show_curves,
    _show_sentences,
    _show_facts,
    show_leftovers,
    _show_steps,
)
