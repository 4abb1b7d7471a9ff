"""One layer that does the work of several: found by structure, with all that belongs to it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from aligned import align_models
from nndiff.align import FusedMatch

INPUT = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(3))


class Fused(nn.Module):
    """Query, key and value in one Linear."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(6, 18)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


class Split(nn.Module):
    """Query, key and value apart."""

    def __init__(self, names=("q", "k", "v")):
        super().__init__()
        self.names = names
        for name in names:
            self.add_module(name, nn.Linear(6, 6))

    def forward(self, x):
        q, k, v = (getattr(self, name)(x) for name in self.names)
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def made(kind, *args):
    torch.manual_seed(0)
    return kind(*args)


@pytest.mark.parametrize("whole_is_reference", [False, True])
@pytest.mark.parametrize("names", [("q", "k", "v"), ("order", "name", "part")])
def test_a_fused_layer_is_found_with_its_gradients_and_parameters(tmp_path, whole_is_reference, names):
    models = made(Split, names), made(Fused)
    models = models[::-1] if whole_is_reference else models
    found = align_models(tmp_path, models, INPUT, backward=True)

    def expected(suffix, axis):
        parts = tuple(f"{name}{suffix}" for name in names)
        return FusedMatch(f"qkv{suffix}", parts, whole_is_reference, axis, group="qkv@0", labels=names)

    assert set(found.fused) == {
        expected(":output", 2),
        expected(":grad_output", 2),
        expected(".weight:param_grad", 0),
        expected(".bias:param_grad", 0),
    }
    assert not found.only_reference
    assert not found.only_candidate


class Turned(nn.Module):
    """A linear layer that holds its weight the other way round."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


def test_a_fused_weight_may_lie_the_other_way_round(tmp_path):
    split, fused = made(Split), made(Fused)
    split.q, split.k, split.v = (nn.Linear(6, 4) for _ in range(3))  # of squares shapes do not tell
    fused.qkv = Turned(6, 12)
    found = align_models(tmp_path, (split, fused), INPUT, backward=True)
    turned = {match.whole: (match.axis, match.turned) for match in found.fused}
    assert turned["qkv.weight:param_grad"] == (1, True)
    assert turned["qkv.bias:param_grad"] == (0, False)


class InProjection(nn.Module):
    """Query, key and value in one parameter that no call tells of."""

    def __init__(self):
        super().__init__()
        self.in_proj_weight, self.in_proj_bias = nn.Parameter(torch.randn(18, 6)), nn.Parameter(torch.randn(18))

    def forward(self, x):
        q, k, v = nn.functional.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


class Net(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attn, self.out = attention, nn.Linear(6, 2)

    def forward(self, x):
        return self.out(self.attn(x))


def test_a_parameter_that_holds_several_is_found_by_its_name(tmp_path):
    found = align_models(tmp_path, (Net(made(Split)), Net(made(InProjection))), INPUT, backward=True)
    parts = {match.whole: match.parts for match in found.fused}
    assert parts["attn.in_proj_weight:param_grad"] == tuple(f"attn.{name}.weight:param_grad" for name in "qkv")
    assert {match.group for match in found.fused} == {""}


class Rows(nn.Module):
    """Call a layer for all rows, or for a few at a time."""

    def __init__(self, rows, name="fc"):
        super().__init__()
        self.name, self.rows = name, rows
        self.add_module(name, nn.Linear(6, 6))

    def forward(self, x):
        return torch.cat([getattr(self, self.name)(piece) for piece in x.split(self.rows)])


@pytest.mark.parametrize("name", ["fc", "dense"])
def test_a_module_called_for_a_few_rows_at_a_time_is_found_whatever_its_name(tmp_path, name):
    found = align_models(tmp_path, (made(Rows, 4), made(Rows, 2, name)), INPUT)
    (match,) = found.fused
    assert (match.whole, match.parts) == ("fc:output", (f"{name}:output", f"{name}@1:output"))
    assert (match.axis, match.whole_is_reference) == (0, True)


def test_layers_whose_shapes_do_not_add_up_are_not_fused(tmp_path):
    split = made(Split)
    fused = made(Fused)
    fused.qkv = nn.Linear(6, 21)
    assert align_models(tmp_path, (split, fused), INPUT).fused == ()


def test_what_cannot_be_read_is_not_fused(tmp_path):
    assert align_models(tmp_path, (made(Split), made(Fused)), INPUT, keep="stats").fused == ()
