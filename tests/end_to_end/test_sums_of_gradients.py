"""The gradient of a bias is a sum over many places: its rounding is no difference, a fault in it is one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from noisy import compare_by_noise


class Normed(nn.Module):
    """A bias in front of batch norm: its gradient is zero but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(2, 4, 1), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm(self.conv(x)))


class OtherWay(Normed):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.einsum("oi,bit->bot", self.conv.weight[..., 0], x) + self.conv.bias[:, None]
        return torch.tanh(self.norm(hidden))


def test_a_sum_that_is_zero_but_for_rounding_is_judged_by_its_noise(tmp_path):
    torch.manual_seed(0)
    net, other, signal = Normed(), OtherWay(), torch.randn(4, 2, 4096)
    other.load_state_dict(net.state_dict())
    options = {"backward": True, "loss": lambda out: out.square().sum()}
    result = compare_by_noise(tmp_path, net, other, signal, **options)
    (bias,) = [pair for pair in result.pairs if pair.name == "conv.bias:param_grad"]
    assert bias.verdict.passed
    assert bias.times_noise < 8
    assert bias.noise > 0.1 * bias.metrics.ref_max  # nothing but noise


class Biased(nn.Conv1d):
    factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = self.bias * 1
        bias.register_hook(lambda grad: grad * self.factor)
        return nn.functional.conv1d(x, self.weight, bias, padding=self.padding)


@pytest.mark.parametrize(("places", "factor"), [(1000, 1.01), (300_000, 1.01), (2_000_000, -1.0)])
def test_a_wrong_gradient_of_a_bias_is_one_however_many_places_it_is_summed_over(places, factor, tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(Biased(1, 2, 3, padding=1), nn.Tanh(), nn.Conv1d(2, 1, 1))
    other = copy.deepcopy(net)
    other[0].factor = factor
    result = compare_by_noise(tmp_path, net, other, torch.randn(1, 1, places), backward=True)
    assert result.exit_code == 1
    assert result.first_divergence.name == "0.bias:param_grad"
