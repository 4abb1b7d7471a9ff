"""One layer for several, in every way it is written: compared part by part, and a bug in it is found in its part."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch import nn

import nndiff
from gradients import with_gradient
from nndiff.result import Method
from nndiff.verdict import RelationKind

HEADS, SIZE = 4, 8
WIDTH = HEADS * SIZE
INPUT = torch.randn(3, 7, WIDTH, generator=torch.Generator().manual_seed(0))


def attend(q, k, v):
    heads = [each.unflatten(-1, (-1, SIZE)).transpose(1, 2) for each in (q, k, v)]
    q, k, v = (each.repeat_interleave(HEADS // each.shape[1], 1) for each in heads)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class Apart(nn.Module):
    """Query, key and value in layers of their own; `order` is the one they are registered in."""

    def __init__(self, groups=HEADS, order="qkv", bias=True):
        super().__init__()
        for name in order:
            self.add_module(f"{name}_proj", nn.Linear(WIDTH, WIDTH if name == "q" else groups * SIZE, bias=bias))
        self.o_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.o_proj(attend(self.q_proj(x), self.k_proj(x), self.v_proj(x)))

    def stacked(self, name, arrange):
        return arrange([getattr(getattr(self, f"{each}_proj"), name) for each in "qkv"])


class Fused(nn.Module):
    """All three in one, end to end."""

    out, fused = "o_proj", "qkv"

    def __init__(self, apart):
        super().__init__()
        self.sizes = [len(getattr(apart, f"{each}_proj").weight) for each in "qkv"]
        layer = nn.Linear(WIDTH, sum(self.sizes), bias=apart.q_proj.bias is not None)
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                parameter.copy_(apart.stacked(name, self.arrange))
        self.add_module(self.fused, layer)
        self.add_module(self.out, copy.deepcopy(apart.o_proj))

    def arrange(self, parts):
        return torch.cat(parts)

    def split(self, y):
        return y.split(self.sizes, -1)

    def forward(self, x):
        return getattr(self, self.out)(attend(*self.split(getattr(self, self.fused)(x))))


class KeyFirst(Fused):
    def arrange(self, parts):
        return torch.cat([parts[1], parts[0], parts[2]])

    def split(self, y):
        k, q, v = y.chunk(3, -1)
        return q, k, v


class Interleaved(Fused):
    """Head by head, as GPT-NeoX and BLOOM have it."""

    def arrange(self, parts):
        return torch.stack([part.unflatten(0, (HEADS, SIZE)) for part in parts], 1).flatten(0, 2)

    def split(self, y):
        return (each.flatten(2) for each in y.unflatten(-1, (HEADS, 3, SIZE)).unbind(3))


class OtherNames(Interleaved):
    out, fused = "dense", "query_key_value"


class Transposed(nn.Module):
    """A linear layer whose weight lies the other way, as GPT-2 has it."""

    def __init__(self, layer):
        super().__init__()
        self.weight, self.bias = nn.Parameter(layer.weight.detach().t().clone()), layer.bias

    def forward(self, x):
        return x @ self.weight + self.bias


class Gpt2(Fused):
    out, fused = "c_proj", "c_attn"

    def __init__(self, apart):
        super().__init__(apart)
        self.c_attn = Transposed(self.c_attn)


class Torch(nn.Module):
    """torch's own attention: its fused weights belong to no layer that is called."""

    def __init__(self, apart):
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        with torch.no_grad():
            self.attn.in_proj_weight.copy_(apart.stacked("weight", torch.cat))
            self.attn.in_proj_bias.copy_(apart.stacked("bias", torch.cat))
        self.attn.out_proj.load_state_dict(apart.o_proj.state_dict())

    def forward(self, x):
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.attn(x, x, x, attn_mask=mask, need_weights=False)[0]


class Bare(Interleaved):
    """Parameters of no layer at all, in an order that nothing tells."""

    def __init__(self, apart):
        nn.Module.__init__(self)
        self.w = nn.Parameter(apart.stacked("weight", self.arrange).detach())
        self.b = nn.Parameter(apart.stacked("bias", self.arrange).detach())
        self.o_proj = copy.deepcopy(apart.o_proj)

    def forward(self, x):
        return self.o_proj(attend(*self.split(F.linear(x, self.w, self.b))))


