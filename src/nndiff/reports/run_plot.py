"""Curves over the steps of a training, as SVG inside the page: no library, no request."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nndiff.facts.run_summary import Curve, CurveKind, fits_log_axis
from nndiff.facts.runs import RunFacts
from nndiff.reports.run_wording import format_value
from nndiff.text import printable

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 560, 240, 70, 22, 28
_RIGHT = _WIDTH - 10
_POINTS = 480  # more steps than this share a place: each shows its worst
_TICKS = 5
_COLORS = 6  # of run.css
_MOST_DECADES = 24


@dataclass(frozen=True)
class Axis:
    """Map values to heights, linearly or by decades; zero stands below all decades."""

    low: float
    high: float
    is_log: bool

    def place(self, value: float) -> float:
        """Return how far down a value stands."""
        floor = _HEIGHT - _BOTTOM - (12 if self.is_log else 0)
        if self.is_log and value <= 0:
            return float(_HEIGHT - _BOTTOM)
        number = math.log10(value) if self.is_log else value
        share = (number / 2 - self.low / 2) / (self.high / 2 - self.low / 2)  # halves: no overflow
        return floor - min(1.0, max(0.0, share)) * (floor - _TOP)

    def list_ticks(self) -> Iterator[float]:
        """Yield the values that have a line of their own."""
        if self.is_log:
            decades = range(math.ceil(self.low), math.floor(self.high) + 1)
            for decade in decades[:: max(1, len(decades) // _TICKS)]:
                yield 10.0**decade
            return
        for number in range(_TICKS):
            share = number / (_TICKS - 1)
            yield self.low * (1 - share) + self.high * share


def draw_panel(title: str, curves: Sequence[Curve], facts: RunFacts) -> Iterator[str]:
    """Yield a panel with its title, axes, curves, the first divergence and a legend; one without data says so."""
    numbers = [number for curve in curves for number in curve.numbers]
    yield f"<div><h3>{html.escape(title)}</h3>"
    if not numbers:
        yield '<p class="soft">no data</p></div>'
        return
    axis = choose_axis(numbers, curves[0].kind)
    steps = [step.mark.number for step in facts.steps]
    label = html.escape(f"{title} over the steps")
    yield f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
    for value in axis.list_ticks():
        y = axis.place(value)
        text = format_value(value, curves[0].kind) if not axis.is_log else f"1e{round(math.log10(value))}"
        yield f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 3:.1f}" text-anchor="end">{text}</text>'
    for number in sorted({steps[0], steps[len(steps) // 2], steps[-1]}):
        x = _place_step(number, steps)
        yield f'<text x="{x:.1f}" y="{_HEIGHT - 10}" text-anchor="middle">{number}</text>'
    for number, curve in enumerate(curves):
        yield from _draw_curve(curve, f"line-{number % _COLORS}", axis, steps)
    yield from _draw_mark(facts, steps)
    yield "</svg>"
    if len(curves) > 1:
        names = [f'<span class="line-{number % _COLORS}">● {html.escape(printable(curve.label, 60))}</span>'
                 for number, curve in enumerate(curves)]  # fmt: skip
        yield f'<p class="legend">{"".join(names)}</p>'
    yield "</div>"


def choose_axis(numbers: Sequence[float], kind: CurveKind) -> Axis:
    """Return an axis that holds these numbers: by decades where they span so much."""
    is_log = kind is not CurveKind.COSINE and fits_log_axis(numbers)
    if is_log:
        positive = [math.log10(number) for number in numbers if number > 0]
        high = math.ceil(max(positive))
        return Axis(
            max(math.floor(min(positive)), high - _MOST_DECADES), max(high, math.floor(min(positive)) + 1), True
        )
    low, high_number = min(numbers), max(numbers)
    if low == high_number:
        low, high_number = low - (abs(low) / 2 or 0.5), high_number + (abs(high_number) / 2 or 0.5)
    return Axis(low, high_number, False)


def _place_step(number: int, steps: Sequence[int]) -> float:
    first, last = min(steps), max(steps)
    share = (number - first) / (last - first) if last > first else 0.5
    return _LEFT + min(1.0, max(0.0, share)) * (_RIGHT - _LEFT)


def _draw_curve(curve: Curve, color: str, axis: Axis, steps: Sequence[int]) -> Iterator[str]:
    """Yield a curve in pieces, with a gap and a cross where it is not finite."""
    pieces: list[list[tuple[float, float]]] = [[]]
    crosses = []
    for place, value in curve.thin(_POINTS):
        x = _place_step(steps[place], steps)
        if not math.isfinite(value):
            pieces.append([])
            crosses.append(f'<text class="broken" x="{x:.1f}" y="{_TOP - 6}" text-anchor="middle">×</text>')
            continue
        pieces[-1].append((x, axis.place(value)))
    yield f'<g class="{color}"><title>{html.escape(printable(curve.label, 120))}</title>'
    for piece in pieces:
        if len(piece) == 1:
            x, y = piece[0]
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>'
        elif piece:
            yield f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in piece)}"/>'
    yield from crosses
    yield "</g>"


def _draw_mark(facts: RunFacts, steps: Sequence[int]) -> Iterator[str]:
    """Yield the line at the first divergence."""
    first = facts.first_divergence
    if first is None:
        return
    x = _place_step(max(first.mark.number, min(steps)), steps)
    yield f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{_HEIGHT - _BOTTOM}"/>'
    anchor, shift = ("start", 4) if x < _WIDTH / 2 else ("end", -4)
    yield f'<text class="mark" x="{x + shift:.1f}" y="{_TOP - 10}" text-anchor="{anchor}">first divergence</text>'
