"""Calls of one name that hand over their tensors in other containers: paired by name, and never excused."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch import nn

import nndiff
from nndiff.result import Method

INPUT = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(0))
FORMS = {
    "o": lambda o, w: o,
    "(o, None)": lambda o, w: (o, None),
    "(o, w)": lambda o, w: (o, w),
    "(w, o)": lambda o, w: (w, o),
    "{out}": lambda o, w: {"out": o},
    "{out, w}": lambda o, w: {"out": o, "w": w},
    "[o]": lambda o, w: [o],
}
PAIRS = list(permutations(FORMS, 2))


class Attention(nn.Module):
    def __init__(self, form, scale):
        super().__init__()
        self.weight, self.scale, self.form = nn.Parameter(torch.randn(16, 16)), scale, FORMS[form]

    def forward(self, x):
        weights = torch.softmax(x @ x.transpose(-1, -2) / 4, -1)
        return self.form(weights @ (x @ self.weight) * self.scale, weights)


class Model(nn.Module):
    """An attention whose scale is hidden by the norm after it."""

    def __init__(self, form, scale=1.0):
        super().__init__()
        torch.manual_seed(1)
        self.attn, self.norm, self.out = Attention(form, scale), nn.LayerNorm(16, eps=1e-12), nn.Linear(16, 4)
        self.place = {"{": "out", "(w": 1}.get(form[0] if form[0] == "{" else form[:2], 0)
        self.bare = form == "o"

    def forward(self, x):
        found = self.attn(x)
        return self.out(self.norm(found if self.bare else found[self.place]))


@pytest.mark.parametrize("forms", PAIRS, ids=" against ".join)
def test_a_fault_is_found_in_whatever_container(forms):
    one, other = forms
    result = nndiff.compare(Model(one), Model(other, 1.5), inputs=INPUT)
    assert result.exit_code == 1
    assert result.first_divergence.module == "attn"


@pytest.mark.parametrize("forms", PAIRS, ids=" against ".join)
def test_the_same_in_another_container_is_the_same(forms):
    one, other = forms
    result = nndiff.compare(Model(one), Model(other), inputs=INPUT, backward=True)
    assert result.verdict == "identical"
    assert any(pair.name.startswith("attn:output") for pair in result.pairs)
    assert any(pair.name.startswith("attn:grad_output") for pair in result.pairs)


def test_a_row_says_that_it_was_paired_by_name():
    result = nndiff.compare(Model("o"), Model("(o, w)", 1.5), inputs=INPUT)
    (row,) = (pair for pair in result.pairs if pair.name == "attn:output")
    assert (row.candidate_name, row.method, row.certain) == ("attn:output.0", Method.NAME, True)


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
