"""Fit saved inputs to a model: feed what its forward pass takes, and note what only says how a script was run."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from nndiff.text import first_few, printable

# scripts save these beside the inputs; even a forward pass that takes any keyword has no use for them
_SETTINGS = frozenset(("seed", "batch_size", "seq_len", "sample_rate", "sampling_rate", "sr", "step", "epoch"))
# names that audio models and their scripts use for the same argument
_SYNONYMS = (
    ("input_signal", "audio_signal", "audio", "signal", "waveform"),
    ("input_signal_length", "audio_signal_length", "audio_length", "audio_len", "input_length", "length", "lengths"),
)
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class FittedInputs:
    """What to feed a model by name, and notes about it."""

    values: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def fit_inputs(model: torch.nn.Module, values: Mapping[str, Any], file: str) -> FittedInputs:
    """Return the values of a file that a model is fed, under the names of its arguments."""
    try:
        parameters = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):  # compiled code does not tell what it takes
        return FittedInputs(values)
    takes_any_keyword = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    settings, inputs = {}, {}
    for name, value in values.items():
        is_single = not isinstance(value, torch.Tensor) or value.ndim == 0
        is_unknown = not _is_argument(name, parameters)
        if is_unknown and is_single and (name in _SETTINGS or not takes_any_keyword):
            settings[name] = value
        else:
            inputs[name] = value
    new_names = _choose_new_names(parameters, list(inputs), takes_any_keyword)
    notes = []
    if settings:
        texts = []
        for name, value in settings.items():
            number = value.item() if isinstance(value, torch.Tensor) else value
            texts.append(f"{printable(name, 40)} = {printable(str(number), 40)}")
        notes.append(f"not fed, because the forward pass has no such argument: {first_few(texts, 8)} of {file}")
    if new_names:
        texts = [f"{printable(name, 40)} as {argument}" for name, argument in new_names.items()]
        notes.append(f"fed under the names of the forward pass: {first_few(texts, 8)} of {file}")
    renamed_inputs = {new_names.get(name, name): value for name, value in inputs.items()}
    return FittedInputs(renamed_inputs, tuple(notes))


def _choose_new_names(
    parameters: Mapping[str, inspect.Parameter], names: list[str], takes_any_keyword: bool
) -> dict[str, str]:
    """Return the argument for each input that goes by another name, where there is no doubt about it."""
    new_names: dict[str, str] = {}
    taken = set(names)
    strangers = []
    for name in names:
        if _is_argument(name, parameters):
            continue
        for argument in _find_synonyms(name):
            if argument in parameters and argument not in taken:
                new_names[name] = argument
                taken.add(argument)
                break
        else:
            strangers.append(name)
    needed = [name for name in _get_needed_names(parameters, names) if name not in taken]
    if len(needed) == len(strangers) == 1 and not takes_any_keyword:
        new_names[strangers[0]] = needed[0]
    return new_names


def _find_synonyms(name: str) -> tuple[str, ...]:
    for synonyms in _SYNONYMS:
        if name in synonyms:
            return synonyms
    return ()


def _get_needed_names(parameters: Mapping[str, inspect.Parameter], names: list[str]) -> list[str]:
    """Return the arguments without a default that are not fed by position."""
    positions = sum(_is_position(name) for name in names)
    positional = [name for name, parameter in parameters.items() if parameter.kind in _BY_POSITION]
    return [name for name in positional[positions:] if parameters[name].default is inspect.Parameter.empty]


def _is_argument(name: str, parameters: Mapping[str, inspect.Parameter]) -> bool:
    return name in parameters or _is_position(name)


def _is_position(name: str) -> bool:
    return name.removeprefix("arr_").isdigit()
