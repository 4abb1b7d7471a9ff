"""Weights of a module: explained only if the reference's layer makes with them what the candidate made."""

from __future__ import annotations

import pytest
import torch
from layer_trials import Code, draw, make_trial, name_cause, pair_of, prove, train
from torch import nn

from nndiff.findings.hypotheses.weights import WEIGHTS


def change(module: nn.Module, **changes) -> nn.Module:
    """Return a module with some weights changed by functions."""
    with torch.no_grad():
        for name, function in changes.items():
            module.get_parameter(name).copy_(function(module.get_parameter(name).clone()))
    return module


LAYERS = {
    "linear": (lambda: nn.Linear(16, 24), (5, 16)),
    "linear of images": (lambda: nn.Linear(12, 20), (2, 3, 12)),
    "conv1d": (lambda: nn.Conv1d(6, 8, 3, padding=1), (2, 6, 11)),
    "conv2d": (lambda: nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2), (2, 4, 9, 8)),
    "depthwise": (lambda: nn.Conv2d(6, 6, 5, padding=2, groups=6), (2, 6, 7, 7)),
    "circular": (lambda: nn.Conv2d(4, 8, 3, padding=1, padding_mode="circular"), (2, 4, 6, 6)),
    "transposed": (lambda: nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1, groups=2), (2, 6, 5, 4)),
    "layer norm": (lambda: nn.LayerNorm(24), (5, 24)),
    "batch norm": (lambda: nn.BatchNorm2d(24), (3, 24, 4, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_some_elements_differ(name):
    make, shape = LAYERS[name]
    ours, theirs = pair_of(make)

    def move(weight):
        weight.view(-1)[3] += 0.5
        return weight

    proof = prove(make_trial(ours, change(theirs, weight=move), draw(*shape)))
    assert proof.cause == "weights-differ"
    assert proof.evidence.startswith(f"`weight`: 1 element of {ours.weight.numel():,} differs")


@pytest.mark.parametrize("name", LAYERS)
def test_a_bias_that_is_missing(name):
    make, shape = LAYERS[name]
    ours, theirs = pair_of(make)
    theirs.bias = None
    trial = make_trial(ours, theirs, draw(*shape))
    assert prove(trial).cause == "bias-missing"
    assert "the candidate has none" in prove(trial).evidence
    ours, theirs = pair_of(make)
    forward = theirs.forward

    def forget(x):
        bias, theirs.bias = theirs.bias, None
        made = forward(x)
        theirs.bias = bias
        return made

    theirs.forward = forget
    assert name_cause(make_trial(ours, theirs, draw(*shape))) == "bias-missing"
    assert name_cause(make_trial(theirs, ours, draw(*shape))) == "bias-missing"


@pytest.mark.parametrize("size", [24, 32])
@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (lambda w: w.T, "transposed"),
        (lambda w: torch.cat(w.chunk(2)[::-1]), "halves-swapped"),
        (lambda w: w.bfloat16().float(), "cast"),
        (lambda w: 3 * w, "scaled"),
        (lambda w: w[torch.randperm(len(w), generator=torch.Generator().manual_seed(0))], "rows-permuted"),
        (lambda w: torch.zeros_like(w), "collapsed"),
        (lambda w: w + 0.05 * draw(len(w), 2, seed=5) @ draw(2, len(w), seed=6), "lora"),
        (lambda w: w + 0.05 * draw(*w.shape, seed=5), "weights-differ"),
    ],
)
def test_weights_are_explained(size, function, cause):
    ours, theirs = pair_of(lambda: nn.Linear(size, size))
    assert name_cause(make_trial(ours, change(theirs, weight=function), draw(6, size))) == cause


def test_fresh_weights_were_not_loaded():
    for cls, size in ((nn.Linear, 40), (nn.Linear, 64)):
        ours, theirs = pair_of(lambda c=cls, s=size: c(s, s))
        with torch.no_grad():
            ours.weight.copy_(torch.from_numpy(__import__("numpy").random.default_rng(0).standard_t(3, (size, size))))
        theirs.reset_parameters()
        theirs.bias = ours.bias
        assert name_cause(make_trial(ours, theirs, draw(6, size))) == "not-loaded"


@pytest.mark.parametrize("size", [16, 24])
def test_weights_of_others(size):
    ours, theirs = pair_of(lambda: nn.Linear(size, size, bias=False))
    own, other, third = ours.weight.detach().clone(), draw(size, size, seed=8), draw(size, size, seed=9)
    change(theirs, weight=lambda w: other)
    x = draw(5, size)

    def place(reference, candidate, path="layers.0.q_proj."):
        return name_cause(make_trial(ours, theirs, x, path=path, model_weights=(reference, candidate)))

    q, k, q1 = "layers.0.q_proj.weight", "layers.0.k_proj.weight", "layers.1.q_proj.weight"
    assert place({q: own, k: other}, {q: other, k: own}) == "roles-swapped"
    assert place({q: own, k: other}, {q: other, k: other}) == "another-layer"
    assert place({q: own, q1: other}, {q: other, q1: own}) == "another-layer"
    assert place({q: own, q1: third}, {q: other, q1: third}) == "weights-differ"
    head, embedding = "lm_head.weight", "embed.weight"
    assert place({head: own, embedding: own}, {head: other, embedding: own}, "lm_head.") == "untied"


