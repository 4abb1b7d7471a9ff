"""Randomness: seeds, the state of every generator, and generators that belong to a model."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from nndiff.errors import UsageError

_GENERATOR_CLASSES = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch with all its devices."""
    if not (isinstance(seed, int) and -(1 << 63) <= seed < 1 << 64):
        raise UsageError(f"the seed must be a whole number from -2**63 to 2**64 - 1, as in torch, not {seed!r}")
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)


class RandomState:
    """Hold the state of every global generator: Python's, NumPy's, torch's."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy: Any = np.random.get_state()  # name, words, position among them, ...
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def restore(self) -> None:
        """Put every generator back."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._cpu)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)

    def has_advanced(self) -> bool:
        """Return True if a number was drawn since."""
        now = RandomState()
        if self._python != now._python or self._numpy[2:] != now._numpy[2:]:
            return True
        if not np.array_equal(self._numpy[1], now._numpy[1]):
            return True
        torch_states = zip((self._cpu, *self._cuda), (now._cpu, *now._cuda), strict=True)
        return not all(torch.equal(before, after) for before, after in torch_states)


@contextmanager
def preserve_randomness() -> Iterator[None]:
    """Put the state of every global generator back afterwards."""
    state = RandomState()
    try:
        yield
    finally:
        state.restore()


class ModelGenerators:
    """Remember the generators among the attributes of a model's modules: no seed reaches them."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._generators: dict[int, tuple[str, Any, Any]] = {}  # by identity: name, generator, state
        for path, module in model.named_modules():
            for attribute, value in list(vars(module).items()):
                candidates = [value]
                if isinstance(value, (list, tuple)):
                    candidates += value
                elif isinstance(value, dict) and not attribute.startswith("_"):
                    candidates += value.values()
                for candidate in candidates:
                    if isinstance(candidate, _GENERATOR_CLASSES):
                        name = f"{path}.{attribute}" if path else attribute
                        self._generators[id(candidate)] = (name, candidate, _get_state(candidate))

    def list_used(self) -> list[str]:
        """Return the names of the generators that numbers were drawn from since."""
        used = []
        for name, generator, before in self._generators.values():
            if _state_to_bytes(_get_state(generator)) != _state_to_bytes(before):
                used.append(name)
        return used

    def restore(self) -> None:
        """Put all of them back."""
        for _, generator, before in self._generators.values():
            _set_state(generator, before)


def _get_state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)


def _state_to_bytes(state: Any) -> bytes:
    return bytes(state.numpy().tobytes()) if isinstance(state, torch.Tensor) else pickle.dumps(state)
