"""A recording against a model: the model is fed the recorded inputs with the recorded seed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

from nndiff.again import is_run, run_again
from nndiff.errors import UsageError
from nndiff.sources import Source, open_source


def add_replay_options(parser: argparse.ArgumentParser) -> None:
    """Add what a MODEL as a candidate may need."""
    group = parser.add_argument_group("a MODEL as the candidate of a recording")
    group.add_argument("--ckpt", metavar="FILE", help="load these weights into the model")
    group.add_argument("--config", metavar="FILE", help="config of the model, for NeMo")
    group.add_argument("--python", metavar="PYTHON", help="the interpreter that runs the model")
    group.add_argument("--mode", choices=("train", "eval"), help="run it in this mode (default: the recording's)")


def has_models(args: argparse.Namespace) -> bool:
    """Tell whether a candidate is a model to be run, not a source to be read."""
    turned_round = _named_as_model(args.reference) and any(map(is_run, args.candidates))
    return turned_round or any(_is_model(each, args.reference) for each in args.candidates)


def refuse_replay_options(args: argparse.Namespace) -> None:
    """Refuse options for a model where no candidate is one, lest they be taken for heeded."""
    idle = [f"--{name}" for name in ("ckpt", "config", "python", "mode") if getattr(args, name) is not None]
    if idle:
        raise UsageError(
            f"{' and '.join(idle)} would do nothing: no candidate is a model to be run; leave it out, or compare a "
            "recording with a MODEL (file.py, hf:DIR, x.nemo)"
        )


def _is_model(candidate: str, reference: str) -> bool:
    if _named_as_model(candidate):
        return True
    if not is_run(reference):  # a name that is no file is a typing error here, not a Python module
        return False
    from nndiff.models.kinds import looks_like_model

    return looks_like_model(candidate) or (candidate.endswith((".nemo", ".ckpt")) and os.path.isfile(candidate))


def _named_as_model(name: str) -> bool:
    return name.startswith("hf:") or name.partition(":")[0].endswith(".py")


def replayed(args: argparse.Namespace, folder: str) -> list[Source]:
    """Record every candidate that is a model on the reference's inputs; return all candidates."""
    from nndiff.models.kinds import check_name

    if not is_run(args.reference):
        if _named_as_model(args.reference) and any(map(is_run, args.candidates)):
            raise UsageError(
                f"{args.reference} is a model, and the reference must be a recording: the recording comes first, then "
                "the MODEL; two models are compared with nndiff run"
            )
        if _named_as_model(args.reference):
            check_name(args.reference)
        else:
            open_source(args.reference)  # what is wrong with it comes first: it may not be there
        models = ", ".join(each for each in args.candidates if _is_model(each, args.reference))
        raise UsageError(
            f"{models} is a model, and {args.reference} is no recording to replay: record the reference first "
            "(nndiff record), or compare two models with nndiff run"
        )
    from nndiff.commands.elsewhere import Order, record_elsewhere

    for candidate in args.candidates:
        if _is_model(candidate, args.reference):
            check_name(candidate)
    options = [*_as_recorded(args), *_asked(args)]
    found = []
    for number, candidate in enumerate(args.candidates):
        if _is_model(candidate, args.reference):
            order = Order(candidate, os.path.join(folder, str(number)), args.python, options)
            found.append(record_elsewhere(order, "candidate"))
        else:
            found.append(open_source(candidate))
    return found


def _as_recorded(args: argparse.Namespace) -> Iterator[str]:
    """Yield what makes the model run as the reference did: inputs, seed, mode, backward."""
    run = run_again(args.reference)
    yield from ("--input", run.inputs)
    yield from ("--seed", str(run.seed))
    mode = args.mode or run.mode
    if mode:
        yield from ("--mode", mode)
    if run.dropout:
        yield from ("--dropout", run.dropout)
    for wanted, option in ((run.backward, "--backward"), (run.params, "--params"), (run.inputs_kept, "--inputs")):
        if wanted:
            yield option


def _asked(args: argparse.Namespace) -> Iterator[str]:
    for name in ("ckpt", "config"):
        value = getattr(args, name)
        if value is not None:
            yield from (f"--{name}", value)
