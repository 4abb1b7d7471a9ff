"""nndiff show: what is inside a source."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from nndiff.commands.options import path
from nndiff.commands.progress import ProgressBar
from nndiff.names import natural_key, printable, selected
from nndiff.reports.output import print_text
from nndiff.reports.sink import for_stdout
from nndiff.reports.wording import plural
from nndiff.sources import Source, open_source
from nndiff.stats import Job, Metrics, get_engine
from nndiff.tensors import TensorRef

_FREELY_READ = 1 << 30  # bytes whose statistics are computed without being asked for

_EXAMPLES = """\
examples:
  nndiff show model.safetensors
  nndiff show last.ckpt                                  the model, and what else the file holds
  nndiff show last.ckpt::optimizer_states                another part of it
  nndiff show model/ --include 'encoder.*' --stats
  nndiff show model.nemo --json > inside.json

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
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="print the summary alone")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show the source; return 0, or 2 where it holds no tensor."""
    source = open_source(args.source)
    names = [name for name in source.tensors if selected(name, args.include, args.exclude)]
    tensors = [source.tensors[name] for name in sorted(names, key=natural_key)]
    wanted = args.stats if args.stats is not None else sum(each.nbytes for each in tensors) <= _FREELY_READ
    numbers = _statistics(tensors, args.quiet) if wanted and not (args.quiet and not args.json) else None
    if args.json:
        _print_json(source, tensors, numbers)
    else:
        _print_text(source, tensors, numbers, args.quiet, wanted)
    return 0 if tensors else 2


def _statistics(tensors: Sequence[TensorRef], quiet: bool) -> list[Metrics | None]:
    """Return the statistics of each tensor: its numbers against itself."""
    jobs = [Job(each, each, 0.0, 0.0) for each in tensors if not each.missing]
    total, done = sum(each.count for each in tensors), 0
    with ProgressBar("reading", quiet) as bar:

        def step(elements: int) -> None:
            nonlocal done
            done += elements
            bar(done, total)

        measured = get_engine().measure(jobs, step)
        return [None if each.missing else next(measured) for each in tensors]


def _print_json(source: Source, tensors: Sequence[TensorRef], numbers: list[Metrics | None] | None) -> None:
    import json

    side = source.side()
    document = {
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
        "tensors": [_entry(each, numbers[index] if numbers else None) for index, each in enumerate(tensors)],
    }
    print_text(json.dumps(document, indent=1, allow_nan=False) + "\n", for_people=False)


def _entry(tensor: TensorRef, metrics: Metrics | None) -> dict[str, Any]:
    from nndiff.result_json import plain

    entry: dict[str, Any] = {"name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype.name}
    if tensor.missing:
        entry["missing"] = tensor.missing
    if metrics:
        entry["nonfinite"] = metrics.nonfinite_ref
        entry.update({name: plain(getattr(metrics, f"ref_{name}")) for name in ("mean", "std", "min", "max")})
    return entry


def _print_text(
    source: Source, tensors: Sequence[TensorRef], numbers: list[Metrics | None] | None, quiet: bool, wanted: bool
) -> None:
    text = "".join(f"{line}\n" for line in _summary(source, tensors))
    if not quiet:
        text += "\n" + _table(tensors, numbers)
    if not (quiet or wanted) and tensors:
        text += "\nstatistics are left out for a source of this size; --stats computes them\n"
    print_text(text)


def _summary(source: Source, tensors: Sequence[TensorRef]) -> Iterator[str]:
    side = source.side()
    yield f"{printable(source.label)}: {source.kind}, {plural(len(source.tensors), 'tensor')}"
    yield f"  parameters  {side.elements:,} in all, {side.trainable:,} look trainable; {plural(side.nbytes, 'byte')}"
    if len(tensors) != len(source.tensors):
        yield f"  shown       {len(tensors):,} of {len(source.tensors):,}, by --include/--exclude"
    if source.part:
        yield f"  taken from  {printable(source.part)}"
    for key, value in source.meta.items():
        yield f"  {printable(str(key), 30)}: {printable(str(value), 200)}"
    if source.others:
        yield "  also in the file (FILE::NAME shows a part):"
        yield from (f"    {printable(key, 80)}: {printable(value, 100)}" for key, value in source.others.items())
    if source.foreign:
        yield f"  foreign classes, met and not loaded: {printable(', '.join(source.foreign), 1000)}"
    yield from (f"  note: {printable(note, 1000)}" for note in source.notes)


def _table(tensors: Sequence[TensorRef], numbers: list[Metrics | None] | None) -> str:
    from nndiff.reports.grid import ALWAYS, Cell, Column, lines
    from nndiff.reports.terminal_sections import plain_console, printed

    sink = for_stdout()
    console = plain_console(sink.width, sink.color)
    columns = [Column("name", ALWAYS, least=40), Column("shape", 90), Column("dtype", 80)]
    columns += [Column(title, keep, right=True) for title, keep in _STATISTICS] if numbers else []
    columns.append(Column("", 85))
    rows = []
    for index, tensor in enumerate(tensors):
        row = [Cell(printable(tensor.name)), Cell(str(list(tensor.shape))), Cell(tensor.dtype.name)]
        metrics = numbers[index] if numbers else None
        row += [Cell(text) for text in _numbers(metrics)] if numbers else []
        bad = f"{metrics.nonfinite_ref:,} not finite" if metrics and metrics.nonfinite_ref else ""
        rows.append([*row, Cell(tensor.missing or bad, "red")])
    for line in lines(columns, rows, sink.width) if rows else ():
        console.print(line, soft_wrap=True)
    return printed(console)


_STATISTICS = (("mean", 60), ("std", 70), ("min", 40), ("max", 50))


def _numbers(metrics: Metrics | None) -> list[str]:
    if metrics is None:
        return [""] * len(_STATISTICS)
    # a zero has no sign here: the least and the largest of zeros are whichever came first
    return [f"{getattr(metrics, f'ref_{name}') + 0.0:.4g}" for name, _ in _STATISTICS]
