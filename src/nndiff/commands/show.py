"""nndiff show: what is inside a source."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nndiff.commands.options import path
from nndiff.commands.progress import ProgressBar
from nndiff.errors import UsageError
from nndiff.names import natural_key, selected
from nndiff.reports.output import get_stdout_sink, print_text
from nndiff.sources import Source, open_source
from nndiff.stats import Job, Metrics, get_engine
from nndiff.tensors import TensorRef
from nndiff.text import plural, printable

if TYPE_CHECKING:
    from nndiff.recording import Recording

_FREELY_READ = 1 << 30  # bytes whose statistics are computed without being asked for

_EXAMPLES = """\
examples:
  nndiff show model.safetensors
  nndiff show last.ckpt                                  the model, and what else the file holds
  nndiff show last.ckpt::optimizer_states                another part of it
  nndiff show model/ --include 'encoder.*' --stats
  nndiff show model.nemo --json > inside.json
  nndiff show run.nnrec                                  which model ran how, what every layer did
  nndiff show run.nnrec --check -q                       is it still what was recorded

Foreign classes in a pickle are named and never loaded; nothing in the file is run.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser], purpose: str = "") -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "show",
        help=purpose,
        description="Show what a source holds: names, shapes, dtypes and statistics of its tensors, and what else "
        "is in the file.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "source", metavar="SOURCE", type=path, help="checkpoint, folder or recording; FILE::key takes a part"
    )
    parser.add_argument("--include", action="append", default=[], metavar="PATTERN", help="only these; repeatable")
    parser.add_argument("--exclude", action="append", default=[], metavar="PATTERN", help="all but these; repeatable")
    stats = parser.add_mutually_exclusive_group()
    stats.add_argument("--stats", action="store_true", default=None, help="compute statistics whatever the size")
    stats.add_argument("--no-stats", action="store_false", dest="stats", help="read no data")
    parser.add_argument(
        "--check", action="store_true", help="of a recording: hold all elements against the digests recorded with them"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="print the summary alone")
    parser.set_defaults(run=run)


@dataclass(frozen=True)
class _Numbers:
    """Hold the statistics of one tensor."""

    mean: float
    std: float
    min: float
    max: float
    nonfinite: int


_Table = list[_Numbers | None] | None


def run(args: argparse.Namespace) -> int:
    """Show the source; return 0, or 2 where it holds no tensor."""
    recording = _recording(args.source)
    source = open_source(args.source)
    if args.check:
        _check(args.source, recording)
    names = [name for name in source.tensors if selected(name, args.include, args.exclude)]
    if recording is None:
        names.sort(key=natural_key)  # a recording is in order of execution, which tells more
    tensors = [source.tensors[name] for name in names]
    small = recording is not None or sum(each.nbytes for each in tensors) <= _FREELY_READ
    wanted = args.stats if args.stats is not None else small
    needed = wanted and not (args.quiet and not args.json)
    numbers: _Table = (_measured(tensors, args.quiet) if recording is None else _recorded(tensors)) if needed else None
    if args.json:
        _print_json(source, recording, tensors, numbers)
    else:
        lines = [*(_summary(source) if recording is None else _about(recording)), *_shown(source, tensors)]
        lines += ["  checked   all elements match their recorded digests"] if args.check else []
        _print_text(lines, tensors, numbers, args.quiet, wanted)
    return 0 if tensors else 2


def _recording(path: str) -> Recording | None:
    from nndiff.recording.format.folder import is_recording
    from nndiff.recording.reader import open_recording

    return open_recording(path) if is_recording(Path(path)) else None


def _check(path: str, recording: Recording | None) -> None:
    if recording is None:
        raise UsageError(f"--check is for recordings; {path} keeps no digests to hold its elements against")
    recording.check()


def _recorded(tensors: Sequence[TensorRef]) -> list[_Numbers | None]:
    """Return the statistics that were taken when the tensors were."""
    held = [each.trace.stats for each in tensors]
    return [_Numbers(each.mean, each.std, each.min, each.max, each.nonfinite) if each else None for each in held]


def _measured(tensors: Sequence[TensorRef], quiet: bool) -> list[_Numbers | None]:
    """Return the statistics of each tensor: its numbers against itself."""
    jobs = [Job(each, each, 0.0, 0.0) for each in tensors if not each.missing]
    total, done = sum(each.count for each in tensors), 0
    with ProgressBar("reading", quiet) as bar:

        def step(elements: int) -> None:
            nonlocal done
            done += elements
            bar(done, total)

        measured = get_engine().measure(jobs, step)
        return [None if each.missing else _of(next(measured)) for each in tensors]


def _of(metrics: Metrics) -> _Numbers:
    return _Numbers(metrics.ref_mean, metrics.ref_std, metrics.ref_min, metrics.ref_max, metrics.nonfinite_ref)


