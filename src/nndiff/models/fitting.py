"""Saved inputs fitted to a model: what its forward pass takes is fed, what only says how a script was run is told."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from nndiff.text import first_few, printable

# What scripts save beside the inputs, of which no model takes any; where it takes anything, these are still no inputs.
_SETTINGS = frozenset(("seed", "batch_size", "seq_len", "sample_rate", "sampling_rate", "sr", "step", "epoch"))
# One argument under the names that audio models and the scripts around them have for it.
_ALSO_CALLED = (
    ("input_signal", "audio_signal", "audio", "signal", "waveform"),
    ("input_signal_length", "audio_signal_length", "audio_length", "audio_len", "input_length", "length", "lengths"),
)


@dataclass(frozen=True)
class Fitted:
    """Hold what a model is to be fed by name, and what is to be told of it."""

    values: Mapping[str, Any]
    notes: tuple[str, ...] = ()


@dataclass
class _Fit:
    """Lay saved values beside the arguments of a forward pass."""

    asked: Mapping[str, inspect.Parameter]
    values: dict[str, Any]
    renamed: dict[str, str] = field(default_factory=dict)

    @property
    def any_keyword(self) -> bool:
        return any(each.kind is each.VAR_KEYWORD for each in self.asked.values())

    def takes(self, name: str) -> bool:
        """Tell whether the forward pass has an argument of this name, or place."""
        return name in self.asked or name.removeprefix("arr_").isdigit()

    def is_setting(self, name: str) -> bool:
        """Tell whether a value is no input: a single one that the forward pass has no argument for."""
        if self.takes(name) or not _is_single(self.values[name]):
            return False
        return name in _SETTINGS or not self.any_keyword

    def rename(self) -> None:
        """Call tensors as the forward pass does, where it is plain which argument each is for."""
        for name in [name for name in self.values if not self.takes(name)]:
            known = next((names for names in _ALSO_CALLED if name in names), ())
            free = [each for each in known if each in self.asked and each not in self.values]
            if free:
                self._call(name, free[0])
        needed = [name for name in self.needed() if name not in self.values]
        strangers = [name for name in self.values if not self.takes(name)]
        if len(needed) == len(strangers) == 1 and not self.any_keyword:
            self._call(strangers[0], needed[0])

    def needed(self) -> list[str]:
        """Return the arguments that must be given by name: those beyond what is given by place."""
        by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        given = sum(name.removeprefix("arr_").isdigit() for name in self.values)
        arguments = [name for name, each in self.asked.items() if each.kind in by_place][given:]
        return [name for name in arguments if self.asked[name].default is inspect.Parameter.empty]

    def _call(self, name: str, argument: str) -> None:
        self.renamed[name] = argument
        self.values = {argument if each == name else each: value for each, value in self.values.items()}


def fitted(model: torch.nn.Module, values: Mapping[str, Any], where: str) -> Fitted:
    """Return the values that a model is to be fed of those that a file holds."""
    try:
        asked = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):  # compiled: nobody knows what it takes
        return Fitted(values)
    fit = _Fit(asked, dict(values))
    settings = {name: value for name, value in values.items() if fit.is_setting(name)}
    fit.values = {name: value for name, value in values.items() if name not in settings}
    fit.rename()
    return Fitted(fit.values, tuple(_notes(where, settings, fit.renamed)))


def _notes(where: str, settings: Mapping[str, Any], renamed: Mapping[str, str]) -> Iterator[str]:
    if settings:
        told = [f"{printable(name, 40)} = {_shown(value)}" for name, value in settings.items()]
        yield f"not fed, as the forward pass has no such argument: {first_few(told, 8)} of {where}"
    if renamed:
        told = [f"{printable(name, 40)} as {argument}" for name, argument in renamed.items()]
        yield f"fed under the names of the forward pass: {first_few(told, 8)} of {where}"


def _is_single(value: Any) -> bool:
    return value.ndim == 0 if isinstance(value, torch.Tensor) else True


def _shown(value: Any) -> str:
    return printable(str(value.item() if isinstance(value, torch.Tensor) else value), 40)
