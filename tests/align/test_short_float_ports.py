"""Ports in bfloat16 and float16 with other names, classes and order: paired as their float32 twins are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from aligned import align_models
from nndiff.result import Method
from short_ports import NAMES, RIGHT, ported


def matches(folder, models, dtypes, keep="full", backward=False):
    """Return how two models were paired of which nobody told what they hold."""
    inputs = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(2))
    cast = [model.to(dtype) for model, dtype in zip(models, dtypes, strict=True)]
    casts = [inputs.to(dtype) for dtype in dtypes]
    return align_models(folder, cast, casts, keep=keep, backward=backward, weights_known=False).matches


def outputs(found):
    return {match.reference: match.candidate for match in found if match.reference in RIGHT}


def certain(found):
    return [match for match in found if match.reference in RIGHT and match.certain]


SHORT = [
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float16),
    (torch.float32, torch.bfloat16),
    (torch.float16, torch.float32),
]


@pytest.mark.parametrize(("keep", "branch"), [("full", 1.0), ("sketch", 0.05)])
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float32), *SHORT], ids=str)
def test_layers_find_their_partners_as_they_do_in_float32(tmp_path, dtypes, keep, branch):
    found = matches(tmp_path, ported(branch=branch), dtypes, keep)
    assert outputs(found) == RIGHT
    by_values = (Method.STATISTICS, Method.CONTENT)
    assert all(match.method in by_values for match in found if match.reference in RIGHT)


@pytest.mark.parametrize("dtypes", SHORT, ids=str)
def test_parameters_follow_their_layers(tmp_path, dtypes):
    found = matches(tmp_path, ported(), dtypes, backward=True)
    owned = {each.reference: each.candidate for each in found if each.reference.endswith(":param_grad")}
    assert owned == {
        f"{a}.{what}:param_grad": f"{b}.{what}:param_grad" for a, b in NAMES.items() for what in ("weight", "bias")
    }


@pytest.mark.parametrize("dtypes", SHORT, ids=str)
def test_statistics_alone_make_a_guess_that_says_so(tmp_path, dtypes):
    found = matches(tmp_path, ported(), dtypes, "stats")
    assert not certain(found)
    right = [one for one, other in outputs(found).items() if RIGHT[one] == other]
    assert len(right) >= 0.9 * len(RIGHT)


def heavier_query(port, at):
    port.query[at].weight.mul_(1.5)


def other_norm(port, at):
    port.mid[at].weight.add_(0.3)


def no_norm(port, at):
    port.mid[at] = nn.Identity()


def other_start(port, at):
    port.stem.weight.mul_(1.2)


@pytest.mark.parametrize(("keep", "branch"), [("full", 1.0), ("stats", 0.02)])
@pytest.mark.parametrize("fault", [heavier_query, other_norm, no_norm, other_start])
@pytest.mark.parametrize("dtypes", SHORT[1:3], ids=str)
def test_no_wrong_pair_is_certain_whatever_is_wrong(tmp_path, dtypes, fault, branch, keep):
    models = ported(1, branch)
    with torch.no_grad():
        fault(models[1], 1)
    found = matches(tmp_path, models, dtypes, keep)
    assert [each for each in certain(found) if RIGHT[each.reference] != each.candidate] == []
