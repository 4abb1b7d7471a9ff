"""Ports in bfloat16 and float16 with other names, classes and order: paired as their float32 twins are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch import nn

import nndiff
from nndiff.align.sites import align_sites

WIDTH, HEADS, LAYERS = 32, 4, 4
pytestmark = pytest.mark.usefixtures("weights_unknown")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        q, k, v = (each(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.attn, self.n2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.up, self.act, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.down(self.act(self.up(self.n2(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.norm, self.head = nn.Linear(16, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, x):
        x = self.emb(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Layer(nn.Linear):
    """A linear layer that rounds once more, before it adds its bias."""

    def forward(self, x):
        return F.linear(x, self.weight) + self.bias


class Port(nn.Module):
    """The same without blocks, registered from the last to the first, values before keys before queries."""

    def __init__(self):
        super().__init__()
        self.last, self.final = Layer(WIDTH, 10), nn.LayerNorm(WIDTH)
        self.shrink = nn.ModuleList(Layer(2 * WIDTH, WIDTH) for _ in range(LAYERS))
        self.grow = nn.ModuleList(Layer(WIDTH, 2 * WIDTH) for _ in range(LAYERS))
        self.mid, self.pre = (nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(LAYERS)) for _ in range(2))
        self.mix, self.val, self.key, self.query = (
            nn.ModuleList(Layer(WIDTH, WIDTH) for _ in range(LAYERS)) for _ in range(4)
        )
        self.stem = Layer(16, WIDTH)

    def forward(self, x):
        x = self.stem(x)
        for k in range(LAYERS):
            y = self.pre[k](x)
            v, k_, q = (
                each[k](y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.val, self.key, self.query)
            )
            scores = torch.softmax(q @ k_.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5, -1)
            x = x + self.mix[k]((scores @ v).transpose(1, 2).flatten(2))
            x = x + self.shrink[k](F.gelu(self.grow[k](self.mid[k](x))))
        return self.last(self.final(x))


INSIDE = dict(
    zip(
        ("n1", "attn.q", "attn.k", "attn.v", "attn.o", "n2", "up", "down"),
        ("pre", "query", "key", "val", "mix", "mid", "grow", "shrink"),
        strict=True,
    )
)
NAMES = {f"blocks.{k}.{one}": f"{other}.{k}" for k in range(LAYERS) for one, other in INSIDE.items()}
NAMES |= {"emb": "stem", "norm": "final", "head": "last"}
RIGHT = {f"{one}:output": f"{other}:output" for one, other in NAMES.items()}


def ported(seed=0, branch=1.0):
    """Return a net and its port; `branch` is how much a block adds to what it is given."""
    torch.manual_seed(seed)
    net, port = Net().eval(), Port().eval()
    with torch.no_grad():
        for each in net.parameters():
            each.add_(0.2 * torch.randn_like(each))  # norms of a fresh model are all alike
        for block in net.blocks:
            for each in (*block.attn.o.parameters(), *block.down.parameters()):
                each.mul_(branch)
    state = net.state_dict()
    port.load_state_dict({f"{b}.{what}": state[f"{a}.{what}"] for a, b in NAMES.items() for what in ("weight", "bias")})
    return net, port


def matches(folder, models, dtypes, keep="full", backward=False):
    """Return how the outputs of two models were paired."""
    inputs = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(2))
    sources = []
    for number, (model, dtype) in enumerate(zip(models, dtypes, strict=True)):
        path = folder / str(number)
        nndiff.record(model.to(dtype), inputs.to(dtype), path=path, keep=keep, backward=backward)
        sources.append(nndiff.open_source(path))
    return align_sites(sources[0].tensors, sources[1].tensors).matches


def outputs(found):
    return {each.reference: each.candidate for each in found if each.reference in RIGHT}


def certain(found):
    return [each for each in found if each.reference in RIGHT and "order" not in each.method.value]


SHORT = [
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float16),
    (torch.float32, torch.bfloat16),
    (torch.float16, torch.float32),
]


@pytest.mark.parametrize("branch", [1.0, 0.05])
@pytest.mark.parametrize("keep", ["full", "sketch"])
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float32), *SHORT], ids=str)
def test_layers_find_their_partners_as_they_do_in_float32(tmp_path, dtypes, keep, branch):
    found = matches(tmp_path, ported(branch=branch), dtypes, keep)
    assert outputs(found) == RIGHT
    assert len(certain(found)) == len(RIGHT)


@pytest.mark.parametrize("dtypes", SHORT, ids=str)
def test_parameters_follow_their_layers(tmp_path, dtypes):
    found = matches(tmp_path, ported(), dtypes, backward=True)
    owned = {each.reference: each.candidate for each in found if each.reference.endswith(":param_grad")}
    assert owned == {
        f"{a}.{what}:param_grad": f"{b}.{what}:param_grad" for a, b in NAMES.items() for what in ("weight", "bias")
    }


@pytest.mark.parametrize("dtypes", SHORT, ids=str)
def test_statistics_alone_make_a_guess_that_says_so(tmp_path, dtypes):
    found = matches(tmp_path, ported(), dtypes, "stats")
    assert not certain(found)
    right = [one for one, other in outputs(found).items() if RIGHT[one] == other]
    assert len(right) >= 0.9 * len(RIGHT)


def heavier_query(port, at):
    port.query[at].weight.mul_(1.5)


def other_norm(port, at):
    port.mid[at].weight.add_(0.3)


def no_norm(port, at):
    port.mid[at] = nn.Identity()


def other_start(port, at):
    port.stem.weight.mul_(1.2)


@pytest.mark.parametrize("keep", ["full", "stats"])
@pytest.mark.parametrize("branch", [1.0, 0.02])
@pytest.mark.parametrize("fault", [heavier_query, other_norm, no_norm, other_start])
@pytest.mark.parametrize("dtypes", SHORT[1:3], ids=str)
def test_no_wrong_pair_is_certain_whatever_is_wrong(tmp_path, dtypes, fault, branch, keep):
    models = ported(1, branch)
    with torch.no_grad():
        fault(models[1], 1)
    found = matches(tmp_path, models, dtypes, keep)
    assert [each for each in certain(found) if RIGHT[each.reference] != each.candidate] == []


def test_a_fault_in_a_short_port_is_found_where_it_is():
    net, port = ported()
    with torch.no_grad():
        port.query[2].weight.mul_(1.5)
    inputs = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(2)).bfloat16()
    result = nndiff.compare(net.bfloat16(), port.bfloat16(), inputs=inputs, atol=0.1, rtol=0.1)
    assert result.first_divergence.name == "blocks.2.attn.q:output"
    assert result.first_divergence.candidate_name == "query.2:output"
