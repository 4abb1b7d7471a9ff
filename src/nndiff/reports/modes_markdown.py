"""Modes as GitHub markdown, to paste into a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from nndiff.reports import ReportOptions, modes_text, summary
from nndiff.reports.figures import NOTHING, format_number
from nndiff.reports.markdown import escape_text, format_code, format_table
from nndiff.reports.wording import OUTCOME_SIGNS
from nndiff.result import Comparison


class ModesMarkdownReport:
    """Render the summary table, then the layers of each mode."""

    name = "md"

    def render(self, comparison: Comparison, options: ReportOptions) -> str:
        """Return the whole document."""
        sign, headline = OUTCOME_SIGNS[comparison.outcome], escape_text(summary.headline(comparison))
        lines = [f"**{sign} nndiff: {headline}**"]
        if not options.quiet:
            lines += _list_summary(comparison)
            lines += _list_notes(comparison)
            lines += _list_blame(comparison, options)
            lines += _list_layers(comparison, options)
        return "\n".join(lines) + "\n"


def _list_summary(comparison: Comparison) -> Iterator[str]:
    titles = modes_text.list_summary_titles(comparison)
    rows = [[format_code(row[0]), *row[1:]] for row in modes_text.list_summary_rows(comparison)]
    yield ""
    yield from format_table([titles[0], *(f"{title}:" for title in titles[1:])], rows)


def _list_notes(comparison: Comparison) -> Iterator[str]:
    notes = list(modes_text.list_mode_notes(comparison))
    if notes or comparison.notes:
        yield ""
    for mode, text in notes:
        yield f"- {format_code(mode)}: {escape_text(text)}"
    for note in comparison.notes:
        yield f"- {escape_text(note.text)}"


def _list_blame(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    facts = modes_text.get_modes(comparison)
    for mode in facts.modes:
        if mode.mode in facts.blame:
            yield from ("", f"**Layers to blame**, {format_code(mode.mode)}", "")
            rows = modes_text.list_blame_rows(facts, mode.mode)[: options.top]
            table = [[format_code(row[0]), *row[1:]] for row in rows]
            yield from format_table(["layer", "share:", "own MSE:", "cumulative MSE:"], table)
        if mode.mode in facts.recommend:
            yield from (
                "",
                f"{format_code(mode.mode)}: {escape_text(modes_text.describe_recommendation(facts, mode.mode))}",
            )
            if facts.recommend[mode.mode].keep:
                snippet = modes_text.write_snippet(facts.recommend[mode.mode].keep)
                yield from ("", "```python", snippet.replace("`", ""), "```")


def _list_layers(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    facts = modes_text.get_modes(comparison)
    titles = ["layer", "MSE:", "rating", "correlation:", "rating", "SQNR:", "max abs:", "worst channel", "worst token"]
    for mode in facts.modes:
        pairs = comparison.pairs_of(mode.mode)
        rows = []
        for pair in pairs if options.verbose else pairs[: options.top]:
            metrics, layer = pair.metrics, facts.layers.get((pair.candidate, pair.name))
            if metrics is None or layer is None:
                rows.append([format_code(pair.name), pair.verdict.value, *([NOTHING] * (len(titles) - 2))])
                continue
            rows.append(
                [
                    format_code(pair.name),
                    format_number(metrics.mse),
                    layer.rating.mse.value,
                    f"{metrics.correlation:.6f}",
                    layer.rating.correlation.value,
                    modes_text.format_decibels(metrics.sqnr_db),
                    format_number(metrics.max_abs),
                    modes_text.describe_place(layer.worst_channel),
                    modes_text.describe_place(layer.worst_token),
                ]
            )
        if rows:
            yield from ("", f"**Layers**, {format_code(mode.mode)}", "")
            yield from format_table(titles, rows)
            if len(rows) < len(pairs):
                yield from ("", f"and {len(pairs) - len(rows):,} more")
