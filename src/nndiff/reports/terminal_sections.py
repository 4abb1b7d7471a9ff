"""The sections of the report at a terminal: verdict, first divergence and findings first, then the evidence."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nndiff.reports import ReportOptions, summary, wording
from nndiff.reports.figures import (
    format_mismatched,
    format_name,
    format_number,
    format_shape,
    format_shapes,
    format_size,
    format_times_noise,
    join_sides,
    measure,
    measure_max_abs,
)
from nndiff.reports.layers import (
    Gap,
    GapSide,
    RecordingView,
    Row,
    choose_details,
    choose_model_rows,
    choose_rows,
    label_pair,
    largest_difference,
    rank_gradients,
    view_recordings,
)
from nndiff.reports.tables import ALWAYS, UNKNOWN, Cell, Column, format_table, shorten
from nndiff.result import SIDES, Comparison, Finding, Leftover, Pair, Side
from nndiff.result_json import is_guess
from nndiff.text import first_few, printable
from nndiff.tolerance import round_up
from nndiff.verdict import Outcome, Verdict

NARROWEST = 40
LABEL_WIDTH = 11  # "  tolerance" and its kind stand in one column
FIRST_MARK = "▶"
_SIGN_NOTES = {Verdict.SHAPE: " shape", Verdict.NOT_FINITE: " NaN/inf"}  # where a sign alone says too little
STYLES = {
    Verdict.IDENTICAL: "green",
    Verdict.CLOSE: "cyan",
    Verdict.DIFFERENT: "red",
    Verdict.SHAPE: "red",
    Verdict.NOT_FINITE: "magenta",
    Verdict.NOT_COMPARED: "yellow",
}
OUTCOME_STYLES = {
    Outcome.IDENTICAL: "green",
    Outcome.CLOSE: "cyan",
    Outcome.DIFFERENT: "red",
    Outcome.NOTHING: "yellow",
}
Section = Callable[[Comparison, ReportOptions, int], Iterable[RenderableType]]


def render_sections(comparison: Comparison, options: ReportOptions) -> str:
    """Return the whole report."""
    width = max(NARROWEST, options.width or NARROWEST * 2)
    console = make_console(width, bool(options.color))
    first = True
    for section in RECORDING_SECTIONS if wording.shows_layers(comparison) else SECTIONS:
        blocks = list(section(comparison, options, width))
        if blocks:
            if not first:
                console.print()
            console.print(Group(*blocks))
            first = False
    return get_printed(console)


def make_console(width: int, color: bool) -> Console:
    """Return a console that prints into memory, without markup."""
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


def get_printed(console: Console) -> str:
    """Return what was printed to the console, without trailing blanks."""
    text = console.file.getvalue()  # type: ignore[attr-defined]  # it is our StringIO
    return "".join(line.rstrip() + "\n" for line in text.split("\n")[:-1])


def format_entry(label: str, text: str | Text, indent: int = 2, label_width: int = LABEL_WIDTH) -> RenderableType:
    """Return a labelled line that wraps under itself."""
    table = Table.grid(padding=0)
    table.add_column(width=label_width + indent, no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(" " * indent + label, "dim"), Text(text) if isinstance(text, str) else text)
    return table


def format_hidden(number: int, indent: int = 2) -> Text:
    """Return the line that says how many rows were left out."""
    return Text(f"{' ' * indent}{number:,} more: use --top or --verbose", "dim")


def name_width(width: int) -> int:
    """Return the least width of the name column; other columns are dropped first."""
    return max(12, 3 * width // 10)


def _name_candidate(comparison: Comparison, view: RecordingView) -> str:
    """Return the label of the candidate for a title, if there are several."""
    return f", {printable(view.candidate.label, 60)}" if len(comparison.candidates) > 1 else ""


# -- verdict, first divergence, findings ------------------------------------------------------------------------------


def _show_headline(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    verdict, status = summary.verdict_line(comparison)
    style = f"bold {OUTCOME_STYLES[comparison.outcome]}"
    yield Text(verdict, style).append(status, "not bold default dim")
    for divergence in wording.describe_divergences(comparison):
        title = Text(shorten(divergence.name, 3 * width), "bold")
        if divergence.what:
            title.append(f"  {shorten(divergence.what, 3 * width)}", "not bold")
        yield format_entry(f"{FIRST_MARK} first at", title)
        yield format_entry("why", shorten(divergence.why, 4 * width))
    faults, findings = wording.describe_faults(comparison)
    if faults:
        yield format_entry("at fault", wording.count_faults(faults))
    for fault in faults:
        title = Text(shorten(fault.module, 3 * width), "bold")
        yield format_entry("  module", title.append(f"  {shorten(fault.facts, 4 * width)}", "not bold"))
        if fault.tensors:
            yield format_entry("  tensors", shorten(fault.tensors, 4 * width))
        if fault.alike:
            yield format_entry("  and", first_few([shorten(name, 3 * width) for name in fault.alike]))
        if fault.cause is not None:
            yield format_entry("  cause", printable(f"{wording.describe_finding(fault.cause)}: {fault.cause.evidence}"))
            yield format_entry("  repair", printable(fault.cause.repair))
    for finding in findings:
        yield from show_finding(finding, len(comparison.candidates) > 1, width)
    for sentence in wording.list_extra_outputs(comparison):
        yield format_entry("extra", sentence)


def show_finding(finding: Finding, several: bool, width: int) -> Iterator[RenderableType]:
    """Yield a finding: cause, evidence, where, repair."""
    title = Text(printable(finding.cause), "bold")
    title.append(wording.describe_finding(finding).removeprefix(printable(finding.cause)), "not bold dim")
    if several and finding.candidate:
        title.append(f" {printable(finding.candidate)}")
    if finding.evidence:
        title.append(f": {printable(finding.evidence)}", "not bold")
    yield format_entry("finding", title)
    where = first_few([shorten(printable(name), 3 * width) for name in finding.where])  # names wrap; few are so long
    if where:
        yield format_entry("  where", where)
    if finding.repair:
        yield format_entry("  repair", printable(finding.repair))


def _show_place(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    """Yield what is known about the place of the first divergence: where to look."""
    divergences = wording.describe_divergences(comparison)
    for divergence in divergences:
        if divergence.facts and len(divergences) > 1:
            yield format_entry("place", Text(shorten(divergence.name, 3 * width), "bold"))
        for label, text in divergence.facts:
            yield format_entry(label, shorten(text, 4 * width))


# -- sides and facts --------------------------------------------------------------------------------------------------


def _show_sides(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    layers = wording.shows_layers(comparison)
    sides: list[tuple[str, Side]] = [("reference", comparison.reference)]
    if len(comparison.candidates) == 1:
        sides.append(("candidate", comparison.candidates[0]))
    # what goes first where there is no room: the kind of file, the mode, the size
    priorities = [(6, False), (5, False), (4, True), (3, False), (2, False), (1, True)]
    if not layers:
        priorities = [(1, False), (5, True), (4, True), (2, True), (3, True)]
    columns = [Column("", ALWAYS), Column("", ALWAYS, least=max(10, width // 3))]
    columns += [Column("", keep, right=right) for keep, right in priorities]
    rows = []
    for role, side in sides:
        facts = [Cell(fact, "dim") for fact in wording.describe_side(side, layers)]
        rows.append([Cell(role.ljust(LABEL_WIDTH - 2), "dim"), Cell(format_name(wording.name_side(side))), *facts])
    yield from format_table(columns, rows, width)


def _show_candidates(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    if len(comparison.candidates) < 2:
        return
    columns = [
        Column("verdict", 9, brief=1),
        Column("candidate", ALWAYS, least=name_width(width)),
        Column("differ", 8, right=True),
        Column("left over", 3, right=True),
        Column("max abs", 6, right=True),
        Column("passes at", 5, right=True),
        Column("elements" if comparison.kind == "recording" else "parameters", 2, right=True),
        Column("size", 1, right=True),
    ]
    rows = []
    for side in comparison.candidates:
        part = wording.select_candidate(comparison, side)
        totals, needed = part.totals, part.needed_tolerance
        alone = totals.only_reference + totals.only_candidate
        rows.append(
            [
                Cell(f"{wording.OUTCOME_SIGNS[part.outcome]} {part.verdict}", OUTCOME_STYLES[part.outcome]),
                Cell(format_name(wording.name_side(side))),
                Cell(f"{totals.pairs - totals.matched:,} of {totals.pairs:,}"),
                Cell(f"{alone:,}" if alone else ""),
                Cell(format_number(largest_difference(part.pairs))),
                Cell("none" if needed is None else round_up(needed)),
                Cell(f"{side.elements:,}", "dim"),
                Cell(format_size(side.nbytes), "dim"),
            ]
        )
    yield from format_table(columns, rows, width)


def _show_facts(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    if comparison.pairs:
        label = "tensors" if len(comparison.candidates) == 1 else "pairs"
        yield format_entry(label, wording.tally_verdicts(comparison.totals))
    yield format_entry("tolerance", wording.describe_tolerance(comparison))
    rules = wording.describe_rules(comparison)
    if rules:
        yield format_entry("rules", rules)
    if comparison.outcome is not Outcome.IDENTICAL and comparison.pairs:
        yield format_entry("passes at", summary.describe_passing(comparison))
    for note in summary.list_notes(comparison):
        yield format_entry("note", shorten(note, 4 * width))


# -- the tensors of files ---------------------------------------------------------------------------------------------


def _show_pairs(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    shown, hidden = wording.choose_pairs(comparison, options.top, options.verbose)
    several = len(comparison.candidates) > 1
    columns = [
        Column("verdict", 85, brief=1),
        Column("tensor", ALWAYS, least=name_width(width)),
        Column("slot", 70),
        Column("candidate", 60, least=9),
        Column("max abs", 80, right=True),
        Column("x noise", 55, right=True),
        Column("max rel", 50, right=True),
        Column("out", 65, right=True),
        Column("shape", 95, below=True),
        Column("dtype", 30),
        Column("matched by", 20, least=10),
        Column("remark", 10, below=True),
    ]
    rows = []
    for pair in shown:
        rows.append(
            [
                _verdict_cell(pair),
                Cell(format_name(pair.name)),
                Cell(str(pair.slot or ""), "dim"),
                Cell(printable(pair.candidate) if several else "", "dim"),
                Cell(format_number(measure_max_abs(pair))),
                Cell(format_times_noise(pair)),
                Cell(format_number(measure(pair, "max_rel"))),
                Cell(format_mismatched(pair)),
                Cell(format_shapes(pair), "dim"),
                Cell(printable(join_sides(*pair.dtype)) if pair.dtype[0] != pair.dtype[1] else "", "dim"),
                Cell(wording.describe_pairing(pair), "dim"),
                Cell(wording.describe_remark(pair), "cyan"),
            ]
        )
    if rows:
        yield from format_table(columns, rows, width)
    if hidden:
        yield format_hidden(hidden)


def _verdict_cell(pair: Pair) -> Cell:
    guessed = is_guess(pair) and not pair.verdict.passed
    return Cell(wording.describe_verdict(pair), "dim" if guessed else STYLES[pair.verdict])


def show_leftovers(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    """Yield the tensors that only one side has."""
    for side in SIDES:
        leftovers = wording.rank_leftovers(comparison.leftovers, side)
        if leftovers:
            yield Padding(Text(wording.title_leftovers(leftovers, side), "bold"), (0, 0, 0, 2))
            yield from _list_leftovers(leftovers, options, width, several=len(comparison.candidates) > 1)


def _list_leftovers(
    leftovers: Sequence[Leftover], options: ReportOptions, width: int, several: bool
) -> Iterator[RenderableType]:
    columns = [
        Column("", ALWAYS, least=12),
        Column("", 9, below=True),
        Column("", 5),
        Column("", 6, least=8),
        Column("", 8, below=True),
    ]
    shown = leftovers if options.verbose else leftovers[: options.top]
    rows = []
    for leftover in shown:
        rows.append(
            [
                Cell(format_name(leftover.name), "" if leftover.counts else "dim"),
                Cell(format_shape(leftover.shape), "dim"),
                Cell(printable(leftover.dtype), "dim"),
                Cell(printable(leftover.candidate) if several else "", "dim"),
                Cell(wording.hint_leftover(leftover), "cyan"),
            ]
        )
    if rows:
        yield from format_table(columns, rows, width, indent=4)
    if len(shown) < len(leftovers):
        yield format_hidden(len(leftovers) - len(shown), indent=4)


def _show_settings(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    """Yield the settings beside the weights that differ, those that change the network first."""
    columns = [
        Column("", 9, brief=1),
        Column("setting", ALWAYS, least=name_width(width)),
        Column("candidate", 5, least=9),
        Column("reference", 8, least=10),
        Column("candidate", 8, least=10),
    ]
    several = len(comparison.candidates) > 1
    settings = wording.rank_settings(comparison.settings)
    shown = settings if options.verbose else settings[: options.top]
    rows = []
    for setting in shown:
        sign, style = (wording.SIGNS[Verdict.DIFFERENT], "red") if setting.changes_network else ("", "dim")
        values = [Cell(value, style) for value in wording.show_setting_values(setting)]
        name = Cell(printable(setting.name, 80), "" if setting.changes_network else "dim")
        rows.append([Cell(sign, style), name, Cell(printable(setting.candidate) if several else "", "dim"), *values])
    if rows:
        yield from format_table(columns, rows, width)
    if len(shown) < len(settings):
        yield format_hidden(len(settings) - len(shown))


def _show_groups(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
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
    rows = []
    for name, pattern in comparison.groups.items():
        totals = comparison.totals_of_group(name)
        alone = totals.only_reference + totals.only_candidate
        same = totals.pairs > 0 and totals.matched == totals.comparable
        rows.append(
            [
                Cell(printable(name)),
                Cell(printable(pattern), "dim"),
                Cell(f"{totals.pairs:,}"),
                Cell(f"{totals.matched:,}"),
                Cell(f"{alone:,}" if alone else ""),
                Cell(wording.format_match_rate(totals), "green" if same else "red"),
            ]
        )
    yield from format_table(columns, rows, width)


# -- the layers of recordings -----------------------------------------------------------------------------------------


def _show_model(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    """Yield what went into the models and what came out."""
    for view in view_recordings(comparison):
        shown = view.model if options.verbose else choose_model_rows(view, options.top)
        columns = _tensor_columns(f"model{_name_candidate(comparison, view)}", width)
        rows = [_tensor_row(pair, wording.label_model_pair(pair)) for pair in shown]
        if rows:
            yield from format_table(columns, rows, width)
        if len(shown) < len(view.model):
            yield format_hidden(len(view.model) - len(shown))


def _tensor_columns(title: str, width: int) -> list[Column]:
    return [
        Column("verdict", 85, brief=1),
        Column(title, ALWAYS, least=name_width(width)),
        Column("max abs", 80, right=True),
        Column("x noise", 65, right=True),
        Column("out", 60, right=True),
        Column("rel l2", 50, right=True),
        Column("shape", 95, below=True),
        Column("remark", 10, below=True),
    ]


def _tensor_row(pair: Pair, label: str) -> list[Cell]:
    return [
        _verdict_cell(pair),
        Cell(label),
        Cell(format_number(measure_max_abs(pair))),
        Cell(format_times_noise(pair)),
        Cell(format_mismatched(pair)),
        Cell(format_number(measure(pair, "rel_l2"))),
        Cell(format_shapes(pair), "dim"),
        Cell(wording.describe_remark(pair), "cyan"),
    ]


def _show_layers(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    """Yield the layers in order of execution: forward and backward side by side."""
    for view in view_recordings(comparison):
        if not view.rows:
            continue
        yield format_entry("layers", summary.count_layers(view) + _name_candidate(comparison, view))
        if not options.verbose and all(row.worst.verdict is Verdict.IDENTICAL for row in view.rows):
            continue
        shown = list(view.rows) if options.verbose else choose_rows(view.rows, max(1, options.top))
        columns = [
            Column("", ALWAYS),
            Column("layer", ALWAYS, least=name_width(width)),
            Column("forward", 90, brief=1),
            Column("max abs", 70, right=True),
            Column("x noise", 55, right=True),
            Column("backward", 80, brief=1),
            Column("max abs", 60, right=True),
            Column("x noise", 50, right=True),
            Column("shape", 95, below=True),
            Column("matched by", 30, least=10),
            Column("remark", 25, below=True),
        ]
        has_gradients = any(row.backward for row in view.rows)
        rows = [_layer_row(row, has_gradients, view.first is not None) for row in shown]
        yield from format_table(columns, rows, width)
        if any(isinstance(row, Gap) for row in shown):
            yield Text("  more layers: use --top or --verbose", "dim")
        guesses = wording.describe_guesses(view)
        if guesses:
            yield format_entry(f"{wording.GUESS_SIGN} guess", Text(f"{guesses} (evidence, not a failure)", "dim"))


def _layer_row(row: Row | Gap, has_gradients: bool, has_first: bool) -> list[Cell]:
    if isinstance(row, Gap):
        sides = [*_gap_cells(row.forward), *_gap_cells(row.backward)]
        return [Cell(""), Cell(row.text, "dim"), *sides, UNKNOWN, UNKNOWN, UNKNOWN]
    # differences after the first divergence are probably inherited
    style = "bold" if row.first else "dim" if has_first and not row.passed else ""
    bright = row.first or not has_first
    relations = dict.fromkeys(wording.describe_relation(pair) for pair in row.pairs)
    return [
        Cell(FIRST_MARK if row.first else "", "bold red"),
        Cell(format_name(row.label), style),
        _sign_cell(row.forward, bright, True),
        Cell(_format_max_abs(row.forward), style),
        Cell(format_times_noise(row.forward), style),
        _sign_cell(row.backward, bright, has_gradients),
        Cell(_format_max_abs(row.backward), style),
        Cell(format_times_noise(row.backward), style),
        Cell(format_shapes(row.pairs[0]), "dim"),
        Cell(wording.describe_row_pairing(row), "dim"),
        Cell("; ".join(relation for relation in relations if relation), "cyan"),
    ]


def _format_max_abs(pair: Pair | None) -> str:
    return format_number(measure_max_abs(pair)) if pair else ""


def _gap_cells(side: GapSide | None) -> tuple[Cell, Cell, Cell]:
    """Return sign and largest difference of rows that are not shown."""
    if side is None:
        return UNKNOWN, UNKNOWN, UNKNOWN
    failing = f" {side.failing:,}" if side.failing else ""
    return Cell(wording.SIGNS[side.worst] + failing, "dim"), Cell(format_number(side.max_abs), "dim"), UNKNOWN


def _sign_cell(pair: Pair | None, bright: bool, recorded: bool) -> Cell:
    """Return ✓, ≈ or ✗, with the verdict where that says too little; – where nothing was recorded."""
    if pair is None:
        return Cell("–" if recorded else "", "dim")
    guessed = is_guess(pair) and not pair.verdict.passed
    note = " guess" if guessed else _SIGN_NOTES.get(pair.verdict, "")
    style = "dim" if guessed else STYLES[pair.verdict] + ("" if bright or pair.verdict.passed else " dim")
    return Cell(wording.sign_of(pair) + note, style)


def _show_gradients(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    """Yield the parameter gradients, mismatches first."""
    for view in view_recordings(comparison):
        unequal = rank_gradients(view)
        if not options.verbose:
            unequal = [pair for pair in unequal if pair.verdict is not Verdict.IDENTICAL]
        shown = unequal if options.verbose else unequal[: options.top]
        columns = [
            Column("verdict", 85, brief=1),
            Column(f"gradient of{_name_candidate(comparison, view)}", ALWAYS, least=name_width(width)),
            Column("max abs", 80, right=True),
            Column("x noise", 65, right=True),
            Column("rel to scale", 70, right=True),
            Column("out", 60, right=True),
            Column("shape", 95, below=True),
            Column("matched by", 20, least=10),
            Column("remark", 10, below=True),
        ]
        rows = []
        for pair in shown:
            rows.append(
                [
                    _verdict_cell(pair),
                    Cell(format_name(label_pair(pair))),
                    Cell(format_number(measure_max_abs(pair))),
                    Cell(format_times_noise(pair)),
                    Cell(format_number(view.share_of_scale(pair))),
                    Cell(format_mismatched(pair)),
                    Cell(format_shapes(pair), "dim"),
                    Cell(wording.describe_pairing(pair), "dim"),
                    Cell(wording.describe_remark(pair), "cyan"),
                ]
            )
        if rows:
            yield from format_table(columns, rows, width)
            scale = f"the largest of all gradients is {format_number(view.counts.gradient_scale)}"
            yield format_entry("scale", Text(scale, "dim"))
        if len(shown) < len(unequal):
            yield format_hidden(len(unequal) - len(shown))


def _show_other_pairs(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    """Yield other recorded tensors that differ: module inputs, parameters, buffers."""
    for view in view_recordings(comparison):
        pairs = wording.rank_pairs(view.other_pairs)
        if not options.verbose:
            pairs = [pair for pair in pairs if not pair.verdict.passed]
        shown = pairs if options.verbose else pairs[: max(1, options.top // 4)]
        columns = _tensor_columns(f"other tensor{_name_candidate(comparison, view)}", width)
        rows = [_tensor_row(pair, format_name(pair.name)) for pair in shown]
        if rows:
            yield from format_table(columns, rows, width)
        if len(shown) < len(pairs):
            yield format_hidden(len(pairs) - len(shown))


def _show_details(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    """Yield all numbers of the worst layers."""
    for view in view_recordings(comparison):
        shown, hidden = choose_details(view, options.top, options.verbose)
        if shown:
            title = f"  mismatched layers in detail{_name_candidate(comparison, view)}"
            yield Text(title, "bold", no_wrap=True, overflow="ellipsis")
        for pair in shown:
            mark = f"{FIRST_MARK} " if view.is_first(pair) else ""
            title = shorten(f"{mark}{wording.title_details(pair)}", width - 4)
            yield Text(f"    {title}", STYLES[pair.verdict], no_wrap=True)
            for label, text in wording.describe_numbers(pair, view):
                yield format_entry(label, text, 6)
        if shown and hidden:
            yield Text(f"    {hidden}", "dim")


def _show_summary(comparison: Comparison, options: ReportOptions, width: int) -> Iterator[RenderableType]:
    """Yield the match rates and the verdict as the last line."""
    for view in view_recordings(comparison):
        if len(comparison.candidates) > 1:
            yield format_entry("summary", printable(view.candidate.label))
        style = "red" if view.counts.outputs_agree is False else ""
        yield format_entry("output", Text(summary.describe_outputs(view), style))
        for rate in view.counts.rates:
            yield format_entry(summary.label_rate(rate), summary.describe_rate(rate))
        if view.unreached:
            yield format_entry("cut off", Text(summary.describe_cut_off(view), "red"))
        good, text = summary.close_summary(comparison, view)
        closing = Text(shorten(text, 4 * width), "bold green" if good else "bold red")
        yield format_entry("✓" if good else "✗", closing, label_width=2)


# What a report is made of, in order; a section with nothing to say yields nothing.
SECTIONS: tuple[Section, ...] = (
    _show_headline,
    _show_place,
    _show_sides,
    _show_candidates,
    _show_facts,
    _show_settings,
    _show_pairs,
    show_leftovers,
    _show_groups,
)
RECORDING_SECTIONS: tuple[Section, ...] = (
    _show_headline,
    _show_place,
    _show_sides,
    _show_candidates,
    _show_facts,
    _show_model,
    _show_layers,
    _show_gradients,
    _show_other_pairs,
    _show_details,
    show_leftovers,
    _show_groups,
    _show_summary,
)
