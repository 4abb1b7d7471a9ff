"""How a model is fed: arguments from whatever the user has, fresh for every run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch

from nndiff.errors import ModelError


@dataclass(frozen=True)
class Inputs:
    """Hold the arguments of one call; `data` is what the user gave, for a loss that asks for it."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    data: Any = None

    def fresh(self) -> Inputs:
        """Return copies, because models write to their inputs."""
        memo: dict[int, Any] = {}
        args = tuple(_copy(value, memo) for value in self.args)
        kwargs = {name: _copy(value, memo) for name, value in self.kwargs.items()}
        return Inputs(args, kwargs, _copy(self.data, memo))

    def to(self, device: torch.device) -> Inputs:
        """Return the inputs on another device."""
        memo: dict[int, Any] = {}
        args = tuple(_copy(value, memo, device) for value in self.args)
        return Inputs(args, {name: _copy(value, memo, device) for name, value in self.kwargs.items()}, self.data)


def as_inputs(given: Any) -> Inputs:
    """Return the call a user means: a tensor, a tuple of arguments, a dict of keywords, or a maker of them."""
    if isinstance(given, Inputs):
        return given
    if given is None:
        return Inputs()
    if callable(given) and not isinstance(given, (torch.Tensor, Mapping)):
        return as_inputs(given())
    if isinstance(given, Mapping):
        if not all(isinstance(name, str) for name in given):
            raise ModelError("inputs given as a dict are keyword arguments: every key must be text")
        return Inputs((), given, given)
    if isinstance(given, (tuple, list)) and not hasattr(given, "_fields"):
        return Inputs(tuple(given), {}, given)
    return Inputs((given,), {}, given)


def _copy(value: Any, memo: dict[int, Any], device: torch.device | None = None) -> Any:
    """Return a copy of tensors and plain containers; one tensor given twice stays one tensor."""
    if id(value) in memo:
        return memo[id(value)]
    memo[id(value)] = found = _copied(value, memo, device)
    return found


def _copied(value: Any, memo: dict[int, Any], device: torch.device | None) -> Any:
    if isinstance(value, torch.Tensor):
        moved = value.detach().clone() if device is None else value.detach().to(device, copy=True)
        return moved.requires_grad_(value.requires_grad) if value.requires_grad else moved
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_copy(each, memo, device) for each in value))
    if type(value) in (tuple, list):
        return type(value)(_copy(each, memo, device) for each in value)
    if isinstance(value, Mapping):
        copied = {key: _copy(each, memo, device) for key, each in value.items()}
        return copied if type(value) is dict else _same_kind(value, copied)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _copy(getattr(value, f.name), memo, device) for f in fields(value) if f.init})
    return value


def _same_kind(value: Mapping[Any, Any], copied: dict[Any, Any]) -> Any:
    try:
        return type(value)(copied)  # type: ignore[call-arg]  # most mappings are made from one
    except Exception:
        return copied


Loss = Callable[..., torch.Tensor]
