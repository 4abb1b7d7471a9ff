"""Models compared where they are: nndiff.compare(model_a, model_b, inputs=...) and nndiff.assert_same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import nndiff
from nndiff.errors import UsageError


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2)).eval()


INPUT = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def test_a_net_is_identical_to_its_copy():
    result = nndiff.compare(net(), net(), inputs=INPUT, backward=True)
    assert (result.kind, result.verdict) == ("recording", "identical")
    nndiff.assert_same(net(), net(), INPUT)


def test_equal_weights_do_not_make_equal_nets():
    other = net()
    other[2] = nn.GELU(approximate="tanh").eval()
    assert nndiff.compare(net(), other).verdict == "identical"
    result = nndiff.compare(net(), other, inputs=INPUT)
    assert result.verdict == "different"
    assert result.first_divergence.module == "2"
    assert result.first_divergence.settings == {"approximate": ("none", "tanh")}


def test_assert_same_raises_with_the_report():
    other = net()
    with torch.no_grad():
        other[3].bias += 1
    with pytest.raises(AssertionError, match=r"different(.|\n)*3:output"):
        nndiff.assert_same(net(), other, INPUT)
    nndiff.assert_same(net(), other, INPUT, atol=2.0)


def test_models_are_left_as_they_were():
    model = net().train()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    nndiff.compare(model, net(), inputs=INPUT, backward=True, mode="eval")
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_tiny_gradients_do_not_pass_because_they_are_tiny(tmp_path):
    for name, factor in (("a", 1e-9), ("b", 1.1e-9), ("noise", 1.000001e-9)):
        nndiff.record(net(), INPUT, path=tmp_path / name, backward=True, loss=lambda y, f=factor: y.sum() * f)
    result = nndiff.compare(tmp_path / "a", tmp_path / "b")
    assert all(pair.verdict.passed for pair in result.pairs if pair.slot == "output")
    assert not any(pair.verdict.passed for pair in result.pairs if pair.slot == "param_grad")
    assert "gradients-scaled" in {finding.cause for finding in result.findings}
    assert nndiff.compare(tmp_path / "a", tmp_path / "noise").exit_code == 0


def test_options_about_running_need_inputs():
    with pytest.raises(UsageError, match="backward is about running models: give inputs"):
        nndiff.compare(net(), net(), backward=True)
    with pytest.raises(UsageError, match="params and depth are about running models: give inputs"):
        nndiff.compare(net(), net(), params=True, depth=0)


def test_what_is_recorded_of_models_can_be_chosen(tmp_path):
    nested = nn.Sequential(net(), nn.Linear(2, 2))

    def names(*sides, **options):
        return [pair.name for pair in nndiff.compare(*sides, **options).pairs if pair.slot != "model_input"]

    assert names(nested, nested, inputs=INPUT, depth=0) == ["(model):output"]
    assert names(nested, nested, inputs=INPUT, depth=1) == ["0:output", "1:output", "(model):output"]
    assert "0:output" not in names(nested, nested, inputs=INPUT, leaves=True)
    kept = names(nested, nested, inputs=INPUT, params=True, inputs_kept=True, leaves=True)
    assert {"1.weight:param", "1:input.0"} <= set(kept)
    made = nndiff.record(nested, INPUT, path=tmp_path / "a.nnrec", params=True)
    assert "1.weight:param" in names(made, nested)
    assert "0.0:output" not in names(made, nested, depth=1)


ARRAYS = {"a.w": np.ones(3, np.float32), "b": np.zeros(2, np.float32)}


def test_an_unknown_keyword_names_compare():
    with pytest.raises(TypeError, match=r"compare\(\) got an unexpected keyword argument 'attol'"):
        nndiff.compare(ARRAYS, ARRAYS, attol=1)


def test_one_rule_need_not_be_a_list():
    assert [pair.name for pair in nndiff.compare(ARRAYS, ARRAYS, include="a").pairs] == ["a.w"]
    assert [pair.name for pair in nndiff.compare(ARRAYS, ARRAYS, exclude="a").pairs] == ["b"]
    assert nndiff.compare(ARRAYS, ARRAYS, group="a=a.*").groups == {"a": "a.*"}
    assert nndiff.compare(ARRAYS, ARRAYS, group={"a": "a.*"}).groups == {"a": "a.*"}
    assert nndiff.compare(ARRAYS, {"x.w": ARRAYS["a.w"], "b": ARRAYS["b"]}, rename="^x=>a").verdict == "identical"


def test_a_rename_may_be_a_tuple():
    other = {"x=>.w": ARRAYS["a.w"], "b": ARRAYS["b"]}
    assert nndiff.compare(ARRAYS, other, rename=[("^x=>", "a")]).verdict == "identical"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"atol": "small"}, "--atol 'small' is not a number or PATTERN=NUMBER"),
        ({"atol": "=1"}, "--atol '=1' has no pattern before the ="),
        ({"rtol": {"a": None}}, "rtol must be a finite number of zero or more, not None"),
        ({"rtol": -1}, "rtol must be a finite number of zero or more, not -1"),
        ({"include": 5}, "include takes a string or several of them, not 5"),
        ({"rename": [("a",)]}, "is not REGEX=>REPLACEMENT"),
        ({"rename": [("", "b")]}, "is not REGEX=>REPLACEMENT"),
    ],
)
def test_options_of_the_wrong_kind_are_refused_in_a_sentence(options, said):
    with pytest.raises(UsageError, match=said):
        nndiff.compare(ARRAYS, ARRAYS, **options)


def test_a_number_of_numpy_is_a_tolerance():
    result = nndiff.compare(ARRAYS, ARRAYS, atol=np.float32(0.5), rtol=None)
    assert json.loads(json.dumps(result.to_dict()))["tolerance"]["atol"] == 0.5


@pytest.mark.parametrize("candidates", [["a.pt", "b.pt"], (Path("a.pt"),)])
def test_a_list_of_paths_is_no_candidate(candidates):
    with pytest.raises(UsageError, match="one by one"):
        nndiff.compare(ARRAYS, candidates)
