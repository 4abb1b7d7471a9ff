"""nndiff record: run a model once and save what every layer did."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nndiff.commands.options import KEEP, MODEL, MODULES, RUN, Subparsers, add_command, add_options, parse_size
from nndiff.commands.progress import ProgressBar
from nndiff.commands.trouble import describe_error, wants_traceback
from nndiff.errors import ModelError, UserCodeError
from nndiff.models.kinds import FORMS
from nndiff.text import counted, plural, printable
from nndiff.tolerance import NOISE_DRAWS

if TYPE_CHECKING:
    from nndiff.models import ModelSpec
    from nndiff.recording import Recording

_EXAMPLES = """\
  nndiff record model.py -o ref.nnrec                          model(), inputs() and loss() of a file
  nndiff record model.py:tiny -o ref.nnrec --backward          another factory; gradients too
  nndiff record pkg.net:Net -o a.nnrec --ckpt last.ckpt --input 'x=float32[2,3,32,32]'
  nndiff record pkg.net:Net -o b.nnrec --input a.nnrec         the same inputs as another recording
  nndiff record hf:./my-model -o c.nnrec --batch-size 4 --seq-len 128 --mode eval
  nndiff record x.nemo -o d.nnrec --backward --dropout off --repeat 2
  nndiff record model.py -o f.nnrec --noise                    also measure how far rounding alone moves each tensor
  nndiff record model.py -o e.nnrec --keep 'full:encoder.*' --keep stats

Recording does not change what the model computes, and restores its weights, buffers and random states.
Exit status: 0 recorded, 2 trouble.
"""


def add_parser(subparsers: Subparsers, purpose: str = "") -> None:
    """Add the command to the command line."""
    parser = add_command(
        subparsers,
        "record",
        run,
        purpose=purpose,
        description=f"Run a model once and save what every layer did. MODEL is {FORMS}.",
        examples=_EXAMPLES,
    )
    parser.add_argument("model", metavar="MODEL", help=FORMS)
    parser.add_argument("-o", "--output", required=True, metavar="OUT.nnrec", help="folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing recording")
    parser.add_argument(
        "--noise",
        nargs="?",
        type=parse_size,
        const=NOISE_DRAWS,
        default=0,
        metavar="DRAWS",
        help="run again with weights and inputs moved by half a unit of rounding, and keep how far each tensor moves: "
        f"its noise floor (without a number: {NOISE_DRAWS} times)",
    )
    add_options(parser, MODEL, RUN, KEEP, MODULES)
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but trouble")
    parser.add_argument("--traceback", action="store_true", help="print a traceback if the model's code fails")
    parser.add_argument("--report-to", type=int, help=argparse.SUPPRESS)  # the pipe to an `nndiff run`
    parser.add_argument("--replay", metavar="PLAN.json", help=argparse.SUPPRESS)  # what an `nndiff run` wants replaced


def run(args: argparse.Namespace) -> int:
    """Record the model; return 0."""
    if args.report_to is not None:
        _record_for_parent(args)
        return 0
    try:
        with ProgressBar(f"recording {args.model}", args.quiet) as bar:
            spec, recording = record_model(args, bar)
    except ModelError as error:
        if args.traceback or wants_traceback():
            sys.stderr.write(format_cause(error))
            if isinstance(error, UserCodeError):
                error.traceback_shown = True
        raise
    if not args.quiet:
        from nndiff.reports.output import print_text

        print_text("".join(printable(line) + "\n" for line in _summarize(spec, recording)))
    return 0


def _record_for_parent(args: argparse.Namespace) -> None:
    """Record the model and tell the `nndiff run` that started this process how it goes."""
    from nndiff.commands.model_process import ParentPipe

    pipe = ParentPipe(args.report_to)
    try:
        record_model(args, pipe.send_progress)
    except BaseException as error:
        if not isinstance(error, SystemExit):
            pipe.send_trouble(describe_error(error, with_traceback=wants_traceback()), format_cause(error))
        raise


def format_cause(error: BaseException) -> str:
    """Return the traceback of the user's code that failed, or an empty text if none did."""
    if not isinstance(error, ModelError) or error.__cause__ is None:
        return ""
    import traceback

    from nndiff.models.user_code import start_traceback_in_user_code

    return "".join(traceback.format_exception(start_traceback_in_user_code(error.__cause__)))


