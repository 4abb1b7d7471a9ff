"""A plot of the error of every layer in order of execution, as SVG inside the page: no library, no request."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nndiff.reports.figures import format_number, format_typed, measure_max_abs
from nndiff.reports.layers import Row
from nndiff.reports.wording import describe_verdict
from nndiff.result import Pair
from nndiff.result_json import is_guess
from nndiff.text import printable

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 960, 240, 52, 18, 24
_RIGHT = _WIDTH - 8
_CELLS = 480  # more layers than this share a place: each shows its worst
_MOST_DECADES = 16


@dataclass(frozen=True)
class Scale:
    """Map differences to heights: decades from `low` to `high`, and a line below them for no difference."""

    low: int
    high: int

    def place(self, value: float) -> float:
        """Return how far down a difference stands; what has no number stands at the top, zero at the bottom."""
        if math.isnan(value) or value == math.inf:
            return float(_TOP)
        if value <= 0:
            return float(_HEIGHT - _BOTTOM)
        return self.place_decade(math.log10(value))

    def place_decade(self, decade: float) -> float:
        """Return how far down a power of ten stands; it may be one that no float holds."""
        share = (decade - self.low) / (self.high - self.low)
        lowest = _HEIGHT - _BOTTOM - 14
        return lowest - min(1.0, max(0.0, share)) * (lowest - _TOP)


def draw_plot(rows: Sequence[Row], atol: float) -> Iterator[str]:
    """Yield the plot; nothing if there is no difference to show."""
    sizes = [_measure(pair) for row in rows for pair in row.pairs]
    finite = [size for size in sizes if 0 < size < math.inf]
    if not finite or len(rows) < 2:
        return
    high = math.floor(math.log10(max(finite))) + 1
    scale = Scale(max(math.floor(math.log10(min(finite))), high - _MOST_DECADES), high)
    yield f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="largest difference per layer">'
    yield from _draw_axis(scale, atol)
    backward, forward = [row.backward for row in rows], [row.forward for row in rows]
    yield from _draw_series("backward", rows, backward, scale)
    yield from _draw_series("forward", rows, forward, scale)
    yield from _draw_mark(rows)
    yield "</svg>"
    yield (
        '<p class="soft"><span class="forward">● forward</span> <span class="backward">● backward</span> '
        "Largest difference per layer in order of execution, on a logarithmic scale. Large points are out of "
        "tolerance; points at the top have no number, points at the bottom no difference.</p>"
    )


def _measure(pair: Pair) -> float:
    size = measure_max_abs(pair)
    return math.inf if size is None else size


def _draw_axis(scale: Scale, atol: float) -> Iterator[str]:
    step = max(1, (scale.high - scale.low) // 6)
    for decade in range(scale.low, scale.high + 1, step):
        yield _draw_line(scale.place_decade(decade), f"1e{decade}")
    yield _draw_line(scale.place(0.0), "0")
    if atol > 0 and scale.low < math.log10(atol) < scale.high:
        y = scale.place(atol)
        yield f'<line class="rule" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT + 4}" y="{y - 3:.1f}">atol {format_typed(atol)}</text>'


def _draw_line(y: float, label: str) -> str:
    line = f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'{line}<text x="{_LEFT - 6}" y="{y + 3:.1f}" text-anchor="end">{label}</text>'


def _place_cell(cell: int, cells: int) -> float:
    return _LEFT + (cell + 0.5) * (_RIGHT - _LEFT) / cells


def _draw_series(direction: str, rows: Sequence[Row], pairs: Sequence[Pair | None], scale: Scale) -> Iterator[str]:
    """Yield one direction as a line through its points, each with its name to hover over."""
    cells = min(len(rows), _CELLS)
    places, points = [], []
    for cell in range(cells):
        shared = range(cell * len(rows) // cells, (cell + 1) * len(rows) // cells)
        worst = None
        for index in shared:
            pair = pairs[index]
            if pair and (worst is None or pair.severity > worst[1].severity):
                worst = (rows[index].label, pair)
        if worst is None:
            continue
        label, pair = worst
        x, y = _place_cell(cell, cells), scale.place(_measure(pair))
        places.append(f"{x:.1f},{y:.1f}")
        radius = 1.6 if pair.verdict.passed or is_guess(pair) else 3
        name = html.escape(printable(label, 120))
        text = f"{name} {direction}: {describe_verdict(pair)[2:]}, max abs {format_number(measure_max_abs(pair))}"
        points.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}"><title>{text}</title></circle>')
    if places:
        yield f'<g class="{direction}"><polyline points="{" ".join(places)}"/>'
        yield from points
        yield "</g>"


def _draw_mark(rows: Sequence[Row]) -> Iterator[str]:
    index = next((index for index, row in enumerate(rows) if row.first), None)
    if index is None:
        return
    cells = min(len(rows), _CELLS)
    x = _place_cell(min(index * cells // len(rows), cells - 1), cells)
    yield f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{_HEIGHT - _BOTTOM}"/>'
    anchor, shift = ("start", 4) if x < _WIDTH / 2 else ("end", -4)
    label = f"first divergence: {html.escape(printable(rows[index].label, 80))}"
    yield f'<text class="mark" x="{x + shift:.1f}" y="{_TOP - 6}" text-anchor="{anchor}">{label}</text>'