@pytest.mark.parametrize("rows", [20, 50])
def test_embeddings(rows):
    ours, theirs = pair_of(lambda: nn.Embedding(rows, 12))
    ids = torch.arange(10).reshape(2, 5)
    moved = make_trial(ours, change(theirs, weight=lambda w: w.roll(1, 0)), ids)
    assert name_cause(moved) in ("rows-permuted", "head-order")
    ours, theirs = pair_of(lambda: nn.Embedding(rows, 12))

    def change_row(weight):
        weight[3] = 0
        return weight

    proof = prove(make_trial(ours, change(theirs, weight=change_row), ids))
    assert proof.evidence == f"`weight`: 12 elements of {rows * 12} differ, in row 3"


@pytest.mark.parametrize("size", [12, 20])
def test_a_norm_centred_at_zero(size):
    ours, theirs = pair_of(lambda: nn.LayerNorm(size))
    assert name_cause(make_trial(ours, change(theirs, weight=lambda w: w - 1), draw(5, size))) == "norm-offset"


@pytest.mark.parametrize("cls", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "batch_first": True}, {"bidirectional": True}])
def test_recurrent_layers(cls, options):
    ours, theirs = pair_of(lambda: cls(6, 8, **options))
    gates = len(ours.weight_ih_l0) // 8
    x = draw(5, 4, 6)
    if gates > 1:
        order = [0, 1, 3, 2][:gates] if gates == 4 else [1, 0, 2]
        swap = lambda w: torch.cat([w.chunk(gates)[gate] for gate in order])  # noqa: E731
        trial = make_trial(ours, change(theirs, weight_ih_l0=swap, weight_hh_l0=swap), x)
        assert name_cause(trial) == "gate-order"
    ours, theirs = pair_of(lambda: cls(6, 8, **options))
    assert (
        name_cause(make_trial(ours, change(theirs, weight_hh_l0=lambda w: 0.3 * draw(*w.shape, seed=4)), x))
        == "weights-differ"
    )


@pytest.mark.parametrize("seed", range(3))
def test_other_faults_are_not_put_on_weights(seed):
    ours, theirs = pair_of(lambda: nn.Linear(16, 16))
    x = draw(5, 16)
    for function in (lambda y: y + 0.1 * draw(*y.shape, seed=seed), torch.tanh, lambda y: 2 * y):
        theirs.forward = lambda x, f=function: f(nn.functional.linear(x, theirs.weight, theirs.bias))
        assert WEIGHTS.prove(make_trial(ours, theirs, x)) is None
        changed = change(train(nn.Linear(16, 16)), weight=lambda w: w + 0.1)
        changed.forward = lambda x, f=function, c=changed: f(nn.functional.linear(x, c.weight, c.bias))
        assert WEIGHTS.prove(make_trial(ours, changed, x)) is None


def test_rounding_is_no_difference_of_weights():
    ours, theirs = pair_of(lambda: nn.Linear(64, 16))
    theirs.forward = lambda x: nn.functional.linear(x.double(), theirs.weight.double(), theirs.bias.double()).float()
    assert WEIGHTS.prove(make_trial(ours, theirs, draw(5, 64))) is None


@pytest.mark.parametrize("size", [12, 16])
def test_code_that_transposes_a_square_matrix(size):
    ours, theirs = pair_of(lambda: nn.Linear(size, size))
    theirs.forward = lambda x: x @ theirs.weight + theirs.bias
    assert name_cause(make_trial(ours, theirs, draw(5, size))) == "transposed"


class Named(nn.Module):
    """Be a linear layer whose weight goes by another name."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.kernel, self.offset = nn.Parameter(torch.zeros(size, size)), nn.Parameter(torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.kernel, self.offset)


@pytest.mark.parametrize("size", [12, 16])
def test_weights_of_other_names(size):
    ours, theirs = train(nn.Linear(size, size)), Named(size)
    theirs.load_state_dict({"kernel": ours.weight.T, "offset": ours.bias})
    assert name_cause(make_trial(ours, theirs, draw(5, size))) == "transposed"


@pytest.mark.parametrize("size", [12, 16])
def test_a_layer_that_borrows_its_weights(size):
    embedding = draw(30, size, seed=4)
    tied = Code(lambda x: nn.functional.linear(x, embedding))
    own = train(nn.Linear(size, 30, bias=False))
    models = {"embed.weight": embedding}, {"embed.weight": embedding, "lm_head.weight": own.weight.detach()}
    for pair, held in (((tied, own), models), ((own, tied), models[::-1])):
        proof = prove(make_trial(*pair, draw(5, size), path="lm_head.", model_weights=held))
        assert proof.cause == "untied"
        assert "uses `embed.weight` here" in proof.evidence
