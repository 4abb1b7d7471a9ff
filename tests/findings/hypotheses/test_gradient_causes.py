"""Gradients that one module hands back otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from attention_trials import build_trial, make_ref, measure_gap
from nndiff.diagnosis.trials import Given
from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.gradients import GRADIENTS, LEAST_ZEROED
from nndiff.tensors import Slot

SHAPES = [(2, 5, 8), (3, 64)]


def draw(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def explain(
    reference: torch.Tensor, candidate: torch.Tensor, *given: torch.Tensor, slot: Slot = Slot.GRAD_INPUT
) -> Any:
    noise = 1e-7 * reference.abs().max().item()
    wires = [Given(f"wire{number}", False, "", make_ref(values)) for number, values in enumerate(given)]
    gap = measure_gap(reference, candidate)
    trial = build_trial(nn.Identity(), nn.Identity(), reference, candidate, wires, noise, gap, slot=slot)
    return GRADIENTS.prove(trial) if GRADIENTS.applies(trial) else None


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("factor", [2.0, -1.0, 0.1, 0.3456])
def test_a_factor(shape, factor):
    proof = explain(draw(*shape), factor * draw(*shape), draw(*shape, seed=2))
    assert (proof.cause, f"{factor:.6g} times" in proof.evidence) == (Cause.GRADIENTS_SCALED, True)
    assert explain(draw(*shape), factor * draw(*shape)) == proof  # nothing else need be given


@pytest.mark.parametrize("shape", SHAPES)
def test_no_gradient_on_one_side(shape):
    values = draw(*shape)
    for pair, who in (((values, 0 * values), "candidate"), ((0 * values, values), "reference")):
        proof = explain(*pair, draw(*shape, seed=2))
        assert (proof.cause, f"the {who} hands no gradient" in proof.evidence) == (Cause.GRADIENTS_MISSING, True)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_gradient_in_part(shape):
    values = draw(*shape)
    cut = values.clone()
    cut[..., :3] = 0
    proof = explain(values, cut, draw(*shape, seed=2))
    assert (proof.cause, "all others agree" in proof.evidence) == (Cause.GRADIENTS_MISSING, True)


@pytest.mark.parametrize("seed", range(5))
def test_other_gradients_get_no_cause(seed):
    values, other = draw(4, 16), draw(4, 16, seed=seed + 2)
    assert explain(values, other, draw(4, 16, seed=20)) is None
    assert explain(values, values * (1 + 0.1 * other), draw(4, 16, seed=20)) is None
    assert explain(values, 2 * values, other, slot=Slot.OUTPUT) is None


def test_a_few_zeros_are_no_missing_part():
    values = draw(100, 1000)
    for share, cause in ((LEAST_ZEROED * 1.2, Cause.GRADIENTS_MISSING), (LEAST_ZEROED * 0.8, None)):
        cut = values.clone()
        cut.view(-1)[: int(share * values.numel())] = 0
        proof = explain(values, cut, draw(100, 1000, seed=2))
        assert (proof.cause if proof else None) == cause
    assert 0.5e-3 < LEAST_ZEROED < 2e-3
