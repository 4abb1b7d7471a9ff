"""nndiff report: render a saved result again, in any format, at any tolerance."""

from __future__ import annotations

import argparse
from dataclasses import replace

from nndiff import result_json
from nndiff.commands.options import (
    REPORTS,
    TOLERANCE,
    Subparsers,
    add_command,
    add_options,
    parse_path,
    report_comparison,
)
from nndiff.findings.causes import LASTING_CAUSES
from nndiff.rejudge import judge_at
from nndiff.relations import load_relation
from nndiff.tolerance import Tolerance, choose_tolerance

_EXAMPLES = """\
  nndiff diff ref.safetensors cand.safetensors --report json:result.json
  nndiff report result.json                                the terminal report again
  nndiff report result.json --report html:result.html      as a page
  nndiff report result.json --atol 1e-3 --rtol 1e-3        judged again, without the sources

At another tolerance a tensor passes only if the saved numbers prove it.
Exit status: 0 the same, 1 different, 2 trouble.
"""


def add_parser(subparsers: Subparsers, purpose: str = "") -> None:
    """Add the command to the command line."""
    parser = add_command(
        subparsers,
        "report",
        run,
        purpose=purpose,
        description="Render a result saved by --report json:PATH again, in any format, at any tolerance.",
        examples=_EXAMPLES,
    )
    parser.add_argument("result", metavar="RESULT.json", type=parse_path, help="a result saved by --report json:PATH")
    add_options(parser, TOLERANCE, REPORTS)


def run(args: argparse.Namespace) -> int:
    """Load the result, judge it again if asked, write the reports; return the exit status."""
    comparison = result_json.load(args.result, load_relation)
    tolerance = _choose_tolerance(args, comparison.tolerance)
    if tolerance is not None:
        comparison = judge_at(comparison, tolerance, LASTING_CAUSES)
    return report_comparison(comparison, args, protected=[args.result])


def _choose_tolerance(args: argparse.Namespace, saved: Tolerance) -> Tolerance | None:
    """Return the tolerance to judge at, or None to keep the verdicts; --atol or --rtol alone keep the saved other."""
    if args.atol is None and args.rtol is None and args.tolerance is None and args.noise_factor is None:
        return None
    if saved.origin == "noise" and args.tolerance is None and args.noise_factor is not None:
        return choose_tolerance(args.atol, args.rtol, "noise", args.noise_factor)
    if args.tolerance is not None or args.noise_factor is not None or saved.origin in ("auto", "noise"):
        return choose_tolerance(args.atol, args.rtol, args.tolerance, args.noise_factor)
    chosen = choose_tolerance([saved.atol, *(args.atol or ())], [saved.rtol, *(args.rtol or ())])
    return replace(chosen, overrides=(*saved.overrides, *chosen.overrides))
