"""A net and its port with other names, classes and order of layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch import nn

WIDTH, HEADS, LAYERS = 32, 4, 4


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
