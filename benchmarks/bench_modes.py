"""Modes: comparing layers at the engine's speed, and the memory that `--layers all` takes."""

from __future__ import annotations

import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import numpy_way
from timing import Row, in_turns

LAYERS, SHAPE = 4, (10, 512, 768)  # samples, tokens, hidden
LARGE_SHAPE = (10, 512, 3072)

MODEL = """
import torch
from torch import nn
from nndiff import modes as ready

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        query, key, value = self.qkv(self.norm1(x)).unflatten(-1, (3, 12, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(8000, 768), nn.Linear(768, 8000)
        self.layers = nn.ModuleList(Block(768) for _ in range(12))

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

def model():
    return Net()

def samples(count=10, seq_len=512):
    return [torch.randint(0, 8000, (1, seq_len)) for _ in range(count)]

modes = {"int8": ready.weight_only(8)}
"""


def write_layers(folder: Path, shape: tuple[int, ...]) -> list[tuple[Path, Path]]:
    """Write the layers of a reference and a mode, and return their files."""
    random = np.random.default_rng(0)
    files = []
    for number in range(LAYERS):
        reference = random.standard_normal(shape, np.float32)
        noise = random.standard_normal(shape, np.float32)
        pair = folder / f"mode_fp32_layer_{number}.npy", folder / f"mode_int8_layer_{number}.npy"
        np.save(pair[0], reference)
        np.save(pair[1], reference + np.float32(0.01) * noise)
        files.append(pair)
    return files


def in_numpy(files: list[tuple[Path, Path]], with_places: bool) -> None:
    for reference_file, candidate_file in files:
        reference, candidate = np.load(reference_file), np.load(candidate_file)
        numpy_way.compare(reference, candidate)
        if with_places:
            squares = (candidate.astype(np.float64) - reference.astype(np.float64)) ** 2
            squares.mean(axis=(0, 1)).argmax()
            squares.mean(axis=2).argmax()


def measure_layers(folder: Path) -> None:
    """Measure what the NumPy way measures: the numbers of each pair."""
    from nndiff.modes.folder import open_mode
    from nndiff.stats import Job
    from nndiff.stats.engine import get_engine

    modes = [open_mode(str(folder), mode).layers for mode in ("fp32", "int8")]
    jobs = [Job(modes[0][name].pool(), modes[1][name].pool(), 1e-5, 1e-5) for name in modes[0]]
    list(get_engine().measure(jobs))


def compare_folder(folder: Path) -> None:
    from nndiff.modes.compare import compare_modes

    compare_modes(str(folder), "fp32")


def measure_memory() -> tuple[float, float]:
    """Return the peak in MB and the seconds of recording and comparing every layer of a 12-layer model."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "net.py").write_text(MODEL)
        words = ["modes", "net.py", "-o", "out", "--layers", "all", "--quiet"]
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "nndiff", *words], cwd=folder, stdout=subprocess.DEVNULL, check=False
        )
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return (peak if done.returncode == 1 else math.nan), seconds


def compare_sizes(shape: tuple[int, ...]) -> Iterator[Row]:
    size = "x".join(map(str, shape))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_layers(folder, shape)
        ours, theirs = in_turns(lambda: measure_layers(folder), lambda: in_numpy(files, False), rounds=3)
        yield Row(f"{LAYERS} layers of {size}", ours, "the NumPy calls", theirs, ">= 50x")
        ours, theirs = in_turns(lambda: compare_folder(folder), lambda: in_numpy(files, True), rounds=3)
        yield Row("the same with worst places, judged", ours, "the NumPy calls with places", theirs)


def rows() -> Iterator[Row]:
    yield from compare_sizes(SHAPE)
    yield from compare_sizes(LARGE_SHAPE)
    peak, seconds = measure_memory()
    yield Row(f"MB, 12 layers, --layers all, {seconds:.0f} s", peak, "2 GB", 2048.0, "<= 1x")
