"""All families of single layers: each refuses what others explain, unrelated errors, and rounding."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from layer_trials import Code, draw, make_trial, pair_of
from torch import nn

from nndiff.findings.hypotheses.activations import ACTIVATION_VARIANTS
from nndiff.findings.hypotheses.convolutions import CONVOLUTIONS
from nndiff.findings.hypotheses.elementwise import ALONG_AXES, ELEMENTWISE
from nndiff.findings.hypotheses.inputs import INPUTS
from nndiff.findings.hypotheses.layouts import REORDERED
from nndiff.findings.hypotheses.norms import NORMS
from nndiff.findings.hypotheses.parts import PARTS
from nndiff.findings.hypotheses.recurrences import RECURRENCES
from nndiff.findings.hypotheses.weights import WEIGHTS

FAMILIES = (
    WEIGHTS,
    NORMS,
    ACTIVATION_VARIANTS,
    CONVOLUTIONS,
    RECURRENCES,
    INPUTS,
    PARTS,
    REORDERED,
    ELEMENTWISE,
)
ROWS = torch.linspace(0.2, 3, 6)[:, None]


def change_forward(make, forward):
    """Return two layers of the same weights, one of which runs other code."""
    ours, theirs = pair_of(make)
    theirs.forward = lambda x: forward(theirs, x)
    return ours, theirs


def move_weight(make):
    ours, theirs = pair_of(make)
    with torch.no_grad():
        theirs.get_parameter("weight").view(-1)[3:9] += 0.4
    return ours, theirs


FAULTS = {
    "weights of a layer": (WEIGHTS, lambda: move_weight(lambda: nn.Linear(32, 24)), (6, 32)),
    "weights of a convolution": (WEIGHTS, lambda: move_weight(lambda: nn.Conv2d(3, 4, 3)), (2, 3, 7, 7)),
    "eps": (NORMS, lambda: pair_of(lambda: nn.LayerNorm(32), lambda: nn.LayerNorm(32, 1e-2)), (6, 32)),
    "groups": (NORMS, lambda: pair_of(lambda: nn.GroupNorm(2, 8), lambda: nn.GroupNorm(4, 8)), (3, 8, 5, 5)),
    "gelu": (ACTIVATION_VARIANTS, lambda: (nn.GELU(), nn.GELU("tanh")), (6, 32)),
    "relu": (ACTIVATION_VARIANTS, lambda: (nn.ReLU(), nn.SiLU()), (2, 3, 9, 9)),
    "stride": (
        CONVOLUTIONS,
        lambda: pair_of(lambda: nn.Conv2d(3, 4, 3), lambda: nn.Conv2d(3, 4, 3, stride=2)),
        (2, 3, 9, 9),
    ),
    "pooling": (CONVOLUTIONS, lambda: (nn.MaxPool2d(3), nn.AvgPool2d(3)), (2, 3, 9, 9)),
    "time first": (
        RECURRENCES,
        lambda: pair_of(lambda: nn.LSTM(6, 5), lambda: nn.LSTM(6, 5, batch_first=True)),
        (4, 3, 6),
    ),
    "axes": (
        REORDERED,
        lambda: (Code(lambda x: x.sin() + x), Code(lambda x: (x.sin() + x).transpose(1, 2))),
        (3, 6, 6),
    ),
    "parts": (PARTS, lambda: (Code(lambda x: x[:, :8]), Code(lambda x: x[:, 8:])), (6, 16)),
    "factor": (
        ELEMENTWISE,
        lambda: change_forward(lambda: nn.Linear(32, 24), lambda m, x: 2.5 * F.linear(x, m.weight, m.bias)),
        (6, 32),
    ),
    "cap": (
        ELEMENTWISE,
        lambda: (Code(lambda x: x + x.cos()), Code(lambda x: 5 * ((x + x.cos()) / 5).tanh())),
        (6, 32),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_explained_by_its_own_family_alone(fault):
    owner, make, shape = FAULTS[fault]
    x = draw(*shape, scale=2)
    x = 0.1 * ROWS * x if owner is NORMS and len(shape) == 2 else x
    trial = make_trial(*make(), x)
    for family in FAMILIES:
        proof = family.prove(trial) if family.applies(trial) else None
        assert (proof is not None) == (family is owner), (family.name, proof)


LAYERS = {
    "linear": (lambda: nn.Linear(32, 24), (6, 32), lambda m, x: F.linear(x, m.weight, m.bias)),
    "square": (lambda: nn.Linear(24, 24, bias=False), (2, 5, 24), lambda m, x: F.linear(x, m.weight)),
    "conv": (
        lambda: nn.Conv2d(3, 6, 3, padding=1),
        (2, 3, 7, 7),
        lambda m, x: F.conv2d(x, m.weight, m.bias, padding=1),
    ),
    "norm": (lambda: nn.LayerNorm(24), (6, 24), lambda m, x: F.layer_norm(x, (24,), m.weight, m.bias)),
    "batch norm": (
        lambda: nn.BatchNorm2d(6),
        (3, 6, 5, 5),
        lambda m, x: F.batch_norm(x, m.running_mean, m.running_var, m.weight, m.bias),
    ),
    "activation": (nn.GELU, (6, 32), lambda m, x: F.gelu(x)),
    "pool": (lambda: nn.AvgPool2d(2), (2, 3, 8, 8), lambda m, x: F.avg_pool2d(x, 2)),
}
UNRELATED = (
    lambda y, seed: y + 0.05 * draw(*y.shape, seed=seed),
    lambda y, seed: y * torch.cos(2 * y + seed),
    lambda y, seed: y + 0.1 * y.roll(1, 0) * y.roll(2, -1),
    lambda y, seed: draw(*y.shape, seed=seed + 90),
    lambda y, seed: 1.1 * y.abs().sqrt() + 0.2 * y - 0.1,
    lambda y, seed: y + 1e-3 * draw(*y.shape, seed=seed) * y.roll(1, -1),
)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("seed", range(2))
def test_unrelated_errors_are_explained_by_none(layer, seed):
    make, shape, run = LAYERS[layer]
    for change in UNRELATED:
        pair = change_forward(make, lambda m, x, change=change: change(run(m, x), seed))
        trial = make_trial(*pair, draw(*shape))
        for family in (*FAMILIES, ALONG_AXES):
            assert not family.applies(trial) or family.prove(trial) is None, family.name


@pytest.mark.parametrize("layer", LAYERS)
def test_rounding_is_explained_by_none(layer):
    make, shape, run = LAYERS[layer]
    double = make().double().eval()

    def compute_wide(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        double.load_state_dict({name: value.double() for name, value in module.state_dict().items()})
        return run(double, x.double()).float()

    trial = make_trial(*change_forward(make, compute_wide), draw(*shape))
    for family in (*FAMILIES, ALONG_AXES):
        assert not family.applies(trial) or family.prove(trial) is None, family.name


@pytest.mark.parametrize(("count", "is_known"), [(4, False), (12, True)])
def test_a_few_numbers_follow_from_others_by_too_many_rules(count, is_known):
    trial = make_trial(Code(lambda x: x + x.sin()), Code(lambda x: 2 * (x + x.sin())), draw(1, count))
    assert (ELEMENTWISE.prove(trial) is not None) == is_known
