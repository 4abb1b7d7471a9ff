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
        return self._with(lambda tensor: tensor.detach().clone())

    def to(self, device: torch.device) -> Inputs:
        """Return the inputs on another device."""
        return self._with(lambda tensor: tensor.detach().to(device))

    def cast(self, dtype: torch.dtype) -> Inputs:
        """Return the inputs with floats of another type."""
        return self._with(lambda tensor: tensor.detach().to(dtype) if tensor.is_floating_point() else tensor)

    def _with(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
        memo: dict[int, Any] = {}
        args = tuple(_copy(value, memo, change) for value in self.args)
        kwargs = {name: _copy(value, memo, change) for name, value in self.kwargs.items()}
        return Inputs(args, kwargs, _copy(self.data, memo, change))


_Change = Callable[[torch.Tensor], torch.Tensor]


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


def _copy(value: Any, memo: dict[int, Any], change: _Change) -> Any:
    """Return a copy of tensors and plain containers; one tensor given twice stays one tensor."""
    if id(value) in memo:
        return memo[id(value)]
    memo[id(value)] = found = _copied(value, memo, change)
    return found


def _copied(value: Any, memo: dict[int, Any], change: _Change) -> Any:
    if isinstance(value, torch.Tensor):
        changed = change(value)
        return changed.detach().requires_grad_() if value.requires_grad else changed
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_copy(each, memo, change) for each in value))
    if type(value) in (tuple, list):
        return type(value)(_copy(each, memo, change) for each in value)
    if isinstance(value, Mapping):
        copied = {key: _copy(each, memo, change) for key, each in value.items()}
        return copied if type(value) is dict else _same_kind(value, copied)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _copy(getattr(value, f.name), memo, change) for f in fields(value) if f.init})
    return value


def _same_kind(value: Mapping[Any, Any], copied: dict[Any, Any]) -> Any:
    try:
        return type(value)(copied)  # type: ignore[call-arg]  # most mappings are made from one
    except Exception:
        return copied
