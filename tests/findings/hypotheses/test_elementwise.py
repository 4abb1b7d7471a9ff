"""Factors, shifts, limits, dropout and short types: solved for, and refused where they are something else."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from layer_trials import Code, draw, make_trial, name_cause, pair_of, prove
from torch import nn

from nndiff.findings.hypotheses.elementwise import ALONG_AXES, ELEMENTWISE
from nndiff.tensors import Slot


def smooth(x: torch.Tensor) -> torch.Tensor:
    """Return numbers that no known function makes of x."""
    return x + torch.sin(3 * x) + 0.2 * x.roll(1, -1)


def explain(change, *shape, scale=1.0, **options):
    """Return the proof for a candidate that changes what the reference makes."""
    trial = make_trial(Code(smooth), Code(lambda x: change(smooth(x))), draw(*shape, scale=scale), **options)
    return ELEMENTWISE.prove(trial) or ALONG_AXES.prove(trial)


SHAPES = [(6, 32), (2, 5, 24)]


@pytest.mark.parametrize("shape", SHAPES)
def test_factors_are_named(shape):
    size = shape[-1]
    for factor, text in (
        (2.0, "2"), (0.5, "0.5"), (1.3, "1.3"), (0.9137, "0.9137"),
        (math.sqrt(size), f"{math.sqrt(size):g} = sqrt({size})"), (size**-0.5, f"{size**-0.5:g} = 1 / sqrt({size})"),
    ):  # fmt: skip
        proof = explain(lambda y, factor=factor: factor * y, *shape)
        assert (proof.cause, proof.evidence) == ("scaled", f"the candidate is {text} times the reference")
    assert explain(lambda y: -y, *shape).evidence == "the sign of the candidate is opposite"


def test_factors_of_gradients():
    for factor in (2.0, 1 / 3):
        trial = make_trial(Code(smooth), Code(lambda x, f=factor: f * smooth(x)), draw(6, 32))
        trial = replace(trial, error=replace(trial.error, slot=Slot.GRAD_OUTPUT))
        assert ELEMENTWISE.applies(trial)
        assert name_cause(trial) == "gradients-scaled"
        shifted = make_trial(Code(smooth), Code(lambda x: 0.1 + smooth(x)), draw(6, 32))
        assert name_cause(replace(shifted, error=replace(shifted.error, slot=Slot.GRAD_OUTPUT))) is None


@pytest.mark.parametrize("shape", SHAPES)
def test_shifts_and_vectors(shape):
    assert explain(lambda y: y - 0.25, *shape).evidence == "the candidate is the reference - 0.25"
    vector = draw(shape[-1], seed=3)
    assert explain(lambda y: y + vector, *shape).cause == "shifted"
    assert explain(lambda y: y * vector, *shape).cause == "scaled"
    signs = vector.sign()
    assert "the sign is opposite at" in explain(lambda y: y * signs, *shape).evidence


def test_a_vector_needs_several_elements_at_each_place():
    for rows, cause in ((3, None), (5, "shifted")):
        proof = explain(lambda y: y + draw(8, seed=3), rows, 8)
        assert (proof and proof.cause) == cause


@pytest.mark.parametrize("size", [16, 24])
def test_a_vector_that_the_module_holds(size):
    class Scaled(nn.Module):
        def __init__(self, use: str) -> None:
            super().__init__()
            self.gamma = nn.Parameter(torch.ones(size))
            self._use = use

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = smooth(x)
            return {"multiply": y * self.gamma, "add": y + self.gamma, "none": y}[self._use]

    for use, cause in (("multiply", "scaled"), ("add", "bias-missing")):
        proof = prove(make_trial(*pair_of(lambda u=use: Scaled(u), lambda: Scaled("none")), draw(6, size)))
        assert proof.cause == cause
        assert "`gamma`" in proof.evidence
        assert name_cause(make_trial(*pair_of(lambda u=use: Scaled(u), lambda: Scaled("none")), draw(6, size))) == cause


@pytest.mark.parametrize("shape", SHAPES)
def test_limits(shape):
    for cap in (5.0, 30.0):
        proof = explain(lambda y, cap=cap: cap * torch.tanh(y / cap), *shape, scale=9)
        assert proof.evidence == f"the candidate caps at {cap:g} by tanh, the reference does not"
        capped = Code(lambda x, cap=cap: cap * torch.tanh(smooth(x) / cap))
        proof = ELEMENTWISE.prove(make_trial(capped, Code(smooth), draw(*shape, scale=3)))
        assert proof.evidence == f"the reference caps at {cap:g} by tanh, the candidate does not"
    ours, theirs = Code(lambda x: 30 * torch.tanh(x / 30)), Code(lambda x: 50 * torch.tanh(x / 50))
    proof = ELEMENTWISE.prove(make_trial(ours, theirs, draw(*shape, scale=20)))
    assert (proof.cause, proof.evidence) == ("softcap", "the candidate caps at 50, the reference at 30")
    proof = explain(lambda y: y.clamp(-0.5, 1), *shape)
    assert proof.evidence == "the candidate is clamped to at least -0.5 and at most 1, the other side is not"
    clamped = Code(lambda x: smooth(x).clamp(max=1))
    proof = ELEMENTWISE.prove(make_trial(clamped, Code(smooth), draw(*shape)))
    assert proof.evidence == "the reference is clamped to at most 1, the other side is not"


@pytest.mark.parametrize(("count", "cause"), [(2, None), (5, "activation")])
def test_a_limit_needs_some_elements(count, cause):
    limit = float(smooth(draw(6, 32)).flatten().sort().values[-count])
    proof = explain(lambda y: y.clamp(max=limit), 6, 32)
    assert (proof and proof.cause) == cause


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_length_one(shape):
    assert explain(lambda y: F.normalize(y, dim=-1), *shape).cause == "norm-kind"
    trial = make_trial(Code(lambda x: F.normalize(smooth(x), dim=-1)), Code(smooth), draw(*shape))
    assert ELEMENTWISE.prove(trial).cause == "norm-kind"


@pytest.mark.parametrize("shape", [(20, 32), (4, 10, 24)])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_is_solved_for(shape, p):
    proof = explain(lambda y: F.dropout(y, p, True), *shape)
    assert proof.cause == "dropout"
    assert f"dropout of {p:g} in the candidate" in proof.evidence
    assert "leave it out" in proof.repair  # the module is in train mode
    trained = nn.Dropout(p).train()
    proof = ELEMENTWISE.prove(make_trial(nn.Dropout(p).eval(), trained, draw(*shape)))
    assert proof.cause == "train-mode"
    if len(shape) == 3:
        assert explain(lambda y: F.dropout1d(y, 0.5, True), *shape).cause == "dropout"


def drop(y: torch.Tensor, count: int, p: float) -> torch.Tensor:
    """Return numbers, `count` of every 40 zero and the others scaled as dropout of p does."""
    flat = y.flatten() / (1 - p)
    shuffled = torch.randperm(flat.numel(), generator=torch.Generator().manual_seed(0))
    flat[shuffled % 40 < count] = 0
    return flat.view(y.shape)


@pytest.mark.parametrize(("size", "cause"), [((4, 40), None), ((12, 40), "dropout")])
def test_dropout_needs_some_zeros(size, cause):
    proof = explain(lambda y: drop(y, 1, 1 / 40), *size)
    assert (proof and proof.cause) == cause


@pytest.mark.parametrize(("share", "cause"), [(22, "dropout"), (29, None)])
def test_as_many_elements_are_zero_as_the_factor_says(share, cause):
    # of 800 elements one half has a standard error of 1.8 %: 5 % are 2.8 of them, 22.5 % are 12.7
    proof = explain(lambda y: drop(y, share, 0.5), 20, 40)
    assert (proof and proof.cause) == cause


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_types(dtype):
    name = str(dtype).removeprefix("torch.")
    for shape in SHAPES:
        proof = explain(lambda y: y.to(dtype).float(), *shape)
        assert (proof.cause, proof.evidence) == ("low-precision", f"what the candidate makes is rounded to {name}")
    for make, shape in (
        (lambda: nn.Linear(32, 16), (6, 32)),
        (lambda: nn.Conv2d(4, 8, 3, padding=1), (2, 4, 6, 6)),
        (lambda: nn.Linear(48, 20, bias=False), (2, 5, 48)),
    ):
        ours, theirs = pair_of(make)
        short = pair_of(make)[1].to(dtype)
        theirs.forward = lambda x, short=short: short(x.to(dtype)).float()
        proof = prove(make_trial(ours, theirs, draw(*shape)))
        assert proof.cause == "low-precision"
        assert f"rounded to {name}" in proof.evidence
        wide = pair_of(make)[1].to(dtype).float()
        theirs.forward = lambda x, wide=wide: wide(x.to(dtype).float())
        assert name_cause(make_trial(ours, theirs, draw(*shape))) == "low-precision"


@pytest.mark.parametrize("shape", SHAPES)
def test_numbers_that_are_not_finite(shape):
    big = 4e4
    proof = explain(lambda y: y.half().float(), *shape, scale=big)
    assert proof.cause == "overflow"
    hole = torch.zeros(shape[-1])
    hole[3] = math.nan
    proof = explain(lambda y: y + hole, *shape)
    assert proof.cause == "not-finite"
    assert f"the whole of place 3 along axis {len(shape) - 1}" in proof.evidence
    trial = make_trial(Code(lambda x: smooth(x) + hole), Code(smooth), draw(*shape))
    assert "NaN in the reference" in ELEMENTWISE.prove(trial).evidence
    assert explain(lambda y: 1.5 * y + hole, *shape) is None


@pytest.mark.parametrize("shape", [(4, 30), (2, 5, 12)])
def test_rows_that_are_shifted(shape):
    proof = explain(lambda y: y.log_softmax(-1), *shape)
    assert (proof.cause, "log-softmax of the reference" in proof.evidence) == ("shifted", True)
    proof = explain(lambda y: y - y.mean(-1, keepdim=True), *shape)
    assert (proof.cause, "one number for each row" in proof.evidence) == ("shifted", True)


@pytest.mark.parametrize("size", [16, 20])
def test_a_layer_that_is_skipped(size):
    ours, theirs = pair_of(lambda: nn.Linear(size, size))
    theirs.forward = lambda x: 1 * x
    proof = prove(make_trial(ours, theirs, draw(6, size)))
    assert (proof.cause, proof.evidence) == (
        "layer-skipped", "the candidate hands on argument 0 as it is; the reference makes something else of it",
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_unrelated_errors_are_not_explained(seed):
    for change in (
        lambda y: y + 0.01 * draw(*y.shape, seed=seed),
        lambda y: y * torch.cos(y + seed),
        lambda y: y + 0.1 * y.roll(1, 0),
        lambda y: (y.double() * 1).float() + 1e-9,
        lambda y: draw(*y.shape, seed=seed + 50),
        lambda y: 1.1 * y + 0.2,
    ):
        for shape in SHAPES:
            trial = make_trial(Code(smooth), Code(lambda x, change=change: change(smooth(x))), draw(*shape))
            assert name_cause(trial) is None
