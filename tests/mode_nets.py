"""Definition files for the tests of modes: a Mamba, a Llama and a convnet, each in ten modes, and modes that fail."""

from __future__ import annotations

from pathlib import Path

MODES = """
from nndiff import modes as ready

modes = {
    "fp16": ready.fp16,
    "bf16": ready.bf16,
    "fp8": ready.fp8("e4m3"),
    "0": ready.weight_only(8, "tensor"),
    "2-0": ready.weight_only(8, "channel"),
    "2-1": ready.weight_only(4, "tensor"),
    "2-2": ready.weight_only(4, "channel"),
    "2-3": ready.weight_only(4, "group", 8),
    "2-4": ready.w8a8_static(99.9),
    "3_dyn": ready.w8a8_dynamic(99.99),
}
presets = {"essential": ["fp32", "0", "2-1", "2-2", "2-4"]}
"""

LLAMA = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

def model():
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2,
        max_position_embeddings=64,
    ))

def samples(count=10, seq_len=6):
    return [{"input_ids": torch.randint(0, 40, (1, seq_len + number % 2))} for number in range(count)]
"""

MAMBA = """
import torch
from transformers import MambaConfig, MambaForCausalLM

def model():
    return MambaForCausalLM(MambaConfig(vocab_size=40, hidden_size=16, state_size=4, num_hidden_layers=3))

def samples(count=10, seq_len=6):
    return [{"input_ids": torch.randint(0, 40, (1, seq_len + number % 2))} for number in range(count)]
"""

CONVNET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.conv2 = torch.nn.Conv2d(8, 8, 3, stride=2)
        self.fc = torch.nn.Linear(8, 10)

    def forward(self, image):
        hidden = torch.relu(self.conv2(torch.relu(self.norm(self.conv1(image)))))
        return self.fc(hidden.mean((2, 3)))

def model():
    return Net()

def samples(count=10):
    return [torch.randn(2, 3, 10 + number % 2, 10) for number in range(count)]
"""

# A net that writes to its input, with modes that raise, give NaN, change a shape, and change nothing.
BLOCKS = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 8)

    def forward(self, x):
        return x + self.fc(x)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(4))
        self.head = torch.nn.Linear(8, 12)

    def forward(self, x):
        x *= 2  # some models change their inputs
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

RUNS = []

def model():
    RUNS.append("model")
    return Net()

def samples(count=10, seq_len=5):
    return [torch.randn(1, seq_len + number % 3, 8) for number in range(count)]

def labels(count=10):
    return [torch.arange(5 + number % 3).unsqueeze(0) for number in range(count)]

def small(net):
    net.layers[0].fc.weight.data += 1e-4  # in place
    return net

def broken(net):
    raise ValueError("there is no such kernel")

def broken_late(net):
    net.head = torch.nn.Linear(9, 12)
    return net

def nan(net):
    net.layers[2].fc.weight.data[0, 0] = float("nan")
    return net

def shape(net):
    net.head = torch.nn.Linear(8, 11)
    return net

modes = {"same": lambda net: net, "small": small, "large_-1": lambda net: small(small(small(net))),
         "broken": broken, "late": broken_late, "nan": nan, "shape": shape}
presets = {"essential": ["fp32", "same"]}
reference = "fp32"
"""


def write_net(folder: Path, name: str, *parts: str) -> str:
    """Write a definition file and return its path."""
    path = folder / f"{name}.py"
    path.write_text("\n".join(parts))
    return str(path)
