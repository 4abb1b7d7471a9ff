"""Calls that hand over their tensors in different containers: paired by name, each with its like."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from aligned import align_models, methods, partners
from nndiff.align import Rename

INPUT = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(0))
FORMS = {
    "o": (lambda o, w: o, ""),
    "(o, w)": (lambda o, w: (o, w), ".0"),
    "(w, o)": (lambda o, w: (w, o), ".1"),
    "{out}": (lambda o, w: {"out": o}, ".out"),
}


class Attention(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.weight, self.form = nn.Parameter(torch.randn(16, 16)), FORMS[form][0]

    def forward(self, x):
        weights = torch.softmax(x @ x.transpose(-1, -2) / 4, -1)
        return self.form(weights @ (x @ self.weight), weights)


class Model(nn.Module):
    def __init__(self, form, name="attn"):
        super().__init__()
        torch.manual_seed(1)
        self.name = name
        self.add_module(name, Attention(form))
        self.norm, self.place = nn.LayerNorm(16), FORMS[form][1].removeprefix(".")

    def forward(self, x):
        y = getattr(self, self.name)(x)
        if isinstance(y, dict):
            y = y[self.place]
        return self.norm(y[int(self.place)] if isinstance(y, tuple) else y)


RULES = {"map": {"mapping": {"attn": "mixer"}}, "rename": {"renames": [Rename.parse("^mixer=>attn")]}, "none": {}}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("forms", [("o", "(o, w)"), ("(w, o)", "(o, w)"), ("{out}", "(w, o)")], ids=" against ".join)
def test_another_name_changes_no_pair(tmp_path, forms, rule):
    models = Model(forms[0]), Model(forms[1], name="mixer")
    found = align_models(tmp_path, models, INPUT, backward=True, **RULES[rule])
    plain = align_models(tmp_path, (Model(forms[0]), Model(forms[1])), INPUT, backward=True)
    assert {name: partner.replace("mixer", "attn") for name, partner in partners(found).items()} == partners(plain)
    assert all(certain for _, _, certain in methods(found).values())


class Twins(nn.Module):
    """Return tensors of one shape and dtype, some of them under other keys."""

    def __init__(self, keys):
        super().__init__()
        self.keys, self.fc = keys, nn.Linear(16, 16)

    def forward(self, x):
        return {key: self.fc(x) * (number + 1) for number, key in enumerate(self.keys)}


class Holder(nn.Module):
    def __init__(self, keys, scale):
        super().__init__()
        torch.manual_seed(1)
        self.twins, self.scale = Twins(keys), scale

    def forward(self, x):
        return sum(self.twins(x * self.scale).values())


def test_the_order_in_a_container_is_a_guess_where_one_side_returns_more(tmp_path):
    found = methods(align_models(tmp_path, (Holder(("a", "b"), 1.0), Holder(("x", "y", "z"), 1.5)), INPUT))
    assert found["twins:output.a"] == ("twins:output.x", "name", False)
    as_many = methods(align_models(tmp_path, (Holder(("a", "b"), 1.0), Holder(("x", "y"), 1.5)), INPUT))
    assert as_many["twins:output.b"] == ("twins:output.y", "name", True)