class Block(nn.Module):
    def __init__(self, attn):
        super().__init__()
        self.norm, self.attn, self.ff = nn.LayerNorm(WIDTH), attn, nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attn(self.norm(x))
        return x + torch.tanh(self.ff(x))


def nets(kind, **options):
    """Return a net with attention apart, and the same one with attention of another kind."""
    torch.manual_seed(0)
    one = nn.Sequential(*(Block(Apart(**options)) for _ in range(2))).eval()
    other = copy.deepcopy(one)
    for block in other:
        block.attn = kind(block.attn)
    return one, other.eval()


KINDS = {
    "end to end": (Fused, {}),
    "registered in another order": (Fused, {"order": "vqk"}),
    "without bias": (Fused, {"bias": False}),
    "grouped queries": (Fused, {"groups": 2}),
    "key first": (KeyFirst, {}),
    "interleaved": (Interleaved, {}),
    "other names": (OtherNames, {}),
    "transposed": (Gpt2, {}),
    "torch's own": (Torch, {}),
    "torch's own, another order": (Torch, {"order": "kvq"}),
    "bare parameters": (Bare, {}),
}


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("flipped", [False, True], ids=["", "flipped"])
@pytest.mark.parametrize("kind", KINDS)
def test_fused_is_the_same(kind, flipped, backward):
    one, other = nets(KINDS[kind][0], **KINDS[kind][1])
    result = nndiff.compare(*((other, one) if flipped else (one, other)), inputs=INPUT, backward=backward)
    failing = [(pair.name, pair.candidate_name, pair.method.value) for pair in result.pairs if not pair.verdict.passed]
    assert result.exit_code == 0, (failing, [left for left in result.leftovers if left.counts])
    causes = {finding.cause for finding in result.findings}
    told = backward or ("torch" not in kind and kind != "bare parameters")  # where no layer is fused, gradients tell
    assert causes == ({"fused"} if told else set())
    if told and kind != "bare parameters":
        (finding,) = result.findings
        assert "in 2 places" in finding.evidence


def test_parts_are_named_and_nothing_is_left_over():
    result = nndiff.compare(*nets(Interleaved), inputs=INPUT, backward=True)
    assert not result.leftovers
    parts = {pair.name: pair for pair in result.pairs if pair.method is Method.PARTS}
    assert parts["0.attn.k_proj:output"].candidate_name == "0.attn.qkv:output.[k_proj]"
    assert parts["0.attn.k_proj.weight:param_grad"].shape == ((WIDTH, WIDTH), (WIDTH, WIDTH))
    assert {pair.slot for pair in parts.values()} == {"output", "grad_output", "param_grad"}
    assert all(pair.certain and pair.related for pair in parts.values())


def test_parameters_of_no_layer_are_proven_by_their_gradients():
    result = nndiff.compare(*nets(Bare), inputs=INPUT, backward=True)
    pairs = {pair.candidate_name: pair for pair in result.pairs}
    pair = pairs["0.attn.w:param_grad"]
    assert {f"0.attn.{name}_proj.weight:param_grad" for name in "qkv"} == set(pair.reference_name.split(" + "))
    assert pair.related.accepted
    assert pair.related.relation.kind is RelationKind.LAYOUT
    assert not [left.name for left in result.leftovers if left.counts]


def test_gradients_of_which_only_statistics_were_kept_are_no_pass(tmp_path):
    one, other = nets(Fused)
    for name, net in (("one", one), ("other", other)):
        keep = ("full", "stats:*.[qkv]_proj*", "stats:*.qkv*")
        nndiff.record(net, INPUT, path=tmp_path / name, backward=True, keep=keep)
    result = nndiff.compare(tmp_path / "one", tmp_path / "other")
    assert result.exit_code == 1
    parted = [left for left in result.leftovers if "q_proj.weight" in left.name]
    assert parted
    assert all(left.counts for left in parted)


def hurt(layer, how):
    """Let the weight gradient of a linear layer come out wrong."""
    layer.forward = lambda x: F.linear(x, with_gradient(layer.weight, how, copied=False), layer.bias)


def keys_too_large(grad):
    return torch.cat([grad[:WIDTH], grad[WIDTH : 2 * WIDTH] * 1.01, grad[2 * WIDTH :]])


def parts_swapped(grad):
    return torch.cat([grad[WIDTH : 2 * WIDTH], grad[:WIDTH], grad[2 * WIDTH :]])


