"""nndiff record: run a model once and save what every layer did."""

from __future__ import annotations

import argparse
import os
import traceback
from collections import Counter
from typing import TYPE_CHECKING, Any

from nndiff.errors import ModelError
from nndiff.text import counted, plural, printable

if TYPE_CHECKING:
    from nndiff.models import ModelSpec
    from nndiff.recording import Recording

_EXAMPLES = """\
examples:
  nndiff record model.py -o ref.nnrec                          model(), inputs() and loss() of a file
  nndiff record model.py:tiny -o ref.nnrec --backward          another factory; gradients too
  nndiff record pkg.net:Net -o a.nnrec --ckpt last.ckpt --input 'x=float32[2,3,32,32]'
  nndiff record pkg.net:Net -o b.nnrec --input a.nnrec         the very inputs of another recording
  nndiff record hf:./my-model -o c.nnrec --batch-size 4 --seq-len 128 --mode eval
  nndiff record x.nemo -o d.nnrec --backward --dropout off --repeat 2
  nndiff record model.py -o e.nnrec --keep 'full:encoder.*' --keep stats

The model runs as it would alone: hooks change no bit, and weights, buffers and random states are put back.
Exit status: 0 recorded, 2 trouble.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser], purpose: str = "") -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "record",
        help=purpose,
        description="Run a model once and save what every layer did. MODEL is file.py[:factory], "
        "package.module[:factory], hf:DIR or x.nemo.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="file.py[:factory], package.module[:factory], hf:DIR, x.nemo")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.nnrec", help="the folder to write")
    parser.add_argument("--overwrite", action="store_true", help="replace a recording that is there")
    add_model_options(parser)
    add_run_options(parser)
    add_keep_options(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but trouble")
    parser.add_argument("--traceback", action="store_true", help="show where the model's own code failed")
    parser.set_defaults(run=run)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add what decides which model runs on which inputs."""
    group = parser.add_argument_group("model and inputs")
    group.add_argument("--ckpt", metavar="FILE", help="load these weights; every name must find its place")
    group.add_argument("--partial", action="store_true", help="let --ckpt leave tensors out on either side")
    group.add_argument("--config", metavar="FILE", help="config of a NeMo model or a Lightning checkpoint")
    group.add_argument("--variant", metavar="NAME", help="one of the `variants` of the model's file")
    group.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="SPEC",
        help="NAME=DTYPE[SHAPE][:LOW..HIGH] drawn from the seed (B and T in the shape are the sizes below; a number "
        "as NAME is a position), repeatable; or one .npz, .safetensors, .pt, recording or folder of saved outputs",
    )
    group.add_argument("--batch-size", type=_positive, metavar="B", help="batch size of inputs that are made")
    group.add_argument("--seq-len", type=_positive, metavar="T", help="length of inputs that are made")
    group.add_argument("--device", metavar="NAME", help="cpu, cuda, ... (default: where the model is)")
    group.add_argument("--dtype", metavar="NAME", help="convert the model and its float inputs: float64, bfloat16, ...")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add what decides how the model runs."""
    group = parser.add_argument_group("run")
    group.add_argument(
        "--seed", type=int, help="seed of Python, NumPy and torch (default: the one saved beside --input, or 42)"
    )
    group.add_argument("--backward", action="store_true", help="the loss and the backward pass too")
    group.add_argument("--mode", choices=("train", "eval"), help="put the model in this mode (default: as it is)")
    group.add_argument("--dropout", choices=("off",), help="off: switch dropout off in train mode")
    group.add_argument(
        "--repeat", type=_positive, default=1, metavar="N", help="run N times to see whether it agrees with itself"
    )
    group.add_argument("--deterministic", action="store_true", help="ask torch for deterministic algorithms")


def add_keep_options(parser: argparse.ArgumentParser) -> None:
    """Add what decides how much is kept, and of which modules."""
    group = add_kept_options(parser)
    group.add_argument("--include", action="append", default=[], metavar="PATTERN", help="only these modules")
    group.add_argument("--exclude", action="append", default=[], metavar="PATTERN", help="all but these modules")


def add_kept_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add what decides how much is kept, whatever names mean; return the group for what else belongs there."""
    group = parser.add_argument_group("what is kept")
    group.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="LEVEL[:PATTERN]",
        help="digest, stats, sketch (1024 values) or full (default), for modules that match; repeatable",
    )
    group.add_argument("--depth", type=int, metavar="N", help="modules down to this depth (0: the model alone)")
    group.add_argument("--leaves", action="store_true", help="only modules without children, and the model")
    group.add_argument("--params", action="store_true", help="keep parameters and buffers too")
    group.add_argument(
        "--inputs", action="store_true", dest="inputs_kept", help="keep every module's inputs as --keep says"
    )
    return group


