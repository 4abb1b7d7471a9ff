"""The noise floor tells rounding from faults: harmless rewrites stay within it, planted faults stick out of it."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch import nn
from zoo import ZOO, built

from nndiff.tolerance import NOISE_FACTOR
from noisy import compare_by_noise, worst_times

GENERATOR = torch.Generator().manual_seed(3)
SEQUENCE = torch.randn(4, 10, 32, generator=GENERATOR)
IMAGES = torch.randn(4, 3, 16, 16, generator=GENERATOR)


class Attention(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.heads = heads

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def join(self, x):
        return self.o(x.transpose(1, 2).flatten(-2))

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        return self.join(torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v)


class Kernel(Attention):
    def forward(self, x):
        return self.join(F.scaled_dot_product_attention(*(self.split(layer(x)) for layer in (self.q, self.k, self.v))))


class Einsum(Attention):
    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)) for layer in (self.q, self.k, self.v))
        weights = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q * q.shape[-1] ** -0.5, k), -1)
        return self.o(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(-2))


class HeadByHead(Attention):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        heads = []
        for head in range(self.heads):
            scores = (q[:, head] @ k[:, head].transpose(-1, -2)) / q.shape[-1] ** 0.5
            exps = torch.exp(scores)  # without subtracting the maximum
            heads.append((exps / exps.sum(-1, keepdim=True)) @ v[:, head])
        return self.o(torch.cat(heads, -1))


class Fused(Attention):
    """One layer makes queries, keys and values; queries are scaled by their weights."""

    def __init__(self, width=32, heads=4):
        super().__init__(width, heads)
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = (self.split(part) for part in self.qkv(x).chunk(3, -1))
        return self.join(F.scaled_dot_product_attention(q, k, v))


class Norm(nn.Module):
    """Layer norm by hand."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + self.eps) * self.weight + self.bias


class Halved(nn.Linear):
    """A sum in another order."""

    def forward(self, x):
        half = x.shape[-1] // 2
        return x[..., :half] @ self.weight[:, :half].T + (x[..., half:] @ self.weight[:, half:].T + self.bias)


class Wide(nn.Linear):
    """A sum in float64."""

    def forward(self, x):
        return F.linear(x.double(), self.weight.double(), self.bias.double()).to(x.dtype)


class Activation(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1 + torch.erf(x / 2**0.5))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.attn, self.n2 = nn.LayerNorm(32), Attention(), nn.LayerNorm(32)
        self.up, self.act, self.down = nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.down(self.act(self.up(self.n2(x))))


class Functional(Block):
    def forward(self, x):
        x = self.attn(self.n1(x)) + x
        return x + F.linear(F.gelu(F.linear(self.n2(x), self.up.weight, self.up.bias)), *self.down.parameters())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.norm, self.head = (
            nn.Sequential(*(Block() for _ in range(3))),
            nn.LayerNorm(32),
            nn.Linear(32, 9),
        )

    def forward(self, x):
        return self.head(self.norm(self.blocks(x)))


def net():
    torch.manual_seed(0)
    model = Net()
    for block in model.blocks:  # activations of the size that trained models have
        nn.init.normal_(block.down.weight, std=0.5)
        nn.init.normal_(block.attn.q.weight, std=0.4)
    return model


def rewritten(change):
    def rewrite():
        reference = net()
        candidate = copy.deepcopy(reference)
        for block in candidate.blocks:
            change(block)
        return reference, candidate, SEQUENCE

    return rewrite


def to_class(kind, *names):
    def change(block):
        for name in names:
            block.get_submodule(name).__class__ = kind

    return rewritten(change)


def by_hand(block):
    block.n1, block.n2 = Norm(block.n1), Norm(block.n2)


def other_activation(block):
    block.act = Activation()


def functional(block):
    block.__class__ = Functional


def fuse(block):
    plain, fused = block.attn, Fused()
    with torch.no_grad():
        fused.qkv.weight.copy_(torch.cat([plain.q.weight, plain.k.weight, plain.v.weight]))
        fused.qkv.bias.copy_(torch.cat([plain.q.bias, plain.k.bias, plain.v.bias]))
    fused.o = plain.o
    del fused.q, fused.k, fused.v
    block.attn = fused


class Folded(Attention):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        return self.join(torch.softmax(q @ (k * q.shape[-1] ** -0.5).transpose(-1, -2), -1) @ v)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.c2, self.b2 = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = torch.relu(self.b1(self.c1(x)))
        x = torch.relu(self.b2(self.c2(x)) + x)
        return self.head(x.mean((2, 3)))


class Unfolded(nn.Conv2d):
    def forward(self, x):
        columns = F.unfold(x, self.kernel_size, padding=self.padding)
        out = self.weight.flatten(1) @ columns + self.bias[:, None]
        return out.unflatten(-1, x.shape[-2:])


class BatchNorm(nn.BatchNorm2d):
    """Batch norm by hand."""

    def forward(self, x):
        mean = x.mean((0, 2, 3), keepdim=True)
        var = (x - mean).square().mean((0, 2, 3), keepdim=True)
        if self.training:
            with torch.no_grad():
                count = x.numel() / x.shape[1]
                self.running_mean.lerp_(mean.flatten(), self.momentum)
                self.running_var.lerp_(var.flatten() * (count / (count - 1)), self.momentum)
                self.num_batches_tracked += 1
        else:
            mean, var = self.running_mean[:, None, None], self.running_var[:, None, None]
        return (x - mean) * torch.rsqrt(var + self.eps) * self.weight[:, None, None] + self.bias[:, None, None]


