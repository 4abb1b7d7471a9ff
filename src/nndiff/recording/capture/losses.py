"""The loss that a backward pass starts from: the user's, the model's own, or a projection of the output."""

from __future__ import annotations

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


def compute_loss(
    loss: Callable[..., Any] | None, model: torch.nn.Module, inputs: Inputs, output: Any, seed: int
) -> tuple[torch.Tensor, str]:
    """Return the loss and where it comes from: given, model or projection.

    If nothing in the output requires a gradient, the loss reaches no parameter either. That is no error: comparing
    with another model shows what this one lacks.
    """
    tensors = _list_float_tensors(output)
    has_gradient = any(tensor.requires_grad for tensor in tensors)
    if loss is not None:
        value = loss(output) if takes_output_alone(loss) else loss(model, inputs.data, output)
        return _check_scalar(value, "the loss function", has_gradient), "given"
    own_loss = _find_own_loss(output, tensors)
    if own_loss is not None and (own_loss.requires_grad or not has_gradient):
        return _check_scalar(own_loss, "the model's own loss", has_gradient), "model"
    return _check_scalar(_project_output(tensors, seed), "the projection of the output", has_gradient), PROJECTION


def reaches_nothing(loss: torch.Tensor) -> bool:
    """Return True for the loss of an output in which nothing requires a gradient."""
    return loss.is_leaf


def takes_output_alone(loss: Callable[..., Any]) -> bool:
    """Return True for `loss(output)`, False for `loss(model, inputs, output)`: it requires one argument only."""
    try:
        parameters = inspect.signature(loss).parameters.values()
    except (TypeError, ValueError):
        return False
    required = 0
    for parameter in parameters:
        is_positional = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        if is_positional and parameter.default is parameter.empty:
            required += 1
    return required == 1


def _list_float_tensors(output: Any) -> list[torch.Tensor]:
    """Return the tensors of an output that could have a gradient, in their order."""
    tensors = []
    for _, leaf in flatten(output, is_tensor):
        if is_tensor(leaf) and leaf.numel() and (leaf.is_floating_point() or leaf.is_complex()):
            tensors.append(leaf)
    return tensors


def _find_own_loss(output: Any, tensors: list[torch.Tensor]) -> torch.Tensor | None:
    """Return the loss that a model returns: the output called `loss`, or a single number in first place."""
    named = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(named, torch.Tensor):
        return named
    if tensors and tensors[0].ndim == 0 and not tensors[0].is_complex():
        return tensors[0]
    return None


def _check_scalar(value: Any, what: str, has_gradient: bool) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise ModelError(f"{what} returned a {type(value).__name__}, not a tensor")
    if value.numel() != 1:
        raise ModelError(f"{what} has shape {tuple(value.shape)}; a backward pass starts from a single number")
    if not value.requires_grad and has_gradient:
        raise ModelError(f"{what} does not depend on any parameter that requires a gradient")
    return value.reshape(()) if value.requires_grad else value.detach().reshape(()).requires_grad_()


def _project_output(tensors: list[torch.Tensor], seed: int) -> torch.Tensor:
    """Return the output projected on fixed random numbers.

    A sum of squares would not do: it is constant behind a norm layer. The numbers depend only on the seed and on the
    shape of each tensor, so that two implementations get the same whatever containers they return, in whatever
    order. The projections are bent before they are added, so that tensors which sum to a constant do not cancel.
    """
    projections = []
    for tensor in tensors:
        projection = _project_tensor(tensor, seed)
        # a tensor without a gradient may hold anything, such as a mask of -inf
        if tensor.requires_grad or bool(torch.isfinite(projection)):
            projections.append(projection)
    if not projections:
        raise ModelError("the output holds no number that depends on a parameter, so there is no backward pass")
    if len(projections) == 1:
        return projections[0]
    bent = [projection + softplus(projection) for projection in projections]
    bent.sort(key=lambda projection: float(projection.detach()))  # the order decides how a sum is rounded
    total = bent[0]
    for projection in bent[1:]:
        total = total + projection.to(total)
    return total


def _project_tensor(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    wide = real.float() if real.element_size() < 4 else real
    generator = torch.Generator().manual_seed((seed * 1_000_003) % (1 << 63))
    weights = torch.randn(real.shape, generator=generator, dtype=torch.float32).to(wide)
    return wide.mul(weights).sum() / math.sqrt(real.numel())
