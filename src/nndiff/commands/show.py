"""nndiff show: what is inside a source."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nndiff.commands.options import (
    EXCLUDE,
    INCLUDE,
    OptionGroup,
    Subparsers,
    add_command,
    add_options,
    flag,
    option,
    parse_path,
)
from nndiff.commands.progress import ProgressBar
from nndiff.errors import UsageError
from nndiff.names import natural_key, selected
from nndiff.reports.output import get_stdout_sink, print_text
from nndiff.sources import Source, open_source
from nndiff.stats import Job
from nndiff.stats.engine import get_engine
from nndiff.tensors import TensorRef
from nndiff.text import plural, printable

if TYPE_CHECKING:
    from nndiff.recording import Recording

_FREELY_READ = 1 << 30  # bytes: the statistics of larger sources are only computed if asked for

_EXAMPLES = """\
  nndiff show model.safetensors
  nndiff show last.ckpt                                  the model, and what else the file holds
  nndiff show last.ckpt::optimizer_states                another part of the file
  nndiff show model/ --include 'encoder.*' --stats
  nndiff show model.nemo --json > inside.json
  nndiff show run.nnrec                                  how the model was run, and what every layer did
  nndiff show run.nnrec --check -q                       check that nothing changed since it was recorded
  nndiff show runs/ours                                  the steps of a recorded training, or of checkpoints by step

