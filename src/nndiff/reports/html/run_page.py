"""A comparison of training runs as one html page that needs nothing else: curves, tables, every step."""

from __future__ import annotations

from collections.abc import Iterator

from nndiff.facts.run_summary import Panel, choose_loss, draw_curves
from nndiff.facts.runs import ALL, RunFacts, StepComparison
from nndiff.reports import ReportOptions, run_wording, summary, wording
from nndiff.reports.html.page import (
    TABLE_END,
    Section,
    css_class,
    escape_html,
    format_facts,
    format_title,
    format_tools,
    number_cell,
    number_columns,
    read_asset,
    render_page,
    show_findings,
    show_leftovers,
    start_table,
    text_cell,
    text_columns,
)
from nndiff.reports.run_plot import draw_panel
from nndiff.result import Comparison

_MOST_ROWS = 5000  # of the table of steps; the CSV report has all


class RunHtmlReport:
    """Render the runs as a page with curves and tables to sort and filter."""

    name = "html"

    def render(self, comparison: Comparison, options: ReportOptions) -> str:
        """Return the whole document."""
        return render_page(comparison, SECTIONS, read_asset("run.css"))


def _show_headline(comparison: Comparison) -> Iterator[str]:
    sign, kind = wording.OUTCOME_SIGNS[comparison.outcome], css_class(comparison.outcome)
    yield f'<h1 class="{kind}">{sign} {escape_html(summary.headline(comparison))}</h1>'
    for parting in run_wording.describe_partings(comparison):
        what = escape_html(parting.what)
        yield f'<div class="parting"><p>First divergence at <strong>{parting.name}</strong> {what}</p>'
        yield from format_facts([("why", parting.why)])
        yield "</div>"


def _show_facts(comparison: Comparison) -> Iterator[str]:
    facts = []
    for role, side in (("reference", comparison.reference), *(("candidate", side) for side in comparison.candidates)):
        details = [fact for fact in run_wording.describe_run(side) if fact]
        facts.append((role, f"{side.label} ({', '.join(details)})" if details else side.label))
    facts.append(("steps", run_wording.tally_steps(comparison)))
    facts.append(("tolerance", wording.describe_tolerance(comparison)))
    facts += [("note", note) for note in summary.list_notes(comparison)]
    yield from format_facts(facts)


def _show_candidates(comparison: Comparison) -> Iterator[str]:
    if len(comparison.candidates) < 2:
        return
    yield "<h2>Candidates</h2>"
    yield start_table([*text_columns("verdict", "candidate"), *number_columns("steps out"), *text_columns("parts at")])
    for side in comparison.candidates:
        part = wording.select_candidate(comparison, side)
        first = part.run[0].first_divergence if part.run else None
        place = f"{run_wording.name_step(first.mark)}: {run_wording.QUANTITY_LABELS[first.quantity]}" if first else ""
        sign = f"{wording.OUTCOME_SIGNS[part.outcome]} {part.verdict}"
        differing = f"{part.totals.pairs - part.totals.matched:,} of {part.totals.pairs:,}"
        cells = [text_cell(side.label, "name"), f'<td class="number">{differing}</td>', text_cell(place)]
        yield f'<tr><td class="{css_class(part.outcome)}">{sign}</td>{"".join(cells)}</tr>'
    yield TABLE_END


def _show_curves(comparison: Comparison) -> Iterator[str]:
    """Yield the panels: weights, loss and accuracy, each with how far the sides are apart."""
    for facts in comparison.run:
        if not facts.steps:
            continue
        yield format_title("Curves", comparison, facts.candidate)
        yield '<div class="panels">'
        curves = draw_curves(facts)
        for panel in Panel:
            yield from draw_panel(panel.value, [curve for curve in curves if curve.panel is panel], facts)
        yield "</div>"


