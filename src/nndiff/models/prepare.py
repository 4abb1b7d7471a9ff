"""Make a model ready to run as the command line asks: weights, device, element type, inputs."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import torch

from nndiff.errors import ModelError, UsageError
from nndiff.models import inputs as inputs_of
from nndiff.models.checkpoint import load_checkpoint
from nndiff.models.spec import ModelSpec
from nndiff.models.user_code import user_code
from nndiff.recording.capture.inputs import Inputs, as_inputs


def prepare(spec: ModelSpec, args: argparse.Namespace) -> ModelSpec:
    """Return the model with weights loaded and moved, and the inputs it is to be fed."""
    # what the model says of its own weights is over where all of them are replaced
    notes = [] if args.ckpt and not args.partial else list(spec.notes)
    if args.ckpt:
        notes += load_checkpoint(spec.model, args.ckpt, partial=args.partial)
    elif args.partial:
        raise UsageError("--partial belongs to --ckpt")
    saved = inputs_of.from_file(args.input, spec.model)
    notes += saved.notes if saved else ()
    made = saved.inputs if saved else _made(spec, args)
    if made is None:
        raise ModelError(
            f"{spec.label} brings no inputs: define inputs() in its file, or give --input 'NAME=DTYPE[SHAPE]' "
            "or a saved file"
        )
    dtype, device = _dtype(args.dtype), _device(args.device)
    with user_code(f"moving {spec.label}"):
        model = spec.model.to(device=device, dtype=dtype) if device or dtype else spec.model
    made = _placed(made, model, dtype)
    return replace(spec, model=model, inputs=made, notes=tuple(notes), checkpoint=args.ckpt or "")


def _made(spec: ModelSpec, args: argparse.Namespace) -> Any:
    """Return what makes inputs: what is asked for, what the model brings along, or what is usual for its kind."""
    made = inputs_of.from_options(args.input, args.batch_size, args.seq_len) or spec.inputs
    return made or inputs_of.guess(spec.model, args.batch_size, args.seq_len)


def _dtype(name: str | None) -> torch.dtype | None:
    if name is None:
        return None
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise UsageError(f"--dtype {name!r} is no float type of torch; float32, float64, float16 and bfloat16 are")
    return found


def _device(name: str | None) -> torch.device | None:
    try:
        return torch.device(name) if name else None
    except RuntimeError:
        raise UsageError(f"--device {name!r} is no device of torch; cpu, cuda and mps are") from None


def _placed(made: Any, model: torch.nn.Module, dtype: torch.dtype | None) -> Any:
    """Return what makes the inputs where the model is; drawn on the CPU first, so that every device gets the same."""
    where = next((each.device for each in model.parameters()), None)

    def make() -> Inputs:
        inputs = as_inputs(made)
        if where is not None and where.type != "cpu":
            inputs = inputs.to(where)
        return inputs.cast(dtype) if dtype else inputs

    return make