def run(args: argparse.Namespace) -> int:
    """Record; return 0."""
    try:
        spec, recording = record_model(args, args.output)
    except ModelError as error:
        if (args.traceback or os.environ.get("NNDIFF_TRACEBACK")) and error.__cause__ is not None:
            from nndiff.models.user_code import without_ours

            traceback.print_exception(without_ours(error.__cause__))
        raise
    if not args.quiet:
        from nndiff.reports.output import print_text

        print_text("".join(printable(line) + "\n" for line in _summary(spec, recording)))
    return 0


def record_model(args: argparse.Namespace, output: str) -> tuple[ModelSpec, Recording]:
    """Build the model that was asked for, run it and save what it did."""
    from nndiff.again import seed_of
    from nndiff.models import Wishes, resolve

    seed = seed_of(args.seed, args.input)
    wishes = Wishes(seed, args.config, args.batch_size, args.seq_len, args.variant)
    spec = resolve(args.model, wishes)
    from nndiff.models.prepare import prepare
    from nndiff.models.user_code import user_code
    from nndiff.recording.record import record

    prepared = prepare(spec, args)
    with user_code(f"running {args.model}", type(prepared.model).forward):
        recording = record(
            prepared.model,
            prepared.inputs,
            path=output,
            seed=seed,
            backward=args.backward,
            loss=prepared.loss,
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
            deterministic=args.deterministic,
            overwrite=args.overwrite,
            label=prepared.label,
            checkpoint=prepared.checkpoint,
            notes=prepared.notes,
        )
    return prepared, recording


def _summary(spec: ModelSpec, recording: Recording) -> list[str]:
    from nndiff.recording.format.folder import put_aside
    from nndiff.reports.figures import format_size
    from nndiff.reports.wording import with_checkpoint

    meta: Any = recording.meta
    bytes_on_disk = sum(entry.stat().st_size for entry in os.scandir(recording.path))
    passes = "forward and backward" if meta["backward"] else "forward"
    lines = [
        f"{recording.path}: {with_checkpoint(spec.label, meta)}, {plural(meta['model']['parameters'], 'parameter')}, "
        f"{meta['mode']} mode, seed {meta['seed']}",
        f"  {passes}: {plural(len(recording.calls), 'call')}, {plural(len(recording.tensors), 'tensor')} "
        f"({_slots(recording)}), {format_size(bytes_on_disk)} on disk",
    ]
    agreement = meta.get("self_agreement")
    if agreement and agreement["agrees"]:
        lines.append(f"  {agreement['runs']} runs with one seed agree at all {plural(agreement['sites'], 'site')}")
    if meta.get("never_called"):
        lines.append(f"  never called: {counted(meta['never_called'], 'module')}")
    before = put_aside(recording.path)
    if before:
        lines.append(f"  note: {before} is still there, from an overwrite that did not finish; remove it if it may go")
    lines += [f"  note: {note}" for note in recording.notes]
    return lines + [f"  warning: {warning}" for warning in recording.warnings]


def _slots(recording: Recording) -> str:
    """Return how many outputs and gradients there are."""
    found = Counter(event.site.slot.value for event in recording.tensors)
    said = [plural(found["output"], "output")]
    for slot, where in (("grad_output", "at outputs"), ("param_grad", "of parameters")):
        if found[slot]:
            said.append(f"{plural(found[slot], 'gradient')} {where}")
    return ", ".join(said)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {number}")
    return number
