"""Settings that differ: named where they matter, told in a note where they do not."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import nndiff
from nndiff import compare
from nndiff.findings.settings import compare_settings
from nndiff.recording import Writer
from nndiff.result import NoteSlug
from nndiff.tensors import Slot

INPUT = torch.randn(5, 8, generator=torch.Generator().manual_seed(3))


class Net(nn.Module):
    def __init__(self, momentum=0.1, p=0.1, eps=1e-5):
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.bn, self.head = nn.Linear(8, 8), nn.BatchNorm1d(8, eps, momentum), nn.Linear(8, 4)
        self.drop, self.last = nn.Dropout(p), nn.Dropout(p)

    def forward(self, x):
        return self.last(self.head(self.drop(self.bn(self.fc(x)))))


def notes(result):
    return [note.text for note in result.notes if note.slug is NoteSlug.SETTINGS_WITHOUT_EFFECT]


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_momentum_is_named_where_running_statistics_part(backward):
    result = compare(Net(p=0.0), Net(0.3, p=0.0), inputs=INPUT, mode="train", backward=backward)
    assert result.exit_code == 1
    first = result.first_divergence
    assert first.slot is Slot.BUFFER
    assert first.why == (
        "every output agrees; this buffer differs after the run and did not before it: "
        "the two sides update it differently"
    )
    assert [finding.evidence for finding in result.findings if finding.cause == "attribute"] == [
        "the first diverging module, BatchNorm1d, has momentum 0.1 against 0.3"
    ]
    assert not notes(result)


def test_statistics_that_part_before_the_run_are_told_as_such():
    one = Net(p=0.0)
    other = copy.deepcopy(one)
    other.bn.running_mean.add_(0.1)
    result = compare(one, other, inputs=INPUT, mode="train")
    assert result.first_divergence.slot == "buffer_before"
    assert "differs before the run" in result.first_divergence.why


def test_a_parameter_that_nothing_shows_is_told_as_such(tmp_path):
    class Idle(Net):
        def __init__(self, value):
            super().__init__()
            self.idle = nn.Parameter(torch.full((3,), value))

    sides = [nndiff.record(Idle(value), INPUT, path=tmp_path / str(value), params=True) for value in (1.0, 2.0)]
    result = compare(*sides)
    assert result.first_divergence.why == ("every output agrees; this parameter differs, without effect on them")


def test_settings_without_effect_are_a_note_and_no_difference():
    result = compare(Net(), Net(0.3, 0.2), inputs=INPUT, mode="eval")
    assert (result.verdict, result.exit_code, result.findings) == ("identical", 0, ())
    assert notes(result) == [
        "settings that differ, without effect here: bn.momentum 0.1 against 0.3, "
        "p 0.1 against 0.2 in 2 modules (drop first)"
    ]


def test_an_effect_within_the_tolerance_is_no_effect_out_of_it():
    result = compare(Net(), Net(eps=1.1e-5), inputs=INPUT, mode="eval")
    assert result.verdict == "close"
    assert notes(result) == ["settings that differ, with no effect out of tolerance: bn.eps 1e-05 against 1.1e-05"]


@pytest.mark.usefixtures("without_experiments")
def test_a_setting_with_effect_is_no_note():
    result = compare(Net(), Net(eps=0.1), inputs=INPUT, mode="eval")
    assert "attribute" in {finding.cause for finding in result.findings}
    assert not notes(result)


def test_copies_have_no_note():
    assert not notes(compare(Net(), Net(), inputs=INPUT, mode="eval"))


def test_outputs_that_nobody_compared_are_not_said_to_agree(tmp_path):
    for name, value in (("a", 1.0), ("b", 2.0)):
        with Writer(tmp_path / name) as writer:
            writer.add("fc", "param", np.full(3, value, np.float32), tensor="weight")
    first = compare(tmp_path / "a", tmp_path / "b").first_divergence
    assert first.why == "no output was compared; this parameter differs"


class Renamed(nn.Module):
    """A norm whose eps goes by another name."""

    def __init__(self, value, name="epsilon"):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        setattr(self, name, value)
        self._name = name

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + getattr(self, self._name)) * self.weight


class Ported(nn.Module):
    def __init__(self, norm):
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.norm = nn.Linear(8, 8), norm

    def forward(self, x):
        return self.norm(self.fc(x))


class Other(Renamed):
    """The same under another class."""


@pytest.mark.usefixtures("without_experiments")
@pytest.mark.parametrize("name", ["eps", "variance_epsilon", "layer_norm_eps", "rms_norm_eps"])
def test_a_setting_of_another_name_is_compared(name):
    result = compare(Ported(Renamed(1e-6, name)), Ported(Other(1e-2)), inputs=INPUT)
    assert result.first_divergence.settings == {f"{name} / epsilon": (1e-6, 1e-2)}
    (finding,) = [finding for finding in result.findings if finding.cause == "attribute"]
    assert f"{name} / epsilon 1e-06 against 0.01" in finding.evidence
    same = compare(Ported(Renamed(1e-6, name)), Ported(Other(1e-6)), inputs=INPUT)
    assert (same.exit_code, notes(same)) == (0, [])
    close = compare(Ported(Renamed(1e-6, name)), Ported(Other(1.1e-6)), inputs=INPUT)
    assert notes(close) == [
        f"settings that differ, with no effect out of tolerance: norm.{name} / epsilon 1e-06 against 1.1e-06"
    ]


def test_synonyms_are_compared_only_one_to_one():
    def module(**settings):
        return {"class": "A", "attributes": settings}

    assert compare_settings(module(p=0.1), module(dropout_p=0.2)) == {"p / dropout_p": (0.1, 0.2)}
    assert compare_settings(module(negative_slope=0.1), module(alpha=0.2)) == {"negative_slope / alpha": (0.1, 0.2)}
    assert compare_settings(module(p=0.1), module(dropout_p=0.2, drop_prob=0.1)) == {}
    assert compare_settings(module(p=0.1, dropout=0.0), module(p=0.1, drop_prob=0.3)) == {
        "dropout / drop_prob": (0.0, 0.3)
    }
    assert compare_settings(module(width=1), module(height=2)) == {}
