"""Rewrites that cancel out inside a module are harmless; the same form that does not cancel out is a difference."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import nndiff

WIDTH, HEADS, SIZE = 24, 4, 6


class Attention(nn.Module):
    """Attention with fewer heads for keys and values, rotated in halves or in neighbours."""

    def __init__(self, groups: int = 2) -> None:
        super().__init__()
        self.groups, self.rotates_neighbours = groups, False
        self.q_proj = nn.Linear(WIDTH, HEADS * SIZE)
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, HEADS // groups * SIZE) for _ in range(2))
        self.o_proj = nn.Linear(HEADS * SIZE, WIDTH)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.outer(torch.arange(x.shape[-2]).float(), 0.3 ** torch.arange(SIZE // 2).float())
        first, second = (x[..., ::2], x[..., 1::2]) if self.rotates_neighbours else x.chunk(2, -1)
        turned = first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()
        return torch.stack(turned, -1).flatten(-2) if self.rotates_neighbours else torch.cat(turned, -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (-1, SIZE)).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        k, v = (part.repeat_interleave(self.groups, 1) for part in (k, v))
        weights = (self.rotate(q) @ self.rotate(k).mT * SIZE**-0.5).softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.attention, self.after = nn.Linear(WIDTH, WIDTH), Attention(), nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(torch.tanh(self.attention(self.before(x))))


class Convolutions(nn.Module):
    """Convolutions, each with a batch norm behind it unless that is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3, 8, 3, bias=False), nn.Conv2d(8, 8, 3)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(8)])
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, conv in enumerate(self.convs):
            x = conv(x)
            if self.norms is not None:
                x = self.norms[number](x)
            x = torch.relu(x)
        return self.head(x.mean((2, 3)))


@pytest.fixture
def blocks() -> tuple[Block, Block]:
    torch.manual_seed(0)
    block = Block().eval()
    return block, copy.deepcopy(block)


@pytest.fixture
def nets() -> tuple[Convolutions, Convolutions]:
    torch.manual_seed(0)
    net = Convolutions()
    for norm in net.norms:
        for tensor in (norm.weight.data, norm.bias.data, norm.running_mean):
            tensor.normal_()
        norm.running_var.uniform_(0.05, 2)
    return net.eval(), copy.deepcopy(net).eval()


def compare_blocks(blocks: tuple[Block, Block], **options: object) -> nndiff.Comparison:
    rows = torch.randn(2, 7, WIDTH, generator=torch.Generator().manual_seed(1))
    return nndiff.compare(*blocks, inputs=rows, **{"backward": True, **options})


def compare_nets(nets: tuple[Convolutions, Convolutions], **options: object) -> nndiff.Comparison:
    pictures = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(1))
    return nndiff.compare(*nets, inputs=pictures, **options)


def order_rows(layer: nn.Linear, order: torch.Tensor) -> None:
    layer.weight.data.copy_(layer.weight[order].clone())
    layer.bias.data.copy_(layer.bias[order].clone())


