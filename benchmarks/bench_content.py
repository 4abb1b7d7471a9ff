"""Pairing by content: `nndiff diff` of a 2 GB pair under other names, against the same pair under its own names."""

from __future__ import annotations

import subprocess
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


# In between: what the process that starts a command held at most counts as the command's own.
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def resident_megabytes(*command: str | Path) -> float:
    """Return the most memory that a command held at once."""
    measured = subprocess.run(
        [sys.executable, "-c", MEASURE, sys.executable, *map(str, command)], stdout=subprocess.PIPE, check=True
    )
    return int(measured.stdout) / 1024


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="nndiff-bench-") as name:
        folder = Path(name)
        paths = {label: folder / f"{label}.safetensors" for label in ("model", "copy", "renamed", "changed", "half")}
        model = draw_model()
        save_file(model, paths["model"])
        save_file(model, paths["copy"])
        save_file({name.replace("h.", "blocks."): value for name, value in model.items()}, paths["renamed"])
        for value in list(model.values())[::2]:  # the others show the names of the layers
            value *= np.float32(1.001)
        save_file({name.replace("h.", "blocks."): value for name, value in model.items()}, paths["changed"])
        smaller = dict(list(model.items())[: TENSORS // 2])
        save_file(smaller, paths["half"])
        renamed_half = {name.replace("h.", "blocks."): value for name, value in smaller.items()}  # no mere prefix
        save_file(renamed_half, folder / "half-renamed.safetensors")
        del model, smaller, renamed_half
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
