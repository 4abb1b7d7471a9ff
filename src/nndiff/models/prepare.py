"""Make a model ready to run as the command line asks: weights, device, dtype, inputs."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import torch

from nndiff.errors import ModelError, UsageError
from nndiff.models.checkpoint import load_checkpoint
from nndiff.models.inputs import find_saved_inputs, load_inputs, make_input_drawer, make_token_drawer
from nndiff.models.spec import ModelSpec
from nndiff.models.user_code import user_code
from nndiff.recording.capture.inputs import Inputs, as_inputs


def prepare_model(spec: ModelSpec, args: argparse.Namespace) -> ModelSpec:
    """Return the model with its weights loaded, on its device, and with the inputs to feed it."""
    notes = list(spec.notes)
    if args.ckpt:
        if not args.partial:
            notes = []  # they are about weights that are now all replaced
        notes += load_checkpoint(spec.model, args.ckpt, partial=args.partial)
    elif args.partial:
        raise UsageError("--partial needs --ckpt")
    inputs: Any = None
    file = find_saved_inputs(args.input)
    if file:
        loaded = load_inputs(file, spec.model)
        inputs = loaded.inputs
        notes += loaded.notes
    else:
        inputs = make_input_drawer(args.input, args.batch_size, args.seq_len) or spec.inputs
        inputs = inputs or make_token_drawer(spec.model, args.batch_size, args.seq_len)
    if inputs is None:
        raise ModelError(
            f"{spec.label} has no inputs: define inputs() in its file, or give --input 'NAME=DTYPE[SHAPE]' or a saved "
            "file"
        )
    dtype, device = _parse_dtype(args.dtype), _parse_device(args.device)
    model = spec.model
    if device or dtype:
        with user_code(f"moving {spec.label}"):
            model = model.to(device=device, dtype=dtype)
    place = next((parameter.device for parameter in model.parameters()), None)

    def make_inputs() -> Inputs:
        call = as_inputs(inputs)  # on the CPU first, so that they are the same for every device
        if place is not None and place.type != "cpu":
            call = call.to(place)
        return call.cast(dtype) if dtype else call

    return replace(spec, model=model, inputs=make_inputs, notes=tuple(notes), checkpoint=args.ckpt or "")


def _parse_dtype(name: str | None) -> torch.dtype | None:
    if name is None:
        return None
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(f"--dtype {name!r} is not a float dtype of torch; use float32, float64, float16 or bfloat16")
    return dtype


def _parse_device(name: str | None) -> torch.device | None:
    try:
        return torch.device(name) if name else None
    except RuntimeError:
        raise UsageError(f"--device {name!r} is not a device of torch; use cpu, cuda or mps") from None