def to_neighbours(heads: int) -> torch.Tensor:
    return torch.arange(heads * SIZE).view(heads, 2, SIZE // 2).transpose(1, 2).flatten()


def expand_heads(layer: nn.Linear, order: list[int]) -> nn.Linear:
    wide = nn.Linear(WIDTH, HEADS * SIZE)
    wide.weight.data.copy_(layer.weight.view(-1, SIZE, WIDTH)[order].flatten(0, 1))
    wide.bias.data.copy_(layer.bias.view(-1, SIZE)[order].flatten())
    return wide


def fold_norms(net: Convolutions, eps: float = 1e-5) -> None:
    for number, norm in enumerate(net.norms):
        norm.eps = eps
        net.convs[number] = torch.nn.utils.fuse_conv_bn_eval(net.convs[number], norm)


def list_harmless(result: nndiff.Comparison) -> list[str]:
    assert all(finding.harmless for finding in result.findings)
    return [finding.cause for finding in result.findings]


@pytest.mark.parametrize("params", [False, True])
def test_rope_in_neighbours_with_its_weights(blocks, params):
    attention = blocks[1].attention
    order_rows(attention.q_proj, to_neighbours(4))
    order_rows(attention.k_proj, to_neighbours(2))
    attention.rotates_neighbours = True
    result = compare_blocks(blocks, params=params)
    assert result.verdict in ("close", "identical")
    assert "rope-layout" in list_harmless(result)


def test_weights_for_neighbours_in_a_network_that_rotates_halves(blocks):
    attention = blocks[1].attention
    order_rows(attention.q_proj, to_neighbours(4))
    order_rows(attention.k_proj, to_neighbours(2))
    result = compare_blocks(blocks)
    assert result.verdict == "different"
    assert not all(finding.harmless for finding in result.findings)


def test_queries_alone_in_another_order(blocks):
    order_rows(blocks[1].attention.q_proj, to_neighbours(4))
    result = compare_blocks(blocks)
    assert result.verdict == "different"
    assert {error.module for error in result.own_errors} == {"attention.q_proj"}


def test_rows_of_one_head_exchanged(blocks):
    order = torch.arange(HEADS * SIZE)
    order[[0, 1]] = order[[1, 0]]
    order_rows(blocks[1].attention.q_proj, order)
    assert compare_blocks(blocks).verdict == "different"


def test_channels_without_a_structure_that_cancel_out(blocks):
    order = torch.randperm(WIDTH, generator=torch.Generator().manual_seed(2))
    order_rows(blocks[1].before, order)
    attention = blocks[1].attention
    for layer in (attention.q_proj, attention.k_proj, attention.v_proj):
        layer.weight.data.copy_(layer.weight[:, order].clone())
    result = compare_blocks(blocks)
    assert result.verdict in ("close", "identical")
    assert list_harmless(result) == ["rows-permuted"]


@pytest.mark.parametrize("options", [{"backward": True}, {"backward": True, "params": True}])
def test_key_and_value_heads_stored_for_every_query_head(blocks, options):
    attention = blocks[1].attention
    attention.k_proj, attention.v_proj = (
        expand_heads(layer, [0, 0, 1, 1]) for layer in (attention.k_proj, attention.v_proj)
    )
    attention.groups = 1
    result = compare_blocks(blocks, **options)
    assert result.verdict in ("close", "identical")
    assert "broadcast" in list_harmless(result)


def test_key_and_value_heads_tiled_instead_of_repeated(blocks):
    attention = blocks[1].attention
    attention.k_proj, attention.v_proj = (
        expand_heads(layer, [0, 1, 0, 1]) for layer in (attention.k_proj, attention.v_proj)
    )
    attention.groups = 1
    assert compare_blocks(blocks).verdict == "different"


@pytest.mark.parametrize("params", [False, True])
@pytest.mark.parametrize("is_left_out", [False, True])
@pytest.mark.parametrize("is_turned", [False, True])
def test_batch_norms_folded(nets, params, is_left_out, is_turned):
    fold_norms(nets[1])
    nets[1].norms = None if is_left_out else nn.ModuleList([nn.Identity(), nn.Identity()])
    result = compare_nets(nets[::-1] if is_turned else nets, params=params)
    assert result.verdict == "close"
    assert set(list_harmless(result)) == {"batch-norm-folded"}


def test_a_batch_norm_folded_with_another_eps(nets):
    fold_norms(nets[1], eps=1e-3)
    nets[1].norms = nn.ModuleList([nn.Identity(), nn.Identity()])
    for params in (False, True):
        result = compare_nets(nets, params=params)
        assert result.verdict == "different"
        assert not all(finding.harmless for finding in result.findings)


def test_a_batch_norm_folded_and_still_there(nets):
    nets[1].convs[0] = torch.nn.utils.fuse_conv_bn_eval(nets[1].convs[0], nets[1].norms[0])
    assert compare_nets(nets).verdict == "different"


def test_a_fault_beside_folded_norms_is_the_only_one(nets):
    fold_norms(nets[1])
    nets[1].norms = nn.ModuleList([nn.Identity(), nn.Identity()])
    nets[1].head.weight.data[0] += 0.1
    result = compare_nets(nets)
    assert result.verdict == "different"
    assert {error.module for error in result.own_errors} == {"head"}


def test_a_fault_beside_an_order_that_cancels_out_is_the_only_one(blocks):
    attention = blocks[1].attention
    order_rows(attention.q_proj, to_neighbours(4))
    order_rows(attention.k_proj, to_neighbours(2))
    attention.rotates_neighbours = True
    blocks[1].after.weight.data[0] += 0.1
    result = compare_blocks(blocks, backward=False)
    assert {error.module for error in result.own_errors} == {"after"}
