"""Options that several commands share, declared once."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from nndiff.errors import UsageError
from nndiff.reports import FORMATS, ReportOptions, check_specs, write_reports
from nndiff.tolerance import DEFAULT_ATOL, DEFAULT_RTOL

if TYPE_CHECKING:
    from nndiff.result import Comparison


def add_report_options(parser: argparse.ArgumentParser) -> None:
    """Add --report, --top, --quiet and --verbose."""
    group = parser.add_argument_group("reports")
    group.add_argument(
        "--report",
        action="append",
        default=[],
        metavar="FORMAT[:PATH]",
        help=f"write a report ({', '.join(FORMATS)}) to PATH, or print it where there is no PATH; repeatable. "
        "Without this option the terminal report is printed",
    )
    group.add_argument("--top", type=_rows, default=20, metavar="N", help="rows to show, the worst first (default: 20)")
    amount = group.add_mutually_exclusive_group()
    amount.add_argument("-q", "--quiet", action="store_true", help="print the verdict alone")
    amount.add_argument("-v", "--verbose", action="store_true", help="show every row, the identical ones too")


def add_tolerance_options(parser: argparse.ArgumentParser) -> None:
    """Add --atol, --rtol and --tolerance."""
    group = parser.add_argument_group("tolerance", "a candidate passes where |cand - ref| <= atol + rtol * |ref|")
    group.add_argument("--atol", type=float, metavar="A", help=f"absolute tolerance (default: {DEFAULT_ATOL:g})")
    group.add_argument("--rtol", type=float, metavar="R", help=f"relative tolerance (default: {DEFAULT_RTOL:g})")
    group.add_argument(
        "--tolerance",
        choices=("auto",),
        help="auto: by dtype, as torch.testing.assert_close has it, instead of numbers",
    )


def path(text: str) -> str:
    """Return a path given on the command line; an empty one, say from an unset variable, is refused."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path names nothing: give the path of a file or folder")
    return text


def report_options(args: argparse.Namespace) -> ReportOptions:
    """Return what --top, --quiet and --verbose ask for."""
    return ReportOptions(top=args.top, quiet=args.quiet, verbose=args.verbose)


def write_all(
    comparison: Comparison, args: argparse.Namespace, protected: Iterable[str | os.PathLike[str]] = ()
) -> None:
    """Write the reports asked for, or print the terminal one; files in `protected` are never overwritten."""
    write_reports(comparison, args.report or ["terminal"], report_options(args), protected)


def _rows(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, not {number}")
    return number


def check_reports(args: argparse.Namespace) -> None:
    """Refuse reports that cannot be written before any work is done."""
    if args.report and args.dry_run:
        raise UsageError("--dry-run compares nothing that a report could show: leave out --report or --dry-run")
    check_specs(args.report)