def _show_quantities(comparison: Comparison) -> Iterator[str]:
    """Yield where each quantity parts, in causal order, and what the curves show."""
    for facts in comparison.run:
        if facts.steps:
            yield format_title("In causal order", comparison, facts.candidate)
            yield start_table(text_columns("quantity", "not bit-equal at", "out of tolerance at", "why"))
            for row in run_wording.list_quantities(facts):
                yield f"<tr>{''.join(text_cell(cell, 'wrap') for cell in row)}</tr>"
            yield TABLE_END
        sentences = list(run_wording.list_sentences(facts))
        if sentences:
            yield format_title("What the curves show", comparison, facts.candidate)
            yield from format_facts(sentences)


def _show_statistics(comparison: Comparison) -> Iterator[str]:
    for facts in comparison.run:
        curves = draw_curves(facts)
        if not curves:
            continue
        yield format_title(f"Over {len(facts.steps):,} steps", comparison, facts.candidate)
        yield start_table([*text_columns("number"), *number_columns("mean", "min", "max", "last", "not finite")])
        for curve in curves:
            spread = curve.spread
            if spread is not None:
                cells = [text_cell(curve.label, "name")]
                for number in (spread.mean, spread.low, spread.high, spread.last):
                    cells.append(f'<td class="number">{run_wording.format_value(number, curve.kind)}</td>')
                cells.append(f'<td class="number">{spread.not_finite or ""}</td>')
                yield f"<tr>{''.join(cells)}</tr>"
        yield TABLE_END


def _show_steps(comparison: Comparison) -> Iterator[str]:
    """Yield every step, to sort and filter."""
    for facts in comparison.run:
        shown = run_wording.choose_steps(facts, _MOST_ROWS)
        if not shown:
            continue
        yield "<section>" + format_title("Steps", comparison, facts.candidate)
        if len(shown) < len(facts.steps):
            yield f'<p class="soft">{len(shown):,} of {len(facts.steps):,} steps; the CSV report has all.</p>'
        yield format_tools("step")
        numbers = ["weight L2", "rel L2", "cosine", "gradient rel L2", "optimizer rel L2"]
        numbers += ["loss, reference", "loss, candidate", "difference"]
        columns = [("n", True), *text_columns("step", "verdict"), *number_columns(*numbers), ("farthest", False)]
        yield start_table(columns)
        loss = choose_loss(facts.steps)
        for step in shown:
            yield _format_step(step, loss, facts)
        yield TABLE_END + "</section>"


def _format_step(step: StepComparison, loss: str | None, facts: RunFacts) -> str:
    weights = step.groups.get(ALL)
    gradients, optimizer = (step.gradients or {}).get(ALL), (step.optimizer or {}).get(ALL)
    losses = step.scalars.get(loss) if loss is not None else None
    is_first = facts.first_divergence is not None and facts.first_divergence.mark.number == step.mark.number
    name = run_wording.name_step(step.mark)
    mark = ' <span class="different">▶ first divergence</span>' if is_first else ""
    cells = [
        f'<td class="number soft" data-key="{step.mark.number}">{step.mark.number}</td>',
        f'<td data-key="{name}">{name}{mark}</td>',
        f'<td class="{css_class(step.verdict)}">{wording.SIGNS[step.verdict]} {step.verdict.value}</td>',
        number_cell(weights.l2 if weights else None),
        number_cell(weights.rel_l2 if weights else None),
        number_cell(weights.cosine if weights else None),
        number_cell(gradients.rel_l2 if gradients else None),
        number_cell(optimizer.rel_l2 if optimizer else None),
        number_cell(losses[0] if losses else None),
        number_cell(losses[1] if losses else None),
        number_cell(losses[1] - losses[0] if losses else None),
        text_cell(weights.max_l2_name or "" if weights else "", "name"),
    ]
    kind = ' class="first"' if is_first else ""
    passed = ' data-passed="1"' if step.verdict.passed else ""
    return f'<tr{kind}{passed} data-search="{name} {step.verdict.value}">{"".join(cells)}</tr>'


SECTIONS: tuple[Section, ...] = (
    _show_headline,
    show_findings,
    _show_facts,
    _show_candidates,
    _show_curves,
    _show_quantities,
    _show_statistics,
    show_leftovers,
    _show_steps,
)
