"""nndiff report: render a saved result again, in any format, at any tolerance."""

from __future__ import annotations

import argparse

from nndiff import result_json
from nndiff.commands.options import add_report_options, add_tolerance_options, path, write_all
from nndiff.tolerance import Tolerance, choose

_EXAMPLES = """\
examples:
  nndiff diff ref.safetensors cand.safetensors --report json:result.json
  nndiff report result.json                                the terminal report again
  nndiff report result.json --report html:result.html      as a page
  nndiff report result.json --atol 1e-3 --rtol 1e-3        judged again, without the sources

Judged again, a tensor passes only where the saved numbers prove it. Exit status: 0 the same, 1 different,
2 trouble.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser], purpose: str = "") -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "report",
        help=purpose,
        description="Render a result saved by --report json:PATH again, in any format, at any tolerance.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("result", metavar="RESULT.json", type=path, help="a result saved by --report json:PATH")
    add_tolerance_options(parser)
    add_report_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Load the result, judge it again if asked, write the reports; return the exit status."""
    comparison = result_json.load(args.result)
    tolerance = _asked(args, comparison.tolerance)
    if tolerance is not None:
        comparison = comparison.judged_at(tolerance)
    write_all(comparison, args, protected=[args.result])
    return comparison.exit_code


def _asked(args: argparse.Namespace, saved: Tolerance) -> Tolerance | None:
    """Return the tolerance asked for; a half that is not given stays what the result was judged at."""
    if args.atol is None and args.rtol is None and args.tolerance is None:
        return None
    if args.tolerance is not None or saved.origin == "auto":
        return choose(args.atol, args.rtol, args.tolerance)
    return choose(
        saved.atol if args.atol is None else args.atol,
        saved.rtol if args.rtol is None else args.rtol,
    )
