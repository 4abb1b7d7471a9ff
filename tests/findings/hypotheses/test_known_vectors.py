"""Vectors that one side adds are looked up among the weights; weights that alone differ are named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from layer_trials import Code, draw, make_trial, pair_of, prove
from torch import nn

from nndiff.findings.hypotheses import LEFT_OVER, PROVEN, explain_trials
from nndiff.findings.hypotheses.known_vectors import KNOWN_VECTORS
from nndiff.tensors import Site, Slot


def smooth(x: torch.Tensor) -> torch.Tensor:
    return x + torch.sin(3 * x)


@pytest.mark.parametrize("size", [12, 20])
def test_vectors_are_found_among_the_weights(size):
    fused, table, matrix = draw(3 * size, seed=4), draw(2, size, seed=5), draw(size, size, seed=6)
    weights = {"qkv.bias": fused, "types.weight": table, "out.weight": matrix}
    value = fused[2 * size :]
    for vector, cause, words in (
        (value, "bias-missing", "does not add part 2 of `qkv.bias`"),
        (table[1], "layer-skipped", "does not add row 1 of `types.weight`"),
        (matrix @ value, "bias-missing", "does not add part 2 of `qkv.bias`, which comes here through `out.weight`"),
        (value @ matrix, "bias-missing", "which comes here through `out.weight`"),
    ):
        pair = Code(lambda x, vector=vector: smooth(x) + vector), Code(smooth)
        proof = prove(make_trial(*pair, draw(3, 5, size), model_weights=(weights, weights)))
        assert (proof.cause, words in proof.evidence) == (cause, True), proof
        proof = prove(make_trial(*pair[::-1], draw(3, 5, size), model_weights=(weights, weights)))
        assert "the candidate adds" in proof.evidence


@pytest.mark.parametrize("seed", range(3))
def test_other_vectors_are_no_weights(seed):
    weights = {"bias": draw(12, seed=4), "out.weight": draw(12, 12, seed=6)}
    for change in (lambda y: y + draw(12, seed=seed + 20), lambda y: y + 0.1 * draw(*y.shape, seed=seed)):
        pair = Code(smooth), Code(lambda x, change=change: change(smooth(x)))
        assert KNOWN_VECTORS.prove(make_trial(*pair, draw(3, 5, 12), model_weights=(weights, weights))) is None


class Mixer(nn.Module):
    """Use weights of its own, and those of a layer that is never called, in code that no family knows."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(-1, 0, size * size).reshape(size, size))
        self.step = nn.Linear(size, size, bias=False)
        self.factor = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(torch.tanh(self.factor * x @ self.decay.exp()) * (x @ self.step.weight).sigmoid(), 1)


@pytest.mark.parametrize("size", [12, 16])
@pytest.mark.parametrize(
    ("name", "change", "cause"),
    [
        ("decay", lambda w: w + 0.1, "shifted"),
        ("step.weight", lambda w: w * 0, "collapsed"),
    ],
)
def test_weights_that_alone_differ(size, name, change, cause):
    ours, theirs = pair_of(lambda: Mixer(size))
    with torch.no_grad():
        theirs.get_parameter(name).copy_(change(theirs.get_parameter(name)))
    (finding,) = explain_trials([make_trial(ours, theirs, draw(2, 6, size))])
    assert (finding.cause, finding.confidence) == (cause, LEFT_OVER)
    assert LEFT_OVER < PROVEN
    assert f"`{name}`" in finding.evidence
    theirs.factor = 1.5  # so that weights do not differ alone
    (finding,) = explain_trials([make_trial(ours, theirs, draw(2, 6, size))])
    assert finding.cause == "own-code"


def test_a_gradient_names_the_module_that_made_it():
    trial = make_trial(Code(smooth), Code(lambda x: 1.1 * smooth(x)), draw(4, 12))
    error = replace(trial.error, slot=Slot.GRAD_OUTPUT, module="act", name="gate:grad_output")
    trial = replace(trial, error=error, reference=replace(trial.reference, site=Site("gate", Slot.GRAD_OUTPUT)))
    (finding,) = explain_trials([trial])
    assert (finding.cause, finding.where) == ("gradients-scaled", ("act", "gate:grad_output"))
