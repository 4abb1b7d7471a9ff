"""The result as a table for spreadsheets and data frames: one row per pair, one per leftover.

Version 1: the first. Numbers are written in full, undefined ones as `nan`. Names are written without
control characters (those as escapes), and a text that a spreadsheet would take for a formula (it begins
with = + - @ tab or carriage return) gets an apostrophe in front. The JSON report has names as they are.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterator

from nndiff.reports import ReportOptions
from nndiff.result import Comparison, Leftover, Pair
from nndiff.metrics import Metrics
from nndiff.text import printable

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
# the envelope serves judging again, which is done from JSON
METRICS = tuple(each.name for each in dataclasses.fields(Metrics) if each.name != "envelope")
COLUMNS = (
    *("candidate", "name", "verdict", "reference_name", "candidate_name", "slot", "order", "matched_by"),
    *("reference_shape", "candidate_shape", "reference_dtype", "candidate_dtype", "atol", "rtol"),
    *METRICS,
    "note",
)


class CsvReport:
    """Render every pair and leftover as a row."""

    name = "csv"

    def render(self, comparison: Comparison, options: ReportOptions) -> str:
        """Return the whole document."""
        out = io.StringIO()
        writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(_rows(comparison))
        return out.getvalue()


def guarded(text: str) -> str:
    """Return text that neither a terminal nor a spreadsheet will act upon."""
    return ("'" if text.startswith(_FORMULA) else "") + printable(text)


def _rows(comparison: Comparison) -> Iterator[dict[str, str]]:
    for pair in comparison.pairs:
        yield {**_pair(pair), **_metrics(pair.metrics)}
    for left in comparison.leftovers:
        yield _leftover(left)


def _pair(pair: Pair) -> dict[str, str]:
    return {
        "candidate": guarded(pair.candidate),
        "name": guarded(pair.name),
        "verdict": pair.verdict.value,
        "reference_name": guarded(pair.reference_name),
        "candidate_name": guarded(pair.candidate_name),
        "slot": guarded(pair.slot or ""),
        "order": str(pair.order),
        "matched_by": guarded(pair.matched_by),
        "reference_shape": _shape(pair.shape[0]),
        "candidate_shape": _shape(pair.shape[1]),
        "reference_dtype": guarded(pair.dtype[0]),
        "candidate_dtype": guarded(pair.dtype[1]),
        "atol": repr(pair.atol),
        "rtol": repr(pair.rtol),
        "note": guarded(pair.note),
    }


def _metrics(metrics: Metrics | None) -> dict[str, str]:
    return {} if metrics is None else {name: _value(getattr(metrics, name)) for name in METRICS}


def _value(value: object) -> str:
    if value is None:
        return ""
    return _shape(value) if isinstance(value, tuple) else repr(value)


def _leftover(left: Leftover) -> dict[str, str]:
    return {
        "candidate": guarded(left.candidate),
        "name": guarded(left.name),
        "verdict": f"only in the {left.side}",
        f"{left.side}_name": guarded(left.name),
        f"{left.side}_shape": _shape(left.shape),
        f"{left.side}_dtype": guarded(left.dtype),
        "note": guarded(f"{_standing(left)} {left.hint}".strip()),
    }


def _standing(left: Leftover) -> str:
    if left.unreached:
        return "never reached: the other recording was cut off."
    return "" if left.counts else "no difference: inside the model."


def _shape(dimensions: tuple[int, ...]) -> str:
    """Return `[512, 80]`, which no spreadsheet takes for a number or a date."""
    return "[" + ", ".join(map(str, dimensions)) + "]"
