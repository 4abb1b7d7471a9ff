"""What nndiff show says about a training: its model, its steps, what was kept of each."""

from __future__ import annotations

import argparse
import json
from typing import Any

from nndiff.commands.trouble import print_trouble
from nndiff.errors import UsageError
from nndiff.reports.figures import format_size
from nndiff.reports.output import get_stdout_sink, print_text
from nndiff.result_json import plain
from nndiff.runs.dumps import DumpRun, open_dumps
from nndiff.runs.reader import RecordedRun, is_run, open_recorded_run
from nndiff.text import listed, plural, printable

_SHOWN_SCALARS = ("loss", "acc", "lr/0", "grad_norm")  # in the table; --json has all


def show_run(args: argparse.Namespace) -> int:
    """Show a recorded training, or a folder of checkpoints; return 0, or 2 if it has no steps."""
    if args.check or args.include or args.exclude:
        raise UsageError(f"--check, --include and --exclude are not for recorded trainings: {args.source}")
    run = open_recorded_run(args.source) if is_run(args.source) else open_dumps(args.source)
    if args.json:
        print_text(json.dumps(_describe_run(run), indent=1, allow_nan=False) + "\n", for_people=False)
    else:
        text = "".join(f"{line}\n" for line in _summarize_run(run))
        print_text(text if args.quiet else f"{text}\n{_format_steps(run)}")
    if not run.steps:
        print_trouble(f"{args.source}: holds no steps")
        return 2
    return 0


def _summarize_run(run: RecordedRun | DumpRun) -> list[str]:
    """Return the lines that describe a run as a whole."""
    description = run.description
    recorded = [step for step in run.steps if step.has_tensors]
    kind = "recorded training" if isinstance(run, RecordedRun) else "checkpoints of a training"
    lines = [f"{printable(run.label)}: {kind}, {plural(len(run.steps), 'step')}, tensors at {len(recorded):,}"]
    groups = ", ".join(plural(len(names), "parameter") for names in description.param_groups)
    versions = description.environment.get("versions")
    epochs = {step.epoch for step in run.steps if step.epoch is not None}
    facts = {
        "model": description.model,
        "optimizer": description.optimizer and f"{description.optimizer}; groups of {groups or 'nothing'}",
        "epochs": f"{min(epochs)} to {max(epochs)}" if epochs else "",
        "kept": f"{description.keep}, {format_size(run.measure())} on disk",
        "initial": "the state before the first step was kept" if run.has_initial else "not kept",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items())
        if isinstance(versions, dict)
        else "",
    }
    if recorded:
        tensors = run.read_tensors(run.steps.index(recorded[-1]))
        kinds = [key.state or key.kind.value for key in tensors.keys]
        facts["tensors"] = ", ".join(f"{kind} {kinds.count(kind):,}" for kind in dict.fromkeys(kinds))
    for title, text in facts.items():
        if text:
            lines.append(f"  {title:<9} {printable(text, 1000)}")
    lines += [f"  note: {printable(note, 1000)}" for note in description.notes]
    return lines


def _format_steps(run: RecordedRun | DumpRun) -> str:
    """Return one row for each step; columns that do not fit the terminal are left out."""
    from nndiff.reports.tables import ALWAYS, Cell, Column, format_table
    from nndiff.reports.terminal_sections import get_printed, make_console

    values = [dict(step.scalars) for step in run.steps]  # read once: each may be in a checkpoint of its own
    scalars = [name for name in _SHOWN_SCALARS if any(name in numbers for numbers in values)]
    columns = [Column("step", ALWAYS, right=True), Column("epoch", 80, right=True), Column("batch", 80, right=True)]
    columns += [Column(name, 70 - place, right=True) for place, name in enumerate(scalars)]
    columns += [Column("data", 50), Column("tensors", 90, right=True)]
    rows = []
    for place, step in enumerate(run.steps):
        row = [Cell(str(step.number)), Cell(_format_mark(step.epoch)), Cell(_format_mark(step.batch))]
        for name in scalars:
            row.append(Cell(f"{values[place][name]:.6g}" if name in values[place] else ""))
        row.append(Cell(listed(["×".join(map(str, part.shape)) or part.dtype for part in step.data or ()], 3)))
        size = run.measure_step(place)
        row.append(Cell("" if size is None else format_size(size)))
        rows.append(row)
    sink = get_stdout_sink()
    console = make_console(sink.width, sink.color)
    if rows:
        for line in format_table(columns, rows, sink.width):
            console.print(line, soft_wrap=True)
    return get_printed(console)


def _format_mark(number: int | None) -> str:
    return "" if number is None else str(number)


def _describe_run(run: RecordedRun | DumpRun) -> dict[str, Any]:
    """Return a run as JSON shows it."""
    description = run.description
    steps = []
    for place, step in enumerate(run.steps):
        entry: dict[str, Any] = {"step": step.number, "epoch": step.epoch, "batch": step.batch}
        entry["scalars"] = {name: plain(value) for name, value in step.scalars.items()}
        entry["bytes"] = run.measure_step(place)
        steps.append(entry)
    return {
        "format": "nndiff.show",
        "version": 1,
        "label": run.label,
        "kind": "run",
        "keep": description.keep,
        "model": description.model,
        "optimizer": description.optimizer,
        "initial": run.has_initial,
        "notes": list(description.notes),
        "bytes": run.measure(),
        "steps": steps,
    }
