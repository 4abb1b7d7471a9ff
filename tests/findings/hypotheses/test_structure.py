"""Structure of blocks: what is added, left out, scaled, joined or pooled is found from what was given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from attention_trials import make_trial, make_trials
from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.parts import PARTS
from nndiff.findings.hypotheses.structure import SKIPPED, STRUCTURE


class Block(nn.Module):
    """A transformer block whose wiring is an option."""

    def __init__(self, width: int, norm: type[nn.Module] = nn.LayerNorm, **choices: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.choices = choices
        self.n1, self.n2, self.end = norm(width), norm(width), norm(width)
        self.mix = nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        with torch.no_grad():
            for layer in (self.n1, self.n2, self.end):
                layer.weight.copy_(torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wiring = self.choices.get("wiring", "pre")
        half = self.choices.get("factor", 1.0)
        if wiring == "pre":
            h = x + self.mix(self.n1(x))
            h = h + half * self.feed(self.n2(h))
        elif wiring == "post":
            h = self.n1(x + self.mix(x))
            h = self.n2(h + half * self.feed(h))
        elif wiring == "no first":
            h = self.mix(self.n1(x))
            h = h + self.feed(self.n2(h))
        elif wiring == "no second":
            h = x + self.mix(self.n1(x))
            h = self.feed(self.n2(h))
        elif wiring == "from input":
            h = x + self.mix(self.n1(x))
            h = x + self.feed(self.n2(h))
        elif wiring == "from norm":
            h = x + self.mix(self.n1(x))
            y = self.n2(h)
            h = y + self.feed(y)
        elif wiring == "unused":
            self.mix(self.n1(x))
            h = x + self.feed(self.n2(x))
        return h if self.choices.get("no_end") else self.end(h)


SIZES = [(2, 7, 16), (3, 5, 24)]


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def explain(reference: nn.Module, candidate: nn.Module, *args: Any, **kwargs: Any) -> Any:
    trial = make_trial(reference, candidate, *args, **kwargs)
    families = [family for family in (PARTS, STRUCTURE, SKIPPED) if family.applies(trial)]
    return next(filter(None, (family.prove(trial) for family in families)), None)


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("right", "wrong", "cause", "words"),
    [
        ({}, {"wiring": "no first"}, Cause.RESIDUAL, "does not add argument 0"),
        ({}, {"wiring": "no second"}, Cause.RESIDUAL, "does not add argument 0"),
        ({}, {"wiring": "from input"}, Cause.RESIDUAL, "does not add output of mix"),
        ({}, {"wiring": "from norm"}, Cause.RESIDUAL, "adds output of n2"),
        ({}, {"wiring": "unused"}, Cause.LAYER_SKIPPED, "does not add output of mix"),
        ({"factor": 0.5}, {"factor": 1.0}, Cause.SCALED, "multiplied by 1 in the candidate, by 0.5"),
        ({}, {"factor": 0.3}, Cause.SCALED, "multiplied by 0.3"),
        ({}, {"no_end": True}, Cause.LAYER_SKIPPED, ""),
    ],
)
def test_wiring_of_blocks(norm, size, right, wrong, cause, words):
    proof = explain(Block(size[-1], norm, **right), Block(size[-1], norm, **{**right, **wrong}), draw(*size))
    assert proof is not None
    assert (proof.cause, words in proof.evidence) == (cause, True), proof


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("right", "wrong"), [("pre", "post"), ("post", "pre")])
def test_norms_before_and_after_layers(later, size, right, wrong):
    trials = make_trials(Block(size[-1], wiring=right), Block(size[-1], wiring=wrong), draw(*size), later=later)
    causes = [proof.cause for proof in map(STRUCTURE.prove, trials) if proof]
    assert Cause.NORM_PLACEMENT in causes
    assert 2 * causes.count(Cause.NORM_PLACEMENT) >= len(causes)
    if later:
        assert len(causes) == len(trials)


class Ordered(nn.Module):
    def __init__(self, width: int, order: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.p, self.q, self.order = nn.Linear(width, width), nn.Linear(width, width), order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.order:
            x = x + getattr(self, name)(x)
        return x


@pytest.mark.parametrize("size", SIZES)
def test_blocks_in_another_order(size):
    trials = make_trials(Ordered(size[-1], "pq"), Ordered(size[-1], "qp"), draw(*size), later=True)
    assert Cause.BLOCK_ORDER in [proof.cause for proof in map(STRUCTURE.prove, trials) if proof]


class Joined(nn.Module):
    def __init__(self, width: int, order: str = "ab", axis: int = -1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.order, self.axis = nn.Linear(width, width), nn.Linear(width, width + 2), order, axis
        self.c = nn.Linear(2 * width + 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = {"a": self.a(x), "b": self.b(x)}
        return self.c(torch.cat([parts[name] for name in self.order], -1))


@pytest.mark.parametrize("size", SIZES)
def test_parts_joined_in_another_order(size):
    proof = explain(Joined(size[-1]), Joined(size[-1], "ba"), draw(*size))
    assert proof.cause == Cause.CONCATENATION
    assert "joined as b, a in the candidate" in proof.evidence


class Rearranged(nn.Module):
    def __init__(self, change: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.change = nn.Linear(16, 16), change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.change(torch.sin(self.inner(x)))


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda y: y.roll(8, -1), Cause.CONCATENATION),
        (lambda y: torch.cat([y[..., 8:12], y[..., :4], y[..., 12:], y[..., 4:8]], -1), Cause.CONCATENATION),
        (lambda y: y.roll(1, 1), Cause.POSITION_OFFSET),
        (lambda y: functional.pad(y[:, :-2], (0, 0, 2, 0)), Cause.POSITION_OFFSET),
    ],
)
@pytest.mark.parametrize("length", [5, 9])
def test_parts_and_positions_that_moved(change, cause, length):
    proof = explain(Rearranged(lambda y: y), Rearranged(change), draw(2, length, 16))
    assert proof is not None
    assert proof.cause == cause


class Pooled(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.how = nn.Linear(16, 12), nn.Linear(12, 3), how

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y, kept = self.body(x), mask[..., None].float()
        pooled = {
            "first": y[:, 0],
            "last": y[:, -1],
            "mean": y.mean(1),
            "max": y.amax(1),
            "masked": (y * kept).sum(1) / kept.sum(1),
            "end": y[torch.arange(len(y)), mask.sum(1) - 1],
        }[self.how]
        return self.head(pooled)


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ("first", "mean", "takes the mean over positions of body, the reference the first position"),
        ("mean", "masked", "mean over unmasked"),
        ("masked", "mean", "reference the mean over unmasked"),
        ("last", "first", "the first position"),
        ("end", "last", "reference the last unmasked"),
        ("mean", "max", "maximum"),
    ],
)
@pytest.mark.parametrize("length", [6, 11])
def test_pooling(right, wrong, words, length):
    mask = torch.ones(2, length, dtype=torch.long)
    mask[0, -3:] = 0
    proof = explain(Pooled(right), Pooled(wrong), draw(2, length, 16), mask)
    assert (proof.cause, words in proof.evidence) == (Cause.POOLING, True), proof


class Function(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.function = nn.Linear(16, 16), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.inner(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x + torch.tanh(y),
        lambda x, y: x * y,
        lambda x, y: x + functional.gelu(y),
        lambda x, y: (x + y) * torch.linspace(0.5, 1.5, 16),
        lambda x, y: x + y.abs(),
        lambda x, y: x + y + 0.01 * torch.sin(3 * x),
    ],
)
def test_other_faults_get_no_cause_here(function):
    assert explain(Function(lambda x, y: x + y), Function(function), draw(2, 7, 16)) is None


@pytest.mark.parametrize("seed", range(4))
def test_noise_gets_no_cause(seed):
    noise = torch.from_numpy(np.random.default_rng(seed).normal(size=(2, 7, 16))).float()
    assert explain(Function(lambda x, y: x + y), Function(lambda x, y: x + y + noise), draw(2, 7, 16)) is None


@pytest.mark.parametrize("size", SIZES)
def test_a_layer_that_does_nothing(size):
    reference = Function(lambda x, y: x[..., :16] + functional.softplus(y))
    skipped = Function(lambda x, y: x[..., :16])
    proof = explain(reference, skipped, draw(size[0], size[1], 16))
    assert (proof.cause, "hands on argument 0 as it is" in proof.evidence) == (Cause.LAYER_SKIPPED, True)
