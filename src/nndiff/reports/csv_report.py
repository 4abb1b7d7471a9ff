"""The result as a table for spreadsheets and data frames: one row per pair, one per tensor without a partner.

Version 1: the first. Numbers are written in full, undefined ones as `nan`. Names are written without
control characters (those as escapes), and a text that a spreadsheet would take for a formula (it begins
with = + - @ tab or carriage return) gets an apostrophe in front. The JSON report has names as they are.
Version 2: method, certain, decides, relation and accepted instead of matched_by; first_divergence and findings stand
in the rows they are about, and in rows of their own (verdict `first divergence`, `finding`) where there is none. The
column own, the own error of a module, came later.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterator

from nndiff.metrics import Metrics
from nndiff.reports import ReportOptions, wording
from nndiff.result import Comparison, FirstDivergence, Leftover, Pair
from nndiff.text import printable

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
# the envelope serves judging again, which is done from JSON
METRICS = tuple(field.name for field in dataclasses.fields(Metrics) if field.name != "envelope")
COLUMNS = (
    *("candidate", "name", "verdict", "reference_name", "candidate_name", "slot", "order", "method", "certain"),
    *("decides", "relation", "accepted"),
    *("reference_shape", "candidate_shape", "reference_dtype", "candidate_dtype", "atol", "rtol"),
    *("noise", "times_noise"),
    *METRICS,
    *("own", "first_divergence", "findings", "note"),
)


class CsvReport:
    """Render every pair and leftover as a row."""

    name = "csv"

    def render(self, comparison: Comparison, options: ReportOptions) -> str:
        """Return the whole document."""
        out = io.StringIO()
        writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        for side in comparison.candidates:
            writer.writerows(_make_rows(wording.select_candidate(comparison, side), side.label))
        return out.getvalue()


def guard_text(text: str) -> str:
    """Return text that neither a terminal nor a spreadsheet will act upon."""
    return ("'" if text.startswith(_FORMULA) else "") + printable(text)


def _make_rows(comparison: Comparison, candidate: str) -> Iterator[dict[str, str]]:
    """Yield the rows of one candidate."""
    first = comparison.first_divergences.get(candidate)
    named = set[str]()
    rows = [(pair.name, pair.candidate_name, _make_pair_row(pair)) for pair in comparison.pairs]
    rows += [(leftover.name, leftover.name, _make_leftover_row(leftover)) for leftover in comparison.leftovers]
    for reference_name, candidate_name, row in rows:
        named |= {reference_name, candidate_name}
        if first is not None and first.name == reference_name:
            row["first_divergence"] = guard_text(_tell_divergence(comparison))
        causes = wording.find_causes(comparison, candidate, reference_name, candidate_name)
        row["findings"] = guard_text(" ".join(wording.tell_finding(finding) for finding in causes))
        yield row
    if first is not None and first.name not in named:
        yield _make_other_row(candidate, first, _tell_divergence(comparison))
    for setting in comparison.settings:
        reference, value = wording.show_setting_values(setting)
        row = {"candidate": guard_text(candidate), "name": guard_text(setting.name)}
        row["verdict"] = "setting" if setting.changes_network else "harmless setting"
        yield {**row, "note": guard_text(f"{reference} against {value}")}
    for finding in comparison.findings:
        if not named & set(finding.where):
            where = guard_text(finding.where[0]) if finding.where else ""
            text = guard_text(wording.tell_finding(finding))
            yield {"candidate": guard_text(candidate), "name": where, "verdict": "finding", "findings": text}


def _tell_divergence(comparison: Comparison) -> str:
    for divergence in wording.describe_divergences(comparison):
        return f"first divergence: {divergence.why}" + (f" ({divergence.what})" if divergence.what else "")
    return "; ".join(wording.list_extra_outputs(comparison))


def _make_other_row(candidate: str, first: FirstDivergence, text: str) -> dict[str, str]:
    row = {"candidate": guard_text(candidate), "name": guard_text(first.name), "verdict": "first divergence"}
    return {**row, "first_divergence": guard_text(text)}


def _make_pair_row(pair: Pair) -> dict[str, str]:
    notes = [note.text for note in pair.notes]
    remark = wording.describe_remark(pair)
    row = {
        "candidate": guard_text(pair.candidate),
        "name": guard_text(pair.name),
        "verdict": pair.verdict.value,
        "reference_name": guard_text(pair.reference_name),
        "candidate_name": guard_text(pair.candidate_name),
        "slot": str(pair.slot or ""),
        "order": str(pair.order),
        "method": pair.method.value,
        "certain": _format_bool(pair.certain),
        "decides": _format_bool(pair.decides),
        "relation": guard_text(pair.related.relation.text) if pair.related else "",
        "accepted": _format_bool(pair.related.accepted) if pair.related else "",
        "reference_shape": _format_list(pair.shape[0]),
        "candidate_shape": _format_list(pair.shape[1]),
        "reference_dtype": guard_text(pair.dtype[0]),
        "candidate_dtype": guard_text(pair.dtype[1]),
        "atol": repr(pair.atol),
        "rtol": repr(pair.rtol),
        "noise": "" if pair.noise is None else repr(pair.noise),
        "times_noise": "" if pair.times_noise is None else repr(pair.times_noise),
        "own": "" if pair.own is None else repr(pair.own),
        "note": guard_text("; ".join([*notes, remark] if remark else notes)),
    }
    if pair.metrics is not None:
        for name in METRICS:
            value = getattr(pair.metrics, name)
            row[name] = "" if value is None else _format_list(value) if isinstance(value, tuple) else repr(value)
    return row


def _make_leftover_row(leftover: Leftover) -> dict[str, str]:
    return {
        "candidate": guard_text(leftover.candidate),
        "name": guard_text(leftover.name),
        "verdict": f"only in the {leftover.side}",
        f"{leftover.side}_name": guard_text(leftover.name),
        "slot": str(leftover.site.slot) if leftover.site else "",
        f"{leftover.side}_shape": _format_list(leftover.shape),
        f"{leftover.side}_dtype": guard_text(leftover.dtype),
        "note": guard_text(wording.explain_leftover(leftover)),
    }


def _format_bool(value: bool) -> str:
    return "true" if value else "false"


def _format_list(numbers: tuple[int, ...]) -> str:
    """Return `[512, 80]`, which no spreadsheet takes for a number or a date."""
    return "[" + ", ".join(map(str, numbers)) + "]"
