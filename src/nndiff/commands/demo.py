"""nndiff demo: the whole story on small built-in models."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_DESCRIPTION = "Compare small built-in models with planted differences. No network, under a minute."


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser], purpose: str = "") -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser("demo", help=purpose, description=_DESCRIPTION)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Play the demo; return 0 if every step ended as it should."""
    with tempfile.TemporaryDirectory(prefix="nndiff-demo-") as folder:
        here = os.getcwd()
        os.chdir(folder)  # so that the commands shown are the commands run
        try:
            _write_checkpoints()
            _write_models()
            return _play()
        finally:
            os.chdir(here)


_FILES = (
    (
        "The same weights under a wrapper's names: the names differ, the model does not.",
        0,
        "diff ref.safetensors wrapped.safetensors",
    ),
    (
        "One weight was changed, one norm scaled by 1.001, and a bias is missing: where, and by how much?",
        1,
        "diff ref.safetensors tuned.safetensors",
    ),
    (
        "Stored as bfloat16: out at the default tolerance ...",
        1,
        "diff ref.safetensors bf16.safetensors --quiet",
    ),
    (
        "... and the same at the tolerance its dtype allows.",
        0,
        "diff ref.safetensors bf16.safetensors --tolerance auto --quiet",
    ),
)
_MODELS = (
    (
        "Two implementations, the same weights. One is a rewrite with another module tree ...",
        0,
        "run ours.py rewrite.py --quiet",
    ),
    (
        "... the other a port that loads every key and still is not the same. Where do they part, and why?",
        1,
        "run ours.py port.py --top 3",
    ),
)


def _play() -> int:
    from nndiff.commands import main

    failed = 0
    steps = _FILES + (_MODELS if find_spec("torch") else ())
    for number, (story, expected, command) in enumerate(steps, 1):
        sys.stdout.write(f"\n{number}. {story}\n$ nndiff {command}\n\n")
        sys.stdout.flush()
        status = main(command.split())
        failed += status != expected
        sys.stdout.write(f"(exit status {status})\n")
    if len(steps) == len(_FILES):
        sys.stdout.write("\nWith torch installed the demo goes on: two models, compared layer by layer.\n")
    sys.stdout.write("\nNow yours: nndiff diff REF CAND, nndiff run REF_MODEL CAND_MODEL; --help shows how.\n")
    return 1 if failed else 0


def _write_checkpoints() -> None:
    weights = _model()
    _save("ref.safetensors", weights)
    _save("wrapped.safetensors", {f"module._orig_mod.{name}": value for name, value in weights.items()})
    tuned = {name: value.copy() for name, value in weights.items()}
    tuned["layers.2.attention.query.weight"][3, 5] += 0.25
    tuned["layers.2.norm.weight"] *= np.float32(1.001)
    del tuned["head.bias"]
    _save("tuned.safetensors", tuned)
    _save("bf16.safetensors", weights, bfloat16=True)


def _write_models() -> None:
    """Write three model files: a reference, a harmless rewrite of it, and a port with a fault."""
    for name, block in (("ours", _OURS), ("rewrite", _REWRITE), ("port", _PORT)):
        Path(f"{name}.py").write_text(block + _NET)


_OURS = """\
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 128), nn.Linear(128, width)
        self.act = nn.GELU()

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))
"""
_REWRITE = """\
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 128), nn.GELU(), nn.Linear(128, width))

    def forward(self, x):
        return x + self.body(x)
"""
_PORT = _OURS.replace("nn.GELU()", 'nn.GELU(approximate="tanh")')
_NET = """
class Net(nn.Module):
    def __init__(self, width=32, layers=4):
        super().__init__()
        self.embed = nn.Embedding(100, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 10)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

def model():
    torch.manual_seed(0)
    return Net().eval()

def inputs():
    return torch.randint(0, 100, (2, 16))
"""


def _model() -> dict[str, NDArray[np.float32]]:
    """Return the weights of a small transformer, the same every time."""
    random = np.random.default_rng(42)
    width = 64
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (256, width)}
    for layer in range(4):
        for name in ("query", "key", "value", "out"):
            shapes[f"layers.{layer}.attention.{name}.weight"] = (width, width)
        shapes[f"layers.{layer}.norm.weight"] = (width,)
        shapes[f"layers.{layer}.mlp.up.weight"] = (4 * width, width)
        shapes[f"layers.{layer}.mlp.down.weight"] = (width, 4 * width)
    shapes |= {"head.weight": (10, width), "head.bias": (10,)}
    return {
        name: np.ones(shape, np.float32) if "norm" in name else random.normal(0, 0.05, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def _save(path: str, weights: dict[str, NDArray[np.float32]], bfloat16: bool = False) -> None:
    """Write a safetensors file: eight bytes of length, a JSON header, the data."""
    header, parts, end = {}, [], 0
    for name, value in weights.items():
        raw = (_rounded(value) if bfloat16 else value).tobytes()
        offsets = [end, end + len(raw)]
        header[name] = {"dtype": "BF16" if bfloat16 else "F32", "shape": list(value.shape), "data_offsets": offsets}
        parts.append(raw)
        end += len(raw)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(b"".join([len(text).to_bytes(8, "little"), text, *parts]))


def _rounded(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return float32 rounded to the nearest bfloat16, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
