"""A module called for a few rows at a time against one called for all: joined, compared, and faults in it found."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nndiff
from nndiff.result import Method

INPUT = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.q, self.k, self.o = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.norm(x)
        return x + self.o(torch.sigmoid(self.q(y)) * self.k(y))


class Net(nn.Module):
    def __init__(self, rows=None):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.block, self.head = nn.Linear(8, 8), Block(), nn.Linear(8, 3)
        self.rows = [rows]

    def forward(self, x):
        x = self.stem(x)
        pieces = x.split(self.rows[0]) if self.rows[0] else [x]
        return self.head(torch.cat([self.block(piece) for piece in pieces]))


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_rows_at_a_time_are_no_bug(rows, backward, flipped):
    models = [Net(), Net(rows)]
    result = nndiff.compare(*(models[::-1] if flipped else models), inputs=INPUT, backward=backward)
    assert result.exit_code == 0, result.first_divergence
    assert {finding.cause for finding in result.findings} == {"fused"}
    joined = {pair.name.partition(":")[0].partition("@")[0] for pair in result.pairs if pair.method is Method.PARTS}
    assert {"block.norm", "block.q", "block.k", "block.o"} <= joined


@pytest.mark.parametrize("backward", [False, True])
def test_a_fault_in_what_is_called_for_a_few_rows_is_found(backward):
    other = Net(2)
    with torch.no_grad():
        other.block.k.weight.mul_(1.05)
    result = nndiff.compare(Net(), other, inputs=INPUT, backward=backward)
    assert result.exit_code == 1
    assert result.first_divergence.module == "block.k"
