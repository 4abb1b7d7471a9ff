"""nndiff run: record two models, each in its own process, and compare what every layer did."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nndiff.again import seed_of
from nndiff.commands.diff import add_pairing_options, compare_and_report, rules_from
from nndiff.commands.elsewhere import Order, record_elsewhere
from nndiff.commands.options import add_report_options, add_tolerance_options, check_reports
from nndiff.commands.record import add_kept_options, add_run_options
from nndiff.errors import SourceError
from nndiff.models.kinds import check_name
from nndiff.recording.format.folder import is_recording
from nndiff.sources import Source
from nndiff.tolerance import choose

_EXAMPLES = """\
examples:
  nndiff run ours.py theirs.py                              layer by layer, the same seed and inputs
  nndiff run ours.py theirs.py --backward --mode train --dropout off
  nndiff run x.nemo port.py --ref-python nemo-env/bin/python --cand-ckpt x.nemo
  nndiff run net.py net.py --ref-ckpt old.ckpt --cand-ckpt new.ckpt
  nndiff run ours.py theirs.py --input 'x=float32[2,3,32,32]' -o runs    keep the recordings in runs/

The candidate is fed the reference's recorded inputs (--own-inputs: each side makes its own). Exit status: 0 the
same, 1 different, 2 trouble.
"""

_SIDES = (("ref", "reference"), ("cand", "candidate"))


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser], purpose: str = "") -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "run",
        help=purpose,
        description="Record two models, each in its own process and, if asked, by its own interpreter, and compare "
        "them layer by layer.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "reference", metavar="REF_MODEL", help="file.py[:factory], package.module[:factory], hf:DIR, x.nemo"
    )
    parser.add_argument("candidate", metavar="CAND_MODEL", help="the model on trial")
    parser.add_argument("-o", "--output", metavar="DIR", help="keep the recordings here, as reference and candidate")
    parser.add_argument("--overwrite", action="store_true", help="replace recordings that are there")
    _add_side_options(parser)
    add_run_options(parser)
    _add_shared_options(parser)
    add_kept_options(parser)
    add_tolerance_options(parser)
    add_pairing_options(parser)
    add_report_options(parser)
    parser.set_defaults(run=run)


def _add_side_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("each side")
    for short, side in _SIDES:
        group.add_argument(f"--{short}-ckpt", metavar="FILE", help=f"load these weights into the {side}")
        group.add_argument(f"--{short}-config", metavar="FILE", help=f"config of the {side}, for NeMo")
        group.add_argument(f"--{short}-variant", metavar="NAME", help=f"one of the `variants` of the {side}'s file")
        group.add_argument(f"--{short}-python", metavar="PYTHON", help=f"the interpreter that runs the {side}")


def _add_shared_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("inputs, for both sides")
    group.add_argument("--input", action="append", default=[], metavar="SPEC", help="as for nndiff record; repeatable")
    group.add_argument("--batch-size", metavar="B", help="batch size of inputs that are made")
    group.add_argument("--seq-len", metavar="T", help="length of inputs that are made")
    group.add_argument("--own-inputs", action="store_true", help="each side makes its own inputs")
    group.add_argument("--device", metavar="NAME", help="cpu, cuda, ...")
    group.add_argument("--dtype", metavar="NAME", help="convert both models and their inputs")


def run(args: argparse.Namespace) -> int:
    """Record both, compare, report; return the exit status."""
    tolerance, rules = choose(args.atol, args.rtol, args.tolerance), rules_from(args)
    check_reports(args)
    for _, side in _SIDES:
        check_name(getattr(args, side))  # both, before the first is run
    if args.output:
        if not args.overwrite:
            _refuse_recordings(args.output)
        os.makedirs(args.output, exist_ok=True)
        return compare_and_report(_recorded(args, args.output), tolerance, rules, args)
    with tempfile.TemporaryDirectory(prefix="nndiff-run-") as folder:
        return compare_and_report(_recorded(args, folder), tolerance, rules, args)


def _refuse_recordings(folder: str) -> None:
    """Refuse to replace recordings that nobody asked to replace, before anything is run."""
    for _, side in _SIDES:
        path = Path(folder, side)
        if is_recording(path):
            raise SourceError(path, "holds a recording already; overwrite it with --overwrite, or give another -o DIR")


def _recorded(args: argparse.Namespace, folder: str) -> list[Source]:
    """Record reference, then candidate on the reference's inputs; return the two recordings."""
    paths: list[str] = []
    found: list[Source] = []
    for short, side in _SIDES:
        model = getattr(args, side)
        inputs = paths[:1] if paths and not args.own_inputs else args.input
        output = os.path.join(folder, side)
        if not args.quiet and sys.stderr.isatty():
            sys.stderr.write(f"recording the {side}: {model}\n")
        options = [*_side_options(args, short), *_run_options(args), *_repeated("--input", inputs)]
        python, variant = getattr(args, f"{short}_python"), getattr(args, f"{short}_variant")
        found.append(record_elsewhere(Order(model, output, python, options, variant, kept=bool(args.output)), side))
        paths.append(output)
    return found


def _side_options(args: argparse.Namespace, short: str) -> Iterator[str]:
    for name in ("ckpt", "config"):
        value = getattr(args, f"{short}_{name}")
        if value is not None:
            yield from (f"--{name}", value)


def _run_options(args: argparse.Namespace) -> Iterator[str]:
    yield from ("--seed", str(seed_of(args.seed, args.input)), "--repeat", str(args.repeat))
    for name in ("mode", "dropout", "device", "dtype", "batch_size", "seq_len", "depth"):
        value = getattr(args, name)
        if value is not None:
            yield f"--{name.replace('_', '-')}={value}"
    flags = ("backward", "deterministic", "leaves", "params")
    yield from (f"--{name}" for name in flags if getattr(args, name))
    if args.inputs_kept:
        yield "--inputs"
    yield from _repeated("--keep", args.keep)


def _repeated(option: str, values: list[str]) -> Iterator[str]:
    for value in values:
        yield from (option, value)
