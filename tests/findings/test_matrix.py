"""Every case against every finding: each appears where it applies, and only there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nndiff
from findings_matrix import CASES, CAUSES, INPUT, net
from nndiff import compare
from nndiff.tensors import Slot


@pytest.mark.usefixtures("without_experiments")
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("case", CASES)
def test_each_finding_appears_where_it_applies_and_only_there(case):
    make, options, status, wanted = CASES[case]
    result = compare(*make(), inputs=INPUT, **options)
    found = {finding.cause for finding in result.findings}
    assert result.exit_code == status, (result.verdict, result.first_divergence)
    assert found & set(CAUSES) == wanted


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("case", CASES)
def test_experiments_keep_the_verdict_and_the_place(case):
    make, options, status, _ = CASES[case]
    alone = compare(*make(), inputs=INPUT, replay=False, noise=False, **options)
    result = compare(*make(), inputs=INPUT, **options)
    assert result.exit_code == alone.exit_code == status
    places = [getattr(each.first_divergence, "name", "") for each in (alone, result)]
    assert places[0] == places[1]
    if result.own_errors:  # and it is the first thing at fault, by its output or by what it hands to a module inside
        first = result.own_errors[0]
        assert places[1] in (first.name, f"{first.module or '(model)'}:output")


def test_every_finding_has_its_case():
    shown = {cause for *_, causes in CASES.values() for cause in causes}
    elsewhere = {"inputs-differ", "losses-differ"}  # these need recordings made apart
    # these have tests of their own
    elsewhere |= {"rounding", "more-than-rounding", "outputs-missing", "called-otherwise", "in-place"}
    assert shown | elsewhere == set(CAUSES)


def recorded(tmp_path, name, inputs=INPUT, **options):
    return nndiff.record(net(), inputs, path=tmp_path / name, **options)


def causes(*recordings):
    return {finding.cause for finding in compare(*recordings).findings} & set(CAUSES)


def test_other_inputs_are_told_alone(tmp_path):
    one, other = recorded(tmp_path, "one", backward=True), recorded(tmp_path, "other", INPUT * 1.01, backward=True)
    result = compare(one, other)
    assert causes(one, other) == {"inputs-differ"}
    assert result.first_divergence.name == "(model):model_input.0"


class Deaf(nn.Module):
    """Make nothing of its second input."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc = nn.Linear(4, 2)

    def forward(self, x, unheard):
        return self.fc(x)


def test_other_inputs_are_not_blamed_where_all_that_follows_agrees(tmp_path):
    said = {}
    for name, first, second in (("one", 1, 1), ("unheard", 1, 2), ("heard", 2, 2)):
        inputs = (torch.full((3, 4), float(first)), torch.full((3, 4), float(second)))
        made = nndiff.record(Deaf(), inputs, path=tmp_path / name)
        said[name] = [finding.evidence for finding in compare(tmp_path / "one", made).findings]
    assert said["unheard"] == ["the two models were not given the same inputs, but everything made of them agrees"]
    assert said["heard"] == ["the two models were not given the same inputs: everything after that is inherited"]


def test_other_losses_are_told_alone(tmp_path):
    one = recorded(tmp_path, "one", backward=True)
    other = recorded(tmp_path, "other", backward=True, loss=lambda output: output.square().mean())
    assert causes(one, other) == {"losses-differ"}
    assert compare(one, other).first_divergence.slot is Slot.LOSS


def test_a_loss_that_is_made_otherwise_is_where_they_part(tmp_path):
    one = recorded(tmp_path, "one", backward=True, loss=lambda output: output.square().mean())
    other = recorded(tmp_path, "other", backward=True, loss=lambda output: output.square().sum())
    result = compare(one, other)
    assert result.first_divergence.name == "(model):loss"
    assert "every output agrees" in result.first_divergence.why
