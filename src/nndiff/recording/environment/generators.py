"""Generators of random numbers that modules keep to themselves: no seed reaches them, so it is told if one is used."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

_KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


class OwnGenerators:
    """Remember the generators among the attributes of a model's modules, tell which were used, put them back."""

    def __init__(self, model: torch.nn.Module) -> None:
        found = {id(each): (name, each) for name, each in _held(model)}
        self._states = [(name, each, _state(each)) for name, each in found.values()]

    def used(self) -> list[str]:
        """Return the names of those that numbers were drawn from since."""
        return [name for name, each, before in self._states if _image(_state(each)) != _image(before)]

    def restore(self) -> None:
        """Put all of them back."""
        for _, each, before in self._states:
            _set(each, before)


def _held(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    for path, module in model.named_modules():
        for name, value in list(vars(module).items()):
            several = value if isinstance(value, (list, tuple)) else ()
            several = list(value.values()) if isinstance(value, dict) and name[:1] != "_" else several
            for each in (value, *several):
                if isinstance(each, _KINDS):
                    yield ".".join(part for part in (path, name) if part), each


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state()


def _set(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def _image(state: Any) -> bytes:
    return bytes(state.numpy().tobytes()) if isinstance(state, torch.Tensor) else pickle.dumps(state)
