"""Calls of one name that hand over their tensors in other containers: paired by name, and never excused."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch import nn

import nndiff
from nndiff.result import Method

INPUT = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(0))
# how the output and the weights are handed over, and where the output is
FORMS = {
    "o": (lambda o, w: o, ""),
    "(o, None)": (lambda o, w: (o, None), ".0"),
    "(o, w)": (lambda o, w: (o, w), ".0"),
    "(w, o)": (lambda o, w: (w, o), ".1"),
    "{out}": (lambda o, w: {"out": o}, ".out"),
    "{out, w}": (lambda o, w: {"out": o, "w": w}, ".out"),
    "[o]": (lambda o, w: [o], ".0"),
}
# every form on either side, against what is barest, what is fullest and what has another order
PAIRS = [pair for pair in permutations(FORMS, 2) if {"o", "(w, o)", "{out, w}"} & {*pair}]


class Attention(nn.Module):
    def __init__(self, form, scale):
        super().__init__()
        self.weight, self.scale, self.form = nn.Parameter(torch.randn(16, 16)), scale, FORMS[form][0]

    def forward(self, x):
        weights = torch.softmax(x @ x.transpose(-1, -2) / 4, -1)
        return self.form(weights @ (x @ self.weight) * self.scale, weights)


class Model(nn.Module):
    """An attention whose scale is hidden by the norm after it."""

    def __init__(self, form, scale=1.0):
        super().__init__()
        torch.manual_seed(1)
        self.attn, self.norm, self.out = Attention(form, scale), nn.LayerNorm(16, eps=1e-12), nn.Linear(16, 4)
        self.place = FORMS[form][1].removeprefix(".")

    def forward(self, x):
        found = self.attn(x)
        if self.place:
            found = found[int(self.place) if self.place.isdigit() else self.place]
        return self.out(self.norm(found))


@pytest.mark.parametrize("forms", PAIRS, ids=" against ".join)
def test_a_fault_is_found_in_whatever_container(forms):
    result = nndiff.compare(Model(forms[0]), Model(forms[1], 1.5), inputs=INPUT)
    assert result.exit_code == 1
    assert result.first_divergence.module == "attn"
    output, partner = (f"attn:output{FORMS[form][1]}" for form in forms)
    (row,) = (pair for pair in result.pairs if pair.reference_name == output)
    assert (row.candidate_name, row.method, row.certain) == (partner, Method.NAME, True)


@pytest.mark.parametrize("forms", PAIRS, ids=" against ".join)
def test_the_same_in_another_container_is_the_same(forms):
    result = nndiff.compare(Model(forms[0]), Model(forms[1]), inputs=INPUT, backward=True)
    assert result.verdict == "identical"
    partners = {pair.reference_name: pair.candidate_name for pair in result.pairs}
    for slot in ("output", "grad_output"):
        output, partner = (f"attn:{slot}{FORMS[form][1]}" for form in forms)
        assert partners[output] == partner


def test_renamed_and_wrapped_modules_are_paired_in_other_containers():
    renamed = Model("(o, w)", 1.5)
    renamed.mixer, renamed.attn = renamed.attn, nn.Identity()
    renamed.forward = lambda x: renamed.out(renamed.norm(renamed.mixer(x)[0]))
    inputs, rules = {"inputs": INPUT}, {"rename": [r"^mixer=>attn"]}
    assert nndiff.compare(Model("o"), renamed, **inputs, **rules).first_divergence.name == "attn:output"
    wrapped = nn.Sequential(Model("{out}", 1.5))
    assert nndiff.compare(Model("o"), wrapped, **inputs).first_divergence.name == "attn:output"


class Codes(nn.Module):
    """What has one shape is told apart by its dtype."""

    def __init__(self, both):
        super().__init__()
        self.both = both

    def forward(self, x):
        ids = x.argmax(-1)
        return (x.sum(-1), ids) if self.both else ids


class Coded(nn.Module):
    def __init__(self, both):
        super().__init__()
        torch.manual_seed(1)
        self.codes, self.table = Codes(both), nn.Embedding(16, 4)

    def forward(self, x):
        found = self.codes(x)
        return self.table(found[1] if isinstance(found, tuple) else found)


@pytest.mark.parametrize("both", [(False, True), (True, False)])
def test_numbers_are_paired_with_numbers_and_ids_with_ids(both):
    result = nndiff.compare(*map(Coded, both), inputs=INPUT)
    assert result.verdict == "identical"
    names = {(pair.name, pair.candidate_name) for pair in result.pairs}
    expected = "codes:output", "codes:output.1"
    assert (expected if both[1] else expected[::-1]) in names
