"""A comparison of training runs as a table for spreadsheets and data frames: one row per step.

Version 1: the first. Numbers are written in full, undefined ones as `nan`, what was not recorded as nothing. The
columns are `weights.GROUP.NUMBER`, `gradients.GROUP.NUMBER`, `optimizer.GROUP.NUMBER`, and of every scalar
`NAME.reference`, `NAME.candidate` and `NAME.difference` (candidate - reference). Names are written as in the CSV report
of tensors.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterator, Sequence

from nndiff.facts.run_summary import GRADIENTS, OPTIMIZER, WEIGHTS, get_groups, list_scalars
from nndiff.facts.runs import ALL, GroupNumbers, StepComparison
from nndiff.reports import ReportOptions, run_wording, wording
from nndiff.reports.csv_report import guard_text
from nndiff.result import Comparison

_FACTS = ("epoch", "batch", "step", "candidate", "verdict", "same_data")
NUMBERS = tuple(field.name for field in dataclasses.fields(GroupNumbers))


class RunCsvReport:
    """Render every step as a row."""

    name = "csv"

    def render(self, comparison: Comparison, options: ReportOptions) -> str:
        """Return the whole document."""
        steps = [step for facts in comparison.run for step in facts.steps]
        groups = _list_columns(steps)
        scalars = list_scalars(steps)
        titles = [*_FACTS]
        for quantity, group in groups:
            titles += [guard_text(f"{quantity}.{group}.{name}") for name in NUMBERS]
        for scalar in scalars:
            titles += [guard_text(f"{scalar}.{part}") for part in ("reference", "candidate", "difference")]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*titles, "note"])
        for side in comparison.candidates:
            writer.writerows(_make_rows(wording.select_candidate(comparison, side), groups, scalars))
        return out.getvalue()


def _list_columns(steps: Sequence[StepComparison]) -> list[tuple[str, str]]:
    """Return (quantity, group) of everything that any step has, all parameters first."""
    columns: dict[tuple[str, str], None] = {}
    for quantity in (WEIGHTS, GRADIENTS, OPTIMIZER):
        names = dict.fromkeys(name for step in steps for name in get_groups(step, quantity) or ())
        for name in sorted(names, key=lambda name: name != ALL):
            columns[quantity, name] = None
    return list(columns)


def _make_rows(
    comparison: Comparison, groups: Sequence[tuple[str, str]], scalars: Sequence[str]
) -> Iterator[list[str]]:
    """Yield the rows of one candidate."""
    for facts in comparison.run:
        first = facts.first_divergence
        for step in facts.steps:
            row = [_format(step.mark.epoch), _format(step.mark.batch), str(step.mark.number)]
            row += [guard_text(step.candidate), step.verdict.value, _format(step.same_data)]
            for quantity, group in groups:
                numbers = (get_groups(step, quantity) or {}).get(group)
                row += [_format(getattr(numbers, name)) if numbers else "" for name in NUMBERS]
            for scalar in scalars:
                pair = step.scalars.get(scalar)
                row += [str(pair[0]), str(pair[1]), str(pair[1] - pair[0])] if pair else ["", "", ""]
            is_first = first is not None and first.mark.number == step.mark.number
            yield [*row, guard_text(" ".join(_tell_divergence(comparison))) if is_first else ""]


def _tell_divergence(comparison: Comparison) -> Iterator[str]:
    for parting in run_wording.describe_partings(comparison):
        yield f"first divergence: {parting.what}; {wording.end_sentence(parting.why)}"
    for finding in comparison.findings:
        yield f"Finding: {wording.tell_finding(finding)}"


def _format(value: str | float | bool | None) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return guard_text(value) if isinstance(value, str) else str(value)
