"""Gradients at outputs inside are evidence: shown, never a difference; those of parameters and inputs decide."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import nndiff
from gradients import slightly, with_gradient
from nndiff.reports import ReportOptions, get_report
from nndiff.verdict import Verdict

INPUT = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(1))
TOKENS = torch.tensor([[1, 2, 3, 4, 0, 0], [5, 6, 1, 0, 0, 0]])
MASK = (TOKENS != 0).unsqueeze(-1)


class Mixing(nn.Module):
    """Hand gradients to masked places too: what stands beside them depends on them."""

    def __init__(self):
        super().__init__()
        self.mix, self.out = nn.Conv1d(8, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x):
        return self.out(torch.tanh(self.mix(x.transpose(1, 2)).transpose(1, 2)))


class Twice(nn.Module):
    """Mask before an activation, and perhaps after it too."""

    def __init__(self, after, act=nn.ReLU):
        super().__init__()
        self.up, self.act, self.rest = nn.Linear(8, 8), act(), Mixing()
        self.after = [after]

    def forward(self, x):
        x = self.act(self.up(x) * MASK)
        return self.rest(x * MASK if self.after[0] else x)


class Inside(nn.Module):
    """Hold such a model: the gradients at its own output and at that of what it holds both differ."""

    def __init__(self, after):
        super().__init__()
        self.first, self.part, self.rest = nn.Linear(8, 8), Branch(), Mixing()
        self.after = [after]

    def forward(self, x):
        x = self.part(self.first(x))
        return self.rest(x * MASK if self.after[0] else x)


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.act = nn.LayerNorm(8), nn.ReLU()

    def forward(self, x):
        return self.act(self.norm(x) * MASK)


def compared(one, other, inputs=INPUT, **options):
    other.load_state_dict(one.state_dict())
    return nndiff.compare(one.eval(), other.eval(), inputs=inputs, backward=True, **options)


def differing(result):
    return {pair.name: pair for pair in result.pairs if not pair.verdict.passed}


# how a model is made, and the gradients that differ
HARMLESS = {
    "before and after an activation": (Twice, {"act:grad_output"}),
    "a module around": (Inside, {"part:grad_output", "part.act:grad_output"}),
}


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("case", HARMLESS)
def test_a_gradient_at_places_that_are_masked_is_no_difference_and_shown(case, flipped):
    make, names = HARMLESS[case]
    result = compared(make(flipped), make(not flipped))
    assert (result.exit_code, result.first_divergence, result.findings) == (0, None, ())
    assert differing(result).keys() == names
    assert not any(pair.decides for pair in differing(result).values())


def test_it_is_shown_in_every_report():
    result = compared(Twice(False), Twice(True))
    for form, said in (("terminal", "backward   5 of 6 layers match"), ("md", "backward: 5 of 6 layers match")):
        text = get_report(form).render(result, ReportOptions(width=200, color=False))
        assert said in text
        assert "act gradient" in text
    data = json.loads(get_report("json").render(result, ReportOptions()))
    assert [pair["name"] for pair in data["pairs"] if pair["verdict"] == "different"] == ["act:grad_output"]


class Wrong(Twice):
    """Hand on a gradient that is wrong everywhere."""

    def forward(self, x):
        return self.rest(slightly(self.act(self.up(x) * MASK)))


def test_a_wrong_gradient_that_comes_to_a_parameter_is_a_difference():
    result = compared(Twice(False), Wrong(False))
    assert result.exit_code == 1
    assert result.first_divergence.name == "act:grad_output"


class Frozen(Twice):
    """Freeze what comes before, and ask for a gradient of the input."""

    def __init__(self, after, wrong=False):
        super().__init__(after)
        self.up.requires_grad_(False)
        self.wrong = [wrong]

    def forward(self, x):
        return super().forward(slightly(x) if self.wrong[0] else x)


@pytest.mark.parametrize("wrong", [False, True])
def test_the_gradient_of_the_input_decides(wrong):
    inputs = INPUT.clone().requires_grad_()
    result = compared(Frozen(False), Frozen(True, wrong), inputs)
    (pair,) = [pair for pair in result.pairs if pair.slot == "model_input_grad"]
    assert pair.verdict.passed is not wrong
    assert result.exit_code == wrong


class NotFinite(Twice):
    def forward(self, x):
        x = self.act(self.up(x) * MASK)
        return self.rest(with_gradient(x, lambda grad: grad.masked_fill(~MASK, torch.nan)))


def taken_out():
    made = Wrong(False)
    for parameter in made.up.parameters():
        parameter.register_hook(lambda grad: grad / 1.1)
    return made


# a candidate whose gradients of parameters agree, and what differs inside
UNSEEN = {
    "a factor, taken out at the parameters": (taken_out, {"act:grad_output", "up:grad_output"}, Verdict.DIFFERENT),
    "not finite where it is masked": (lambda: NotFinite(False), {"act:grad_output"}, Verdict.NOT_FINITE),
}


@pytest.mark.parametrize("case", UNSEEN)
def test_a_wrong_gradient_that_comes_to_no_parameter_is_shown(case):
    make, names, verdict = UNSEEN[case]
    result = compared(Twice(False), make())
    assert {name: pair.verdict for name, pair in differing(result).items()} == dict.fromkeys(names, verdict)
    assert result.exit_code == 0
