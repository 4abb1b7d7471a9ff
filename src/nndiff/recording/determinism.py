"""Randomness: seeds set and put back, dropout switched off and on, and what of it is at work."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.modules.dropout import _DropoutNd

DROPOUT_WORDS = ("dropout", "drop_prob", "droppath", "drop_path", "drop_rate", "layerdrop", "attn_drop", "proj_drop")


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch with all its devices."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)


@contextmanager
def kept_randomness() -> Iterator[None]:
    """Put the state of every generator back afterwards."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


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


@contextmanager
def dropout_off(model: torch.nn.Module) -> Iterator[None]:
    """Switch dropout off while it lasts.

    Dropout modules go to eval mode. Functional dropout is reached by its rate: attributes of modules, and of
    the `config` they carry, whose name speaks of dropout and whose value is a number between 0 and 1 become 0.
    """
    modes = [(module, module.training) for module in model.modules() if isinstance(module, _DropoutNd)]
    rates = list(_rates(model))
    try:
        for module, _ in modes:
            module.training = False
        for holder, name, _ in rates:
            setattr(holder, name, 0.0)
        yield
    finally:
        for module, training in modes:
            module.training = training
        for holder, name, rate in rates:
            setattr(holder, name, rate)


def _rates(model: torch.nn.Module) -> Iterator[tuple[Any, str, float]]:
    seen: set[int] = set()
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            continue
        for holder in (module, getattr(module, "config", None)):
            if holder is None or id(holder) in seen or not hasattr(holder, "__dict__"):
                continue
            seen.add(id(holder))
            for name, value in list(vars(holder).items()):
                if _is_rate(name, value):
                    yield holder, name, value


def active_dropout(model: torch.nn.Module) -> list[str]:
    """Return the modules that would drop at random in the mode they are in."""
    names = []
    for name, module in model.named_modules():
        if not module.training:
            continue
        if module.p > 0 if isinstance(module, _DropoutNd) else any(_is_rate(*each) for each in vars(module).items()):
            names.append(name)
    return names


def _is_rate(name: str, value: Any) -> bool:
    return type(value) is float and 0 < value <= 1 and any(word in name.lower() for word in DROPOUT_WORDS)
