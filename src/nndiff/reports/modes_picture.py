"""Modes as an image: a map of layers x modes, coloured by SQNR. Needs matplotlib."""

from __future__ import annotations

import io
import math
from importlib.util import find_spec

from nndiff.errors import MissingExtraError
from nndiff.reports import modes_text
from nndiff.result import Comparison
from nndiff.text import printable

_MOST_LABELS = 60  # layers that are named along the side
_LONGEST_LABEL = 40  # characters
_BEST = 60.0  # decibels at which the colour ends: float16 and better


class ModesPicture:
    """Draw the SQNR of every layer in every mode."""

    name = "png"

    def draw(self, comparison: Comparison) -> bytes:
        """Return the file of the picture."""
        assert comparison.modes is not None  # it draws results of this kind alone
        if find_spec("matplotlib") is None:
            raise MissingExtraError("matplotlib", "for a png report", "report")
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        names = list(dict.fromkeys(pair.name for pair in comparison.pairs))
        modes = [mode.mode for mode in comparison.modes.modes]
        values = [[math.nan] * len(modes) for _ in names] or [[math.nan] * len(modes)]
        for pair in comparison.pairs:
            if pair.metrics is not None:
                decibels = max(0.0, min(_BEST, pair.metrics.sqnr_db))
                values[names.index(pair.name)][modes.index(pair.candidate)] = decibels
        figure = Figure(figsize=(2.5 + 0.5 * len(modes), 1.8 + 0.2 * min(len(names), _MOST_LABELS)), dpi=120)
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        image = axes.imshow(values, aspect="auto", cmap="RdYlGn", vmin=0.0, vmax=_BEST, interpolation="nearest")
        axes.set_facecolor("lightgrey")
        axes.set_xticks(range(len(modes)), [printable(mode, _LONGEST_LABEL) for mode in modes], rotation=60, ha="right")
        step = max(1, -(-len(names) // _MOST_LABELS))
        shown = range(0, len(names), step)
        axes.set_yticks(list(shown), [printable(modes_text.label_layer(names[row]), _LONGEST_LABEL) for row in shown])
        axes.tick_params(labelsize=6)
        axes.set_title(f"SQNR against {printable(comparison.modes.reference, _LONGEST_LABEL)}", fontsize=8)
        figure.colorbar(image, label="dB (grey: not compared)")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", bbox_inches="tight", metadata={"Software": None})
        return buffer.getvalue()
