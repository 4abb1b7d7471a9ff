"""nndiff diff: compare a reference with one or more candidates."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from nndiff.align import Rename, read_map
from nndiff.commands.options import add_report_options, add_tolerance_options, check_reports, path, write_all
from nndiff.commands.progress import ProgressBar
from nndiff.commands.replay import add_replay_options, has_models, refuse_replay_options, replayed
from nndiff.comparing import run as compare_plans
from nndiff.names import parse_groups
from nndiff.planning import Rules, plan
from nndiff.sources import Source
from nndiff.tolerance import Tolerance, choose

_EXAMPLES = """\
examples:
  nndiff diff ref.safetensors cand.safetensors
  nndiff diff model.nemo last.ckpt                         formats may differ
  nndiff diff a.ckpt::optimizer_states b.ckpt::optimizer_states
  nndiff diff fp32/ fp16/ int8/                            one reference, several candidates
  nndiff diff a.pt b.pt --rename '^transformer\\.=>model.'  candidate names become the reference's
  nndiff diff ref.nnrec cand.nnrec                         two recordings, layer by layer
  nndiff diff ref.nnrec model.py --ckpt last.ckpt          replays the recorded inputs through a model
  nndiff diff a.pt b.pt --dry-run                          which names belong together, no data read
  nndiff diff a.pt b.pt --report junit:diff.xml --report md:diff.md

PATTERN is a shell pattern over the whole name (*.bias), a module's path (encoder.layers.0) or re:REGEX. Of recordings
it may be one over the paths of modules too (*.norm), as for nndiff record.
Exit status: 0 the same, 1 different, 2 trouble (unreadable file, nothing could be compared).
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser], purpose: str = "") -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "diff",
        help=purpose,
        description="Compare named tensors of a reference with those of one or more candidates: checkpoints in any "
        "format, folders, recordings. What they are is detected.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "reference", metavar="REF", type=path, help="the side that is right by definition; FILE::key takes a part"
    )
    parser.add_argument("candidates", metavar="CAND", nargs="+", type=path, help="the side on trial, one or more")
    add_tolerance_options(parser)
    add_pairing_options(parser)
    add_replay_options(parser)
    add_report_options(parser)
    parser.set_defaults(run=run)


def add_pairing_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which names belong together and which count."""
    group = parser.add_argument_group("pairing")
    group.add_argument("--include", action="append", default=[], metavar="PATTERN", help="only these; repeatable")
    group.add_argument("--exclude", action="append", default=[], metavar="PATTERN", help="all but these; repeatable")
    group.add_argument(
        "--group", action="append", default=[], metavar="NAME=PATTERN", help="count these together too; repeatable"
    )
    group.add_argument(
        "--rename",
        action="append",
        default=[],
        metavar="REGEX=>REPLACEMENT",
        help="rewrite candidate names into the reference's; repeatable, applied in turn",
    )
    group.add_argument(
        "--map",
        metavar="FILE",
        type=path,
        help='pairs by name, tensors or modules: JSON {"ref": "cand"} or lines of \'REF => CAND\'',
    )
    group.add_argument("--dry-run", action="store_true", help="print what would be compared with what; read no data")


def rules_from(args: argparse.Namespace) -> Rules:
    """Return the pairing rules the options ask for."""
    return Rules(
        tuple(Rename.parse(text) for text in args.rename),
        read_map(args.map) if args.map else {},
        tuple(args.include),
        tuple(args.exclude),
        parse_groups(args.group),
    )


def run(args: argparse.Namespace) -> int:
    """Compare, report, and return the exit status."""
    tolerance = choose(args.atol, args.rtol, args.tolerance)
    rules = rules_from(args)
    check_reports(args)
    if not has_models(args):
        refuse_replay_options(args)
        return compare_and_report([args.reference, *args.candidates], tolerance, rules, args)
    import tempfile

    with tempfile.TemporaryDirectory(prefix="nndiff-replay-") as folder:
        return compare_and_report([args.reference, *replayed(args, folder)], tolerance, rules, args)


def compare_and_report(
    sources: Sequence[str | Source], tolerance: Tolerance, rules: Rules, args: argparse.Namespace
) -> int:
    """Compare the first of the sources with the others and write the reports that were asked for."""
    plans = plan(sources[0], sources[1:], rules)
    if args.dry_run:
        from nndiff.commands.dry_run import print_plans

        return print_plans(plans)
    with ProgressBar("comparing", args.quiet) as bar:
        comparison = compare_plans(plans, tolerance, rules, bar)
    write_all(comparison, args)
    return comparison.exit_code
