"""Randomness: seeds set and put back, whether numbers were drawn, and the switches that decide rounding."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from nndiff.errors import UsageError


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch with all its devices."""
    if not (isinstance(seed, int) and -(1 << 63) <= seed < 1 << 64):
        raise UsageError(f"the seed must be a whole number from -2**63 to 2**64 - 1, as torch takes it, not {seed!r}")
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)


class RandomState:
    """Hold the state of every generator there is: Python's, NumPy's, torch's."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy: Any = np.random.get_state()  # name, words, place among them, ...
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def restore(self) -> None:
        """Put every generator back."""
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._cpu)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)

    def is_past(self) -> bool:
        """Tell whether a number was drawn since."""
        now = RandomState()
        torches = zip((self._cpu, *self._cuda), (now._cpu, *now._cuda), strict=True)
        return (
            self._python != now._python
            or self._numpy[2:] != now._numpy[2:]
            or not np.array_equal(self._numpy[1], now._numpy[1])
            or not all(torch.equal(before, after) for before, after in torches)
        )


@contextmanager
def kept_randomness() -> Iterator[None]:
    """Put the state of every generator back afterwards."""
    state = RandomState()
    try:
        yield
    finally:
        state.restore()


@contextmanager
def deterministic_algorithms(on: bool) -> Iterator[None]:
    """Ask torch for deterministic algorithms while it lasts, if that was asked for."""
    if not on:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = benchmark


def _autocast() -> bool:
    """Tell whether autocast is on for any device; before torch 2.4 the question took no device."""
    try:
        return bool(torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"))
    except TypeError:
        return bool(torch.is_autocast_enabled() or torch.is_autocast_cpu_enabled())


def flags() -> dict[str, Any]:
    """Return every switch that decides how numbers are rounded."""
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        "autocast": _autocast(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "num_threads": torch.get_num_threads(),
        "mkldnn": torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
    }
