"""Activations: both functions are named, gates and halves that are exchanged are found."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from layer_trials import Code, draw, make_trial, name_cause, pair_of, prove, train
from torch import nn

from nndiff.findings.hypotheses.activations import ACTIVATION_VARIANTS

TABLE = {
    "identity": lambda x: x, "relu": F.relu, "gelu (erf)": F.gelu,
    "gelu (tanh)": lambda x: F.gelu(x, approximate="tanh"),
    "gelu (quick)": lambda x: x * torch.sigmoid(1.702 * x), "silu": F.silu, "tanh": torch.tanh,
    "sigmoid": torch.sigmoid, "relu6": F.relu6, "relu squared": lambda x: F.relu(x).square(), "elu": F.elu,
    "selu": F.selu, "softplus": F.softplus, "mish": F.mish, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh, "softsign": F.softsign, "logsigmoid": F.logsigmoid, "exp": torch.exp,
    "square": torch.square, "abs": torch.abs,
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize(("other", "shape"), [("gelu (erf)", (5, 33)), ("relu", (2, 7, 40))])
def test_every_activation_is_told_from_others(name, other, shape):
    if name == other:
        return
    x = draw(*shape, scale=1 if name == "exp" else 3)  # large numbers have noise that hides small ones
    for pair in ((name, other), (other, name)):
        proof = ACTIVATION_VARIANTS.prove(make_trial(Code(TABLE[pair[0]]), Code(TABLE[pair[1]]), x))
        assert proof.cause == "activation"
        assert proof.evidence == f"{pair[1]} in the candidate, {pair[0]} in the reference"
        assert proof.repair == f"use {pair[0]} in the candidate"


@pytest.mark.parametrize(
    ("ours", "theirs", "names"),
    [
        (nn.LeakyReLU(0.01), nn.LeakyReLU(0.2), ("leaky relu (slope 0.01)", "leaky relu (slope 0.2)")),
        (nn.ReLU(), nn.LeakyReLU(0.125), ("relu", "leaky relu (slope 0.125)")),
        (nn.ELU(0.7), nn.ELU(1.3), ("elu (alpha 0.7)", "elu (alpha 1.3)")),
        (nn.SiLU(), Code(lambda x: x * torch.sigmoid(1.5 * x)), ("silu", "swish (beta 1.5)")),
        (nn.Softmax(-1), nn.Softmax(0), ("softmax (axis 1)", "softmax (axis 0)")),
        (nn.Softmax(-1), nn.LogSoftmax(-1), ("softmax (axis 1)", "log_softmax (axis 1)")),
    ],
)
def test_slopes_and_axes_are_solved_for(ours, theirs, names):
    for x in (2 * draw(6, 20), 2 * draw(9, 31, seed=1)):
        proof = ACTIVATION_VARIANTS.prove(make_trial(ours, theirs, x))
        assert proof.evidence == f"{names[1]} in the candidate, {names[0]} in the reference"


class Gated(nn.Module):
    """Be a gated MLP; the code between its layers is on trial."""

    def __init__(self, combine, size: int = 16) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(size, 24, bias=False), nn.Linear(size, 24, bias=False)
        self.down_proj = nn.Linear(24, size, bias=False)
        self._combine = combine

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self._combine(self.gate_proj(x), self.up_proj(x)))


@pytest.mark.parametrize("size", [16, 20])
def test_code_between_layers(size):
    def try_on(ours, theirs):
        pair = pair_of(lambda: Gated(ours, size), lambda: Gated(theirs, size))
        return prove(make_trial(*pair, 2 * draw(3, 5, size), at="down_proj"))

    proof = try_on(lambda g, u: F.silu(g) * u, lambda g, u: F.gelu(g) * u)
    assert (proof.cause, proof.evidence) == (
        "activation", "gelu (erf) in the candidate, silu in the reference: f(gate_proj) * up_proj",
    )  # fmt: skip
    proof = try_on(lambda g, u: F.silu(g) * u, lambda g, u: F.silu(u) * g)
    assert proof.cause == "roles-swapped"
    assert proof.evidence == (
        "f(up_proj) * gate_proj in the candidate, f(gate_proj) * up_proj in the reference, where f is silu"
    )
    assert try_on(lambda g, u: F.silu(g) * u, lambda g, u: g * u).cause == "activation"


@pytest.mark.parametrize(("size", "axis"), [(16, -1), (24, -1), (6, 1)])
def test_halves_of_one_tensor(size, axis):
    def glu(x, order=(0, 1)):
        halves = x.chunk(2, axis)
        return F.gelu(halves[order[0]]) * halves[order[1]]

    x = 2 * draw(4, 2 * size) if axis == -1 else 2 * draw(3, 2 * size, 5)
    assert name_cause(make_trial(Code(glu), Code(lambda x: glu(x, (1, 0))), x)) == "halves-swapped"
    if axis == -1:
        interleaved = Code(lambda x: F.gelu(x[..., ::2]) * x[..., 1::2])
        assert name_cause(make_trial(Code(glu), interleaved, x)) == "concatenation"


def test_variants_closer_than_rounding_are_not_told_apart():
    x = draw(4, 40).bfloat16()
    erf, tanh = Code(F.gelu), Code(lambda x: F.gelu(x, approximate="tanh"))
    assert ACTIVATION_VARIANTS.prove(make_trial(erf, tanh, x)) is None
    proof = ACTIVATION_VARIANTS.prove(make_trial(erf, Code(F.relu), x))
    assert "gelu (erf) or gelu (tanh) (too close to tell) in the reference" in proof.evidence


@pytest.mark.parametrize("seed", range(4))
def test_other_faults_are_no_activations(seed):
    x = 2 * draw(6, 30)
    for change in (
        lambda x: F.gelu(x) + 0.01 * draw(*x.shape, seed=seed),
        lambda x: F.gelu(x).flip(-1),
        lambda x: F.gelu(x) * torch.sin(3 * x + seed),
        lambda x: F.gelu(x.double()).float(),
        lambda x: F.gelu(x) * (1 + seed / 7),
    ):
        assert ACTIVATION_VARIANTS.prove(make_trial(Code(F.gelu), Code(change), x)) is None
    ours, theirs = train(nn.LayerNorm(30)), train(nn.LayerNorm(30, 1e-2))
    assert ACTIVATION_VARIANTS.prove(make_trial(ours, theirs, x)) is None


def test_few_numbers_show_no_function():
    assert ACTIVATION_VARIANTS.prove(make_trial(Code(F.relu), Code(F.silu), torch.tensor([[1.0, 2.0, 3.0]]))) is None
