"""Weights that are not the same are the first thing to know of a layer that diverges, and so is that they are."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import nndiff
from nndiff.relations import load_relation
from nndiff.reports import ReportOptions, get_report
from nndiff.result import WeightsAtSite
from nndiff.result_json import load

INPUT = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))


class Scaling(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.scale = nn.Linear(6, 6), nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.inner(x) * self.scale


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.BatchNorm1d(6), Scaling(), nn.Linear(6, 6, bias=False)).eval()


def spoilt(name, by=0.25):
    made = model()
    with torch.no_grad():
        dict(made.state_dict(keep_vars=True))[name].add_(by)
    return made


def report(result):
    return get_report("terminal").render(result, ReportOptions(width=120, color=False))


def causes(result):
    return [finding.cause for finding in result.findings]


FAULTS = {
    "0.weight": "0:output",
    "0.bias": "0:output",
    "2.running_mean": "2:output",
    "2.weight": "2:output",
    "3.inner.weight": "3.inner:output",
    "3.scale": "3:output",
    "4.weight": "4:output",
}


@pytest.mark.usefixtures("without_experiments")
@pytest.mark.parametrize("name", FAULTS)
def test_a_weight_that_differs_is_named_where_the_runs_part(name):
    result = nndiff.compare(model(), spoilt(name), inputs=INPUT)
    assert result.first_divergence.name == FAULTS[name]
    assert result.first_divergence.weights.differing == (name,)
    (found,) = [finding for finding in result.findings if finding.cause == "weights-differ"]
    assert found.where == (name,)
    assert f"differ from the start: {name}" in report(result)


@pytest.mark.usefixtures("without_experiments")
def test_all_weights_that_differ_are_counted():
    torch.manual_seed(7)
    other = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.BatchNorm1d(6), Scaling(), nn.Linear(6, 6, bias=False)).eval()
    (found,) = [
        each for each in nndiff.compare(model(), other, inputs=INPUT).findings if each.cause == "weights-differ"
    ]
    assert found.where == ("0.weight", "0.bias")
    # batch norms begin alike, and so does what only counts
    assert "5 of 10 tensors differ" in found.evidence


@pytest.mark.parametrize("backward", [False, True])
def test_weights_that_are_the_same_are_said_to_be(backward):
    other = model()
    other[2].eps = 0.1
    result = nndiff.compare(model(), other, inputs=INPUT, backward=backward)
    assert result.first_divergence.name == "2:output"
    assert result.first_divergence.weights == WeightsAtSite(common=4)
    assert "weights-differ" not in causes(result)
    assert "equal on both sides" in report(result)


@pytest.mark.usefixtures("without_experiments")
@pytest.mark.parametrize("lacking", [0, 1])
def test_a_bias_that_is_not_there_is_told_and_not_as_a_gradient_that_is_lost(lacking):
    torch.manual_seed(0)
    sides = [nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)) for _ in range(2)]
    sides[1].load_state_dict(sides[0].state_dict())
    sides[lacking][2].bias = None
    result = nndiff.compare(*sides, inputs=INPUT, backward=True)
    assert result.first_divergence.name == "2:output"
    (found,) = result.findings
    assert (found.cause, found.where) == ("weights-differ", ("2.bias",))
    side = ("reference", "candidate")[1 - lacking]
    assert f"only the {side} has 2.bias" in found.evidence
    assert f"only in the {side}: 2.bias" in report(result)


def test_nothing_is_said_of_a_layer_without_weights():
    other = model()
    other[1] = nn.GELU("tanh")
    result = nndiff.compare(model(), other, inputs=INPUT)
    assert result.first_divergence.name == "1:output"
    assert result.first_divergence.weights is None


def test_a_layer_inside_that_agrees_is_not_blamed_for_weights_that_are_nearly_the_same():
    """A change below the tolerance inside a module, and a real one beside it."""
    other = spoilt("3.scale")
    with torch.no_grad():
        other[3].inner.bias.add_(1e-8)
    result = nndiff.compare(model(), other, inputs=INPUT)
    assert result.first_divergence.weights.differing == ("3.scale",)


def test_weights_of_another_type_are_not_said_to_differ(tmp_path):
    for name, made, inputs in (("a", model(), INPUT), ("b", model().bfloat16(), INPUT.bfloat16())):
        nndiff.record(made, inputs, path=tmp_path / f"{name}.nnrec")
    result = nndiff.compare(tmp_path / "a.nnrec", tmp_path / "b.nnrec")
    assert result.exit_code == 1
    assert "weights-differ" not in causes(result)


def test_a_saved_result_still_tells_it(tmp_path):
    nndiff.compare(model(), spoilt("0.weight"), inputs=INPUT).save(tmp_path / "r.json")
    again = load(tmp_path / "r.json", load_relation)
    assert "differ from the start: 0.weight" in report(again)
    assert again.first_divergence.weights.differing == ("0.weight",)


def test_tied_weights_are_told_under_both_names_and_read_by_no_torch(tmp_path):
    made = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    made[1].weight = made[0].weight
    nndiff.record(made, INPUT, path=tmp_path / "a.nnrec")
    held = json.loads((tmp_path / "a.nnrec" / "manifest.json").read_text())["meta"]["held"]
    assert held["0.weight"] == held["1.weight"]
    assert held["0.weight"]["shape"] == [6, 6]
    assert set(held) == {"0.weight", "0.bias", "1.weight", "1.bias"}


@pytest.mark.parametrize("held", [None, [], "x", {"0.weight": 1}, {"0.weight": {"dtype": 1}},
                                  {"0.weight": {"dtype": "float32", "shape": ["a"], "digest": "b"}}])  # fmt: skip
def test_what_is_told_of_weights_may_be_anything(held, tmp_path):
    for name, made in (("a", model()), ("b", spoilt("0.weight"))):
        nndiff.record(made, INPUT, path=tmp_path / f"{name}.nnrec")
    manifest = tmp_path / "b.nnrec" / "manifest.json"
    told = json.loads(manifest.read_text())
    told["meta"]["held"] = held
    manifest.write_text(json.dumps(told))
    result = nndiff.compare(tmp_path / "a.nnrec", tmp_path / "b.nnrec")
    assert result.first_divergence.name == "0:output"
    assert "weights-differ" not in causes(result)


class Later(nn.Module):
    def __init__(self):
        super().__init__()
        self.lazy = nn.LazyLinear(3)
        self.register_buffer("nothing", torch.zeros(0))

    def forward(self, x):
        return self.lazy(x)


def test_what_is_not_there_yet_is_left_out(tmp_path):
    nndiff.record(Later(), INPUT, path=tmp_path / "a.nnrec")
    assert set(json.loads((tmp_path / "a.nnrec" / "manifest.json").read_text())["meta"]["held"]) == {"nothing"}


class Turned(nn.Module):
    """A linear layer that holds its weight the other way round."""

    def __init__(self, layer, bias=True):
        super().__init__()
        self.weight = nn.Parameter(layer.weight.detach().T.contiguous())
        self.bias = nn.Parameter(layer.bias.detach().clone()) if bias else None

    def forward(self, x):
        made = x @ self.weight
        return made if self.bias is None else made + self.bias


@pytest.mark.parametrize("options", [{}, {"bias": False}])
def test_of_a_weight_that_lies_otherwise_nothing_is_said(options):
    one = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    other = nn.Sequential(Turned(one[0], **options), nn.Tanh())
    with torch.no_grad():
        other[0].weight[0, 0] += 1.0
    result = nndiff.compare(one, other, inputs=INPUT)
    assert result.first_divergence.name == "0:output"
    assert result.first_divergence.weights is None
    assert "weights-differ" not in causes(result)


class Aside(nn.Module):
    """Holds a layer that it never calls."""

    def __init__(self, scale):
        super().__init__()
        self.one, self.never, self.other, self.scale = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6), scale

    def forward(self, x):
        return self.other(self.one(x) * self.scale)


def test_what_is_never_called_is_not_why_a_module_differs():
    made = [nn.Sequential(Aside(scale)) for scale in (1.0, 1.5)]
    made[1].load_state_dict(made[0].state_dict())
    with torch.no_grad():
        made[1][0].never.weight.add_(1.0)
    result = nndiff.compare(*made, inputs=INPUT, backward=True)
    assert result.first_divergence.weights.differing == ()
    assert "weights-differ" not in causes(result)
    (maybe,) = [
        finding for finding in nndiff.compare(*made, inputs=INPUT).findings if finding.cause == "weights-differ"
    ]
    assert maybe.confidence == 0.5  # without gradients nobody knows that it is not used
