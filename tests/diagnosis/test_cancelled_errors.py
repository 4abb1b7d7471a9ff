"""What undoes itself is no fault; what nothing undoes is one, and so are wrong gradients beside a fold."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch import nn
from torch.nn.utils import fuse_conv_bn_eval

import nndiff
from nndiff.findings.causes import Cause


class Scaled(nn.Module):
    """Two layers with a factor between them, which may be a part of the first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.factor = nn.Linear(12, 16), nn.Linear(16, 4), 0.3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.factor * self.first(x)))


def fold_factor(net: Scaled) -> Scaled:
    with torch.no_grad():
        net.first.weight.mul_(net.factor)
        net.first.bias.mul_(net.factor)
    net.factor = 1.0
    return net


def compare(candidate, backward=False, reference=None):
    x = torch.randn(6, 12, generator=torch.Generator().manual_seed(1))
    return nndiff.compare(reference or Scaled(), candidate, inputs=x, backward=backward)


def test_a_factor_that_moved_is_no_fault():
    result = compare(fold_factor(Scaled()))
    assert not result.own_errors
    assert [(finding.cause, finding.harmless) for finding in result.findings] == [(Cause.CANCELS_OUT, True)]
    assert result.findings[0].where == ("first:output",)


def test_a_factor_that_is_not_undone_is_a_fault():
    candidate = fold_factor(Scaled())
    candidate.factor = 0.9
    result = compare(candidate)
    assert Cause.CANCELS_OUT not in {finding.cause for finding in result.findings}
    assert "first" in {error.module for error in result.own_errors}


def test_a_layer_without_effect_is_not_undone():
    reference, candidate = Scaled(), Scaled()
    for net in (reference, candidate):
        net.second.weight.data.zero_()  # whatever the first layer makes
    candidate.first.weight.data.mul_(2)
    result = compare(candidate, reference=reference)
    assert [error.module for error in result.own_errors] == ["first"]
    assert not any(finding.harmless for finding in result.findings if finding.cause == Cause.CANCELS_OUT)


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def make_folded() -> tuple[nn.Sequential, nn.Sequential]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3)).eval()
    nn.init.uniform_(net[1].weight, 0.5, 2)
    nn.init.normal_(net[1].running_mean)
    folded = copy.deepcopy(net)
    folded[0], folded[1] = fuse_conv_bn_eval(folded[0], folded[1]), nn.Identity()
    return net, folded


def test_gradients_of_a_folded_layer_follow_the_chain_rule():
    x = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(1))
    reference, candidate = make_folded()
    result = nndiff.compare(reference, candidate, inputs=x, backward=True)
    assert not result.own_errors
    assert all(finding.harmless for finding in result.findings)

    plain = candidate[0]
    plain.forward = lambda x: F.conv2d(x, _Doubled.apply(plain.weight), plain.bias)
    result = nndiff.compare(reference, candidate, inputs=x, backward=True)
    assert [error.name for error in result.own_errors] == ["0.weight:param_grad"]