def record_model(args: argparse.Namespace, progress: Callable[[int, int | None], None]) -> tuple[ModelSpec, Recording]:
    """Build the model, run it and save what it did."""
    from nndiff.models import BuildOptions, build_model
    from nndiff.models.rerun import choose_seed

    seed = choose_seed(args.seed, args.input)
    spec = build_model(args.model, BuildOptions(seed, args.config, args.batch_size, args.seq_len, args.variant))
    # only now: building says in one sentence that torch is missing, an import would not
    from nndiff.models.prepare import prepare_model
    from nndiff.models.user_code import user_code
    from nndiff.recording.record import record

    spec = prepare_model(spec, args)
    substitution = None
    if args.replay is not None:
        from nndiff.commands.replay_plan import read_substitution

        substitution = read_substitution(args.replay)
    with user_code(f"running {args.model}", type(spec.model).forward):
        recording = record(
            spec.model,
            spec.inputs,
            path=args.output,
            seed=seed,
            backward=args.backward,
            loss=spec.loss,
            mode=args.mode,
            dropout=args.dropout,
            keep=args.keep or "full",
            include=args.include,
            exclude=args.exclude,
            depth=args.depth,
            leaves=args.leaves,
            params=args.params,
            inputs_kept=args.inputs_kept,
            repeat=args.repeat,
            noise=args.noise,
            deterministic=args.deterministic,
            overwrite=args.overwrite,
            label=spec.label,
            checkpoint=spec.checkpoint,
            notes=spec.notes,
            progress=progress,
            substitution=substitution,
        )
    return spec, recording


def _summarize(spec: ModelSpec, recording: Recording) -> list[str]:
    """Return the lines that are printed about a new recording."""
    from nndiff.recording.format.folder import put_aside
    from nndiff.reports.figures import format_size
    from nndiff.reports.wording import with_checkpoint

    meta: Any = recording.meta
    slots = Counter(event.site.slot.value for event in recording.tensors)
    tensors = plural(slots["output"], "output")
    if slots["grad_output"]:
        tensors += f", {plural(slots['grad_output'], 'gradient')} at outputs"
    if slots["param_grad"]:
        tensors += f", {plural(slots['param_grad'], 'gradient')} of parameters"
    bytes_on_disk = sum(entry.stat().st_size for entry in os.scandir(recording.path))
    passes = "forward and backward" if meta["backward"] else "forward"
    lines = [
        f"{recording.path}: {with_checkpoint(spec.label, meta)}, {plural(meta['model']['parameters'], 'parameter')}, "
        f"{meta['mode']} mode, seed {meta['seed']}",
        f"  {passes}: {plural(len(recording.calls), 'call')}, {plural(len(recording.tensors), 'tensor')} "
        f"({tensors}), {format_size(bytes_on_disk)} on disk",
    ]
    agreement = meta.get("self_agreement")
    if agreement and agreement["agrees"]:
        lines.append(f"  {agreement['runs']} runs with the same seed agree at all {plural(agreement['sites'], 'site')}")
    noise = meta.get("noise")
    if noise:
        lines.append(
            f"  noise floors of {plural(len(noise['floors']), 'tensor')}, from {plural(noise['draws'], 'draw')}"
        )
    if meta.get("never_called"):
        lines.append(f"  never called: {counted(meta['never_called'], 'module')}")
    aside = put_aside(recording.path)
    if aside:
        lines.append(f"  note: {aside} is still there, from an overwrite that did not finish; delete it if unneeded")
    lines += [f"  note: {note}" for note in recording.notes]
    lines += [f"  warning: {warning}" for warning in recording.warnings]
    return lines
