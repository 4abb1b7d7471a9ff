"""Train mode and dropout: blamed where they were at work, by whatever means, and not where they were not."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch import nn

import nndiff
from nndiff import compare

INPUT = torch.randn(4, 6, generator=torch.Generator().manual_seed(3))


class Idle(nn.Module):
    """Has a dropout that it never calls."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.fc, self.drop, self.scale = nn.Linear(6, 6), nn.Dropout(0.5), scale

    def forward(self, x):
        return self.fc(x) * self.scale


class Noisy(Idle):
    def forward(self, x):
        return self.fc(x + torch.randn_like(x))


class Functional(nn.Module):
    """Drops in a function: no module tells."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return self.other(F.dropout(self.one(x), 0.3, self.training))


def made(kind, **options):
    torch.manual_seed(0)
    return kind(**options)


def causes(result):
    return {finding.cause for finding in result.findings}


def test_dropout_that_is_never_called_is_not_at_work(tmp_path):
    recording = nndiff.record(made(Idle), INPUT, path=tmp_path / "a.nnrec", mode="train")
    assert recording.meta["dropout_active"] == []
    assert not any("dropout" in warning for warning in recording.warnings)
    result = compare(made(Idle), made(Idle, scale=1.5), inputs=INPUT, mode="train")
    assert result.exit_code == 1
    assert "train-mode" not in causes(result)


def test_dropout_that_is_never_called_does_not_explain_what_is_drawn(tmp_path):
    recording = nndiff.record(made(Noisy), INPUT, path=tmp_path / "a.nnrec", mode="train")
    assert recording.meta["dropout_active"] == []
    assert any("draws random numbers" in warning for warning in recording.warnings)


def test_dropout_in_a_function_on_the_side_in_train_mode_is_blamed():
    one = made(Functional)
    for sides in ((one.eval(), copy.deepcopy(one).train()), (copy.deepcopy(one).train(), one.eval())):
        result = compare(*sides, inputs=INPUT)
        assert result.exit_code == 1
        (found,) = [finding for finding in result.findings if finding.cause == "train-mode"]
        assert "one side is in train mode and draws random numbers" in found.evidence


def test_a_mode_without_effect_is_not_blamed():
    one = made(Idle).eval()
    other = made(Idle, scale=1.5).train()
    assert "train-mode" not in causes(compare(one, other, inputs=INPUT))


@pytest.mark.usefixtures("without_experiments")
def test_train_mode_of_a_class_that_nobody_knows_is_a_guess():
    class Doubling(nn.Module):
        def forward(self, x):
            return x * (2 if self.training else 1)

    one = nn.Sequential(nn.Linear(6, 6), Doubling()).eval()
    other = copy.deepcopy(one)
    other[1].train()
    (found,) = [each for each in compare(one, other, inputs=INPUT).findings if each.cause == "attribute"]
    assert found.confidence == 0.5
    assert "training False against True" in found.evidence
