"""Planted faults are found with place and cause, all faults of a combination are found, and rewrites raise no alarm.

What nndiff does not manage yet stands in failing.txt, one line for each. A line that is no longer true fails here:
`python tests/planted/score.py --failing > tests/planted/failing.txt` writes the file anew.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from block_faults import FAULTS
from block_networks import BLOCK_NETWORKS
from block_rewrites import REWRITES
from combinations import COMBINATIONS
from score import KINDS, list_failures, names_cause, raises_alarm, read_site, score_case
from truth import Rewrite, call, tensors_of

from nndiff.findings.causes import Cause

FAILING = frozenset((Path(__file__).parent / "failing.txt").read_text().splitlines())
LEAST_DIFFERENCE = 1e-4  # of a fault, at an output of the model
MOST_ROUNDING = 2e-5  # of a rewrite, at an output of the model
LEAST_SHARE = 0.9  # of faults whose place and cause are right
PLANTED = {**FAULTS, **COMBINATIONS}


@functools.cache
def get_score(kind, name):
    return score_case(KINDS[kind][name])


def of_all(kind, *aspects):
    """Return the cases of a kind for each aspect, with those marked that are known to fail."""
    rows = []
    for name in KINDS[kind]:
        for aspect in aspects:
            line = f"{aspect} {name}"
            marks = [pytest.mark.xfail(reason=f"{aspect} not right yet", strict=True)] if line in FAILING else []
            rows.append(pytest.param(name, aspect, id=f"{aspect}-{name}", marks=marks))
    return rows


# What is planted is what it is said to be; nndiff has no part in these tests


def run(case):
    reference, candidate = case.make_sides()
    inputs = case.inputs()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return [tensors_of(call(model, inputs)) for model in (reference, candidate)], (reference, candidate)


def differ_by(ours, theirs):
    if ours.shape != theirs.shape:
        return float("inf")
    difference = (ours - theirs).abs().max().item()
    return difference if difference == difference else float("inf")


def gradients_of(model, outputs):
    loss = sum((output * torch.linspace(-1, 1, output.numel()).view(output.shape)).sum() for output in outputs.values())
    loss.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_changes_what_comes_out(name):
    case = PLANTED[name]
    (ours, theirs), models = run(case)
    assert ours.keys() == theirs.keys()
    largest = max(differ_by(ours[key], theirs[key]) for key in theirs)
    if getattr(case, "gradients_only", False):
        assert largest <= MOST_ROUNDING
        reference, candidate = map(gradients_of, models, (ours, theirs))
        assert any(
            candidate[key] is None or differ_by(grad, candidate[key]) > LEAST_DIFFERENCE * grad.abs().max()
            for key, grad in reference.items()
            if grad is not None
        )
    else:
        assert largest > LEAST_DIFFERENCE


@pytest.mark.parametrize("name", [name for name, case in FAULTS.items() if not (case.is_ported or case.is_ported_back)])
def test_weights_differ_only_where_the_fault_is(name):
    case = FAULTS[name]
    reference, candidate = case.make_sides()
    sides = []
    for model in (reference, candidate):
        tensors = dict(model.named_parameters(remove_duplicate=False))
        sides.append({**tensors, **dict(model.named_buffers(remove_duplicate=False))})
    ours, theirs = sides
    different = set(ours.keys() ^ theirs.keys())
    for tensor in ours.keys() & theirs.keys():
        if not (ours[tensor].shape == theirs[tensor].shape and torch.equal(ours[tensor], theirs[tensor])):
            different.add(tensor)
    right = frozenset().union(*case.places)
    assert {tensor.rpartition(".")[0] for tensor in different} <= right


@pytest.mark.parametrize("name", FAULTS)
def test_places_and_causes_exist(name):
    case = FAULTS[name]
    reference, _ = case.make_sides()
    modules = {module for module, _ in reference.named_modules()}
    assert case.places
    assert frozenset().union(*case.places) <= modules
    assert case.causes <= {cause.value for cause in Cause}
    assert not case.causes & {"weights-differ", "attribute", "norms-only", "rounding"}, "that is no cause"


def test_nearly_every_fault_has_a_cause_with_a_name():
    assert sum("own-code" in case.causes for case in FAULTS.values()) <= 2


@pytest.mark.parametrize("name", [name for name, case in FAULTS.items() if case.causes & {"norm-eps"}])
def test_eps_cannot_be_taken_for_a_factor(name):
    """Rows (of batch norms: channels) of one variance would be scaled alike by any eps."""
    case = FAULTS[name]
    reference, _ = case.make_sides()
    (place,) = case.places[0]
    norm = reference.get_submodule(place)
    given = []
    norm.register_forward_pre_hook(lambda module, args: given.append(args[0].detach()))
    with torch.no_grad():
        call(reference, case.inputs())
    variances = norm.running_var if hasattr(norm, "running_var") else given[0].pow(2).mean(-1).flatten()
    assert variances.max() > 1.5 * variances.min()


@pytest.mark.parametrize("name", REWRITES)
def test_a_rewrite_changes_nothing_but_rounding(name):
    case = REWRITES[name]
    (ours, theirs), models = run(case)
    assert ours.keys() == theirs.keys()
    assert max(differ_by(ours[key], theirs[key]) for key in ours) <= MOST_ROUNDING
    if case.backward:
        reference, candidate = map(gradients_of, models, (ours, theirs))
        for key in reference.keys() & candidate.keys():
            if reference[key].shape == candidate[key].shape and key not in _MOVED.get(name, ()):
                scale = max(1.0, reference[key].abs().max().item())
                assert differ_by(reference[key], candidate[key]) <= 1e-4 * scale, key


# gradients that lie as their weights do, permuted, or transposed where the matrix is square; or of folded weights
_MOVED = {
    "rope-layout-permuted-with-its-weights": {
        f"model.layers.{layer}.self_attn.{part}_proj.weight" for layer in range(3) for part in "qk"
    },
    "batch-norm-folded-with-gradients": {"stem.weight", "stem.bias"},
    "conv1d-stored-as-linear": {f"transformer.h.{layer}.attn.c_proj.weight" for layer in range(3)},
}


def test_there_are_enough_of_each_kind():
    assert len(FAULTS) >= 60
    assert len({case.family for case in FAULTS.values()}) >= 40
    assert len({cause for case in FAULTS.values() for cause in case.causes}) >= 40
    assert sum(len(case.faults) == 2 for case in COMBINATIONS.values()) >= 12
    assert sum(len(case.faults) == 3 for case in COMBINATIONS.values()) >= 6
    assert len(REWRITES) >= 25
    assert {case.network for case in FAULTS.values()} == {
        "llama", "gpt2", "bert", "gemma", "vit", "resnet", "mamba", "whisper", "tagger", "convnet", *BLOCK_NETWORKS,
    }  # fmt: skip
    assert sum(case.is_ported for case in FAULTS.values()) >= 10
    assert sum(case.is_reversed for case in FAULTS.values()) >= 8


@pytest.mark.parametrize("name", COMBINATIONS)
def test_combined_faults_are_at_different_places(name):
    faults = COMBINATIONS[name].faults
    assert len({fault.network for fault in faults}) == 1
    assert len({fault.is_ported for fault in faults}) == 1
    modules = [module for fault in faults for module in frozenset().union(*fault.places)]
    assert len(modules) == len(set(modules))


# The rules of scoring can fail


class Said:
    """A finding, or a result, as far as scoring reads it."""

    def __init__(self, **facts):
        self.harmless, self.own_errors, self.findings = False, (), ()
        vars(self).update(facts)


def test_a_cause_counts_only_at_its_place():
    case = FAULTS["rms-eps"]
    modules = {"", "model", "model.layers.1", "model.layers.1.input_layernorm", "model.layers.1.self_attn"}
    right = Said(cause="norm-eps", where=("model.layers.1.input_layernorm:output",))
    assert names_cause([right], case, modules)
    for where in (("model.layers.1.self_attn:output",), ("model.layers.1:output",), ()):
        assert not names_cause([Said(cause="norm-eps", where=where)], case, modules)
    assert not names_cause([Said(cause="activation", where=right.where)], case, modules)
    assert not names_cause([Said(cause="norm-eps", where=right.where, harmless=True)], case, modules)


def test_a_cause_in_code_shows_at_the_input_of_a_call_inside():
    case = FAULTS["residual-missing"]
    modules = {"", "model.layers.1", "model.layers.1.mlp", "model.layers.1.mlp.up_proj"}
    assert names_cause([Said(cause="residual", where=("model.layers.1.mlp:input.0",))], case, modules)
    assert not names_cause([Said(cause="residual", where=("model.layers.1.mlp:output",))], case, modules)
    assert not names_cause([Said(cause="residual", where=("model.layers.1.mlp.up_proj:input.0",))], case, modules)


@pytest.mark.parametrize(
    ("site", "module"),
    [
        ("a.b:output", ("a.b", False)),
        ("a.b@2:output.0", ("a.b", False)),
        ("a.b.weight:param_grad", ("a.b", False)),
        ("a.b.weight", ("a.b", False)),
        ("a.0:input.0", ("a", True)),
        ("(model):output.logits", ("", False)),
        ("nothing.of.the.reference:output", ("", False)),
    ],
)
def test_a_site_belongs_to_a_module(site, module):
    assert read_site(site, {"", "a", "a.b", "a.0"}) == module


def test_an_alarm_is_a_difference_that_is_not_harmless():
    harmless, harmful = Said(), Said()
    harmless.harmless = True
    assert not raises_alarm(Said(verdict="close"))
    assert not raises_alarm(Said(verdict="different", findings=(harmless,)))
    assert raises_alarm(Said(verdict="different", findings=(harmless, harmful)))
    assert raises_alarm(Said(verdict="different"))
    assert raises_alarm(Said(verdict="different", findings=(harmless,), own_errors=("somewhere",)))


# What nndiff says of them


@pytest.mark.parametrize(("name", "aspect"), of_all("faults", "place", "cause"))
def test_a_fault_is_found(name, aspect):
    score = get_score("faults", name)
    assert score.verdict == "different"
    assert f"{aspect} {name}" not in list_failures([score]), (score.places, score.causes)


@pytest.mark.parametrize(("name", "aspect"), of_all("combinations", "place", "cause"))
def test_all_faults_of_a_combination_are_found(name, aspect):
    score = get_score("combinations", name)
    assert score.verdict == "different"
    assert f"{aspect} {name}" not in list_failures([score]), (score.places, score.causes)


@pytest.mark.parametrize(("name", "aspect"), of_all("rewrites", "alarm"))
def test_a_rewrite_raises_no_alarm(name, aspect):
    score = get_score("rewrites", name)
    assert isinstance(score.case, Rewrite)
    assert not score.is_alarm, (score.verdict, score.places, score.causes)


def share_of(lines, cases):
    return 1 - len({line.partition(" ")[2] for line in lines} & cases.keys()) / len(cases)


def test_nine_of_ten_places_are_right():
    assert share_of({line for line in FAILING if line.startswith("place")}, FAULTS) >= LEAST_SHARE


def test_nine_of_ten_places_and_causes_are_right():
    assert share_of(FAILING, FAULTS) >= LEAST_SHARE


def test_what_fails_is_a_case():
    known = {f"{aspect} {name}" for aspect in ("place", "cause") for name in PLANTED}
    assert known | {f"alarm {name}" for name in REWRITES} >= FAILING
