"""The loss a backward pass begins with: the user's, the model's own, or a projection."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.functional import softplus

from nndiff.errors import ModelError
from nndiff.recording.capture.inputs import Inputs
from nndiff.recording.capture.tensors import is_tensor
from nndiff.recording.format.values import flatten

PROJECTION = "projection"


def loss_of(
    loss: Callable[..., Any] | None, model: torch.nn.Module, inputs: Inputs, output: Any, seed: int
) -> tuple[torch.Tensor, str]:
    """Return the loss and where it came from: given, model or projection.

    Where nothing in the output asks for a gradient the loss is one that reaches nothing: what the model lacks is
    told by whoever compares it, not by an error here.
    """
    reaches = any(leaf.requires_grad for leaf in _leaves(output))
    if loss is not None:
        return _scalar(_call(loss, model, inputs, output), "the loss function", reaches), "given"
    own = _own(output)
    if own is not None and (own.requires_grad or not reaches):
        return _scalar(own, "the model's own loss", reaches), "model"
    return _scalar(_projection(output, seed), "the projection of the output", reaches), PROJECTION


def reaches_nothing(loss: torch.Tensor) -> bool:
    """Tell whether a loss is of an output in which nothing asks for a gradient."""
    return loss.is_leaf


def _leaves(output: Any) -> list[torch.Tensor]:
    """Return the tensors of an output that a gradient could reach, in their order."""
    leaves = [leaf for _, leaf in flatten(output, is_tensor) if is_tensor(leaf)]
    return [leaf for leaf in leaves if leaf.numel() and (leaf.is_floating_point() or leaf.is_complex())]


def _own(output: Any) -> torch.Tensor | None:
    """Return the loss a model returns: by its name, or, where names are gone, one number in the first place."""
    named = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    first = next(iter(_leaves(output)), None)
    if isinstance(named, torch.Tensor):
        return named
    return first if first is not None and first.ndim == 0 and not first.is_complex() else None


def _call(loss: Callable[..., Any], model: torch.nn.Module, inputs: Inputs, output: Any) -> Any:
    return loss(output) if takes_output_alone(loss) else loss(model, inputs.data, output)


def takes_output_alone(loss: Callable[..., Any]) -> bool:
    """Tell whether a loss is `loss(output)`, not `loss(model, inputs, output)`: it needs one argument."""
    try:
        asked = [each for each in inspect.signature(loss).parameters.values() if each.default is each.empty]
    except (TypeError, ValueError):
        return False
    return len([each for each in asked if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]) == 1


def _scalar(value: Any, what: str, reaches: bool) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise ModelError(f"{what} returned a {type(value).__name__}, not a tensor")
    if value.numel() != 1:
        raise ModelError(f"{what} has the shape {tuple(value.shape)}; a backward pass begins with one number")
    if not value.requires_grad and reaches:
        raise ModelError(f"{what} does not depend on any parameter that asks for a gradient")
    return value.reshape(()) if value.requires_grad else value.detach().reshape(()).requires_grad_()


def _projection(output: Any, seed: int) -> torch.Tensor:
    """Return the output projected on fixed random numbers.

    A sum of squares would not do: it is constant behind a norm layer. The numbers depend on the seed and the shape
    of each tensor alone, so that two implementations get the same whatever they return their tensors in, and in
    whatever order. So that tensors which add up to a constant do not cancel out, several are not simply added.
    """
    parts = [(leaf, _projected(leaf, seed)) for leaf in _leaves(output)]
    # what no gradient reaches may be anything, such as a mask of -inf
    usable = [part for leaf, part in parts if leaf.requires_grad or bool(torch.isfinite(part))]
    if not usable:
        raise ModelError("the output holds no number that depends on a parameter: there is nothing to go backward from")
    if len(usable) == 1:
        return usable[0]
    bent = (part + softplus(part) for part in usable)
    ordered = sorted(bent, key=lambda part: float(part.detach()))  # a sum is rounded by the order of its parts
    return functools.reduce(lambda total, part: total + part.to(total), ordered)


def _projected(leaf: torch.Tensor, seed: int) -> torch.Tensor:
    real = torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf
    wide = real.float() if real.element_size() < 4 else real
    generator = torch.Generator().manual_seed((seed * 1_000_003) % (1 << 63))
    weights = torch.randn(real.shape, generator=generator, dtype=torch.float32).to(wide)
    return wide.mul(weights).sum() / math.sqrt(real.numel())