def images(*changes):
    def rewrite():
        torch.manual_seed(0)
        reference = Images()
        candidate = copy.deepcopy(reference)
        for name, kind in changes:
            candidate.get_submodule(name).__class__ = kind
        return reference, candidate, IMAGES

    return rewrite


class ChannelsLast(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x.to(memory_format=torch.channels_last))


def channels_last():
    torch.manual_seed(0)
    reference = Images()
    candidate = copy.deepcopy(reference).to(memory_format=torch.channels_last)
    return reference, candidate, IMAGES.to(memory_format=torch.channels_last)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(32, 24, batch_first=True), nn.Linear(24, 4)

    def forward(self, x):
        return self.head(self.run(x))

    def run(self, x):
        return self.lstm(x)[0]


class CellByCell(Recurrent):
    def run(self, x):
        weights = self.lstm
        hidden = cell = x.new_zeros(len(x), 24)
        outputs = []
        for step in x.unbind(1):
            gates = F.linear(step, weights.weight_ih_l0, weights.bias_ih_l0) + F.linear(
                hidden, weights.weight_hh_l0, weights.bias_hh_l0
            )
            into, forget, update, out = gates.chunk(4, -1)
            cell = torch.sigmoid(forget) * cell + torch.sigmoid(into) * torch.tanh(update)
            hidden = torch.sigmoid(out) * torch.tanh(cell)
            outputs.append(hidden)
        return torch.stack(outputs, 1)


def recurrent():
    torch.manual_seed(0)
    reference = Recurrent()
    candidate = copy.deepcopy(reference)
    candidate.__class__ = CellByCell
    return reference, candidate, SEQUENCE


def other_attention(name):
    def rewrite():
        return built(name), built(name, attention="sdpa"), ZOO[name].inputs()

    return rewrite


REWRITES = {
    "sdpa": to_class(Kernel, "attn"),
    "einsum": to_class(Einsum, "attn"),
    "head by head": to_class(HeadByHead, "attn"),
    "fused qkv": rewritten(fuse),
    "folded scale": to_class(Folded, "attn"),
    "sum in another order": to_class(Halved, "up", "down"),
    "sum in float64": to_class(Wide, "up", "down", "attn.o"),
    "layer norm by hand": rewritten(by_hand),
    "gelu by hand": rewritten(other_activation),
    "functional": rewritten(functional),
    "convolution as a product": images(("c1", Unfolded), ("c2", Unfolded)),
    "batch norm by hand": images(("b1", BatchNorm), ("b2", BatchNorm)),
    "channels last": channels_last,
    "lstm cell by cell": recurrent,
    "llama": other_attention("llama"),
    "bert": other_attention("bert"),
    "whisper": other_attention("whisper"),
}


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("name", REWRITES)
def test_a_harmless_rewrite_stays_within_the_noise(name, mode, tmp_path):
    """Measured: 0 to 3.7 times the floor, gradients included; the largest in sums that are zero but for rounding."""
    reference, candidate, inputs = REWRITES[name]()
    options = {"backward": True, "mode": mode, "dropout": "off"}
    result = compare_by_noise(tmp_path, reference, candidate, inputs, tolerance="noise", **options)
    times, where = worst_times(result)
    assert times < NOISE_FACTOR / 1.5, where
    assert result.exit_code == 0


def other_eps(block):
    block.n2.eps = 1e-6


def tanh_gelu(block):
    block.act.approximate = "tanh"


def other_scale(block):
    with torch.no_grad():
        block.attn.q.weight.mul_(1.001)


FAULTS = {"eps": (other_eps, "n2"), "tanh": (tanh_gelu, "act"), "scale": (other_scale, "attn.q")}


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_sticks_out_at_its_place(name, at, tmp_path):
    reference, (plant, module) = net(), FAULTS[name]
    if name == "eps":  # inputs of the deviation 1, where another eps shows least
        for block in reference.blocks:
            nn.init.zeros_(block.attn.o.weight)
            nn.init.zeros_(block.down.weight)
    candidate = copy.deepcopy(reference)
    plant(candidate.blocks[at])
    result = compare_by_noise(tmp_path, reference, candidate, SEQUENCE, backward=True, tolerance="noise")
    first = result.first_divergence
    assert result.exit_code == 1
    assert first.module == f"blocks.{at}.{module}"
    assert first.times_noise > 2 * NOISE_FACTOR


class Shifted(nn.Linear):
    by = 0.0

    def forward(self, x):
        return super().forward(x) + self.by


@pytest.mark.parametrize(("times", "is_fault"), [(4.0, False), (16.0, True)])
def test_a_fault_beyond_the_noise_is_one(times, is_fault, tmp_path):
    torch.manual_seed(0)
    reference = nn.Sequential(Shifted(32, 16))
    candidate = copy.deepcopy(reference)
    floor = next(iter(compare_by_noise(tmp_path, reference, candidate, SEQUENCE).pairs[1:])).noise
    candidate[0].by = times * floor
    result = compare_by_noise(tmp_path, reference, candidate, SEQUENCE, tolerance="noise")
    assert result.exit_code == int(is_fault)
