"""The terminal report's sections of two recordings: where they part, layers, gradients, details, summary."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from nndiff.reports import ReportOptions, recording_words, wording
from nndiff.reports.grid import ALWAYS, Cell, Column, lines, shorten
from nndiff.reports.layers import Recorded, Row, in_detail, model_rows, place_of, recorded, worst_gradients
from nndiff.reports.parting import partings
from nndiff.reports.terminal_parts import LABEL, STYLES, entry, more
from nndiff.reports.window import Gap, window
from nndiff.result import Comparison, Pair
from nndiff.text import printable
from nndiff.verdict import Verdict

_MARK = "▶"


def first_divergence(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    """Yield the block to read first: where to look and why there."""
    for found in partings(comparison):
        title = Text(shorten(found.name, 3 * width), "bold")
        if found.fact("what"):
            title.append(f"  {shorten(found.fact('what'), 3 * width)}", "not bold")
        yield entry(f"{_MARK} first at", title)
        for label, text in found.facts:
            if label != "what":
                yield entry(label, shorten(text, 4 * width))


def sides(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    """Yield what the recordings are of."""
    both = [("reference", comparison.reference), *(("candidate", side) for side in comparison.candidates)]
    shown = both if len(both) == 2 else both[:1]
    columns = [Column("", ALWAYS), Column("", ALWAYS, least=max(10, width // 3))]
    columns += [Column("", keep, right=keep in (4, 6)) for keep in (6, 5, 4, 3, 2, 1)]
    rows = [
        [
            Cell(role.ljust(LABEL - 2), "dim"),
            Cell(wording.name(wording.side_name(side))),
            *(Cell(fact, "dim") for fact in recording_words.side_facts(side)),
        ]
        for role, side in shown
    ]
    yield from lines(columns, rows, width)


def _name_width(width: int) -> int:
    return max(12, 3 * width // 10)  # less than elsewhere: the signs and numbers of both directions are the point


def _of(comparison: Comparison, view: Recorded) -> str:
    """Return the addition to a title that says which candidate, where there are several."""
    return f", {printable(view.candidate.label, 60)}" if len(comparison.candidates) > 1 else ""


def model(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    """Yield what went into the models and what came out."""
    for view in recorded(comparison):
        columns = [
            Column("verdict", 90),
            Column(f"model{_of(comparison, view)}", ALWAYS, least=_name_width(width)),
            Column("max abs", 80, right=True),
            Column("out", 60, right=True),
            Column("rel l2", 50, right=True),
            Column("shape", 40),
        ]
        shown = view.model if options.verbose else model_rows(view, options.top)
        if shown:
            yield from lines(columns, [_model_row(pair) for pair in shown], width)
        if len(shown) < len(view.model):
            yield more(len(view.model) - len(shown))


def _model_row(pair: Pair) -> list[Cell]:
    return [
        Cell(f"{wording.SIGNS[pair.verdict]} {pair.verdict.value}", STYLES[pair.verdict]),
        Cell(recording_words.model_label(pair)),
        Cell(recording_words.max_abs(pair)),
        Cell(wording.mismatched(pair)),
        Cell(wording.number(wording.measured(pair, "rel_l2"))),
        Cell(wording.both(*map(wording.shape, pair.shape)), "dim"),
    ]


def layers(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    """Yield the layers in order of execution: forward and backward side by side."""
    for view in recorded(comparison):
        if view.rows:
            yield entry("layers", recording_words.layer_counts(view) + _of(comparison, view))
            yield from _layer_table(view, options, width)


def _layer_table(view: Recorded, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    shown = list(view.rows) if options.verbose else window(view.rows, max(1, options.top))
    if all(isinstance(each, Gap) for each in shown) or _alike(view, options):
        return
    columns = [
        Column("", 95),
        Column("layer", ALWAYS, least=_name_width(width)),
        Column("forward", 90),
        Column("max abs", 70, right=True),
        Column("backward", 80),
        Column("max abs", 60, right=True),
        Column("shape", 40),
        Column("matched by", 30, least=10),
    ]
    gradients = any(row.backward for row in view.rows)
    parted = any(row.first for row in view.rows) or view.first is not None
    yield from lines(columns, [_layer_row(each, gradients, parted) for each in shown], width)
    if any(isinstance(each, Gap) for each in shown):
        yield Text("  --top or --verbose shows more layers", "dim")


def _alike(view: Recorded, options: ReportOptions) -> bool:
    return not options.verbose and all(row.worst.verdict is Verdict.IDENTICAL for row in view.rows)


def _layer_row(row: Row | Gap, gradients: bool, parted: bool) -> list[Cell]:
    if isinstance(row, Gap):
        return [Cell(""), Cell(row.text, "dim"), *_gap(row, "forward"), *_gap(row, "backward"), Cell(""), Cell("")]
    # what differs after the first divergence inherits, as far as anybody knows
    style = "bold" if row.first else "dim" if parted and not row.passed else ""
    return [
        Cell(_MARK if row.first else "", "bold red"),
        Cell(wording.name(row.label), style),
        _sign(row.forward, row.first or not parted, True),
        Cell(recording_words.max_abs(row.forward), style),
        _sign(row.backward, row.first or not parted, gradients),
        Cell(recording_words.max_abs(row.backward), style),
        Cell(recording_words.shape(row), "dim"),
        Cell(recording_words.layer_pairing(row), "dim"),
    ]


def _gap(gap: Gap, direction: str) -> list[Cell]:
    return [Cell(text, "dim") for text in recording_words.gap_cells(gap, direction)]


def _sign(pair: Pair | None, bright: bool, recorded_at_all: bool) -> Cell:
    style = "dim" if pair is None else STYLES[pair.verdict] + ("" if bright or pair.verdict.passed else " dim")
    return Cell(recording_words.sign(pair, recorded_at_all), style)


def gradients(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    """Yield the gradients of the parameters, those that do not match first."""
    for view in recorded(comparison):
        ranked = worst_gradients(view)
        odd = ranked if options.verbose else [pair for pair in ranked if pair.verdict is not Verdict.IDENTICAL]
        shown = odd if options.verbose else odd[: options.top]
        columns = [
            Column("verdict", 90),
            Column(f"gradient of{_of(comparison, view)}", ALWAYS, least=_name_width(width)),
            Column("max abs", 80, right=True),
            Column("rel to scale", 70, right=True),
            Column("out", 60, right=True),
            Column("shape", 40),
        ]
        if shown:
            yield from lines(columns, [_gradient_row(pair, view) for pair in shown], width)
            yield entry("scale", f"the largest gradient of all is {wording.number(view.scale)}")
        if len(shown) < len(odd):
            yield more(len(odd) - len(shown))


def _gradient_row(pair: Pair, view: Recorded) -> list[Cell]:
    return [
        Cell(f"{wording.SIGNS[pair.verdict]} {pair.verdict.value}", STYLES[pair.verdict]),
        Cell(wording.name(place_of(pair.name, pair.slot).label)),
        Cell(recording_words.max_abs(pair)),
        Cell(wording.number(view.of_scale(pair))),
        Cell(wording.mismatched(pair)),
        Cell(wording.both(*map(wording.shape, pair.shape)), "dim"),
    ]


def others(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    """Yield what else was recorded and is not the same: inputs of modules, parameters, buffers."""
    for view in recorded(comparison):
        ranked = wording.ranked(view.others)
        odd = ranked if options.verbose else [pair for pair in ranked if not pair.verdict.passed]
        shown = odd if options.verbose else odd[: max(1, options.top // 4)]
        columns = [
            Column("verdict", 90),
            Column(f"other tensor{_of(comparison, view)}", ALWAYS, least=_name_width(width)),
            Column("max abs", 80, right=True),
            Column("out", 60, right=True),
            Column("shape", 40),
        ]
        if shown:
            yield from lines(columns, [_other_row(pair) for pair in shown], width)
        if len(shown) < len(odd):
            yield more(len(odd) - len(shown))


def _other_row(pair: Pair) -> list[Cell]:
    verdict, _, *rest = _model_row(pair)
    return [verdict, Cell(wording.name(pair.name)), rest[0], rest[1], rest[3]]


def details(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    """Yield all numbers of the worst layers."""
    for view in recorded(comparison):
        shown, rest = in_detail(view, options.top, options.verbose)
        if shown:
            yield Text(
                f"  mismatched layers in detail{_of(comparison, view)}", "bold", no_wrap=True, overflow="ellipsis"
            )
        for pair in shown:
            mark = f"{_MARK} " if pair.name == view.first else ""
            title = shorten(f"{mark}{recording_words.detail_title(pair)}", width - 4)
            yield Text(f"    {title}", STYLES[pair.verdict], no_wrap=True)
            yield from (entry(label, text, 6) for label, text in recording_words.details(pair, view))
        if shown and rest:
            yield Text(f"    {rest}", "dim")


def summary(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    """Yield the match rates and, as the last line, where things stand."""
    for view in recorded(comparison):
        if len(comparison.candidates) > 1:
            yield entry("summary", printable(view.candidate.label))
        yield entry("output", Text(recording_words.final_output(view), "" if view.outputs_match else "red"))
        for rate in view.rates:
            yield entry(recording_words.rate_label(rate), recording_words.rate_text(rate))
        if view.unreached:
            yield entry("cut off", Text(recording_words.cut_off(view), "red"))
        good, text = recording_words.closing(comparison, view)
        yield Text(f"  {'✓' if good else '✗'} {shorten(text, 4 * width)}", "bold green" if good else "bold red")