Classes in a pickle are named and never loaded; nothing in the file is executed.
"""
_OPTIONS = OptionGroup(
    "what is shown",
    (
        INCLUDE,
        EXCLUDE,
        flag("--stats", excludes="statistics", default=None, help="compute statistics, however large the source is"),
        option("--no-stats", excludes="statistics", action="store_false", dest="stats", help="read no data"),
        flag("--check", help="check all elements of a recording against the digests recorded with them"),
        flag("--json", help="print JSON"),
        flag("-q", "--quiet", help="print only the summary"),
    ),
)

# columns of the table, and which of them stay on a narrow terminal: the higher, the longer
_STATISTICS = (("mean", 60), ("std", 70), ("min", 40), ("max", 50))


@dataclass(frozen=True)
class _Statistics:
    """The statistics of one tensor."""

    mean: float
    std: float
    min: float
    max: float
    nonfinite: int


_StatisticsByName = Mapping[str, _Statistics]


def add_parser(subparsers: Subparsers, purpose: str = "") -> None:
    """Add the command to the command line."""
    parser = add_command(
        subparsers,
        "show",
        run,
        purpose=purpose,
        description="Show what a source holds: names, shapes, dtypes and statistics of its tensors, and what else "
        "is in the file.",
        examples=_EXAMPLES,
    )
    parser.add_argument(
        "source", metavar="SOURCE", type=parse_path, help="checkpoint, folder, recording or run; FILE::key is a part"
    )
    add_options(parser, _OPTIONS)


def run(args: argparse.Namespace) -> int:
    """Show the source; return 0, or 2 if there is no tensor to show."""
    from nndiff.runs.opening import is_training

    if is_training(args.source):
        from nndiff.commands.show_run import show_run

        return show_run(args)
    recording = _open_recording(args.source)
    source = open_source(args.source)
    if args.check:
        if recording is None:
            raise UsageError(f"--check is for recordings: {args.source} holds no digests to check its elements against")
        recording.check()
    names = [name for name in source.tensors if selected(name, args.include, args.exclude)]
    if recording is None:  # a recording is in execution order, which tells more
        names.sort(key=natural_key)
    tensors = [source.tensors[name] for name in names]
    with_statistics = args.stats
    if with_statistics is None:
        with_statistics = recording is not None or sum(tensor.nbytes for tensor in tensors) <= _FREELY_READ
    statistics: _StatisticsByName | None = None
    if with_statistics and (args.json or not args.quiet):
        statistics = _measure_tensors(tensors, args.quiet) if recording is None else _get_recorded_statistics(tensors)
    if args.json:
        _print_json(source, recording, tensors, statistics)
    else:
        lines = _summarize_source(source) if recording is None else _summarize_recording(recording)
        if len(tensors) < len(source.tensors):
            lines.append(
                f"  shown: {len(tensors):,} of {plural(len(source.tensors), 'tensor')}, by --include/--exclude"
            )
        if args.check:
            lines.append("  checked   every element matches the digest recorded with it")
        text = "".join(f"{line}\n" for line in lines)
        if not args.quiet:
            text += "\n" + _format_table(tensors, statistics)
            if tensors and not with_statistics:
                text += "\nthe source is large, so statistics are left out; --stats computes them\n"
        print_text(text)
    if not tensors:
        from nndiff.commands.trouble import print_trouble

        print_trouble(
            f"{args.source}: --include/--exclude left no tensor to show"
            if source.tensors
            else f"{args.source}: holds no tensors"
        )
        return 2
    return 0


def _open_recording(path: str) -> Recording | None:
    from nndiff.recording.format.folder import is_recording
    from nndiff.recording.reader import open_recording

    return open_recording(path) if is_recording(Path(path)) else None


def _get_recorded_statistics(tensors: Sequence[TensorRef]) -> _StatisticsByName:
    """Return the statistics that were recorded with the tensors."""
    statistics = {}
    for tensor in tensors:
        stats = tensor.trace.stats
        if stats:
            statistics[tensor.name] = _Statistics(stats.mean, stats.std, stats.min, stats.max, stats.nonfinite)
    return statistics


def _measure_tensors(tensors: Sequence[TensorRef], quiet: bool) -> _StatisticsByName:
    """Return the statistics of tensors, measured by comparing each with itself."""
    readable = [tensor for tensor in tensors if not tensor.missing]
    elements, done = sum(tensor.count for tensor in tensors), 0
    statistics = {}
    with ProgressBar("reading", quiet) as bar:

        def advance(count: int) -> None:
            nonlocal done
            done += count
            bar(done, elements)

        jobs = [Job(tensor, tensor, 0.0, 0.0) for tensor in readable]
        for tensor, metrics in zip(readable, get_engine().measure(jobs, advance), strict=True):
            statistics[tensor.name] = _Statistics(
                metrics.ref_mean, metrics.ref_std, metrics.ref_min, metrics.ref_max, metrics.nonfinite_ref
            )
    return statistics


def _print_json(
    source: Source,
    recording: Recording | None,
    tensors: Sequence[TensorRef],
    statistics: _StatisticsByName | None,
) -> None:
    import json

    side = source.side()
    document: dict[str, Any] = {
        "format": "nndiff.show",
        "version": 1,
        "label": source.label,
        "kind": source.kind,
        "part": source.part,
        "meta": dict(source.meta),
        "others": dict(source.others),
        "foreign": list(source.foreign),
        "notes": list(source.notes),
        "elements": side.elements,
        "trainable": side.trainable,
        "bytes": side.nbytes,
    }
    if recording:
        document |= {"complete": recording.complete, "calls": len(recording.calls)}
    document["tensors"] = [_describe_tensor(tensor, (statistics or {}).get(tensor.name)) for tensor in tensors]
    print_text(json.dumps(document, indent=1, allow_nan=False) + "\n", for_people=False)


def _describe_tensor(tensor: TensorRef, statistics: _Statistics | None) -> dict[str, Any]:
    """Return a tensor as JSON shows it."""
    from nndiff.result_json import plain

    entry: dict[str, Any] = {"name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype.name}
    if tensor.missing:
        entry["missing"] = tensor.missing
    if tensor.recorded:
        site, trace = tensor.site, tensor.trace
        entry |= {"order": trace.order, "module": site.module, "call": site.call, "slot": site.slot.value}
        entry |= {"keep": trace.keep, "digest": trace.digest}
    if statistics:
        entry["nonfinite"] = statistics.nonfinite
        for name, _ in _STATISTICS:
            entry[name] = plain(getattr(statistics, name))
    return entry


def _summarize_source(source: Source) -> list[str]:
    """Return the lines that describe a source as a whole."""
    side = source.side()
    size = f"parameters  {side.elements:,} in total, {side.trainable:,} look trainable"
    if any(tensor.recorded for tensor in source.tensors.values()):  # activations are no parameters
        size = f"elements    {side.elements:,} in total"
    lines = [
        f"{printable(source.label)}: {source.kind}, {plural(len(source.tensors), 'tensor')}",
        f"  {size}; {plural(side.nbytes, 'byte')}",
    ]
    if source.part:
        lines.append(f"  taken from  {printable(source.part)}")
    for key, value in source.meta.items():
        lines.append(f"  {printable(str(key), 30)}: {printable(str(value), 200)}")
    if source.others:
        lines.append("  also in the file (FILE::NAME shows a part):")
        for key, value in source.others.items():
            lines.append(f"    {printable(key, 80)}: {printable(value.description, 100)}")
    if source.foreign:
        lines.append(f"  classes that were not loaded: {printable(', '.join(source.foreign), 1000)}")
    for note in source.notes:
        lines.append(f"  note: {printable(note, 1000)}")
    return lines


def _summarize_recording(recording: Recording) -> list[str]:
    from nndiff.commands.show_recording import summarize_recording

    return summarize_recording(recording)


def _format_table(tensors: Sequence[TensorRef], statistics: _StatisticsByName | None) -> str:
    """Return one row for each tensor; columns that do not fit the terminal are left out."""
    from nndiff.reports.tables import ALWAYS, Cell, Column, format_table
    from nndiff.reports.terminal_sections import get_printed, make_console

    sink = get_stdout_sink()
    console = make_console(sink.width, sink.color)
    columns = [Column("name", ALWAYS, least=40), Column("shape", 90), Column("dtype", 80)]
    if statistics is not None:
        for title, importance in _STATISTICS:
            columns.append(Column(title, importance, right=True))
    columns.append(Column("", 85))
    rows = []
    for tensor in tensors:
        row = [Cell(printable(tensor.name)), Cell(str(list(tensor.shape))), Cell(tensor.dtype.name)]
        numbers = statistics.get(tensor.name) if statistics is not None else None
        if statistics is not None:
            for title, _ in _STATISTICS:
                # adding 0.0 removes the sign of a zero, which says only which of the zeros came first
                row.append(Cell(f"{getattr(numbers, title) + 0.0:.4g}" if numbers else ""))
        row.append(_make_remark(tensor, numbers))
        rows.append(row)
    if rows:
        for line in format_table(columns, rows, sink.width):
            console.print(line, soft_wrap=True)
    return get_printed(console)


def _make_remark(tensor: TensorRef, statistics: _Statistics | None) -> Any:
    """Return the cell that says what is unusual: elements that are not finite, or were not kept."""
    from nndiff.reports.tables import Cell

    if statistics and statistics.nonfinite:
        return Cell(f"{statistics.nonfinite:,} not finite", "red")
    if tensor.missing and tensor.trace.keep:
        return Cell(f"{tensor.trace.keep} kept", "")
    return Cell(tensor.missing or "", "red")
