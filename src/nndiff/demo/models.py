"""The models of the demo: checkpoints made with NumPy alone, and three model files for torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Weights = dict[str, NDArray[np.float32]]

_REFERENCE_BLOCK = """\
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
# the same function with another module tree
_REWRITTEN_BLOCK = """\
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 128), nn.GELU(), nn.Linear(128, width))

    def forward(self, x):
        return x + self.body(x)
"""
# every key loads, but the activation is another function
_FAULTY_BLOCK = _REFERENCE_BLOCK.replace("nn.GELU()", 'nn.GELU(approximate="tanh")')
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


def write_model_files(folder: Path) -> None:
    """Write a reference model, a harmless rewrite of it, and a port with a fault."""
    (folder / "ours.py").write_text(_REFERENCE_BLOCK + _NET)
    (folder / "rewrite.py").write_text(_REWRITTEN_BLOCK + _NET)
    (folder / "port.py").write_text(_FAULTY_BLOCK + _NET)


def write_checkpoints(folder: Path) -> None:
    """Write a reference checkpoint and three others: renamed, changed, and rounded to bfloat16."""
    weights = make_weights()
    save_weights(folder / "ref.safetensors", weights)
    save_weights(folder / "wrapped.safetensors", {f"module._orig_mod.{name}": weights[name] for name in weights})
    tuned = {name: values.copy() for name, values in weights.items()}
    tuned["layers.2.attention.query.weight"][3, 5] += 0.25
    tuned["layers.2.norm.weight"] *= np.float32(1.001)
    del tuned["head.bias"]
    save_weights(folder / "tuned.safetensors", tuned)
    save_weights(folder / "bf16.safetensors", weights, bfloat16=True)


def make_weights() -> Weights:
    """Return the weights of a small transformer, the same every time."""
    random = np.random.default_rng(42)
    weights: Weights = {}

    def draw(name: str, *shape: int) -> None:
        weights[name] = random.normal(0, 0.05, shape).astype(np.float32)

    width = 64
    draw("embedding.weight", 256, width)
    for layer in range(4):
        for projection in ("query", "key", "value", "out"):
            draw(f"layers.{layer}.attention.{projection}.weight", width, width)
        weights[f"layers.{layer}.norm.weight"] = np.ones(width, np.float32)
        draw(f"layers.{layer}.mlp.up.weight", 4 * width, width)
        draw(f"layers.{layer}.mlp.down.weight", width, 4 * width)
    draw("head.weight", 10, width)
    draw("head.bias", 10)
    return weights


def save_weights(path: Path, weights: Mapping[str, NDArray[np.float32]], bfloat16: bool = False) -> None:
    """Write a safetensors file: eight bytes of length, a JSON header, the data."""
    header = {}
    data = bytearray()
    for name, values in weights.items():
        start = len(data)
        data += (_round_to_bfloat16(values) if bfloat16 else values).tobytes()
        header[name] = {
            "dtype": "BF16" if bfloat16 else "F32",
            "shape": list(values.shape),
            "data_offsets": [start, len(data)],
        }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def _round_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of the nearest bfloat16, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
