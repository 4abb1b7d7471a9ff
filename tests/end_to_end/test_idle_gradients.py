"""A gradient inside that differs to no effect is told and no difference; one whose effect nobody saw is one."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import nndiff
from gradients import slightly, with_gradient
from nndiff.reports import ReportOptions, get_report

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


class Moved(Twice):
    """Mask before an activation that leaves zero as it is, or after it."""

    def forward(self, x):
        x = self.up(x)
        return self.rest(self.act(x).masked_fill(~MASK, 0.0) if self.after[0] else torch.relu(x * MASK))


class Dropping(Twice):
    def __init__(self, after):
        super().__init__(after, lambda: nn.Hardtanh(0, 6))
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        x = self.drop(self.act(self.up(x) * MASK))
        return self.rest(x.masked_fill(~MASK, 0.0) if self.after[0] else x)


class Padded(nn.Module):
    """Look up nothing for padding, and perhaps mask it again: its embedding is not trained."""

    def __init__(self, after):
        super().__init__()
        self.words, self.rest = nn.Embedding(10, 8, padding_idx=0), Mixing()
        self.after = [after]

    def forward(self, x):
        found = self.words(x)
        return self.rest(found * (x != 0).unsqueeze(-1) if self.after[0] else found)


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


# how a model is made, what it is fed, and the gradients that differ
HARMLESS = {
    "before and after an activation": (Twice, INPUT, {"act:grad_output"}),
    "after an activation that leaves zero as it is": (lambda after: Twice(after, nn.GELU), INPUT, {"act:grad_output"}),
    "after dropout": (Dropping, INPUT, {"act:grad_output", "drop:grad_output"}),
    "padding that is not trained": (Padded, TOKENS, {"words:grad_output"}),
    "a module around": (Inside, INPUT, {"part:grad_output", "part.act:grad_output"}),
}


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("case", HARMLESS)
def test_a_gradient_at_places_that_are_masked_is_no_difference_and_told(case, flipped):
    make, inputs, names = HARMLESS[case]
    result = compared(make(flipped), make(not flipped), inputs)
    assert (result.exit_code, result.first_divergence) == (0, None)
    (told,) = result.findings
    assert (told.cause, set(told.where), told.harmless) == ("gradients-idle", names, True)
    hints = {left.name: (left.hint, left.counts) for left in result.leftovers}
    said = ("not the same on the other side; every gradient that it flows into agrees", False)
    assert {name: hints[name] for name in names} == dict.fromkeys(names, said)


def test_it_is_told_in_every_report():
    result = compared(Twice(False), Twice(True))
    many = "1 gradient inside differs to no effect"
    quiet = get_report("terminal").render(result, ReportOptions(width=200, color=False, quiet=True))
    assert many in quiet
    for form in ("terminal", "md", "html"):
        text = get_report(form).render(result, ReportOptions(width=200, color=False))
        assert many in text
        assert "act:grad_output" in text
    data = json.loads(get_report("json").render(result, ReportOptions()))
    assert [pair["name"] for pair in data["aside"]] == ["act:grad_output"]
    assert "act:grad_output" in data["only_reference"]


def test_an_activation_moved_out_of_a_module_is_no_difference():
    one, other = Moved(False), Moved(True)
    result = compared(one, other)
    assert result.exit_code == 0, [pair.name for pair in result.pairs if not pair.verdict.passed]


class Wrong(Twice):
    """Hand on a gradient that is wrong everywhere."""

    def forward(self, x):
        return self.rest(slightly(self.act(self.up(x) * MASK)))


def test_a_wrong_gradient_that_comes_to_a_parameter_is_a_difference():
    result = compared(Twice(False), Wrong(False))
    assert result.exit_code == 1
    assert result.first_divergence.name == "act:grad_output"


@pytest.mark.parametrize("pattern", ["*:param_grad", "up.*:param_grad"])
def test_without_the_gradients_that_would_show_it_it_is_a_difference(pattern):
    result = compared(Twice(False), Twice(True), exclude=[pattern])
    assert result.exit_code == 1
    assert result.first_divergence.name == "act:grad_output"


class Faint(Twice):
    """Train a layer that hardly matters: its gradients are noise beside the others, and pass whatever they are."""

    def __init__(self, wrong):
        super().__init__(False)
        self.wrong = [wrong]

    def forward(self, x):
        x = self.act(x + 1e-12 * self.up(x))
        return self.rest(slightly(x) if self.wrong[0] else x)


def test_gradients_that_are_noise_prove_nothing():
    result = compared(Faint(False), Faint(True))
    failing = {pair.name for pair in result.pairs if not pair.verdict.passed}
    assert failing == {"act:grad_output"}
    assert result.exit_code == 1


class Loose(nn.Module):
    """Begin with a tensor that asks for a gradient and is no parameter: nobody sees what comes to it."""

    def __init__(self, wrong):
        super().__init__()
        self.act, self.rest, self.wrong = nn.Tanh(), Mixing(), [wrong]
        self.start = [torch.ones(8, requires_grad=True)]

    def forward(self, x):
        x = self.act(x + self.start[0])
        return self.rest(slightly(x) if self.wrong[0] else x)


def test_what_flows_into_nothing_that_was_compared_is_a_difference():
    assert compared(Loose(False), Loose(True)).exit_code == 1


class Frozen(Twice):
    """Freeze what comes before, and ask for a gradient of the input."""

    def __init__(self, after):
        super().__init__(after)
        self.up.requires_grad_(False)


def test_a_gradient_of_the_input_proves_it_too():
    inputs = INPUT.clone().requires_grad_()
    result = compared(Frozen(False), Frozen(True), inputs)
    assert {pair.name for pair in result.pairs if pair.slot == "model_input_grad"}
    assert result.exit_code == 0
    assert [finding.cause for finding in result.findings] == ["gradients-idle"]


def test_a_factor_in_all_gradients_inside_is_a_difference_though_it_is_taken_out_at_the_parameters():
    other = Wrong(False)
    for parameter in other.up.parameters():
        parameter.register_hook(lambda grad: grad / 1.1)
    result = compared(Twice(False), other)
    assert {pair.name for pair in result.pairs if not pair.verdict.passed} == {"act:grad_output", "up:grad_output"}
    assert result.exit_code == 1


class NotFinite(Twice):
    def forward(self, x):
        x = self.act(self.up(x) * MASK)
        return self.rest(with_gradient(x, lambda grad: grad.masked_fill(~MASK, torch.nan)))


def test_what_is_not_finite_is_never_without_effect():
    assert compared(Twice(False), NotFinite(False)).exit_code == 1


class Shifted(Twice):
    """Differ in the output of the activation too, at places that are masked."""

    def forward(self, x):
        x = self.up(x)
        return self.rest(self.act(x if self.after[0] else x * MASK) * MASK)


def test_outputs_that_differ_are_a_difference():
    result = compared(Shifted(False), Shifted(True))
    assert result.exit_code == 1
    assert result.first_divergence.name == "act:output"
