"""Between which calls inside a module a difference comes in: by what they make, and by what goes into a norm."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nndiff

INPUT = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(3))


class PreNorm(nn.Module):
    """A block whose second norm makes the same of its input whatever that is multiplied with."""

    def __init__(self, factor, at_once):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(8, eps=0.0), nn.Linear(8, 8)
        self.norm2, self.mlp = nn.LayerNorm(8, eps=0.0), nn.Linear(8, 8)
        self._factor, self._at_once = factor, at_once

    def forward(self, x):
        if self._at_once:
            x = x * self._factor
        x = x + self.attn(self.norm1(x))
        if not self._at_once:
            x = x * self._factor
        return x + self.mlp(self.norm2(x))


class Net(nn.Module):
    def __init__(self, block, *args):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.block, self.head = nn.Linear(8, 8), block(*args), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.block(self.stem(x)))


def report(result):
    from nndiff.reports import ReportOptions, get_report

    return get_report("terminal").render(result, ReportOptions(width=200, color=False))


CASES = {
    "in the middle": (False, "block.attn:output", "block.norm2:input.0"),
    "at once": (True, "", "block.norm1:input.0"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_factor_that_a_norm_hides_comes_in_before_the_norm(case):
    at_once, after, before = CASES[case]
    result = nndiff.compare(Net(PreNorm, 1.0, at_once), Net(PreNorm, 1.5, at_once), inputs=INPUT)
    first = result.first_divergence
    assert first.module == "block"
    assert (first.after, first.before) == (after, before)
    assert f"before {before}, " in report(result)
    agreeing = {pair.name for pair in result.pairs if pair.verdict.passed}
    assert {"block.norm2:output", "block.norm1:output"} & agreeing


class OnlyGuesses(nn.Module):
    """Nothing inside goes by the same name."""

    def __init__(self, factor, name):
        super().__init__()
        self.add_module(name, nn.Linear(8, 8))
        self._name, self._factor = name, factor

    def forward(self, x):
        return self.get_submodule(self._name)(x * self._factor)


def test_where_all_are_guesses_they_are_what_is_known():
    result = nndiff.compare(Net(OnlyGuesses, 1.0, "one"), Net(OnlyGuesses, 1.5, "other"), inputs=INPUT)
    first = result.first_divergence
    assert first.module == "block"
    assert first.after == ""
    assert first.before.startswith("block.one:")
