"""Pairing by content: `nndiff diff` of a 2 GB pair under other names, against the same pair under its own names."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from bench_files import run
from timing import Row, in_turns

TENSORS, ELEMENTS = 300, (2 << 30) // 4 // 300  # 2 GB of float32
MOST_MEMORY = 500  # MB resident


def draw_model(tensors: int = TENSORS, elements: int = ELEMENTS) -> dict[str, np.ndarray]:
    """Return a model of equal layers, as random as a trained one."""
    random = np.random.default_rng(0)
    rows = elements // 1024
    return {f"h.{number}.weight": random.standard_normal((rows, 1024), np.float32) for number in range(tensors)}


def resident_megabytes(*command: str | Path) -> float:
    """Return the most memory that a command held at once."""
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, *map(str, command)],
        dict(os.environ),
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, _, usage = os.wait4(pid, 0)
    return usage.ru_maxrss / 1024


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="nndiff-bench-") as name:
        folder = Path(name)
        paths = {label: folder / f"{label}.safetensors" for label in ("model", "copy", "renamed", "changed", "half")}
        model = draw_model()
        save_file(model, paths["model"])
        save_file(model, paths["copy"])
        save_file({name.replace("h.", "blocks."): value for name, value in model.items()}, paths["renamed"])
        for value in model.values():
            value *= np.float32(1.001)
        save_file({name.replace("h.", "blocks."): value for name, value in model.items()}, paths["changed"])
        smaller = dict(list(model.items())[: TENSORS // 2])
        save_file(smaller, paths["half"])
        save_file({f"blocks.{key}": value for key, value in smaller.items()}, folder / "half-renamed.safetensors")
        del model, smaller
        nndiff = (sys.executable, "-m", "nndiff", "diff", "--quiet")
        plain, renamed, changed, half = in_turns(
            run(*nndiff, paths["model"], paths["copy"]),
            run(*nndiff, paths["model"], paths["renamed"]),
            run(*nndiff, paths["model"], paths["changed"]),
            run(*nndiff, paths["half"], folder / "half-renamed.safetensors"),
            rounds=3,
        )
        yield Row("2 GB pair, renamed", renamed, "the same pair by name", plain, "<= 4x")
        yield Row("2 GB pair, renamed and changed", changed, "an equal pair by name", plain)
        yield Row("2 GB pair, renamed", renamed, "1 GB pair, renamed", half, "<= 2.5x")
        used = resident_megabytes("-m", "nndiff", "diff", "--quiet", paths["model"], paths["renamed"])
        yield Row("2 GB pair, renamed: MB resident", used, "MB allowed", MOST_MEMORY, "<= 1x")
