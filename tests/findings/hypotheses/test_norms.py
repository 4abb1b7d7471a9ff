"""Norms: each difference is found, by what both sides make of the same numbers."""

from __future__ import annotations

import pytest
import torch
from layer_trials import Code, draw, make_trial, name_cause, pair_of, prove, train
from torch import nn

from nndiff.findings.hypotheses.norms import NORMS


class RMSNorm(nn.Module):
    """Be an RMS norm as models write it."""

    def __init__(self, size: int, eps: float = 1e-5, offset: float = 0.0, outside: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps
        self._offset, self._outside = offset, outside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        if self._outside:
            return (self.weight + self._offset) * (x / (variance.sqrt() + self.variance_epsilon))
        return (self.weight + self._offset) * (x * torch.rsqrt(variance + self.variance_epsilon))


def rows(*shape: int, scale: float = 0.1) -> torch.Tensor:
    """Return rows of different spread."""
    spread = torch.linspace(0.2, 3, shape[0]).reshape(-1, *(1,) * (len(shape) - 1))
    return scale * spread * draw(*shape) + 0.03


@pytest.mark.parametrize("shape", [(6, 48), (3, 5, 32)])
@pytest.mark.parametrize("eps", [1e-6, 1e-3])
def test_eps_is_solved_for(shape, eps):
    for cls in (nn.LayerNorm, RMSNorm):
        trial = make_trial(*pair_of(lambda c=cls: c(shape[-1], 1e-5), lambda c=cls: c(shape[-1], eps)), rows(*shape))
        proof = NORMS.prove(trial)
        assert proof.cause == "norm-eps"
        assert proof.evidence == f"eps is {eps:.1e} in the candidate, 1.0e-05 in the reference"
        name = "variance_epsilon" if "variance_epsilon" in trial.modules[0]["attributes"] else "eps"
        assert proof.repair == f"set `{name}` to 1.0e-05"


def test_an_eps_that_is_not_declared_is_solved_for_too():
    ours, theirs = pair_of(lambda: nn.LayerNorm(40, 1e-5))
    weight, bias = theirs.weight.detach(), theirs.bias.detach()
    theirs = train(nn.LayerNorm(40, 1e-5))
    theirs.forward = lambda x: nn.functional.layer_norm(x, (40,), weight, bias, 1e-4)
    proof = NORMS.prove(make_trial(ours, theirs, rows(6, 40)))
    assert proof.evidence.startswith("eps is 1.0e-04 in the candidate, 1.0e-05 in the reference; the candidate's `eps`")


def test_eps_and_a_factor_look_alike_where_rows_have_one_variance():
    x = draw(1, 64, scale=0.1)
    ours = Code(lambda x: nn.functional.layer_norm(x, (64,), eps=1e-5))
    theirs = Code(lambda x: nn.functional.layer_norm(x, (64,), eps=1e-3))
    assert NORMS.prove(make_trial(ours, theirs, x)) is None
    two = torch.cat([x, 3 * x])
    assert NORMS.prove(make_trial(ours, theirs, two)).cause == "norm-eps"


@pytest.mark.parametrize("size", [32, 56])
def test_place_of_eps_and_offset(size):
    x = rows(6, size)
    outside = make_trial(*pair_of(lambda: RMSNorm(size, 1e-2), lambda: RMSNorm(size, 1e-2, outside=True)), x)
    assert prove(outside).cause == "norm-eps-placement"
    assert "outside the root in the candidate" in prove(outside).evidence
    for ours, theirs in ((0, 1), (1, 0)):
        trial = make_trial(
            *pair_of(lambda o=ours: RMSNorm(size, offset=o), lambda o=theirs: RMSNorm(size, offset=o)), x
        )
        assert prove(trial).cause == "norm-offset"


@pytest.mark.parametrize("size", [32, 56])
def test_kinds_of_norms(size):
    x = rows(6, size)
    trial = make_trial(*pair_of(lambda: nn.LayerNorm(size), lambda: RMSNorm(size)), x)
    assert prove(trial).cause == "norm-kind"
    assert "the mean is not subtracted in the candidate" in prove(trial).evidence
    ours, theirs = pair_of(lambda: nn.LayerNorm(size))
    theirs.forward = lambda x: (
        theirs.weight * (x - x.mean(-1, True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt() + theirs.bias
    )
    assert "n - 1 in the candidate" in prove(make_trial(ours, theirs, x)).evidence
    ours, theirs = pair_of(lambda: nn.LayerNorm(size))
    theirs.forward = lambda x: nn.functional.layer_norm(x, (size,), theirs.weight, None, 1e-5)
    assert name_cause(make_trial(ours, theirs, x)) == "bias-missing"
    theirs.forward = lambda x: nn.functional.layer_norm(x, (size,), None, theirs.bias, 1e-5)
    assert name_cause(make_trial(ours, theirs, x)) == "norm-kind"


@pytest.mark.parametrize("channels", [8, 12])
def test_groups_and_statistics_of_the_batch(channels):
    x = rows(5, channels, 4, 4)
    trial = make_trial(*pair_of(lambda: nn.GroupNorm(4, channels), lambda: nn.GroupNorm(2, channels)), x)
    assert prove(trial).cause == "norm-kind"
    assert "2 groups of channels in the candidate" in prove(trial).evidence
    assert (
        name_cause(make_trial(*pair_of(lambda: nn.GroupNorm(4, channels), lambda: nn.GroupNorm(1, channels)), x))
        == "norm-kind"
    )
    ours, theirs = pair_of(lambda: nn.BatchNorm2d(channels))
    proof = prove(make_trial(ours, theirs.train(), x))
    assert proof.cause == "train-mode"
    assert "the candidate is in train mode" in proof.evidence
    proof = prove(make_trial(*pair_of(lambda: nn.BatchNorm2d(channels), lambda: nn.BatchNorm2d(channels, 1e-3)), x))
    assert proof.evidence == "eps is 1.0e-03 in the candidate, 1.0e-05 in the reference"
    instance = pair_of(lambda: nn.InstanceNorm2d(channels, affine=True), lambda: nn.GroupNorm(1, channels))
    assert name_cause(make_trial(*instance, x)) == "norm-kind"


@pytest.mark.parametrize("seed", range(4))
def test_other_faults_are_no_norms(seed):
    ours, theirs = pair_of(lambda: nn.LayerNorm(32))
    x = rows(6, 32)
    for change in (
        lambda y: y + 0.01 * draw(*y.shape, seed=seed),
        lambda y: torch.tanh(y),
        lambda y: y.flip(-1),
        lambda y: 1.01 * y,
        lambda y: torch.where(y > 1, torch.ones(()), y),
    ):
        theirs = train(nn.LayerNorm(32))
        theirs.forward = lambda x, change=change: change(ours(x))
        assert NORMS.prove(make_trial(ours, theirs, x)) is None


def test_rounding_is_no_norm():
    ours, theirs = pair_of(lambda: nn.LayerNorm(32))
    weight, bias = theirs.weight.detach().double(), theirs.bias.detach().double()
    theirs.forward = lambda x: nn.functional.layer_norm(x.double(), (32,), weight, bias).float()
    assert NORMS.prove(make_trial(ours, theirs, rows(6, 32))) is None


def test_of_eps_in_a_short_type_nothing_is_said_where_rounding_hides_it():
    ours, theirs = pair_of(lambda: nn.LayerNorm(32, 1e-5).bfloat16(), lambda: nn.LayerNorm(32, 1e-6).bfloat16())
    assert NORMS.prove(make_trial(ours, theirs, rows(6, 32, scale=1).bfloat16())) is None


@pytest.mark.parametrize(("offset", "is_known"), [(0.0, True), (1.0, False)])
def test_norms_that_have_little_in_common_are_not_compared(offset, is_known):
    # mean, bias and eps differ; and then what the weight is multiplied with
    pair = pair_of(lambda: nn.LayerNorm(32), lambda: RMSNorm(32, 1e-3, offset))
    assert (NORMS.prove(make_trial(*pair, rows(6, 32))) is not None) == is_known
