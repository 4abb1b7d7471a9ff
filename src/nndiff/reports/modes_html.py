"""Modes as a page: the summary table, a map of all layers and modes, the numbers of every layer."""

from __future__ import annotations

from collections.abc import Iterator

from nndiff.facts.modes import CorrelationRating, MseRating
from nndiff.reports import ReportOptions, modes_text, summary, wording
from nndiff.reports.html.page import escape_html, number_cell, number_columns, render_page, start_table, text_columns
from nndiff.result import Comparison, Pair

_TABLE_END = "</tbody></table></div>"
# Ratings take the colours of verdicts.
_CLASSES = {
    MseRating.VERY_CLOSE: "identical",
    MseRating.GOOD: "close",
    MseRating.FAIR: "not-compared",
    MseRating.LARGE: "different",
    CorrelationRating.NEAR_PERFECT: "identical",
    CorrelationRating.EXCELLENT: "identical",
    CorrelationRating.GOOD: "close",
    CorrelationRating.NEEDS_ATTENTION: "different",
}


class ModesHtmlReport:
    """Render modes as a page."""

    name = "html"

    def render(self, comparison: Comparison, options: ReportOptions) -> str:
        """Return the whole document."""
        return render_page(comparison, (_show_headline, _show_summary, _show_blame, _show_map, _show_layers))


def _show_headline(comparison: Comparison) -> Iterator[str]:
    sign, kind = wording.OUTCOME_SIGNS[comparison.outcome], comparison.outcome.value.replace(" ", "-")
    yield f'<h1 class="{kind}">{sign} {escape_html(summary.headline(comparison))}</h1>'
    for mode, text in modes_text.list_mode_notes(comparison):
        yield f"<p><code>{escape_html(mode)}</code>: {escape_html(text)}</p>"
    for note in comparison.notes:
        yield f"<p>{escape_html(note.text)}</p>"


def _show_summary(comparison: Comparison) -> Iterator[str]:
    titles = modes_text.list_summary_titles(comparison)
    yield f"<h2>All modes against {escape_html(modes_text.get_modes(comparison).reference)}</h2>"
    yield start_table([*text_columns(titles[0]), *number_columns(*map(escape_html, titles[1:]))], "modes")
    for row in modes_text.list_summary_rows(comparison):
        cells = "".join(f'<td class="number">{escape_html(text)}</td>' for text in row[1:])
        yield f'<tr><td class="name">{escape_html(row[0])}</td>{cells}</tr>'
    yield _TABLE_END


def _show_blame(comparison: Comparison) -> Iterator[str]:
    facts = modes_text.get_modes(comparison)
    for mode, layers in facts.blame.items():
        yield f"<h2>Layers to blame, {escape_html(mode)}</h2>"
        yield start_table([*text_columns("layer"), *number_columns("share", "own MSE", "cumulative MSE")])
        for layer in layers:
            numbers = "".join(number_cell(value) for value in (layer.share, layer.own, layer.cumulative))
            yield f'<tr><td class="name">{escape_html(layer.name)}</td>{numbers}</tr>'
        yield _TABLE_END
    for mode in facts.recommend:
        yield f"<p><code>{escape_html(mode)}</code>: {escape_html(modes_text.describe_recommendation(facts, mode))}</p>"
        if facts.recommend[mode].keep:
            yield f"<p><code>{escape_html(modes_text.write_snippet(facts.recommend[mode].keep))}</code></p>"


def _show_map(comparison: Comparison) -> Iterator[str]:
    """Show the SQNR of every layer in every mode."""
    facts = modes_text.get_modes(comparison)
    pairs = {(pair.candidate, pair.name): pair for pair in comparison.pairs}
    names = list(dict.fromkeys(pair.name for pair in comparison.pairs))
    if not names:
        return
    yield "<h2>SQNR of every layer, in dB</h2>"
    yield start_table([*text_columns("layer"), *number_columns(*(escape_html(mode.mode) for mode in facts.modes))])
    for name in names:
        cells = []
        for mode in facts.modes:
            pair, layer = pairs.get((mode.mode, name)), facts.layers.get((mode.mode, name))
            if pair is None or pair.metrics is None or layer is None:
                cells.append('<td class="number">–</td>')
                continue
            kind = _CLASSES[layer.rating.mse]
            cells.append(f'<td class="number {kind}">{pair.metrics.sqnr_db:.1f}</td>')
        yield f'<tr><td class="name">{escape_html(name)}</td>{"".join(cells)}</tr>'
    yield _TABLE_END


def _show_layers(comparison: Comparison) -> Iterator[str]:
    """Show the sections of every layer, folded."""
    if comparison.pairs:
        yield "<h2>Layers</h2>"
    for pair in comparison.pairs:
        yield f"<details><summary>{_describe_pair(comparison, pair)}</summary>"
        for section in modes_text.list_layer_sections(comparison, pair):
            yield f'<p class="soft">{escape_html(section.title)}</p><dl>'
            for label, text in section.lines:
                yield f"<div><dt>{escape_html(label)}</dt><dd>{escape_html(text.strip())}</dd></div>"
            yield "</dl>"
        yield "</details>"


def _describe_pair(comparison: Comparison, pair: Pair) -> str:
    layer = modes_text.get_modes(comparison).layers.get((pair.candidate, pair.name))
    names = f"<code>{escape_html(pair.candidate)}</code> <code>{escape_html(pair.name)}</code>"
    if layer is None:
        return f"{names} {escape_html(pair.verdict.value)}"
    ratings = (("MSE", layer.rating.mse), ("correlation", layer.rating.correlation))
    texts = [f'{label} <span class="{_CLASSES[rating]}">{rating.value}</span>' for label, rating in ratings]
    return f"{names} {', '.join(texts)}"
