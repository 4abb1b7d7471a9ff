"""The html report's sections of two recordings: where they part, plot, layers, gradients, summary."""

from __future__ import annotations

from collections.abc import Iterator

from nndiff.reports import recording_words, wording
from nndiff.reports.html_parts import TABLE_END, class_of, number_cell, safe, table_start
from nndiff.reports.layers import Recorded, Row, place_of, recorded, worst_gradients
from nndiff.reports.parting import partings
from nndiff.reports.plot import plot
from nndiff.result import Comparison, Pair, Side


def first_divergence(comparison: Comparison) -> Iterator[str]:
    """Yield where to look and why there."""
    for found in partings(comparison):
        what = f" <span>{safe(found.fact('what'))}</span>" if found.fact("what") else ""
        yield f'<div class="parting"><p>First divergence at <strong><code>{safe(found.name)}</code></strong>{what}</p>'
        yield '<dl class="facts">'
        yield from (f"<dt>{label}</dt><dd>{safe(text)}</dd>" for label, text in found.facts if label != "what")
        yield "</dl></div>"


def side(side: Side) -> str:
    """Return what a recording is of."""
    facts = ", ".join(fact for fact in recording_words.side_facts(side) if fact)
    return f"{wording.side_name(side)} ({facts})"


def _title(text: str, comparison: Comparison, view: Recorded) -> str:
    many = len(comparison.candidates) > 1
    return f"<h2>{text}{', ' + safe(view.candidate.label, 120) if many else ''}</h2>"


def summary(comparison: Comparison) -> Iterator[str]:
    """Yield the match rates and where things stand."""
    for view in recorded(comparison):
        yield _title("Summary", comparison, view)
        good, text = recording_words.closing(comparison, view)
        facts = [("output", recording_words.final_output(view)), ("layers", recording_words.layer_counts(view))]
        facts += [(recording_words.rate_label(rate), recording_words.rate_text(rate)) for rate in view.rates]
        facts += [("cut off", recording_words.cut_off(view))] if view.unreached else []
        yield '<dl class="facts">'
        yield from (f"<dt>{safe(label)}</dt><dd>{safe(said)}</dd>" for label, said in facts)
        yield "</dl>"
        yield f'<p class="{"identical" if good else "different"}">{"✓" if good else "✗"} {safe(text)}</p>'


def model(comparison: Comparison) -> Iterator[str]:
    """Yield what went into the models and what came out."""
    for view in recorded(comparison):
        if view.model:
            yield _title("Final output", comparison, view)
            yield from table_start(("verdict", "model"), ("max abs", "rel l2", "cosine", "out"), ("shape",))
            yield from map(_model_row, view.model)
            yield TABLE_END


def _model_row(pair: Pair) -> str:
    return f'<tr>{_verdict(pair)}<td class="name">{safe(recording_words.model_label(pair))}</td>{_numbers(pair)}</tr>'


def _verdict(pair: Pair) -> str:
    return f'<td class="{class_of(pair.verdict)}">{wording.SIGNS[pair.verdict]} {pair.verdict.value}</td>'


def _numbers(pair: Pair) -> str:
    cells = [number_cell(wording.measured(pair, name)) for name in ("max_abs", "rel_l2", "cosine")]
    return "".join(cells) + _share(pair) + _shape(pair)


def _share(pair: Pair) -> str:
    return f'<td class="number">{safe(wording.mismatched(pair))}</td>'


def _shape(pair: Pair) -> str:
    return f'<td class="soft">{wording.both(*map(wording.shape, pair.shape))}</td>'


def error_plot(comparison: Comparison) -> Iterator[str]:
    """Yield the error of every layer in order of execution."""
    for view in recorded(comparison):
        lines = list(plot(view.rows, comparison.tolerance.atol))
        if lines:
            yield _title("Error by layer", comparison, view)
            yield from lines


