"""The noise floor knows the kernels of another memory layout, and leaves the model as it was."""

from __future__ import annotations

import torch
from torch import nn

import nndiff
from nndiff.recording.capture.perturbation import weights_in_channels_last


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))


def test_weights_are_laid_out_and_put_back():
    net = make_net()
    shared = nn.Parameter(torch.randn(4, 8, 3, 3)[1:])  # part of a larger memory
    net.register_parameter("shared", shared)
    before = {name: (weight.data_ptr(), weight.stride(), weight.clone()) for name, weight in net.named_parameters()}
    with weights_in_channels_last(net):
        assert net[0].weight.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(net[0].weight, before["0.weight"][2])
        assert shared.stride() == before["shared"][1]
    for name, weight in net.named_parameters():
        assert (weight.data_ptr(), weight.stride()) == before[name][:2]
        assert torch.equal(weight, before[name][2])


def test_a_model_that_takes_no_other_layout_has_its_floor(tmp_path):
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x).view(-1)  # fails on what is not contiguous

    recording = nndiff.record(Viewing().eval(), torch.randn(2, 3, 9, 9), path=tmp_path / "a.nnrec", noise=2)
    floors = {name: tensor.trace.noise for name, tensor in recording.source().tensors.items()}
    assert 0 < floors["(model):output"] < 1e-5


def test_gradients_of_another_layout_are_within_the_floor():
    x = torch.randn(8, 3, 40, 40, generator=torch.Generator().manual_seed(1))
    reference, candidate = make_net().train(), make_net().train().to(memory_format=torch.channels_last)
    result = nndiff.compare(reference, candidate, inputs=x, backward=True, noise=True)
    assert result.verdict in ("identical", "close")
