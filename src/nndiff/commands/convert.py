"""nndiff convert: rewrite a checkpoint in another one's names and layout."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence

from nndiff.commands.options import OptionGroup, Subparsers, add_command, add_options, flag, option, parse_path
from nndiff.commands.progress import ProgressBar
from nndiff.conversion import ConversionMap, convert_source, list_unmentioned, read_conversion_map
from nndiff.conversion.writer import get_index_path, plan_shards, write_checkpoint
from nndiff.errors import ConversionError, UsageError
from nndiff.reports.figures import format_size
from nndiff.reports.output import print_text
from nndiff.sources import Source, open_source
from nndiff.tensors import TensorRef
from nndiff.text import counted, plural, printable

_EXAMPLES = """\
  nndiff convert a.pt --map map.json -o new.safetensors           a map by: nndiff map a.pt b.pt -o map.json
  nndiff convert big/ --map map.json -o out/model.safetensors --max-shard-size 5GB

The checkpoint is read and written tensor by tensor, so its size does not matter. A file appears only when it is
complete.
"""
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def parse_byte_size(text: str) -> int:
    """Return the number of bytes of `5GB`."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?) ?(B|KB|MB|GB|TB)?", text.strip().upper())
    size = int(float(match[1]) * _UNITS[match[2] or "B"]) if match else 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"must be a size such as 500MB or 5GB, not {text!r}")
    return size


_OPTIONS = OptionGroup(
    "output",
    (
        option("--map", metavar="FILE", type=parse_path, required=True, help="what nndiff map wrote"),
        option("-o", "--output", metavar="FILE", type=parse_path, required=True, help="the safetensors file to write"),
        option("--max-shard-size", type=parse_byte_size, metavar="SIZE", help="split into files of this size: 5GB"),
        flag("--partial", help="write what can be made, without the tensors that are missing"),
        flag("--force", help="overwrite a file that is there"),
        flag("-q", "--quiet", help="print nothing"),
    ),
)


def add_parser(subparsers: Subparsers, purpose: str = "") -> None:
    """Add the command to the command line."""
    parser = add_command(
        subparsers,
        "convert",
        run,
        purpose=purpose,
        description="Rewrite a checkpoint in the names and layout of another one, by the map that nndiff map wrote.",
        examples=_EXAMPLES,
    )
    parser.add_argument("source", metavar="A", type=parse_path, help="the checkpoint to convert, in any format")
    add_options(parser, _OPTIONS)


def run(args: argparse.Namespace) -> int:
    """Convert the checkpoint, say what was written, and return 0."""
    if not args.output.endswith(".safetensors"):
        raise UsageError(f"-o {args.output}: nndiff writes safetensors files; let the name end in .safetensors")
    conversion = read_conversion_map(args.map)
    source = open_source(args.source)
    if not args.partial:
        _refuse_missing(source, conversion)
    tensors = list(convert_source(source, conversion).tensors.values())
    _refuse_existing(args, tensors)
    with ProgressBar("converting", args.quiet) as bar:
        written = write_checkpoint(args.output, tensors, args.max_shard_size, bar)
    if not args.quiet:
        lines = []
        for file in written:
            lines.append(f"wrote {printable(file.path)}: {plural(file.tensors, 'tensor')}, {format_size(file.nbytes)}")
        if len(written) > 1:
            lines.append(f"wrote {printable(get_index_path(args.output))}")
        unproven = [printable(entry.target, 80) for entry in conversion.entries if not entry.proven]
        if unproven:
            lines.append(f"not proven, by names and shapes alone, as values differed: {counted(unproven, 'tensor')}")
        print_text("\n".join(lines) + "\n")
    return 0


def _refuse_missing(source: Source, conversion: ConversionMap) -> None:
    """Refuse to write a checkpoint that is not whole."""
    blocking = [printable(missing.target, 80) for missing in conversion.missing if missing.blocks]
    if blocking:
        raise ConversionError(
            f"the map does not say how to make {counted(blocking, 'tensor')}; --partial writes the others"
        )
    unmentioned = [printable(name, 80) for name in list_unmentioned(source, conversion)]
    if unmentioned:
        raise ConversionError(
            f"{source.label}: the map knows nothing of {counted(unmentioned, 'tensor')}; --partial leaves them out"
        )


def _refuse_existing(args: argparse.Namespace, tensors: Sequence[TensorRef]) -> None:
    """Refuse to overwrite the checkpoint that is converted, and without --force any file."""
    paths = [args.output, get_index_path(args.output), *plan_shards(args.output, tensors, args.max_shard_size)]
    for path in paths:
        if not os.path.lexists(path):
            continue
        if os.path.isdir(path):
            raise UsageError(f"{path} is a folder: name a file in it, such as {path}/model.safetensors")
        real, source = os.path.realpath(path), os.path.realpath(args.source.partition("::")[0])
        if real == source or real.startswith(source + os.sep):
            raise UsageError(f"{path} belongs to the checkpoint that is converted: give another path")
        if not args.force:
            raise UsageError(f"{path} is there already; --force overwrites it")
