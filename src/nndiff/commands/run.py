"""nndiff run: record two models, each in its own process, and compare what every layer did."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from nndiff.commands.diff import compare_sources, read_pairing_rules
from nndiff.commands.model_process import RecordingJob, make_live_models, record_in_process
from nndiff.commands.options import (
    EXPERIMENTS,
    JUDGEMENT,
    KEEP,
    PAIRING,
    REPORTS,
    RUN,
    SHARED_INPUTS,
    TOLERANCE,
    OptionGroup,
    Subparsers,
    add_command,
    add_options,
    check_reports,
    get_side_options,
)
from nndiff.errors import SourceError
from nndiff.experiments import Wishes, measure_judging_noise
from nndiff.models.kinds import FORMS, check_name
from nndiff.models.rerun import choose_seed
from nndiff.plan import PairingRules
from nndiff.recording.format.folder import is_recording
from nndiff.sources import Source
from nndiff.tolerance import Tolerance, choose_tolerance

_EXAMPLES = """\
  nndiff run ours.py theirs.py                              layer by layer, with the same seed and inputs
  nndiff run ours.py theirs.py --backward --mode train --dropout off
  nndiff run x.nemo port.py --ref-python nemo-env/bin/python --cand-ckpt x.nemo
  nndiff run net.py net.py --ref-ckpt old.ckpt --cand-ckpt new.ckpt
  nndiff run ours.py theirs.py --input 'x=float32[2,3,32,32]' -o runs    keep the recordings in runs/

The candidate gets the inputs that were recorded of the reference (--own-inputs: each model makes its own).
Exit status: 0 the same, 1 different, 2 trouble.
"""

_SIDES = (("ref", "reference"), ("cand", "candidate"))
_NOT_FOR_RECORD = (
    "seed",
    "input",
    "own_inputs",
)  # decided here: the candidate gets the seed and inputs of the reference


def add_parser(subparsers: Subparsers, purpose: str = "") -> None:
    """Add the command to the command line."""
    parser = add_command(
        subparsers,
        "run",
        run,
        purpose=purpose,
        description="Record two models, each in its own process and, if you like, with its own Python interpreter, "
        "and compare them layer by layer.",
        examples=_EXAMPLES,
    )
    parser.add_argument("reference", metavar="REF_MODEL", help=f"the model that is right by definition: {FORMS}")
    parser.add_argument("candidate", metavar="CAND_MODEL", help="the model to test")
    parser.add_argument("-o", "--output", metavar="DIR", help="keep the recordings, as DIR/reference and DIR/candidate")
    parser.add_argument("--overwrite", action="store_true", help="replace existing recordings")
    sides = OptionGroup("one of the models", (*get_side_options(*_SIDES[0]), *get_side_options(*_SIDES[1])))
    add_options(parser, sides, SHARED_INPUTS, RUN, KEEP, EXPERIMENTS, TOLERANCE, JUDGEMENT, PAIRING, REPORTS)


def run(args: argparse.Namespace) -> int:
    """Record both models, compare, report; return the exit status."""
    tolerance = choose_tolerance(args.atol, args.rtol, args.tolerance, args.noise_factor)
    pairing = read_pairing_rules(args)
    check_reports(args)
    for _, side in _SIDES:
        check_name(getattr(args, side))  # both, before the first one runs
    if args.output is None:
        with tempfile.TemporaryDirectory(prefix="nndiff-run-") as folder:
            return _record_and_compare(args, folder, tolerance, pairing)
    if not args.overwrite:
        for _, side in _SIDES:
            path = Path(args.output, side)
            if is_recording(path):
                raise SourceError(
                    path, "already holds a recording; replace it with --overwrite, or give another -o DIR"
                )
    os.makedirs(args.output, exist_ok=True)
    return _record_and_compare(args, args.output, tolerance, pairing)


def _record_and_compare(args: argparse.Namespace, folder: str, tolerance: Tolerance, pairing: PairingRules) -> int:
    """Record both models, compare and report; what experiments record is not kept."""
    jobs, recordings = _record_both(args, folder)
    wishes = Wishes(args.replay, args.noise)
    with tempfile.TemporaryDirectory(prefix="nndiff-experiments-") as experiments:
        models = make_live_models(jobs[0], {0: jobs[1]}, experiments, args.quiet)
        recordings[0], models = measure_judging_noise(recordings[0], models, tolerance, wishes)
        return compare_sources(recordings, tolerance, pairing, args, models, wishes)


def _record_both(args: argparse.Namespace, folder: str) -> tuple[list[RecordingJob], list[Source]]:
    """Record the reference, then the candidate on the reference's inputs; return both jobs and recordings."""
    inputs = args.input
    jobs, recordings = [], []
    for prefix, side in _SIDES:
        output = os.path.join(folder, side)
        job = RecordingJob(
            model=getattr(args, side),
            output=output,
            side=side,
            python=getattr(args, f"{prefix}_python"),
            options=get_record_options(args, prefix, inputs),
            variant=getattr(args, f"{prefix}_variant"),
            is_kept=args.output is not None,
        )
        recordings.append(record_in_process(job, args.quiet))
        jobs.append(job)
        if not args.own_inputs:
            inputs = [output]
    return jobs, recordings


def get_record_options(args: argparse.Namespace, prefix: str, inputs: list[str]) -> list[str]:
    """Return the options of `nndiff record` for one of the models."""
    words = [f"--seed={choose_seed(args.seed, args.input)}"]
    for name in ("ckpt", "config"):
        value = getattr(args, f"{prefix}_{name}")
        if value is not None:
            words.append(f"--{name}={value}")
    for spec in inputs:
        words.append(f"--input={spec}")
    for group in (RUN, SHARED_INPUTS, KEEP):
        for option in group.options:
            if option.attribute not in _NOT_FOR_RECORD:
                words += option.write_words(getattr(args, option.attribute))
    return words
