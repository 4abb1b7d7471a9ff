"""Modes at a terminal: the sections of each layer, then the summary table of all modes, then blame."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.text import Text

from nndiff.reports import ReportOptions, modes_text, summary
from nndiff.reports.tables import ALWAYS, Cell, Column, format_table
from nndiff.reports.terminal_sections import OUTCOME_STYLES, get_printed, make_console
from nndiff.result import Comparison, Pair
from nndiff.text import printable

_RULE_WIDTH = 80
_UNLIMITED = 10_000  # columns
_LABEL_WIDTH, _STATISTICS_WIDTH = 18, 11  # columns of a label
_LAYER_TITLES = ("SQNR", "MSE", "rating", "correlation")
_RATING_STYLES = {
    **dict.fromkeys(("very close", "near perfect", "excellent"), "green"),
    **dict.fromkeys(("fair",), "yellow"),
    **dict.fromkeys(("large", "needs attention"), "red"),
}


def render_modes(comparison: Comparison, options: ReportOptions) -> str:
    """Return the whole report; one mode is shown layer by layer, several only with --verbose."""
    width = max(_RULE_WIDTH, options.width or 0)
    console = make_console(width, bool(options.color))
    facts = modes_text.get_modes(comparison)
    verdict, status = summary.verdict_line(comparison)
    console.print(Text(verdict, f"bold {OUTCOME_STYLES[comparison.outcome]}").append(status, "dim"))
    if len(facts.modes) == 1 or options.verbose:
        chosen = _choose_pairs(comparison, options)
        for pair in chosen:
            console.print()
            for line in _list_section_lines(comparison, pair):
                console.print(line, soft_wrap=True)
        others = [pair for pair in comparison.pairs if pair not in chosen]
        for line in _list_layer_lines(comparison, others, options, width):
            console.print(line, soft_wrap=True)
    console.print()
    for line in _list_summary_lines(comparison, width):
        console.print(line, soft_wrap=True)
    for mode in facts.modes:
        for line in _list_blame_lines(comparison, mode.mode, options, width):
            console.print(line, soft_wrap=True)
    notes = [f"{mode}: {text}" for mode, text in modes_text.list_mode_notes(comparison)]
    notes += [printable(note.text) for note in comparison.notes]
    if notes:
        console.print()
    for note in notes:
        console.print(Text(f"  {note}"), soft_wrap=True)
    return get_printed(console)


def _choose_pairs(comparison: Comparison, options: ReportOptions) -> list[Pair]:
    """Return the layers that get sections: all with --verbose, else the first, the last and the output."""
    facts = modes_text.get_modes(comparison)
    if options.verbose:
        return list(comparison.pairs)
    important = {facts.first, facts.last, *(mode.output for mode in facts.modes)}
    return [pair for pair in comparison.pairs if pair.name in important]


def _list_layer_lines(
    comparison: Comparison, pairs: Sequence[Pair], options: ReportOptions, width: int
) -> Iterator[Text]:
    """Yield a table of layers without sections, the worst first."""
    facts = modes_text.get_modes(comparison)
    ranked = sorted(pairs, key=lambda pair: pair.metrics.sqnr_db if pair.metrics else -math.inf)
    rows = []
    for pair in ranked[: options.top]:
        metrics, layer = pair.metrics, facts.layers.get((pair.candidate, pair.name))
        texts = ["–"] * 4
        if metrics is not None and layer is not None:
            decibels = modes_text.format_decibels(metrics.sqnr_db)
            texts = [decibels, f"{metrics.mse:.3e}", layer.rating.mse.value, f"{metrics.correlation:.6f}"]
        rows.append([Cell(text) for text in (printable(modes_text.label_layer(pair.name)), *texts)])
    if not rows:
        return
    yield Text()
    yield Text("Other layers, lowest SQNR first", "bold")
    columns = [Column("layer", ALWAYS, least=20), *(Column(title, 50, right=True) for title in _LAYER_TITLES)]
    yield from format_table(columns, rows, width)
    if len(rows) < len(ranked):
        yield Text(f"  {len(ranked) - len(rows):,} more: use --top or --verbose", "dim")


def _list_section_lines(comparison: Comparison, pair: Pair) -> Iterator[Text]:
    rule = Text("=" * _RULE_WIDTH, "dim")
    several = len(comparison.candidates) > 1
    mode = f"Mode {printable(pair.candidate)}, " if several else ""
    yield rule
    title = modes_text.title_layer(modes_text.get_modes(comparison), pair.name)
    yield Text(f"{mode}{printable(title)}", "bold")
    yield rule
    for section in modes_text.list_layer_sections(comparison, pair):
        yield Text()
        yield Text(section.title)
        for label, text in section.lines:
            line = Text(f"  {label + ':':<{_STATISTICS_WIDTH if section.is_narrow else _LABEL_WIDTH}}{text}")
            for rating, style in _RATING_STYLES.items():
                line.highlight_words([f"({rating})"], style)
            yield line
    yield rule


def _list_summary_lines(comparison: Comparison, width: int) -> Iterator[Text]:
    rule = Text("=" * _RULE_WIDTH, "dim")
    yield rule
    yield Text(f"SUMMARY TABLE - All Modes vs {printable(modes_text.get_modes(comparison).reference)}", "bold")
    yield rule
    yield Text()
    columns = []
    for position, title in enumerate(modes_text.list_summary_titles(comparison)):
        columns.append(Column(title, ALWAYS if position == 0 else 50 - position, right=position > 0))
    rows = [[Cell(text) for text in row] for row in modes_text.list_summary_rows(comparison)]
    table = list(format_table(columns, rows, _UNLIMITED, indent=0))  # no column goes: lines may be long
    yield table[0]
    yield Text("-" * max(len(line) for line in table), "dim")
    yield from table[1:]
    yield rule


def _list_blame_lines(comparison: Comparison, mode: str, options: ReportOptions, width: int) -> Iterator[Text]:
    facts = modes_text.get_modes(comparison)
    if mode in facts.blame:
        yield Text()
        yield Text(f"Which layers are to blame - Mode {printable(mode)}", "bold")
        rows = modes_text.list_blame_rows(facts, mode)
        shown = rows if options.verbose else rows[: options.top]
        columns = [
            Column("layer", ALWAYS, least=20),
            *(Column(title, 50, right=True) for title in ("share", "own MSE", "cumulative MSE")),
        ]
        yield from format_table(columns, [[Cell(text) for text in row] for row in shown], width)
        if len(shown) < len(rows):
            yield Text(f"  {len(rows) - len(shown):,} more: use --top or --verbose", "dim")
    if mode in facts.recommend:
        yield Text()
        yield Text(f"Mode {printable(mode)}: {printable(modes_text.describe_recommendation(facts, mode))}")
        if facts.recommend[mode].keep:
            yield Text(f"  {printable(modes_text.write_snippet(facts.recommend[mode].keep))}")