def layers(comparison: Comparison) -> Iterator[str]:
    """Yield every layer in order of execution, forward and backward side by side."""
    for view in recorded(comparison):
        if view.rows:
            yield "<section>" + _title("Layers in order of execution", comparison, view)
            yield from _tools("layer")
            yield _layer_head()
            parted = view.first is not None
            yield from (_layer_row(index, row, parted) for index, row in enumerate(view.rows))
            yield TABLE_END + "</section>"


def _tools(what: str) -> Iterator[str]:
    """Yield the filters; the script shows them, since without it they would do nothing."""
    asked = f"filter by {what}"
    yield f'<div class="tools" hidden><input type="search" placeholder="{asked}" aria-label="{asked}">'
    yield '<label><input type="checkbox" class="only"> only mismatches</label><span class="soft shown"></span></div>'


_NUMBER, _TEXT = ' class="number"', ""
_LAYER_HEADS = (
    ("n", _NUMBER),
    ("layer", _TEXT),
    ("forward", _TEXT),
    ("max abs", _NUMBER),
    ("backward", _TEXT),
    ("max abs", _NUMBER),
    ("shape", _TEXT),
    ("matched by", _TEXT),
)


def _layer_head() -> str:
    cells = "".join(f'<th scope="col"{kind}>{title}</th>' for title, kind in _LAYER_HEADS)
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>'


def _layer_row(index: int, row: Row, parted: bool) -> str:
    kind = ' class="first"' if row.first else ' class="inherited"' if parted and not row.passed else ""
    passed = ' data-passed="1"' if row.passed else ""
    name = safe(wording.name(row.label)) + (' <span class="different">▶ first divergence</span>' if row.first else "")
    cells = [
        f'<td class="number soft" data-key="{index}">{index + 1}</td>',
        f'<td class="name" data-key="{safe(row.label)}">{name}</td>',
        *(cell for pair in (row.forward, row.backward) for cell in _direction(pair)),
        _shape(row.pairs[0]),
        f'<td class="soft wrap">{safe(recording_words.layer_pairing(row) or "name")}</td>',
    ]
    return f'<tr{kind}{passed} data-search="{safe(row.label.lower())}">{"".join(cells)}</tr>'


def _direction(pair: Pair | None) -> tuple[str, str]:
    if pair is None:
        return '<td class="soft">–</td>', '<td class="number"></td>'
    sign = f'<td class="{class_of(pair.verdict)}">{wording.SIGNS[pair.verdict]} {pair.verdict.value}</td>'
    return sign, number_cell(wording.measured(pair, "max_abs"))


def gradients(comparison: Comparison) -> Iterator[str]:
    """Yield the gradients of the parameters, those that do not match first."""
    for view in recorded(comparison):
        if view.gradients:
            yield "<section>" + _title("Parameter gradients", comparison, view)
            said = f"the largest gradient of all is {wording.number(view.scale)}"
            yield f'<p class="soft">Relative to the scale of all gradients: {said}.</p>'
            yield from _tools("parameter")
            columns = ("max abs", "rel to scale", "cosine", "out")
            yield from table_start(("verdict", "parameter"), columns, ("shape", "matched by"))
            yield from (_gradient_row(pair, view) for pair in worst_gradients(view))
            yield TABLE_END + "</section>"


def _gradient_row(pair: Pair, view: Recorded) -> str:
    label = place_of(pair.name, pair.slot).label
    passed = ' data-passed="1"' if pair.verdict.passed else ""
    cells = [
        _verdict(pair),
        f'<td class="name" data-key="{safe(label)}">{safe(wording.name(label))}</td>',
        number_cell(wording.measured(pair, "max_abs")),
        number_cell(view.of_scale(pair)),
        number_cell(pair.metrics.cosine if pair.metrics else None),
        _share(pair),
        _shape(pair),
        f'<td class="soft wrap">{safe(wording.pairing(pair) or "name")}</td>',
    ]
    return f'<tr{passed} data-search="{safe(label.lower())}">{"".join(cells)}</tr>'
