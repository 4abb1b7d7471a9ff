"""A network written otherwise and with a fault: what is only written otherwise does not hide it, nor is it blamed."""

from __future__ import annotations

import types

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch import nn

import nndiff
from gradients import slightly

INPUT = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(3))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        q, k, v = (each(x).unflatten(-1, (2, 4)).transpose(1, 2) for each in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.attn, self.n2 = nn.LayerNorm(8), Attention(), nn.LayerNorm(8)
        self.up, self.act, self.down = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.down(self.act(self.up(self.n2(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.head = nn.Linear(8, 8), nn.Linear(8, 5)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        x = self.emb(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def net():
    torch.manual_seed(0)
    made = Net().eval()
    with torch.no_grad():
        for each in made.parameters():
            each.add_(0.2 * torch.randn_like(each))  # norms of a fresh model are all alike
    return made


class Torch(nn.Module):
    """The same attention by torch's own module, whose projections are no modules."""

    def __init__(self, plain):
        super().__init__()
        self.mha = nn.MultiheadAttention(8, 2, batch_first=True)
        parts = plain.q, plain.k, plain.v
        with torch.no_grad():
            self.mha.in_proj_weight.copy_(torch.cat([each.weight for each in parts]))
            self.mha.in_proj_bias.copy_(torch.cat([each.bias for each in parts]))
        self.mha.out_proj.load_state_dict(plain.o.state_dict())

    def forward(self, x):
        return self.mha(x, x, x, need_weights=False)[0]


class Convolution(nn.Module):
    def __init__(self, plain):
        super().__init__()
        self.conv = nn.Conv1d(8, 16, 1)
        self.conv.load_state_dict({"weight": plain.weight[:, :, None], "bias": plain.bias})

    def forward(self, x):
        return self.conv(x.transpose(1, 2)).transpose(1, 2)


class Kernel(nn.Module):
    """A linear layer whose weight lies the other way, under another name."""

    def __init__(self, plain):
        super().__init__()
        self.kernel = nn.Parameter(plain.weight.detach().t().contiguous())
        self.bias = nn.Parameter(plain.bias.detach().clone())

    def forward(self, x):
        return x @ self.kernel + self.bias


def torch_attention(made):
    for block in made.blocks:
        block.attn = Torch(block.attn).eval()


def padded(made):
    for block in made.blocks:
        block.up = nn.Sequential(nn.Identity(), block.up, nn.Dropout(0.5)).eval()


def convolution(made):
    for block in made.blocks:
        block.up = Convolution(block.up)


def kernel(made):
    for block in made.blocks:
        block.up, block.down, block.attn.o = Kernel(block.up), Kernel(block.down), Kernel(block.attn.o)


def time_first(made):
    def forward(self, x):
        x = self.emb(x.transpose(0, 1))
        for block in self.blocks:
            x = x + block.attn(block.n1(x).transpose(0, 1)).transpose(0, 1)
            x = x + block.down(block.act(block.up(block.n2(x))))
        return self.head(x).transpose(0, 1)

    made.forward = types.MethodType(forward, made)


def norm(block):
    with torch.no_grad():
        block.n2.weight.mul_(1.05)


def up(block):
    weight = next(each for each in block.up.parameters() if each.ndim > 1)
    with torch.no_grad():
        weight.mul_(1.05)


def gradient_of_norm(block):
    block.n2.weight.register_hook(lambda grad: grad * 1.3)


def backward_of_activation(block):
    plain = block.act.forward
    block.act.forward = lambda x: plain(slightly(x))


REWRITES = (torch_attention, padded, convolution, kernel, time_first)
FAULTS = {
    norm: "blocks.1.n2",
    up: "blocks.1.up",
    gradient_of_norm: "blocks.1.n2",
    backward_of_activation: "blocks.1.act",
}


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("rewrite", REWRITES, ids=lambda rewrite: rewrite.__name__)
def test_a_fault_in_a_rewrite_is_found_at_its_place(rewrite, fault, flipped):
    other = net()
    rewrite(other)
    fault(other.blocks[1])
    models = [net(), other]
    result = nndiff.compare(*(models[::-1] if flipped else models), inputs=INPUT, backward=True)
    assert result.exit_code == 1
    wrapped = [f"{FAULTS[fault]}.1"] if rewrite is padded else []  # the layer itself, inside of what is around it
    assert result.first_divergence.module in (FAULTS[fault], *wrapped)


class Slice(nn.Module):
    """Take one place of many, then go on; or another, or the same turned."""

    def __init__(self, view):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.dense = nn.Linear(8, 6), nn.Linear(6, 6)
        self.view = [view]

    def forward(self, x):
        return torch.tanh(self.dense(self.view[0](self.stem(x))))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [(lambda x: x[:, 0], lambda x: x[:, 1]), (lambda x: x, lambda x: x.transpose(1, 2))],
    ids=["a place", "an axis"],
)
def test_a_wrong_view_between_two_layers_is_not_blamed_on_the_next(right, wrong):
    first = nndiff.compare(Slice(right), Slice(wrong), inputs=INPUT).first_divergence
    assert (first.module, first.after, first.before) == ("", "stem:output", "dense:output")
