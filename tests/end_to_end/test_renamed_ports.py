"""Ports with other names and other classes of layers: equal but for rounding, and paired by that."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch import nn

import nndiff
from nndiff.result import Method

WIDTH, LAYERS = 24, 4
INPUT = torch.randn(2, 9, WIDTH, generator=torch.Generator().manual_seed(2))


class Turned(nn.Module):
    """A linear layer that holds its weight the other way round."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(n_in, n_out) / n_in**0.5), nn.Parameter(torch.randn(n_out))

    def forward(self, x):
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.c_fc, self.act, self.c_proj = Turned(WIDTH, 4 * WIDTH), nn.GELU("tanh"), Turned(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x):
        return self.dropout(self.c_proj(self.act(self.c_fc(x))))


class TheirBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.mix, self.ln_2, self.mlp = nn.LayerNorm(WIDTH), Turned(WIDTH, WIDTH), nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x):
        x = x + self.mix(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Theirs(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.h, self.ln_f = nn.ModuleList(TheirBlock() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
        self.head = Turned(WIDTH, 10)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))

    def forward(self, x):
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


def copied(one):
    layer = nn.Linear(*one.weight.shape)
    with torch.no_grad():
        layer.weight.copy_(one.weight.T)
        layer.bias.copy_(one.bias)
    return layer


class OurBlock(nn.Module):
    def __init__(self, their, fault):
        super().__init__()
        self.norm1, self.norm2, self.fault = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), fault
        self.token, self.up, self.down = copied(their.mix), copied(their.mlp.c_fc), copied(their.mlp.c_proj)
        self.norm1.load_state_dict(their.ln_1.state_dict())
        self.norm2.load_state_dict(their.ln_2.state_dict())

    def forward(self, x):
        x = x + self.token(self.norm1(x))
        if self.fault == "norm after":
            return self.norm2(x + self.down(F.gelu(self.up(x), approximate="tanh")))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="none" if self.fault == "erf" else "tanh"))


class Ours(nn.Module):
    def __init__(self, fault="", at=1):
        super().__init__()
        theirs = Theirs()
        self.blocks = nn.ModuleList(OurBlock(each, fault if k == at else "") for k, each in enumerate(theirs.h))
        self.norm, self.out, self.fault = theirs.ln_f, copied(theirs.head), fault

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.out(x if self.fault == "no last norm" else self.norm(x))


def partners(result):
    return {pair.name: pair.candidate_name for pair in result.pairs if pair.slot == "output"}


INSIDE = {"ln_1": "norm1", "mix": "token", "ln_2": "norm2", "mlp.c_fc": "up", "mlp.c_proj": "down"}
RIGHT = {f"h.{k}.{one}:output": f"blocks.{k}.{other}:output" for k in range(LAYERS) for one, other in INSIDE.items()}
RIGHT |= {f"h.{k}:output": f"blocks.{k}:output" for k in range(LAYERS)}


@pytest.mark.parametrize("backward", [False, True])
def test_a_right_port_passes_layer_by_layer(backward):
    result = nndiff.compare(Theirs(), Ours(), inputs=INPUT, backward=backward)
    assert result.exit_code == 0, result.worst()
    assert partners(result).items() >= RIGHT.items()
    assert not any(pair.method is Method.CALL for pair in result.pairs if pair.slot == "output")


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize(
    ("fault", "after", "before"),
    [("erf", "mlp.c_fc", "mlp.c_proj"), ("norm after", "mix", "ln_2")],
)
def test_a_fault_is_found_in_its_block_between_its_layers(fault, after, before, at):
    result = nndiff.compare(Theirs(), Ours(fault, at), inputs=INPUT)
    first = result.first_divergence
    assert first.name == f"h.{at}:output"
    assert (first.after, first.before) == (f"h.{at}.{after}:output", f"h.{at}.{before}:output")
    assert all(pair.verdict.passed for pair in result.pairs if pair.order < first.order and f"h.{at}" not in pair.name)
    if fault == "erf":  # layers after it have the partners that they have without one
        assert partners(result).items() >= RIGHT.items()


def test_a_norm_that_is_left_out_at_the_end_makes_no_layer_before_it_wrong():
    result = nndiff.compare(Theirs(), Ours("no last norm"), inputs=INPUT)
    assert result.exit_code == 1
    assert all(pair.verdict.passed for pair in result.pairs if pair.name in RIGHT)
    assert result.first_divergence.after == f"h.{LAYERS - 1}:output"


def test_the_parameters_of_a_wrong_layer_are_paired_by_their_module():
    ours = Ours()
    with torch.no_grad():
        ours.blocks[2].norm2.weight[3] += 0.5
    result = nndiff.compare(Theirs(), ours, inputs=INPUT, backward=True)
    assert result.first_divergence.name == "h.2.ln_2:output"
    rows = {pair.name: (pair.candidate_name, pair.method) for pair in result.pairs}
    assert rows["h.2.ln_2.weight:param_grad"] == ("blocks.2.norm2.weight:param_grad", Method.MODULE)


class Codebook(nn.Module):
    def __init__(self, power=2.0, both=False):
        super().__init__()
        self.project, self.power, self.both = nn.Linear(WIDTH, 4, bias=False), power, both
        self.register_buffer("codes", torch.randn(16, 4))

    def forward(self, x):
        ids = torch.cdist(self.project(x), self.codes, p=self.power).argmin(-1)
        return (self.codes[ids], ids) if self.both else ids


class Quantised(nn.Module):
    def __init__(self, name, last, **options):
        super().__init__()
        torch.manual_seed(0)
        self.add_module(name, Codebook(**options))
        self.add_module(last, nn.Linear(WIDTH, 5))
        self.parts = name, last

    def forward(self, x):
        found = getattr(self, self.parts[0])(x)
        return getattr(self, self.parts[1])(x), found[1] if isinstance(found, tuple) else found


def test_modules_around_the_same_layers_belong_together_whatever_they_return():
    theirs, ours = Quantised("quantizer", "decoder", both=True), Quantised("tokens", "head", power=1.0)
    first = nndiff.compare(theirs, ours, inputs=INPUT).first_divergence
    assert (first.name, first.candidate_name) == ("quantizer:output.1", "tokens:output")
