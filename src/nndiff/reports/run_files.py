"""The files of `--output-dir`: model_comparison.png, model_comparison.csv and detailed_comparison.json.

With several candidates each has a folder of its own in it, named after the candidate. Format `nndiff.run-details`,
version 1: `steps`, each with epoch, batch, step, verdict, scalars and `parameters`: the numbers of every parameter by
its name. NaN is null, infinities are the strings "inf" and "-inf".
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

from nndiff.errors import MissingExtraError, UsageError
from nndiff.facts.run_json import store_mark, store_number
from nndiff.facts.runs import RunFacts, WeightDetails
from nndiff.reports import ReportOptions, draw_picture, get_report, wording
from nndiff.reports.output import Output, Sink, explain_trouble, write_outputs
from nndiff.result import Comparison

FORMAT, VERSION = "nndiff.run-details", 1
PICTURE, TABLE, DETAILS = "model_comparison.png", "model_comparison.csv", "detailed_comparison.json"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 80


def check_output_folder(folder: str, runs: list[str]) -> None:
    """Refuse a folder that cannot be one, or that is one of the compared runs, before any work is done."""
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise UsageError(f"--output-dir {folder}: is a file; give a folder")
    for run in runs:
        try:
            is_run = os.path.samefile(run, folder)
        except (OSError, ValueError):  # the folder is not there yet, or a label is no path
            continue
        if is_run:
            raise UsageError(f"--output-dir {folder}: is one of the compared runs; give another folder")


def write_run_files(comparison: Comparison, folder: str) -> list[str]:
    """Write the files of every candidate into a folder and return their paths.

    Each file is whole or absent. Without matplotlib the table and the details are written, then MissingExtraError is
    raised.
    """
    check_output_folder(folder, [comparison.reference.label, *(side.label for side in comparison.candidates)])
    missing: MissingExtraError | None = None
    outputs = []
    for name, facts in zip(_name_folders(comparison), comparison.run, strict=True):
        place = os.path.join(folder, name) if name else folder
        with explain_trouble(place):
            os.makedirs(place, exist_ok=True)
        part = wording.select_candidate(comparison, comparison.side_of(facts.candidate))
        table = get_report("csv").render(part, ReportOptions())
        outputs.append(Output(Sink(os.path.join(place, TABLE)), table))
        outputs.append(Output(Sink(os.path.join(place, DETAILS)), write_details(part, facts)))
        try:
            outputs.append(Output(Sink(os.path.join(place, PICTURE)), draw_picture(part)))
        except MissingExtraError as error:
            missing = error
    write_outputs(outputs)
    if missing is not None:
        raise missing
    return [output.sink.path or "" for output in outputs]


def _name_folders(comparison: Comparison) -> list[str]:
    """Return a folder for each candidate, none where there is only one; equal names are numbered."""
    if len(comparison.candidates) < 2:
        return [""] * len(comparison.run)
    names: list[str] = []
    for facts in comparison.run:
        last = os.path.basename(facts.candidate.rstrip("/"))
        base = _UNSAFE.sub("-", last).strip("-.")[:_LONGEST_NAME] or "candidate"
        name, number = base, 2
        while name.lower() in [taken.lower() for taken in names]:  # some file systems know no case
            name, number = f"{base}-{number}", number + 1
        names.append(name)
    return names


def write_details(comparison: Comparison, facts: RunFacts) -> Iterator[str]:
    """Yield the details as JSON, a line for each step."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "reference": comparison.reference.label,
        "candidate": facts.candidate,
        "verdict": comparison.verdict,
    }
    yield json.dumps(head)[:-1] + ',\n "steps": [\n'
    scalars = {step.mark.number: step for step in facts.steps}
    marks = facts.details.marks if facts.details is not None else tuple(step.mark for step in facts.steps)
    for row, mark in enumerate(marks):
        step = scalars.get(mark.number)
        data: dict[str, Any] = store_mark(mark)
        data["verdict"] = step.verdict.value if step else None
        pairs = step.scalars if step else {}
        data["scalars"] = {name: [store_number(value) for value in pair] for name, pair in pairs.items()}
        data["parameters"] = _store_row(facts.details, row) if facts.details is not None else None
        end = ",\n" if row + 1 < len(marks) else "\n"
        yield f"  {json.dumps(data, allow_nan=False)}{end}"
    yield " ]}\n"


def _store_row(details: WeightDetails, row: int) -> dict[str, dict[str, Any]]:
    """Return the numbers of every parameter at one step."""
    columns = {
        "l2": details.l2[row].tolist(),
        "rel_l2": details.rel_l2[row].tolist(),
        "cosine": details.cosine[row].tolist(),
        "max_abs": details.max_abs[row].tolist(),
    }
    parameters = {}
    for column, name in enumerate(details.names):
        parameters[name] = {measure: store_number(values[column]) for measure, values in columns.items()}
    return parameters
