"""Arguments of a model from whatever the user has, copied for every run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import torch

from nndiff.errors import ModelError

_Change = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Inputs:
    """Hold the arguments of one call; `data` is what the user gave, for a loss function that takes it."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    data: Any = None

    def fresh(self) -> Inputs:
        """Return copies, because models write to their inputs."""
        return self.change_tensors(lambda tensor: tensor.detach().clone())

    def to(self, device: torch.device) -> Inputs:
        """Return the inputs on another device."""
        return self.change_tensors(lambda tensor: tensor.detach().to(device))

    def cast(self, dtype: torch.dtype) -> Inputs:
        """Return the inputs with floats of another dtype."""
        return self.change_tensors(lambda tensor: tensor.detach().to(dtype) if tensor.is_floating_point() else tensor)

    def change_tensors(self, change: _Change) -> Inputs:
        """Return copies with every tensor changed."""
        copies: dict[int, Any] = {}
        args = tuple(_copy_value(value, copies, change) for value in self.args)
        kwargs = {name: _copy_value(value, copies, change) for name, value in self.kwargs.items()}
        return Inputs(args, kwargs, _copy_value(self.data, copies, change))


def as_inputs(value: Any) -> Inputs:
    """Return the call a user means: a tensor, a tuple of arguments, a dict of keywords, or a function that makes it."""
    if isinstance(value, Inputs):
        return value
    if value is None:
        return Inputs()
    if callable(value) and not isinstance(value, (torch.Tensor, Mapping)):
        return as_inputs(value())
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise ModelError("inputs given as a dict are keyword arguments: every key must be a str")
        return Inputs((), value, value)
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return Inputs(tuple(value), {}, value)
    return Inputs((value,), {}, value)


def _copy_value(value: Any, copies: dict[int, Any], change: _Change) -> Any:
    """Return a copy of tensors and plain containers; a tensor that occurs twice stays one tensor."""
    if id(value) not in copies:
        copies[id(value)] = _copy_new_value(value, copies, change)
    return copies[id(value)]


def _copy_new_value(value: Any, copies: dict[int, Any], change: _Change) -> Any:
    if isinstance(value, torch.Tensor):
        changed = change(value)
        return changed.detach().requires_grad_() if value.requires_grad else changed
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_copy_value(item, copies, change) for item in value))
    if type(value) in (tuple, list):
        return type(value)(_copy_value(item, copies, change) for item in value)
    if isinstance(value, Mapping):
        copied = {key: _copy_value(item, copies, change) for key, item in value.items()}
        if type(value) is dict:
            return copied
        try:
            return type(value)(copied)  # type: ignore[call-arg]  # most mappings can be made from a dict
        except Exception:
            return copied
    if is_dataclass(value) and not isinstance(value, type):
        changes = {}
        for data_field in fields(value):
            if data_field.init:
                changes[data_field.name] = _copy_value(getattr(value, data_field.name), copies, change)
        return replace(value, **changes)
    return value
