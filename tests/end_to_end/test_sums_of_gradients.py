"""The gradient of a bias is a sum over many places: its rounding is no difference, a fault in it is one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import nndiff
from gradients import with_gradient
from nndiff.result import NoteSlug


class Normed(nn.Module):
    off = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(2, 4, 1), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm(with_gradient(self.conv(x), lambda grad: grad + self.off)))


def test_it_is_told_how_such_a_gradient_is_judged():
    torch.manual_seed(0)
    net, other, signal = Normed(), Normed(), torch.randn(4, 2, 256)
    other.load_state_dict(net.state_dict())
    first = {pair.name: pair for pair in nndiff.compare(net, other, inputs=signal, backward=True).pairs}
    other.off = 0.8 * first["conv:grad_output"].atol  # passes at any place, and is far more in a bias of no gradient
    found = {pair.name: pair for pair in nndiff.compare(net, other, inputs=signal, backward=True).pairs}
    bias = found["conv.bias:param_grad"]
    assert found["conv:grad_output"].verdict.passed
    assert bias.verdict.passed
    assert bias.has_note(NoteSlug.SUM_OF_GRADIENTS)
    assert bias.metrics.max_abs == pytest.approx(1024 * other.off, rel=0.01)
    assert first["conv.bias:param_grad"].atol < bias.metrics.max_abs <= bias.atol


class Biased(nn.Conv1d):
    factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = self.bias * 1
        bias.register_hook(lambda grad: grad * self.factor)
        return nn.functional.conv1d(x, self.weight, bias, padding=self.padding)


@pytest.mark.parametrize(("places", "factor"), [(1000, 1.01), (300_000, 1.01), (2_000_000, -1.0)])
def test_a_wrong_gradient_of_a_bias_is_one_however_many_places_it_is_summed_over(places, factor):
    torch.manual_seed(0)
    net = nn.Sequential(Biased(1, 2, 3, padding=1), nn.Tanh(), nn.Conv1d(2, 1, 1))
    other = copy.deepcopy(net)
    other[0].factor = factor
    result = nndiff.compare(net, other, inputs=torch.randn(1, 1, places), backward=True)
    assert result.exit_code == 1
    assert result.first_divergence.name == "0.bias:param_grad"
