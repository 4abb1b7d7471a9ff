"""The loss a backward pass begins with: the user's, the model's own, or a projection."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch

from nndiff.errors import ModelError
from nndiff.names import natural_key
from nndiff.recording.call import Inputs
from nndiff.recording.torch_tensors import is_tensor
from nndiff.recording.values import flatten

PROJECTION = "projection"


def loss_of(
    loss: Callable[..., Any] | None, model: torch.nn.Module, inputs: Inputs, output: Any, seed: int
) -> tuple[torch.Tensor, str]:
    """Return the loss and where it came from: given, model or projection."""
    if loss is not None:
        return _scalar(_call(loss, model, inputs, output), "the loss function"), "given"
    own = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(own, torch.Tensor) and own.requires_grad:
        return _scalar(own, "the model's own loss"), "model"
    return _projection(output, seed), PROJECTION


def _call(loss: Callable[..., Any], model: torch.nn.Module, inputs: Inputs, output: Any) -> Any:
    return loss(output) if takes_output_alone(loss) else loss(model, inputs.data, output)


def takes_output_alone(loss: Callable[..., Any]) -> bool:
    """Tell whether a loss is `loss(output)`, not `loss(model, inputs, output)`: it needs one argument."""
    try:
        asked = [each for each in inspect.signature(loss).parameters.values() if each.default is each.empty]
    except (TypeError, ValueError):
        return False
    return len([each for each in asked if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]) == 1


def _scalar(value: Any, what: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise ModelError(f"{what} returned a {type(value).__name__}, not a tensor")
    if value.numel() != 1:
        raise ModelError(f"{what} has the shape {tuple(value.shape)}; a backward pass begins with one number")
    if not value.requires_grad:
        raise ModelError(f"{what} does not depend on any parameter that asks for a gradient")
    return value.reshape(())


def _projection(output: Any, seed: int) -> torch.Tensor:
    """Return the output projected on fixed random numbers.

    A sum of squares would not do: it is constant behind a norm layer. The numbers depend on the seed, the
    place and the shape of each tensor alone, so two implementations get the same.
    """
    total: torch.Tensor | None = None
    number = 0
    # by the order of the paths, so that a dict may list its keys in any order
    for _, leaf in sorted(flatten(output, is_tensor), key=lambda each: natural_key(each[0])):
        if not (is_tensor(leaf) and leaf.requires_grad and leaf.numel()):
            continue
        real = torch.view_as_real(leaf) if leaf.is_complex() else leaf
        generator = torch.Generator().manual_seed((seed * 1_000_003 + number) % (1 << 63))
        weights = torch.randn(real.shape, generator=generator, dtype=torch.float32).to(real.device)
        part = (real.float() if real.element_size() < 4 else real).mul(weights.to(_wide(real))).sum()
        part = part / math.sqrt(real.numel())
        total = part if total is None else total + part.to(total)
        number += 1
    if total is None:
        raise ModelError("nothing in the output depends on a parameter: there is nothing to go backward from")
    return total


def _wide(tensor: torch.Tensor) -> torch.dtype:
    return torch.float32 if tensor.element_size() < 4 else tensor.dtype
