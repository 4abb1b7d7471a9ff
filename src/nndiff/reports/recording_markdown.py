"""The markdown report's sections of two recordings: where they part, layers, gradients, details, summary."""

from __future__ import annotations

from collections.abc import Iterator

from nndiff.reports import ReportOptions, recording_words, wording
from nndiff.reports.layers import Recorded, Row, in_detail, model_rows, place_of, recorded, worst_gradients
from nndiff.reports.markdown_parts import code, escaped, middle, table
from nndiff.reports.parting import partings
from nndiff.reports.window import Gap, window
from nndiff.result import Comparison, Pair, Side
from nndiff.text import printable
from nndiff.verdict import Verdict


def first_divergence(comparison: Comparison) -> Iterator[str]:
    """Yield where to look and why there."""
    for found in partings(comparison):
        yield ""
        what = f": {escaped(middle(found.fact('what')))}" if found.fact("what") else ""
        yield f"> **First divergence at** {code(found.name)}{what}"
        rest = [f"> - {label}: {_fact(label, text)}" for label, text in found.facts if label != "what"]
        yield from ([">", *rest] if rest else [])  # a quotation, lest its list runs into the next


def _fact(label: str, text: str) -> str:
    return code(text) if label in ("source", "settings") else escaped(text)


def side(role: str, side: Side) -> str:
    """Return the line that says what a recording is of."""
    facts = ", ".join(escaped(fact) for fact in recording_words.side_facts(side) if fact)
    return f"- {role}: {code(wording.side_name(side))} ({facts})"


def _title(text: str, comparison: Comparison, view: Recorded) -> Iterator[str]:
    many = len(comparison.candidates) > 1
    yield f"**{text}**" + (f", {code(view.candidate.label)}" if many else "")
    yield ""


def _each_section(parts: list[list[str]]) -> Iterator[str]:
    for number, part in enumerate(part for part in parts if part):
        if number:
            yield ""
        yield from part


