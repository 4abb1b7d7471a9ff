"""Small networks, and simple quantisers that take any subset of layers, so that the truth can be made by hand."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

Mode = Callable[[nn.Module, Collection[str]], nn.Module]


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(ConvBlock(8) for _ in range(3))
        self.head = nn.Linear(8, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.stem(images)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden.mean((2, 3)))


class ConvBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.bn2(self.conv2(self.bn1(self.conv1(hidden)).relu()))


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(hidden).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        return self.proj(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.attention(self.norm1(hidden))
        return hidden + self.mlp(self.norm2(hidden))


class Transformer(nn.Module):
    def __init__(self, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


class TorchEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        for parameter in self.parameters():  # the layers are copies of one
            parameter.data += 0.1 * torch.randn_like(parameter)
        self.head = nn.Linear(32, 10)

    def forward(self, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
        encoded = self.encoder(hidden)
        return {"encoded": encoded, "logits": self.head(encoded)}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, int]:
        states, _ = self.lstm(self.inner(hidden))
        return self.head(states), hidden.shape[1]


def make_mlp() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(5):
        layers += [nn.Linear(24, 24), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(24, 8))


def make_huggingface(kind: str) -> nn.Module:
    import transformers

    sizes: dict[str, Any] = {"vocab_size": 60, "num_hidden_layers": 2, "hidden_size": 32}
    heads = {"num_attention_heads": 4, "intermediate_size": 48}
    if kind == "llama":
        config = transformers.LlamaConfig(**sizes, **heads, num_key_value_heads=2)
        return transformers.LlamaForCausalLM(config)
    if kind == "gpt2":
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=60, n_layer=2, n_embd=32, n_head=4, bos_token_id=0, eos_token_id=0)
        )
    if kind == "bert":
        return transformers.BertForMaskedLM(transformers.BertConfig(**sizes, **heads))
    config = transformers.MambaConfig(**sizes, state_size=4)
    return transformers.MambaForCausalLM(config)


def make_net(kind: str, seed: int = 0) -> nn.Module:
    """Return a net with weights as different in size, and as far from their start, as after a training."""
    return copy.deepcopy(_build_net(kind, seed))


@functools.cache
def _build_net(kind: str, seed: int) -> nn.Module:
    makers: dict[str, Callable[[], nn.Module]] = {
        "mlp": make_mlp,
        "conv": ConvNet,
        "transformer": Transformer,
        "torch encoder": TorchEncoder,
        "recurrent": Recurrent,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = makers[kind]() if kind in makers else make_huggingface(kind)
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.running_mean)
                nn.init.uniform_(module.running_var, 0.3, 3)
            if isinstance(module, (nn.BatchNorm2d, nn.LayerNorm)):
                nn.init.uniform_(module.weight, 0.3, 2)
                nn.init.normal_(module.bias, std=0.2)
        for parameter in net.parameters():
            if parameter.dim() > 1:
                parameter.data *= math.exp(0.4 * float(torch.randn(())))
    return net.eval()


def make_samples(kind: str, count: int = 3) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    samples: list[Any] = []
    for number in range(count):
        if kind == "mlp":
            samples.append(torch.randn(16, 24, generator=generator))
        elif kind == "conv":
            samples.append((torch.randn(2, 3, 8, 8, generator=generator),))
        elif kind in ("torch encoder", "recurrent"):
            samples.append(torch.randn(2, 6, 32 if kind == "torch encoder" else 8, generator=generator))
        elif kind == "transformer":
            samples.append(torch.randint(0, 50, (2, 8 + number), generator=generator))
        else:
            samples.append({"input_ids": torch.randint(0, 60, (2, 8 + number), generator=generator)})
    return samples


def run_net(net: nn.Module, samples: list[Any]) -> list[np.ndarray[Any, Any]]:
    """Return the logits, or else the first output, in float64."""
    outputs = []
    for sample in copy.deepcopy(samples):
        args, kwargs = ((), sample) if isinstance(sample, dict) else ((sample,), {})
        with torch.no_grad():
            output = net(*(args[0] if args and isinstance(args[0], tuple) else args), **kwargs)
        if not isinstance(output, torch.Tensor):
            output = output["logits"] if "logits" in output else output[0]
        outputs.append(output.double().numpy())
    return outputs


def compute_mse(reference: list[np.ndarray[Any, Any]], candidate: list[np.ndarray[Any, Any]]) -> float:
    """Return the mean squared error over all elements of all samples."""
    differences = [(ours - theirs).ravel() for ours, theirs in zip(candidate, reference, strict=True)]
    return float(np.mean(np.concatenate(differences) ** 2))


def list_layers(net: nn.Module) -> list[str]:
    """Return the layers that the modes below quantise: those with a weight matrix, in any use."""
    names = []
    for name, module in net.named_modules():
        weight = getattr(module, "weight", None)
        if (isinstance(weight, nn.Parameter) and weight.dim() > 1) or isinstance(module, nn.LSTM):
            names.append(name)
    return names


def round_to_bits(tensor: torch.Tensor, bits: int, per_channel: bool = False) -> torch.Tensor:
    largest = tensor.abs().amax(tuple(range(1, tensor.dim())), keepdim=True) if per_channel else tensor.abs().max()
    scale = largest.clamp(min=1e-12) / (2 ** (bits - 1) - 1)
    return (tensor / scale).round() * scale


def round_weights(net: nn.Module, layers: Collection[str], bits: int, per_channel: bool = False) -> nn.Module:
    """Return the net with the weights of some layers quantised in place; a tied weight stays as it is elsewhere."""
    for name in layers:
        module = net.get_submodule(name)
        for key, parameter in list(module._parameters.items()):
            if parameter is not None and parameter.dim() > 1:
                setattr(module, key, nn.Parameter(round_to_bits(parameter.detach(), bits, per_channel)))
    return net


class SimulatedLinear(nn.Module):
    """A linear layer that rounds its weights and its inputs on each call."""

    def __init__(self, linear: nn.Linear, bits: int) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.bits = bits

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        weight = round_to_bits(self.weight, self.bits, per_channel=True)
        return functional.linear(round_to_bits(inputs, self.bits), weight, self.bias)


def replace_linears(net: nn.Module, layers: Collection[str], bits: int) -> nn.Module:
    """Return the net with linear layers replaced by others that quantise in their forward; the rest in place."""
    for name in layers:
        module = net.get_submodule(name)
        parent, _, last = name.rpartition(".")
        if type(module) is nn.Linear and last != "dt_proj":  # Mamba takes its weight, and never calls it
            setattr(net.get_submodule(parent), last, SimulatedLinear(module, bits))
        else:
            round_weights(net, [name], bits)
    return net


def hook_outputs(net: nn.Module, layers: Collection[str], bits: int) -> nn.Module:
    """Return the net with hooks that round the outputs of layers."""

    def round_output(module: nn.Module, args: Any, output: Any) -> Any:
        return round_to_bits(output, bits) if isinstance(output, torch.Tensor) else output

    for name in layers:
        net.get_submodule(name).register_forward_hook(round_output)
    return net


def spoil_one(net: nn.Module, layers: Collection[str], position: int) -> nn.Module:
    """Return the net in 8 bits, and one of its layers in 3."""
    names = list_layers(net)
    spoilt = names[position]
    round_weights(net, [name for name in layers if name != spoilt], 8, per_channel=True)
    return round_weights(net, [spoilt] if spoilt in layers else [], 3)
