"""What the demo compares: checkpoints made with NumPy alone, and Python files as a user would write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Weights = dict[str, NDArray[np.float32]]

_LAYERS = 4
MISCONVERTED = 2  # the layer that the conversion got wrong
_WIDTH = 64

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
# the two shuffle alike in the first epoch, and differently from the second on
_TRAINING = """\
import torch
from torch import nn
import nndiff
from ours import model

def train(folder, seed):
    net = model().train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    ids, labels = torch.randint(0, 100, (64, 16), generator=generator), torch.randint(0, 10, (64,), generator=generator)
    with nndiff.TrainingRecorder(folder, model=net, optimizer=optimizer) as recorder:
        for epoch in range(3):
            order = torch.randperm(64, generator=torch.Generator().manual_seed(seed * epoch))
            for batch, rows in enumerate(order.split(8)):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(net(ids[rows]).mean(1), labels[rows])
                loss.backward()
                optimizer.step()
                recorder.step(epoch=epoch, batch=batch, data=(ids[rows], labels[rows]), scalars={"loss": loss})
    print(f"{folder}: 24 steps, last loss {loss:.4f}")

train("runs/reference", seed=1)
train("runs/ours", seed=10)
"""
# one input of one layer has large weights, as trained models have them: the steps of its integers grow for all others
_MODES = """\
import torch
from nndiff import modes as ready
import ours

def model():
    net = ours.model()
    with torch.no_grad():
        net.layers[2].down.weight[:, 0] *= 30
    return net

def samples(count=10):
    return [torch.randint(0, 100, (1, 16)) for _ in range(count)]

modes = {
    "fp16": ready.fp16,
    "int8": ready.weight_only(8, "channel"),
    "w8a8": ready.w8a8_static(99.99),
    "int4": ready.weight_only(4, "channel"),
}
"""


def write_model_files(folder: Path) -> None:
    """Write a reference model, a harmless rewrite of it, and a port with a fault."""
    (folder / "ours.py").write_text(_REFERENCE_BLOCK + _NET)
    (folder / "rewrite.py").write_text(_REWRITTEN_BLOCK + _NET)
    (folder / "port.py").write_text(_FAULTY_BLOCK + _NET)


def write_training_file(folder: Path) -> None:
    """Write a script that trains the reference model twice."""
    (folder / "train.py").write_text(_TRAINING)


def write_modes_file(folder: Path) -> None:
    """Write a model with a layer that does not like to be quantised, and modes to try on it."""
    (folder / "quantised.py").write_text(_MODES)


def write_checkpoints(folder: Path) -> None:
    """Write a reference checkpoint, the same from a wrapped model, and a conversion with a fault."""
    weights = make_weights()
    save_weights(folder / "ref.safetensors", weights)
    save_weights(folder / "wrapped.safetensors", {f"module._orig_mod.{name}": weights[name] for name in weights})
    save_weights(folder / "converted.safetensors", convert_weights(weights))


def make_weights() -> Weights:
    """Return the weights of a small transformer, the same every time."""
    random = np.random.default_rng(42)
    weights: Weights = {}

    def draw(name: str, *shape: int) -> None:
        weights[name] = random.normal(0, 0.05, shape).astype(np.float32)

    draw("embedding.weight", 256, _WIDTH)
    for layer in range(_LAYERS):
        for projection in ("query", "key", "value", "out"):
            draw(f"layers.{layer}.attention.{projection}.weight", _WIDTH, _WIDTH)
        weights[f"layers.{layer}.norm.weight"] = np.ones(_WIDTH, np.float32)
        draw(f"layers.{layer}.mlp.up.weight", 4 * _WIDTH, _WIDTH)
        draw(f"layers.{layer}.mlp.down.weight", _WIDTH, 4 * _WIDTH)
    draw("head.weight", 10, _WIDTH)
    draw("head.bias", 10)
    return weights


def convert_weights(weights: Weights) -> Weights:
    """Return the weights after a conversion that transposed one square matrix by mistake: every loader takes it."""
    name = f"layers.{MISCONVERTED}.attention.out.weight"
    return {**weights, name: np.ascontiguousarray(weights[name].T)}


def save_weights(path: Path, weights: Mapping[str, NDArray[np.float32]]) -> None:
    """Write a safetensors file: eight bytes of length, a JSON header, the data."""
    header = {}
    data = bytearray()
    for name, values in weights.items():
        start = len(data)
        data += values.tobytes()
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [start, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