def model(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    """Yield what went into the models and what came out."""
    yield from _each_section([list(_model(comparison, view, options)) for view in recorded(comparison)])


def _model(comparison: Comparison, view: Recorded, options: ReportOptions) -> Iterator[str]:
    shown = view.model if options.verbose else model_rows(view, options.top)
    if shown:
        yield from _title("Final output", comparison, view)
        yield from table(("verdict", "model", "max abs:", "out:", "rel l2:", "shape"), map(_model_row, shown))
        yield from _more(len(view.model) - len(shown))


def _model_row(pair: Pair) -> list[str]:
    return [
        f"{wording.SIGNS[pair.verdict]} {pair.verdict.value}",
        escaped(middle(recording_words.model_label(pair))),
        recording_words.max_abs(pair),
        _share(pair),
        wording.number(wording.measured(pair, "rel_l2")),
        wording.both(*map(wording.shape, pair.shape)),
    ]


def _share(pair: Pair) -> str:
    return wording.mismatched(pair).replace("<", "&lt;").replace(">", "&gt;")


def _more(number: int) -> Iterator[str]:
    if number > 0:
        yield from ("", f"and {number:,} more")


def layers(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    """Yield the layers in order of execution: forward and backward side by side."""
    yield from _each_section([list(_layers(comparison, view, options)) for view in recorded(comparison)])


def _layers(comparison: Comparison, view: Recorded, options: ReportOptions) -> Iterator[str]:
    if not view.rows:
        return
    yield from _title("Layers", comparison, view)
    yield recording_words.layer_counts(view)
    odd = any(row.worst.verdict is not Verdict.IDENTICAL for row in view.rows)
    if odd or options.verbose:
        shown = list(view.rows) if options.verbose else window(view.rows, max(1, options.top))
        titles = ("layer", "forward", "max abs:", "backward", "max abs:", "shape", "matched by")
        gradients = any(row.backward for row in view.rows)
        yield ""
        yield from table(titles, [_layer_row(row, gradients) for row in shown])


def _layer_row(row: Row | Gap, gradients: bool) -> list[str]:
    if isinstance(row, Gap):
        sides = (*recording_words.gap_cells(row, "forward"), *recording_words.gap_cells(row, "backward"))
        return [row.text, *sides, "", ""]
    name = code(row.label)
    return [
        f"**▶ {name} first divergence**" if row.first else name,
        recording_words.sign(row.forward),
        recording_words.max_abs(row.forward),
        recording_words.sign(row.backward, gradients),
        recording_words.max_abs(row.backward),
        recording_words.shape(row),
        escaped(middle(recording_words.layer_pairing(row))),
    ]


def gradients(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    """Yield the gradients of the parameters, those that do not match first."""
    yield from _each_section([list(_gradients(comparison, view, options)) for view in recorded(comparison)])


def _gradients(comparison: Comparison, view: Recorded, options: ReportOptions) -> Iterator[str]:
    ranked = worst_gradients(view)
    odd = ranked if options.verbose else [pair for pair in ranked if pair.verdict is not Verdict.IDENTICAL]
    shown = odd if options.verbose else odd[: options.top]
    if shown:
        yield from _title("Parameter gradients", comparison, view)
        titles = ("verdict", "parameter", "max abs:", "rel to scale:", "out:", "shape")
        yield from table(titles, [_gradient_row(pair, view) for pair in shown])
        yield ""
        yield f"The scale: the largest gradient of all is {wording.number(view.scale)}."
        yield from _more(len(odd) - len(shown))


def _gradient_row(pair: Pair, view: Recorded) -> list[str]:
    return [
        f"{wording.SIGNS[pair.verdict]} {pair.verdict.value}",
        code(place_of(pair.name, pair.slot).label),
        recording_words.max_abs(pair),
        wording.number(view.of_scale(pair)),
        _share(pair),
        wording.both(*map(wording.shape, pair.shape)),
    ]


def others(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    """Yield what else was recorded and is not the same."""
    for view in recorded(comparison):
        ranked = wording.ranked(view.others)
        odd = ranked if options.verbose else [pair for pair in ranked if not pair.verdict.passed]
        shown = odd if options.verbose else odd[: options.top]
        if shown:
            yield from _title("Other tensors", comparison, view)
            rows = ([row[0], code(pair.name), *row[2:]] for pair in shown for row in [_model_row(pair)])
            yield from table(("verdict", "tensor", "max abs:", "out:", "rel l2:", "shape"), rows)
            yield from (*_more(len(odd) - len(shown)), "")


def details(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    """Yield all numbers of the worst layers, folded."""
    for view in recorded(comparison):
        shown, rest = in_detail(view, options.top, options.verbose)
        if shown:
            of = f", {escaped(middle(view.candidate.label))}" if len(comparison.candidates) > 1 else ""
            yield from (f"<details><summary>mismatched layers in detail{of}</summary>", "")
            for pair in shown:
                yield f"- {code(recording_words.detail_title(pair))}"
                yield from (
                    f"  - {label}: {escaped(' '.join(text.split()))}"
                    for label, text in recording_words.details(pair, view)
                )
            yield from (("", rest) if rest else ())
            yield from ("", "</details>")


def summary(comparison: Comparison, options: ReportOptions) -> Iterator[str]:
    """Yield the match rates and where things stand."""
    for view in recorded(comparison):
        yield from _title("Summary", comparison, view)
        yield f"- output: {recording_words.final_output(view)}"
        for rate in view.rates:
            yield f"- {escaped(recording_words.rate_label(rate))}: {recording_words.rate_text(rate)}"
        if view.unreached:
            yield f"- cut off: {recording_words.cut_off(view)}"
        good, text = recording_words.closing(comparison, view)
        yield f"- {'✓' if good else '✗'} {escaped(middle(printable(text)))}"
        yield ""
