"""Order of axes, rows and blocks: what was given, or what the reference made, stands in another order."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from layer_trials import Code, draw, make_trial, name_cause, prove
from torch import nn

from nndiff.findings.hypotheses.layouts import LAYOUTS, REORDERED
from nndiff.tensors import Site, Slot


def smooth(x: torch.Tensor) -> torch.Tensor:
    return x + torch.sin(3 * x)


@pytest.mark.parametrize("shape", [(2, 6, 4, 5), (3, 4, 7, 2)])
def test_flattened_in_another_order(shape):
    ours, theirs = Code(lambda x: x.flatten(1)), Code(lambda x: x.permute(0, 2, 3, 1).flatten(1))
    for pair, order in (((ours, theirs), "[0, 2, 3, 1]"), ((theirs, ours), "[0, 1, 2, 3]")):
        proof = prove(make_trial(*pair, draw(*shape)))
        assert proof.cause == "flatten-order"
        assert f"flattens the axes of 0 {list(shape)} in the order {order}" in proof.evidence


@pytest.mark.parametrize("shape", [(2, 6, 4), (3, 5, 7)])
def test_axes_taken_in_another_order(shape):
    ours, theirs = Code(lambda x: x.transpose(1, 2)), Code(lambda x: x.reshape(x.shape[0], x.shape[2], x.shape[1]))
    proof = prove(make_trial(ours, theirs, draw(*shape)))
    assert proof.cause == "axes-permuted"
    assert "in the order [0, 1, 2], the reference in the order [0, 2, 1]" in proof.evidence


@pytest.mark.parametrize("width", [24, 30])
def test_rows_in_another_order_also_of_runs(width):
    order = torch.randperm(width, generator=torch.Generator().manual_seed(3))
    trial = make_trial(Code(smooth), Code(lambda x: smooth(x)[..., order]), draw(4, 5, width))
    sides = (replace(side, site=Site("", Slot.OUTPUT)) for side in (trial.reference, trial.candidate))
    assert name_cause(replace(trial, **dict(zip(("reference", "candidate"), sides, strict=True)))) == "rows-permuted"


@pytest.mark.parametrize("seed", range(3))
def test_what_is_no_order(seed):
    for change in (
        lambda y: y.transpose(1, 2) + 0.1 * draw(1, seed=seed),
        lambda y: y.transpose(1, 2) * 1.01,
        lambda y: draw(*y.shape, seed=seed + 20),
    ):
        trial = make_trial(Code(smooth), Code(lambda x, change=change: change(smooth(x))), draw(3, 6, 6))
        assert not LAYOUTS.applies(trial) or LAYOUTS.prove(trial) is None
        assert REORDERED.prove(trial) is None


def test_nothing_is_said_of_equal_orders():
    ours, theirs = nn.Flatten(), Code(lambda x: 2 * x.flatten(1))
    assert LAYOUTS.prove(make_trial(ours, theirs, draw(2, 3, 4, 4))) is None
