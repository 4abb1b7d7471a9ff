"""A plot of the error of every layer in order of execution, as SVG inside the page: no library, no request."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nndiff.reports import wording
from nndiff.reports.html_parts import safe
from nndiff.reports.layers import Row
from nndiff.result import Pair

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 960, 240, 52, 18, 24
_CELLS = 480  # more layers than this share a place: each shows its worst
_MOST_DECADES = 16


@dataclass(frozen=True)
class Scale:
    """Map differences to heights: decades from `low` to `high`, and a line below them for no difference."""

    low: int
    high: int

    def y(self, value: float) -> float:
        """Return how far down a difference stands; what has no number stands at the top, zero at the bottom."""
        if math.isnan(value) or value == math.inf:
            return float(_TOP)
        if value <= 0:
            return float(_HEIGHT - _BOTTOM)
        return self.at(math.log10(value))

    def at(self, decade: float) -> float:
        """Return how far down a power of ten stands; it may be one that no float holds."""
        share = (decade - self.low) / (self.high - self.low)
        lowest = _HEIGHT - _BOTTOM - 14
        return lowest - min(1.0, max(0.0, share)) * (lowest - _TOP)


def plot(rows: Sequence[Row], atol: float) -> Iterator[str]:
    """Yield the plot; one with no difference at all says nothing and is left out."""
    sizes = [_size(pair) for row in rows for pair in row.pairs]
    real = [size for size in sizes if 0 < size < math.inf]
    if not real or len(rows) < 2:
        return
    scale = _scale(min(real), max(real))
    yield f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="largest difference per layer">'
    yield from _axis(scale, atol)
    for direction in ("backward", "forward"):
        yield from _series(rows, direction, scale)
    yield from _mark(rows)
    yield "</svg>"
    yield (
        '<p class="soft"><span class="forward">● forward</span> <span class="backward">● backward</span> '
        "largest difference per layer in order of execution, on a logarithmic scale; large points are out of "
        "tolerance, those at the top have no number, those at the bottom no difference.</p>"
    )


def _size(pair: Pair) -> float:
    size = wording.measured(pair, "max_abs")
    return math.inf if size is None else size


def _scale(least: float, most: float) -> Scale:
    high = math.floor(math.log10(most)) + 1
    return Scale(max(math.floor(math.log10(least)), high - _MOST_DECADES), high)


def _axis(scale: Scale, atol: float) -> Iterator[str]:
    step = max(1, (scale.high - scale.low) // 6)
    for decade in range(scale.low, scale.high + 1, step):
        yield _line(scale.at(decade), f"1e{decade}", "grid")
    yield _line(scale.y(0.0), "0", "grid")
    if atol > 0 and scale.low < math.log10(atol) < scale.high:
        y = scale.y(atol)
        yield f'<line class="rule" x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT + 4}" y="{y - 3:.1f}">atol {wording.short(atol)}</text>'


def _line(y: float, label: str, kind: str) -> str:
    line = f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'{line}<text x="{_LEFT - 6}" y="{y + 3:.1f}" text-anchor="end">{label}</text>'


def _x(index: int, many: int) -> float:
    return _LEFT + (index + 0.5) * (_WIDTH - 8 - _LEFT) / many


def _series(rows: Sequence[Row], direction: str, scale: Scale) -> Iterator[str]:
    """Yield one direction as a line through its points, each with its name to hover over."""
    points = [(index, *point) for index, point in enumerate(_shared(rows, direction)) if point]
    many = min(len(rows), _CELLS)
    places = [(_x(index, many), scale.y(_size(pair)), label, pair) for index, label, pair in points]
    if places:
        yield f'<g class="{direction}"><polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y, *_ in places)}"/>'
        yield from (_point(*place, direction) for place in places)
        yield "</g>"


def _shared(rows: Sequence[Row], direction: str) -> Iterator[tuple[str, Pair] | None]:
    cells = min(len(rows), _CELLS)
    for cell in range(cells):
        share = rows[cell * len(rows) // cells : (cell + 1) * len(rows) // cells]
        pairs = [(row.label, pair) for row in share if (pair := getattr(row, direction))]
        yield max(pairs, key=lambda each: each[1].severity) if pairs else None


def _point(x: float, y: float, label: str, pair: Pair, direction: str) -> str:
    radius = 1.6 if pair.verdict.passed else 3
    said = f"{safe(label, 120)} {direction}: {pair.verdict.value}, max abs {wording.number(_size(pair))}"
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}"><title>{said}</title></circle>'


def _mark(rows: Sequence[Row]) -> Iterator[str]:
    index = next((index for index, row in enumerate(rows) if row.first), None)
    if index is None:
        return
    cells = min(len(rows), _CELLS)
    x = _x(min(index * cells // len(rows), cells - 1), cells)
    anchor = "start" if x < _WIDTH / 2 else "end"
    yield f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{_HEIGHT - _BOTTOM}"/>'
    shift = 4 if anchor == "start" else -4
    label = f"first divergence: {safe(rows[index].label, 80)}"
    yield f'<text class="mark" x="{x + shift:.1f}" y="{_TOP - 6}" text-anchor="{anchor}">{label}</text>'