def _print_json(source: Source, recording: Recording | None, tensors: Sequence[TensorRef], numbers: _Table) -> None:
    import json

    side = source.side()
    document = {
        "format": "nndiff.show",
        "version": 1,
        "label": source.label,
        "kind": source.kind,
        "part": source.part,
        "meta": dict(source.meta),
        "others": source.describe_others(),
        "foreign": list(source.foreign),
        "notes": list(source.notes),
        "elements": side.elements,
        "trainable": side.trainable,
        "bytes": side.nbytes,
        **({"complete": recording.complete, "calls": len(recording.calls)} if recording else {}),
        "tensors": [_entry(each, numbers[index] if numbers else None) for index, each in enumerate(tensors)],
    }
    print_text(json.dumps(document, indent=1, allow_nan=False) + "\n", for_people=False)


def _entry(tensor: TensorRef, numbers: _Numbers | None) -> dict[str, Any]:
    from nndiff.result_json import plain

    entry: dict[str, Any] = {"name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype.name}
    if tensor.missing:
        entry["missing"] = tensor.missing
    if tensor.recorded:
        site, trace = tensor.site, tensor.trace
        entry |= {"order": trace.order, "module": site.module, "call": site.call, "slot": site.slot.value}
        entry |= {"keep": trace.keep, "digest": trace.digest}
    if numbers:
        entry["nonfinite"] = numbers.nonfinite
        entry |= {name: plain(getattr(numbers, name)) for name, _ in _STATISTICS}
    return entry


def _print_text(lines: Sequence[str], tensors: Sequence[TensorRef], numbers: _Table, quiet: bool, wanted: bool) -> None:
    text = "".join(f"{line}\n" for line in lines)
    if not quiet:
        text += "\n" + _table(tensors, numbers)
    if not (quiet or wanted) and tensors:
        text += "\nstatistics are left out for a source of this size; --stats computes them\n"
    print_text(text)


def _summary(source: Source) -> Iterator[str]:
    side = source.side()
    yield f"{printable(source.label)}: {source.kind}, {plural(len(source.tensors), 'tensor')}"
    what = f"parameters  {side.elements:,} in all, {side.trainable:,} look trainable"
    if any(each.recorded for each in source.tensors.values()):  # of a run: activations are no parameters
        what = f"elements    {side.elements:,} in all"
    yield f"  {what}; {plural(side.nbytes, 'byte')}"
    if source.part:
        yield f"  taken from  {printable(source.part)}"
    for key, value in source.meta.items():
        yield f"  {printable(str(key), 30)}: {printable(str(value), 200)}"
    if source.others:
        yield "  also in the file (FILE::NAME shows a part):"
        yield from (
            f"    {printable(key, 80)}: {printable(value, 100)}" for key, value in source.describe_others().items()
        )
    if source.foreign:
        yield f"  foreign classes, met and not loaded: {printable(', '.join(source.foreign), 1000)}"
    yield from (f"  note: {printable(note, 1000)}" for note in source.notes)


def _about(recording: Recording) -> Iterator[str]:
    from nndiff.commands.show_recording import summary

    return summary(recording)


def _shown(source: Source, tensors: Sequence[TensorRef]) -> list[str]:
    if len(tensors) == len(source.tensors):
        return []
    return [f"  shown: {len(tensors):,} of {plural(len(source.tensors), 'tensor')}, by --include/--exclude"]


def _table(tensors: Sequence[TensorRef], numbers: _Table) -> str:
    from nndiff.reports.tables import ALWAYS, Cell, Column, format_table
    from nndiff.reports.terminal_sections import get_printed, make_console

    sink = get_stdout_sink()
    console = make_console(sink.width, sink.color)
    columns = [Column("name", ALWAYS, least=40), Column("shape", 90), Column("dtype", 80)]
    columns += [Column(title, keep, right=True) for title, keep in _STATISTICS] if numbers else []
    columns.append(Column("", 85))
    rows = []
    for index, tensor in enumerate(tensors):
        row = [Cell(printable(tensor.name)), Cell(str(list(tensor.shape))), Cell(tensor.dtype.name)]
        found = numbers[index] if numbers else None
        row += [Cell(text) for text in _numbers(found)] if numbers else []
        rows.append([*row, Cell(*_remark(tensor, found))])
    for line in format_table(columns, rows, sink.width) if rows else ():
        console.print(line, soft_wrap=True)
    return get_printed(console)


_STATISTICS = (("mean", 60), ("std", 70), ("min", 40), ("max", 50))


def _remark(tensor: TensorRef, numbers: _Numbers | None) -> tuple[str, str]:
    """Return what is unusual about a tensor, and its colour: elements that are not there, or are no numbers."""
    if numbers and numbers.nonfinite:
        return f"{numbers.nonfinite:,} not finite", "red"
    kept = tensor.trace.keep
    return (f"{kept} kept", "") if tensor.missing and kept else (tensor.missing or "", "red")


def _numbers(numbers: _Numbers | None) -> list[str]:
    if numbers is None:
        return [""] * len(_STATISTICS)
    # a zero has no sign here: the least and the largest of zeros are whichever came first
    return [f"{getattr(numbers, name) + 0.0:.4g}" for name, _ in _STATISTICS]
