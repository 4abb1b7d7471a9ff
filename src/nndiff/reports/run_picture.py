"""A comparison of training runs as one picture of six panels; matplotlib is imported when it is drawn."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nndiff.errors import MissingExtraError
from nndiff.facts.run_summary import Curve, CurveKind, Panel, draw_curves, fits_log_axis
from nndiff.facts.runs import RunFacts
from nndiff.reports.run_wording import QUANTITY_LABELS, name_step
from nndiff.result import Comparison
from nndiff.text import plural, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 110
_PANEL_SIZE = (6.4, 3.9)  # inches
_COLUMNS = 2
_MOST_MARKERS = 40  # more points than this are a line
_LONGEST_LABEL = 40


class RunPicture:
    """Draw the six panels, of several candidates below one another."""

    name = "png"

    def draw(self, comparison: Comparison) -> bytes:
        """Return the file of the picture."""
        figure = draw_figure(comparison)
        out = io.BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # a name may be in any script
            figure.savefig(out, format="png", dpi=_DPI, metadata={"Software": None})
        return out.getvalue()


def draw_figure(comparison: Comparison) -> Figure:
    """Return the figure, with six axes for each candidate; no window and no global state of matplotlib is touched."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "to draw a picture", "report") from None
    rows_of_run = len(Panel) // _COLUMNS
    rows = rows_of_run * max(1, len(comparison.run))
    figure = Figure(figsize=(_COLUMNS * _PANEL_SIZE[0], rows * _PANEL_SIZE[1] + 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_name_sides(comparison), fontsize=14)
    axes = figure.subplots(rows, _COLUMNS, squeeze=False)
    for number, facts in enumerate(comparison.run):
        curves = draw_curves(facts)
        for place, panel in enumerate(Panel):
            row, column = divmod(place, _COLUMNS)
            axis = axes[number * rows_of_run + row][column]
            title = panel.value if len(comparison.run) == 1 else f"{panel.value}, {_escape(facts.candidate)}"
            _draw_panel(axis, title, [curve for curve in curves if curve.panel is panel], facts)
    return figure


def _name_sides(comparison: Comparison) -> str:
    names = [_escape(side.label) for side in comparison.candidates]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    steps = plural(comparison.totals.pairs, "step")
    return f"reference {_escape(comparison.reference.label)}, candidate {names[0] if names else ''}{more}: {steps}"


def _draw_panel(axis: Any, title: str, curves: Sequence[Curve], facts: RunFacts) -> None:
    """Draw one panel: a line for each curve, the first divergence, and a legend."""
    axis.set_title(title, fontsize=13)
    axis.tick_params(labelsize=11)
    steps = [step.mark.number for step in facts.steps]
    numbers = [number for curve in curves for number in curve.numbers]
    if not numbers:
        axis.text(0.5, 0.5, "no data", ha="center", va="center", fontsize=13, color="0.4", transform=axis.transAxes)
        axis.set_xticks([])
        axis.set_yticks([])
        return
    broken: set[int] = set()
    for number, curve in enumerate(curves):
        places = curve.places
        values = [curve.values[place] for place in places]
        marker = "o" if len(values) <= _MOST_MARKERS else None
        dashes = "--" if curve.kind is CurveKind.LEVEL and number else "-"  # equal sides lie on one another
        axis.plot(
            [steps[place] for place in places],
            values,
            dashes,
            marker=marker,
            markersize=3,
            linewidth=1.6,
            label=_escape(curve.label),
        )
        broken.update(
            steps[place] for place, value in zip(places, values, strict=True) if not math.isfinite(value or 0)
        )
    _choose_scale(axis, numbers, curves[0].kind)
    if broken:
        heights = [0.97] * len(broken)  # of the panel
        above = axis.get_xaxis_transform()
        axis.plot(sorted(broken), heights, "x", color="crimson", transform=above, label="not finite")
    if len(set(steps)) > 1:
        axis.set_xlim(min(steps), max(steps))
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel("step", fontsize=11)
    axis.grid(True, alpha=0.3)
    first = facts.first_divergence
    if first is not None:
        place = max(first.mark.number, min(steps))
        label = f"first divergence: {QUANTITY_LABELS[first.quantity]}, {name_step(first.mark)}"
        axis.axvline(place, color="crimson", linestyle=":", linewidth=1.6, label=label)
    if len(curves) > 1 or broken or first is not None:
        axis.legend(fontsize=9, loc="best")


def _choose_scale(axis: Any, numbers: Sequence[float], kind: CurveKind) -> None:
    """Set a logarithmic scale where the numbers span decades; one that has room for zero where there is any."""
    if kind is CurveKind.COSINE:
        axis.ticklabel_format(axis="y", useOffset=False)
    elif fits_log_axis(numbers):
        positive = [number for number in numbers if number > 0]
        if min(numbers) > 0:
            axis.set_yscale("log")
        else:
            decade = math.floor(math.log10(min(positive)))
            axis.set_yscale("symlog", linthresh=10.0**decade, linscale=1)
            axis.set_ylim(bottom=0)


def _escape(text: str) -> str:
    """Return a name that matplotlib shows as it is: no formula, and not hidden from the legend."""
    safe = printable(text, _LONGEST_LABEL).replace("\\", "\\\\").replace("$", "\\$")
    return f" {safe}" if safe.startswith("_") else safe
