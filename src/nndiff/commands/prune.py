"""nndiff prune: thin out a recorded training."""

from __future__ import annotations

import argparse

from nndiff.commands.options import (
    OptionGroup,
    Subparsers,
    add_command,
    add_options,
    flag,
    option,
    parse_path,
    parse_size,
)
from nndiff.commands.progress import ProgressBar
from nndiff.reports.figures import format_size
from nndiff.reports.output import print_text
from nndiff.runs.pruning import prune_run
from nndiff.text import plural, printable

_EXAMPLES = """\
  nndiff prune runs/ours --keep-every 100                  tensors of every 100th step only
  nndiff prune runs/ours --keep-every 100 --last 50        and of the last 50 recorded steps
  nndiff prune runs/ours --to sketch                       sketches in place of whole tensors

The first step and the state before it always keep their tensors. Scalars and batch fingerprints of all steps stay.
A run that is being written is refused. If nndiff is killed meanwhile, the run is as it was.
"""
_OPTIONS = OptionGroup(
    "what stays",
    (
        option("--keep-every", type=parse_size, metavar="N", help="tensors of steps whose number is a multiple of N"),
        option("--last", type=parse_size, metavar="N", help="tensors of the last N recorded steps"),
        option("--to", choices=("sketch", "stats"), help="of tensors that stay, only sketches or only statistics"),
        flag("-q", "--quiet", help="print nothing"),
    ),
)


def add_parser(subparsers: Subparsers, purpose: str = "") -> None:
    """Add the command to the command line."""
    parser = add_command(
        subparsers,
        "prune",
        run,
        purpose=purpose,
        description="Drop tensors from a training recorded by nndiff.TrainingRecorder.",
        examples=_EXAMPLES,
    )
    parser.add_argument("path", metavar="RUN", type=parse_path, help="folder of a recorded training")
    add_options(parser, _OPTIONS)


def run(args: argparse.Namespace) -> int:
    """Prune the run, say what was freed, and return 0."""
    if args.keep_every is None and args.last is None and args.to is None:
        from nndiff.errors import UsageError

        raise UsageError("say what to drop: --keep-every N, --last N or --to sketch|stats; see `nndiff prune --help`")
    with ProgressBar("pruning", args.quiet) as bar:
        pruned = prune_run(args.path, keep_every=args.keep_every, last=args.last, to=args.to, progress=bar)
    if not args.quiet:
        freed = format_size(max(0, pruned.bytes_before - pruned.bytes_after))
        print_text(
            f"{printable(args.path)}: tensors of {pruned.steps_after:,} of "
            f"{plural(pruned.steps_before, 'recorded step')} stay; {freed} freed, "
            f"{format_size(pruned.bytes_after)} left\n"
        )
    return 0
