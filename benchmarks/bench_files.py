"""Whole files: `nndiff diff` of 2 GB safetensors pairs, warm and cold, against cmp and load-and-loop."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from timing import Row, in_turns

LAYERS, WIDTH = 32, 4096  # 32 tensors of 16M float32: 2 GB

LOOP = """
import sys, torch
from safetensors.torch import load_file
one, other = (torch.load(p) if p.endswith(".pt") else load_file(p) for p in sys.argv[1:3])
for name in one:
    torch.allclose(one[name], other[name])
    difference = (other[name] - one[name]).abs()
    difference.max(), difference.mean()
"""


def model(noise: float, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (LAYERS, WIDTH, WIDTH) if dtype == torch.float32 else (LAYERS, 2 * WIDTH, WIDTH)
    extra = torch.Generator().manual_seed(1)
    return {
        f"layers.{number}.weight": (
            torch.randn(shape[1:], generator=generator) + noise * torch.randn(shape[1:], generator=extra)
        ).to(dtype)
        for number in range(shape[0])
    }


def sum_both(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Sum tensors, on all cores, or arrays, on one."""
    for name in one:
        one[name].sum()
        other[name].sum()


def run(*command: str | Path) -> Callable[[], object]:
    """Return the way to run a command as a user would: with what Python has compiled before."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def once() -> None:
        parts = [str(part) for part in command]
        done = subprocess.run(parts, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False, env=environment)
        if done.returncode > 1:
            raise RuntimeError(done.stderr.decode())

    return once


def cold(way: Callable[[], object], *paths: Path) -> Callable[[], object]:
    """Return the way to do it with nothing of the files in memory."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    return way


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="nndiff-bench-") as folder:
        yield from _rows(Path(folder))


def _rows(folder: Path) -> Iterator[Row]:
    one, other, copy, tiny = (folder / f"{name}.safetensors" for name in ("one", "other", "copy", "tiny"))
    first = model(0.0)
    save_file(first, one)
    save_file(first, copy)
    second = model(1e-3)
    save_file(second, other)
    save_file({"x": torch.zeros(1)}, tiny)
    nndiff = (sys.executable, "-m", "nndiff", "diff", "--quiet")
    startup, bare = in_turns(run(*nndiff, tiny, tiny), run(sys.executable, "-c", "pass"))
    yield Row("startup of nndiff diff", startup, "python -c pass", bare)
    arrays = ({name: tensor.numpy() for name, tensor in side.items()} for side in (first, second))
    ways = (run(*nndiff, one, other), partial(sum_both, first, second), partial(sum_both, *arrays))
    warm, sums, plain = in_turns(*ways)
    del ways, arrays
    yield Row("2 GB pair, different, warm", warm, "3x the sums + startup", 3 * sums + startup, "<= 1x")
    yield Row("2 GB pair, different, warm", warm, "3x numpy.sum + startup", 3 * plain + startup)
    torch.save(first, folder / "one.pt")
    torch.save(second, folder / "other.pt")
    del first, second
    yield Row(
        "2 GB pair, different, warm",
        warm,
        "safetensors + loop",
        in_turns(run(sys.executable, "-c", LOOP, one, other), rounds=1)[0],
        ">= 1x",
    )
    yield Row(
        "2 GB pair, different, warm",
        warm,
        "torch.load + loop",
        in_turns(run(sys.executable, "-c", LOOP, folder / "one.pt", folder / "other.pt"), rounds=1)[0],
        ">= 1x",
    )
    same, compared = in_turns(run(*nndiff, one, copy), run("cmp", one, copy), rounds=5)
    yield Row("2 GB pair, identical, warm", same, "cmp", compared, "<= 2x")
    for name, mate in (("different", other), ("identical", copy)):
        ours = min(in_turns(cold(run(*nndiff, one, mate), one, mate), rounds=1)[0] for _ in range(2))
        theirs = min(in_turns(cold(run("cat", one, mate), one, mate), rounds=1)[0] for _ in range(2))
        yield Row(f"2 GB pair, {name}, cold", ours, "cat of both files", theirs)
