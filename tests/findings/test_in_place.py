"""What one side writes over in place and uses again is named; in place without harm is not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch import nn

import nndiff
from nndiff import compare

INPUT = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(3))


class Block(nn.Module):
    def __init__(self, in_place):
        super().__init__()
        self.a, self.b, self.c, self.relu = (nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.ReLU(in_place))
        self._relu = F.relu_ if in_place else F.relu


class Residual(Block):
    """A function in place, then the residual."""

    def forward(self, x):
        x = self.a(x)
        return x + self.b(self._relu(x))


class OfInput(Block):
    """The same to what the block is given."""

    def forward(self, x):
        return x + self.b(self._relu(x))


class Branches(Block):
    """A module in place, and another that takes what it was given."""

    def forward(self, x):
        x = self.a(x)
        return self.b(self.relu(x)) + self.c(x)


class Masked(Block):
    """A part of it is written to."""

    def forward(self, x):
        x = self.a(x)
        masked = x if self.relu.inplace else x.clone()
        masked[:, 0] = 0.0
        return x + self.b(masked)


class PostNorm(Block):
    """A norm after the residual."""

    def __init__(self, in_place):
        super().__init__(in_place)
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        x = self.a(x)
        return self.norm(x + self.b(self._relu(x)))


class Product(Block):
    """A gate of it: what comes out is no sum."""

    def forward(self, x):
        x = self.a(x)
        return self.b(self._relu(x)) * torch.sigmoid(x)


class Harmless(Block):
    """Nobody uses it again."""

    def forward(self, x):
        return x + self.b(self.relu(self.a(x)))


class Net(nn.Module):
    def __init__(self, block, in_place):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.block, self.head = nn.Linear(8, 8), block(in_place), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.block(self.stem(x)))


def told(result):
    return [finding for finding in result.findings if finding.cause == "in-place"]


CASES = {
    Residual: ("block.a:output", "before block.b takes it", "block:output is off by exactly that"),
    OfInput: ("stem:output", "before block.b takes it", "block:output is off by exactly that"),
    Branches: ("block.a:output", "by block.relu", "block.c takes it after that"),
    Masked: ("block.a:output", "before block.b takes it", "block:output is off by exactly that"),
    PostNorm: ("block.a:output", "before block.b takes it", "block.norm:input.0 is off by exactly that"),
    Product: ("block.a:output", "before block.b takes it", "code that uses it again gets other values"),
}


@pytest.mark.parametrize("keep", ["full", "stats"])
@pytest.mark.parametrize("flipped", [False, True], ids=["candidate", "reference"])
@pytest.mark.parametrize("block", CASES)
def test_what_is_written_over_and_used_again_is_named(block, flipped, keep, tmp_path):
    sides = [
        nndiff.record(Net(block, in_place), INPUT, path=tmp_path / str(in_place), keep=keep)
        for in_place in (False, True)
    ]
    result = compare(*(sides[::-1] if flipped else sides))
    assert result.exit_code == 1
    assert result.first_divergence.module.startswith("block")
    if keep == "stats" and block is PostNorm:
        return  # nothing that was kept tells
    (finding,) = told(result)
    where, how, proof = CASES[block]
    assert finding.where == (where,)
    assert how in finding.evidence
    if keep == "full":
        assert proof in finding.evidence
        assert finding.confidence == (0.4 if block is Product else 0.9)
    assert f"in the {'reference' if flipped else 'candidate'} only" in finding.evidence


@pytest.mark.parametrize("in_place", [False, True])
def test_what_both_write_over_is_not(in_place):
    result = compare(Net(Residual, in_place), Net(Residual, in_place), inputs=INPUT)
    assert result.exit_code == 0
    assert not told(result)


def test_in_place_without_harm_is_not_blamed():
    assert not compare(Net(Harmless, False), Net(Harmless, True), inputs=INPUT).findings
    broken = Net(Harmless, True)
    with torch.no_grad():
        broken.block.b.weight.mul_(1.1)
    result = compare(Net(Harmless, False), broken, inputs=INPUT)
    assert result.first_divergence.module == "block.b"
    assert not told(result)


def test_several_that_may_be_used_again_are_told_once_and_with_doubt():
    broken = Net(Harmless, True)
    broken.block.forward = lambda x, plain=broken.block.forward: plain(broken.block.relu(broken.block.c(x))) * 1.1
    right = Net(Harmless, False)
    right.block.forward = lambda x, plain=right.block.forward: plain(right.block.relu(right.block.c(x)))
    (finding,) = told(compare(right, broken, inputs=INPUT))
    assert finding.where == ("block.c:output", "block.a:output")
    assert finding.confidence < 0.5


class Halves(nn.Module):
    """Both lie in one memory; only the other one is written to."""

    def __init__(self, in_place):
        super().__init__()
        torch.manual_seed(0)
        self.both, self.a, self.b = nn.Linear(8, 16), nn.Identity(), nn.Linear(8, 8)
        self._in_place = in_place

    def forward(self, x):
        one, other = self.both(x).chunk(2, -1)
        one = self.a(one)
        if self._in_place:
            other.relu_()
        return one + self.b(one) + (0 if self._in_place else 1)


def test_memory_beside_it_does_not_matter():
    result = compare(Halves(False), Halves(True), inputs=INPUT)
    assert result.exit_code == 1
    assert not told(result)


def test_recording_says_what_was_written_over(tmp_path):
    recording = nndiff.record(Net(Branches, True), INPUT, path=tmp_path / "a.nnrec")
    tensors = recording.source().tensors
    assert tensors["block.relu:output"].trace.over == tensors["block.a:output"].trace.order
    assert [name for name, tensor in tensors.items() if tensor.trace.over is not None] == ["block.relu:output"]
