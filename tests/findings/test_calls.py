"""A layer that is called in place of another, too often, or not at all is named; one activation for several is not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from diagnosis_builders import explain, make_modules, make_pair, make_tensor
from nndiff import compare

INPUT = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(3))


class Three(nn.Module):
    """Layers called in the order of the digits."""

    def __init__(self, order="123", alike=False):
        super().__init__()
        torch.manual_seed(0)
        self.l1, self.l2, self.l3, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.a1, self.a2, self.a3 = nn.Tanh(), nn.Tanh(), nn.Tanh()
        for layer in (self.l2, self.l3) if alike else ():
            layer.load_state_dict(self.l1.state_dict())
        self._order = order

    def forward(self, x):
        for number in self._order:
            x = getattr(self, f"a{number}")(getattr(self, f"l{number}")(x))
        return self.head(x)


def told(result):
    return [finding for finding in result.findings if finding.cause == "called-otherwise"]


def compared(one, other, **options):
    return compare(one, other, inputs=INPUT, **options)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(
    ("order", "words"),
    [
        ("113", "l1 is called once by the reference and twice by the candidate; l2 is never called by the candidate"),
        ("111", "l1 is called once by the reference and 3 times by the candidate; l2, l3 are never called"),
        ("1233", "l3 is called once by the reference and twice by the candidate"),
    ],
)
def test_a_layer_in_place_of_another_is_named(order, words, backward):
    result = compared(Three(), Three(order), backward=backward)
    assert result.exit_code == 1
    (finding,) = told(result)
    assert words in finding.evidence
    assert not finding.harmless


def test_it_is_named_the_other_way_round_too():
    (finding,) = told(compared(Three("113"), Three()))
    assert "l1 is called twice by the reference and once by the candidate; l2 is never called by the reference" in (
        finding.evidence
    )


def test_where_all_agrees_it_is_told_and_harmless():
    result = compared(Three(alike=True), Three("111", alike=True))
    assert result.exit_code == 0
    (finding,) = told(result)
    assert finding.harmless
    assert finding.repair == ""


def pair_shared(values, flipped):
    """Return pairs of three layers with one layer that is called three times."""
    sides = [], []
    for number, value in enumerate(values):
        sides[0].append(make_tensor(value, f"l{number + 1}", order=number, cls="Linear"))
        sides[1].append(make_tensor([1.0, 2.0], "layer", order=number, call=number, cls="Linear"))
    linear = {"class": "Linear", "parameters": ["weight"]}
    metas = [{"modules": make_modules(l1=linear, l2=linear, l3=linear)}, {"modules": make_modules(layer=linear)}]
    step = -1 if flipped else 1
    return [make_pair(*both) for both in zip(*sides[::step], strict=True)], *metas[::step]


@pytest.mark.parametrize("flipped", [False, True], ids=["shared", "apart"])
@pytest.mark.parametrize("third", [2.0, 3.0], ids=["equal", "different"])
def test_one_layer_of_another_name_for_several_is_named(flipped, third):
    pairs, reference_meta, candidate_meta = pair_shared([[1.0, 2.0], [1.0, 2.0], [1.0, third]], flipped)
    result = explain(pairs, [], reference_meta, candidate_meta)
    (finding,) = told(result)
    sides = ("reference", "candidate") if flipped else ("candidate", "reference")
    assert finding.evidence == "layer of the {} is called 3 times, instead of l1, l2, l3 of the {}".format(*sides)
    assert finding.harmless is (third == 2.0)


class Activations(Three):
    """The same layers, one activation for all."""

    def forward(self, x):
        for layer in (self.l1, self.l2, self.l3):
            x = self.a1(layer(x))
        return self.head(x)


def test_one_activation_for_several_is_not_worth_a_word():
    assert not told(compared(Three(), Activations()))
    broken = Activations()
    with torch.no_grad():
        broken.l2.weight.mul_(1.1)
    result = compared(Three(), broken)
    assert result.exit_code == 1
    assert not told(result)


def test_an_activation_that_is_left_out_is_named():
    broken = Three()
    broken.forward = lambda x: broken.head(broken.a3(broken.l3(broken.l2(broken.a1(broken.l1(x))))))
    result = compared(Three(), broken)
    assert result.exit_code == 1
    assert [finding.evidence for finding in told(result)] == [
        "a2 is called by the reference and never by the candidate"
    ]


class Dropping(Three):
    """Nothing is dropped in eval mode: who leaves it out does the same."""

    def __init__(self, dropped):
        super().__init__()
        self.drop, self._dropped = nn.Dropout(0.5), dropped

    def forward(self, x):
        x = self.l1(x)
        return self.head(self.l2(self.drop(x) if self._dropped else x))


def test_what_does_nothing_is_not_missed():
    broken = Dropping(False)
    with torch.no_grad():
        broken.l2.weight.mul_(1.1)
    assert not told(compared(Dropping(True), broken, mode="eval"))


class Rows(Three):
    """The same layer, called for a row at a time."""

    def forward(self, x):
        for number in "123":
            layer = getattr(self, f"l{number}")
            x = getattr(self, f"a{number}")(torch.stack([layer(row) for row in x]))
        return self.head(x)


def test_rows_at_a_time_are_no_more_calls():
    assert not told(compared(Three(), Rows()))
    broken = Rows()
    with torch.no_grad():
        broken.l2.weight.mul_(1.1)
    assert not told(compared(Three(), broken))


class Experts(nn.Module):
    """Who is called depends on what came before."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head = nn.Linear(8, 8), nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        x = self.stem(x)
        for number in (0, int(x.mean() > 0)):
            x = self.experts[number](x)
        return self.head(x)


def test_calls_that_depend_on_what_differs_are_no_cause():
    one, broken = Experts(), Experts()
    with torch.no_grad():
        one.stem.bias.fill_(5.0)
        broken.stem.bias.fill_(-5.0)
    result = compared(one, broken)
    assert result.first_divergence.module == "stem"
    assert not told(result)


class Ended(nn.Module):
    """A block of two layers, which may end with a step more."""

    def __init__(self, last=None, bias=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), *([last] if last else []))
        self.head, self._bias = nn.Linear(8, 4), bias
        self.block.register_forward_hook(lambda module, args, output: output + bias if bias else None)

    def forward(self, x):
        return self.head(self.block(x))


@pytest.mark.parametrize("last", [nn.Dropout(0.5), nn.Tanh()])
def test_a_step_that_one_side_alone_ends_a_module_with_is_named(last):
    for side, models in (("candidate", (Ended(), Ended(last))), ("reference", (Ended(last), Ended()))):
        (finding,) = told(compared(*models, mode="train"))
        assert finding.where == ("block.2",)
        assert f"block.2 is called by the {side} alone; without it both sides return the same from block" in (
            finding.evidence
        )


def test_a_last_step_is_not_named_if_the_module_differs_without_it_too():
    assert told(compared(Ended(bias=0.5), Ended(nn.Tanh()))) == []


def test_a_last_step_that_changes_nothing_is_no_cause():
    assert told(compared(Ended(bias=0.5), Ended(nn.Dropout(0.5)), mode="eval")) == []
