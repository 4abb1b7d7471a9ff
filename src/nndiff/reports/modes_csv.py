"""Modes as a table for spreadsheets: one row per mode and layer, one for each mode without layers. Version 1."""

from __future__ import annotations

import csv
import io

from nndiff.facts.modes import ModeFacts, Place
from nndiff.reports import ReportOptions, modes_text
from nndiff.reports.csv_report import METRICS, guard_text
from nndiff.result import Comparison, Pair

COLUMNS = (
    *("mode", "rank", "layer", "verdict", "mse_rating", "correlation_rating"),
    *("reference_shape", "candidate_shape", "reference_dtype", "candidate_dtype"),
    *METRICS,
    *("worst_channel", "worst_channel_mse", "worst_token", "worst_token_mse", "clipped"),
    *("kl", "top1", "top5", "reference_perplexity", "perplexity", "failed"),
)


class ModesCsvReport:
    """Render every layer of every mode as a row."""

    name = "csv"

    def render(self, comparison: Comparison, options: ReportOptions) -> str:
        """Return the whole document."""
        out = io.StringIO()
        writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        for mode in modes_text.get_modes(comparison).modes:
            pairs = comparison.pairs_of(mode.mode)
            for pair in pairs:
                writer.writerow(_make_row(comparison, mode, pair))
            if not pairs:
                writer.writerow(_describe_mode(mode))
        return out.getvalue()


def _describe_mode(mode: ModeFacts) -> dict[str, str]:
    return {"mode": guard_text(mode.mode), "rank": str(mode.rank), "failed": guard_text(mode.failed or "")}


def _make_row(comparison: Comparison, mode: ModeFacts, pair: Pair) -> dict[str, str]:
    row = {
        **_describe_mode(mode),
        "layer": guard_text(pair.name),
        "verdict": pair.verdict.value,
        "reference_shape": str(list(pair.shape[0])),
        "candidate_shape": str(list(pair.shape[1])),
        "reference_dtype": guard_text(pair.dtype[0]),
        "candidate_dtype": guard_text(pair.dtype[1]),
    }
    if pair.metrics is not None:
        for name in METRICS:
            value = getattr(pair.metrics, name)
            row[name] = "" if value is None else str(list(value)) if isinstance(value, tuple) else repr(value)
    layer = modes_text.get_modes(comparison).layers.get((pair.candidate, pair.name))
    if layer is not None:
        row |= {
            "mse_rating": layer.rating.mse.value,
            "correlation_rating": layer.rating.correlation.value,
            "clipped": repr(layer.clipped),
            **_describe_place("worst_channel", layer.worst_channel),
            **_describe_place("worst_token", layer.worst_token),
        }
    if pair.name == mode.output and mode.logits is not None:
        row |= {name: repr(getattr(mode.logits, name)) for name in ("kl", "top1", "top5")}
    if pair.name == mode.output and mode.perplexity is not None:
        row |= {"reference_perplexity": repr(mode.perplexity[0]), "perplexity": repr(mode.perplexity[1])}
    return row


def _describe_place(name: str, place: Place | None) -> dict[str, str]:
    if place is None:
        return {}
    sample = [] if place.sample is None else [place.sample]
    return {name: str([*sample, *place.index]), f"{name}_mse": repr(place.mse)}
