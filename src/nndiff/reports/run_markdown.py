"""A comparison of training runs as GitHub markdown, to paste into a pull request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from nndiff.facts.run_summary import CurveKind, choose_loss, draw_curves, share_limits
from nndiff.facts.runs import ALL, RunFacts, StepComparison
from nndiff.reports import ReportOptions, run_wording, summary, wording
from nndiff.reports.figures import format_number
from nndiff.reports.markdown import (
    cut_middle,
    escape_text,
    format_code,
    format_finding,
    format_headline,
    format_hidden,
    format_table,
    show_leftovers,
)
from nndiff.reports.sparkline import draw_sparkline
from nndiff.result import Comparison

_CURVE_WIDTH = 24
Section = Callable[[Comparison, ReportOptions], Iterable[str]]


class RunMarkdownReport:
    """Render the verdict, its cause, where the runs part, and what the curves show."""

    name = "md"

    def render(self, comparison: Comparison, options: ReportOptions) -> str:
        """Return the whole document."""
        if options.quiet:
            return f"{format_headline(comparison)}\n"
        blocks = ["\n".join(section(comparison, options)).strip("\n") for section in SECTIONS]
        return "\n\n".join(block for block in blocks if block) + "\n"


def _format_title(text: str, comparison: Comparison, facts: RunFacts) -> Iterator[str]:
    yield ""
    yield f"**{text}**" + (f", {format_code(facts.candidate)}" if len(comparison.candidates) > 1 else "")
    yield ""


def _show_headline(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    yield format_headline(comparison)
    for parting in run_wording.describe_partings(comparison):
        yield from ("", f"> **First divergence:** {parting.name}: {escape_text(cut_middle(parting.what))}")
        yield from (">", f"> - why: {escape_text(parting.why)}")


def _show_findings(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    lines = [format_finding(finding, len(comparison.candidates) > 1) for finding in comparison.findings]
    if lines:
        yield from ("**Findings**", "", *lines)


def _show_facts(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    yield from ("**Compared**", "")  # a title, lest the list runs into that of the findings
    sides = [("reference", comparison.reference), *(("candidate", side) for side in comparison.candidates)]
    for role, side in sides:
        facts = [escape_text(fact) for fact in run_wording.describe_run(side) if fact]
        outcome = ""
        if role == "candidate" and len(comparison.candidates) > 1:
            part = comparison.outcome_of(side.label)
            outcome = f": {wording.OUTCOME_SIGNS[part]} {part.value}"
        yield f"- {role}: {format_code(side.label)}" + (f" ({', '.join(facts)})" if facts else "") + outcome
    yield f"- tolerance: <code>{escape_text(wording.describe_tolerance(comparison))}</code>"
    yield f"- steps: {run_wording.tally_steps(comparison)}"
    for note in summary.list_notes(comparison):
        yield f"- note: {escape_text(cut_middle(note))}"


def _show_quantities(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    for facts in comparison.run:
        if facts.steps:
            yield from _format_title("In causal order", comparison, facts)
            rows = [[escape_text(cell) for cell in row] for row in run_wording.list_quantities(facts)]
            yield from format_table(("quantity", "not bit-equal at", "out of tolerance at", "why"), rows)


def _show_curves(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    for facts in comparison.run:
        rows = []
        curves = draw_curves(facts)
        for curve in curves:
            spread = curve.spread
            if spread is not None:
                numbers = (spread.mean, spread.low, spread.high, spread.last)
                cells = [run_wording.format_value(number, curve.kind) for number in numbers]
                picture = f"`{draw_sparkline(curve, _CURVE_WIDTH, share_limits(curve, curves))}`"
                rows.append([escape_text(cut_middle(curve.label)), *cells, picture])
        if rows:
            yield from _format_title(f"Over {len(facts.steps):,} steps", comparison, facts)
            yield from format_table(("number", "mean:", "min:", "max:", "last:", "curve"), rows)


def _show_sentences(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    for facts in comparison.run:
        sentences = list(run_wording.list_sentences(facts))
        if sentences:
            yield from _format_title("What the curves show", comparison, facts)
        for label, sentence in sentences:
            yield f"- {label}: {escape_text(cut_middle(sentence))}"


def _show_steps(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    """Yield the steps where something happens, folded."""
    for facts in comparison.run:
        shown = list(facts.steps) if options.verbose else run_wording.choose_steps(facts, options.top)
        if not shown:
            continue
        loss = choose_loss(facts.steps)
        against = f", {escape_text(cut_middle(facts.candidate))}" if len(comparison.candidates) > 1 else ""
        yield from ("", f"<details><summary>steps{against}</summary>", "")
        titles = ("verdict", "step", "weight L2:", "rel L2:", "cosine:", "gradient rel L2:", "loss ref:", "loss cand:")
        yield from format_table(titles, [_step_row(step, loss, facts) for step in shown])
        yield from format_hidden(len(facts.steps) - len(shown))
        yield from ("", "</details>")


def _step_row(step: StepComparison, loss: str | None, facts: RunFacts) -> list[str]:
    weights, gradients = step.groups.get(ALL), (step.gradients or {}).get(ALL)
    losses = step.scalars.get(loss) if loss is not None else None
    name = run_wording.name_step(step.mark)
    is_first = facts.first_divergence is not None and facts.first_divergence.mark.number == step.mark.number
    return [
        f"{wording.SIGNS[step.verdict]} {step.verdict.value}",
        f"**▶ {name} first divergence**" if is_first else name,
        format_number(weights.l2) if weights else "",
        format_number(weights.rel_l2) if weights else "",
        run_wording.format_value(weights.cosine, CurveKind.COSINE) if weights else "",
        format_number(gradients.rel_l2) if gradients else "",
        *(run_wording.format_value(value, CurveKind.LEVEL) for value in losses or ()),
        *([""] * (0 if losses else 2)),
    ]


SECTIONS: tuple[Section, ...] = (
    _show_headline,
    _show_findings,
    _show_facts,
    _show_quantities,
    _show_curves,
    _show_sentences,
    show_leftovers,
    _show_steps,
)