@pytest.mark.parametrize(
    ("kind", "how", "part"),
    [
        (Fused, keys_too_large, "k_proj"),
        (Fused, parts_swapped, "q_proj"),
        (Interleaved, parts_swapped, "q_proj"),  # all rows are there: only their places are wrong
    ],
)
def test_a_wrong_gradient_of_a_fused_weight_is_found_in_its_part(kind, how, part):
    one, other = nets(kind)
    hurt(other[0].attn.qkv, how)
    assert nndiff.compare(one, other, inputs=INPUT).exit_code == 0
    result = nndiff.compare(one, other, inputs=INPUT, backward=True)
    assert result.exit_code == 1
    assert result.first_divergence.name == f"0.attn.{part}.weight:param_grad"
    assert result.first_divergence.candidate_name == f"0.attn.qkv.weight:param_grad.[{part}]"
    assert "attribute" not in {finding.cause for finding in result.findings}  # it is of another size by nature


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("flipped", [False, True], ids=["", "flipped"])
@pytest.mark.parametrize("kind", [Fused, Interleaved, OtherNames, Gpt2])
def test_a_wrong_weight_is_found_in_its_part(kind, flipped, backward):
    one, other = nets(kind)
    layer = getattr(other[1].attn, kind.fused)
    with torch.no_grad():
        (layer.weight.t() if kind is Gpt2 else layer.weight)[0] *= 1.1
    result = nndiff.compare(*((other, one) if flipped else (one, other)), inputs=INPUT, backward=backward)
    assert result.exit_code == 1
    names = result.first_divergence.name, result.first_divergence.candidate_name
    assert "1.attn.q_proj:output" in names
    assert f"1.attn.{kind.fused}:output.[q_proj]" in names


def test_heads_that_are_split_wrongly_are_found_in_their_module():
    one, other = nets(Interleaved)
    other[1].attn.split = lambda y: y.chunk(3, -1)
    result = nndiff.compare(one, other, inputs=INPUT)
    assert result.first_divergence.module == "1.attn"


def test_a_bias_that_was_lost_with_the_fusion_is_a_difference():
    one, other = nets(Fused)
    for name in "qkv":
        nn.init.zeros_(getattr(one[0].attn, f"{name}_proj").bias)
    other[0].attn.qkv.bias = None
    assert nndiff.compare(one, other, inputs=INPUT).exit_code == 0  # forward it does nothing
    result = nndiff.compare(one, other, inputs=INPUT, backward=True)
    assert result.exit_code == 1
    assert {left.name for left in result.leftovers if left.counts} == {
        f"0.attn.{name}_proj.bias:param_grad" for name in "qkv"
    }


def test_keys_without_gradient_are_found_in_their_part():
    one, other = nets(Fused)
    split = other[0].attn.split

    def detached(y):
        q, k, v = split(y)
        return q, k.detach(), v

    other[0].attn.split = detached
    result = nndiff.compare(one, other, inputs=INPUT, backward=True)
    assert result.first_divergence.name == "0.attn.k_proj:grad_output"


def test_layers_of_fitting_shapes_that_do_not_belong_together_are_no_bug():
    """The shapes of two layers add up to that of another, which does something else with the same outcome."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4)

        def forward(self, x):
            return self.a(x) + self.b(x)

    class One(nn.Module):
        def __init__(self, two):
            super().__init__()
            self.c = nn.Linear(WIDTH, 8)
            with torch.no_grad():
                mixed = [two.a.weight + two.b.weight, two.a.weight - two.b.weight]
                self.c.weight.copy_(torch.cat(mixed))
                self.c.bias.copy_(torch.cat([two.a.bias + two.b.bias, two.a.bias]))

        def forward(self, x):
            return self.c(x)[..., :4]

    torch.manual_seed(0)
    two = Two()
    result = nndiff.compare(two, One(two), inputs=INPUT)
    assert result.exit_code == 0
    inside = [pair for pair in result.pairs if pair.sites[0].module]
    assert {pair.reference_name for pair in inside} == {"a:output", "b:output"}
    assert not any(pair.decides or pair.verdict.passed for pair in inside)


def test_filters_may_leave_single_parts():
    one, other = nets(KeyFirst)
    result = nndiff.compare(one, other, inputs=INPUT, backward=True, include="*k_proj*")
    assert {pair.name.partition(":")[0] for pair in result.pairs} >= {"0.attn.k_proj", "0.attn.k_proj.weight"}
    assert all(pair.verdict.passed for pair in result.pairs)
