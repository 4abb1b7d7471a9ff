"""Pairing recordings: one shared ReLU against three, Sequential against named, nothing equal in silence."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nndiff
from gradients import with_gradient
from nndiff.recording.record import record
from nndiff.result import Method


class Shared(nn.Module):
    """One ReLU object called three times."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.c(self.relu(self.b(self.relu(self.a(x))))))


class Separate(nn.Module):
    """Three ReLU objects of other names."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))
        self.act1, self.act2, self.act3 = nn.ReLU(), nn.ReLU(), nn.ReLU()

    def forward(self, x):
        return self.act3(self.c(self.act2(self.b(self.act1(self.a(x))))))


def numbered():
    return nn.Sequential(*(each for _ in range(3) for each in (nn.Linear(6, 6), nn.ReLU())))


INPUT = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(3))


def compared(tmp_path, one, other, **options):
    tmp_path.mkdir(exist_ok=True)
    record(one, INPUT, path=tmp_path / "one.nnrec", **options)
    record(other, INPUT, path=tmp_path / "other.nnrec", **options)
    return nndiff.compare(tmp_path / "one.nnrec", tmp_path / "other.nnrec")


def made(kind, seed=0):
    torch.manual_seed(seed)
    return kind()


@pytest.mark.parametrize("kinds", [(Shared, Separate), (Separate, Shared), (Shared, numbered), (numbered, Separate)])
def test_the_same_net_cut_otherwise_is_the_same(tmp_path, kinds):
    result = compared(tmp_path, *(made(kind) for kind in kinds), backward=True)
    assert result.verdict == "identical"
    assert not result.leftovers
    methods = {pair.method for pair in result.pairs}
    assert methods - {Method.NAME}  # some pairs were found by more than their names, and say so
    assert {pair.slot for pair in result.pairs} >= {"output", "grad_output", "param_grad", "model_input", "loss"}


def test_a_fault_is_found_across_other_names(tmp_path):
    broken = made(numbered)
    with torch.no_grad():
        broken[2].weight[0, 0] += 0.5
    result = compared(tmp_path, made(Shared), broken)
    assert result.first_divergence.name == "b:output"
    assert result.first_divergence.candidate_name == "2:output"


class Returns(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.form, self.fc = form, nn.Linear(6, 6)

    def forward(self, x):
        return self.form(self.fc(x))


def test_outputs_in_another_container_still_belong_together(tmp_path):
    plain = made(lambda: Returns(lambda y: y))
    in_dict = made(lambda: Returns(lambda y: {"logits": y}))
    result = compared(tmp_path, plain, in_dict)
    assert result.exit_code == 0
    pairs = {pair.name: (pair.candidate_name, pair.method) for pair in result.pairs}
    assert pairs["(model):output"] == ("(model):output.logits", Method.NAME)


@pytest.mark.parametrize(
    ("form", "cause"),
    [
        (lambda y: y.transpose(0, 2), "permuted"),
        (lambda y: y.permute(1, 2, 0), "permuted"),
        (lambda y: y[None].expand(2, -1, -1, -1), "broadcast"),
    ],
)
def test_what_agrees_after_rearranging_is_said_and_not_called_equal(tmp_path, form, cause):
    result = compared(tmp_path, made(lambda: Returns(lambda y: y)), made(lambda: Returns(form)))
    assert result.exit_code == 1
    assert cause in {finding.cause for finding in result.findings}


def test_swapping_two_layers_of_one_shape_is_a_difference(tmp_path):
    one, other = made(numbered), made(numbered)
    other[0], other[2] = other[2], other[0]
    assert compared(tmp_path, one, other).exit_code == 1


def test_wrapping_a_layer_is_the_same_with_its_gradients(tmp_path):
    plain, wrapped = made(Shared), made(Shared)
    wrapped.b = nn.Sequential(nn.Identity(), wrapped.b)
    result = compared(tmp_path, plain, wrapped, backward=True)
    assert result.exit_code == 0, list(result.leftovers)


class Says(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number, self.fc = number, nn.Linear(6, 6)

    def forward(self, x):
        return {"y": self.fc(x), "count": self.number, "ids": [1, self.number], "text": f"n{self.number}"}


def test_plain_values_in_an_output_are_compared(tmp_path):
    assert compared(tmp_path / "same", made(lambda: Says(3)), made(lambda: Says(3))).verdict == "identical"
    result = compared(tmp_path / "other", made(lambda: Says(3)), made(lambda: Says(4)))
    names = {pair.name for pair in result.worst()}
    assert names == {"(model):output.count", "(model):output.ids.1", "(model):output.text"}


def test_the_order_of_keys_in_an_output_is_no_difference(tmp_path):
    one = made(lambda: Returns(lambda y: {"a": y, "b": 2 * y}))
    other = made(lambda: Returns(lambda y: {"b": 2 * y, "a": y}))
    assert compared(tmp_path, one, other, backward=True).exit_code == 0


class Faint(nn.Module):
    """A layer whose gradients are a millionth of the others'."""

    def __init__(self, flip):
        super().__init__()
        self.a, self.b, self.flip = nn.Linear(6, 6), nn.Linear(6, 6), flip

    def forward(self, x):
        hidden = self.a(x)
        return self.b(x + 1e-6 * (with_gradient(hidden, torch.neg) if self.flip else hidden))


def test_a_wrong_gradient_is_found_where_gradients_are_faint(tmp_path):
    result = compared(tmp_path, made(lambda: Faint(False)), made(lambda: Faint(True)), backward=True)
    assert result.exit_code == 1
    assert "a.weight:param_grad" in {pair.name for pair in result.worst()}


def test_a_pass_that_was_not_recorded_is_no_difference(tmp_path):
    record(made(Shared), INPUT, path=tmp_path / "forward.nnrec")
    record(made(Shared), INPUT, path=tmp_path / "both.nnrec", backward=True, params=True)
    assert nndiff.compare(tmp_path / "forward.nnrec", tmp_path / "both.nnrec").exit_code == 0
