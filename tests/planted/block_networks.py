"""Hand-written networks of blocks that the others have not: parallel, gated, routed, joined, with biases of scores."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from networks import HEADS, NETWORKS, VOCAB, WIDTH, Network
from torch import nn

SIZE = WIDTH // HEADS  # of a head


def draw_numbers(*shape: int) -> torch.Tensor:
    """Return numbers of a normal distribution, the same every time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def draw_tokens() -> torch.Tensor:
    """Return two sequences of 11 tokens."""
    return torch.randint(3, VOCAB, (2, 11), generator=torch.Generator().manual_seed(1))


def draw_noisy_images() -> dict[str, torch.Tensor]:
    """Return two images of 16 x 16 pixels, and how noisy they are."""
    return {"images": draw_numbers(2, 3, 16, 16), "times": torch.tensor([3, 17])}


def draw_samples() -> torch.Tensor:
    """Return two recordings of 400 samples, neither of mean 0 nor of deviation 1."""
    return 0.3 * draw_numbers(2, 400) + 0.1


class PartlyRotated(nn.Module):
    """Attention with queries, keys and values head by head in one layer; half of each head is rotated."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.dense = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.rotated, self.base, self.scale, self.is_interleaved = SIZE // 2, 10000.0, SIZE**-0.5, False

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        turned, rest = x[..., : self.rotated], x[..., self.rotated :]
        speeds = self.base ** (-torch.arange(0, self.rotated, 2) / self.rotated)
        angles = torch.arange(x.shape[-2])[:, None] * speeds
        if self.is_interleaved:
            cos, sin = angles.cos().repeat_interleave(2, -1), angles.sin().repeat_interleave(2, -1)
            partner = torch.stack([-turned[..., 1::2], turned[..., ::2]], -1).flatten(-2)
        else:
            cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
            first, second = turned.chunk(2, -1)
            partner = torch.cat([-second, first], -1)
        return torch.cat([turned * cos + partner * sin, rest], -1)

    def split(self, joined: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return joined.unflatten(-1, (HEADS, 3 * SIZE)).transpose(1, 2).chunk(3, -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.split(self.qkv(x))
        made = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True, scale=self.scale)
        return self.dense(made.transpose(1, 2).flatten(2))


class ParallelBlock(nn.Module):
    """Attention and MLP beside each other, as GPT-NeoX has them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_a, self.norm_b, self.attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), PartlyRotated()
        self.up, self.act, self.down = nn.Linear(WIDTH, 40), nn.GELU(), nn.Linear(40, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.attention(self.norm_a(x)) + self.down(self.act(self.up(self.norm_b(x))))


class Parallel(nn.Module):
    """A decoder of parallel blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.last, self.head = nn.Embedding(VOCAB, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)
        self.blocks = nn.ModuleList(ParallelBlock() for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


class BiasedAttention(nn.Module):
    """Attention whose scores are not scaled, but have a bias for each distance, as T5 has it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        q, k, v = (layer(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = q @ k.mT
        if bias is not None:
            scores = scores + bias
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Biased(nn.Module):
    """An encoder with one bias of scores for all its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.distances = nn.Embedding(VOCAB, WIDTH), nn.Embedding(21, HEADS)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.layers = nn.ModuleList(BiasedAttention() for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, places = self.tokens(ids), torch.arange(ids.shape[1])
        bias = self.distances((places[None] - places[:, None]).clamp(-10, 10) + 10).permute(2, 0, 1)[None]
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x), bias)
        return x


class TimedUnit(nn.Module):
    """A convolution to which the time is added."""

    def __init__(self, entering: int, leaving: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(entering, leaving, 3, padding=1), nn.GroupNorm(4, leaving)
        self.time, self.second = nn.Linear(16, leaving), nn.Conv2d(leaving, leaving, 3, padding=1)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        x = F.silu(self.norm(self.first(x))) + self.time(time)[..., None, None]
        return self.second(x)


class Denoiser(nn.Module):
    """A U-Net that is told the time by sinusoids."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.enter, self.inner = nn.Linear(16, 16), TimedUnit(3, 8), TimedUnit(8, 8)
        self.leave, self.out = TimedUnit(16, 8), nn.Conv2d(8, 3, 1)

    def encode(self, times: torch.Tensor) -> torch.Tensor:
        angles = times[:, None] * torch.exp(-math.log(10000.0) * torch.arange(8) / 8)
        return torch.cat([angles.sin(), angles.cos()], -1)

    def grow(self, x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=2, mode="bilinear")

    def forward(self, images: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        time = F.silu(self.embed(self.encode(times)))
        high = self.enter(images, time)
        low = self.inner(F.avg_pool2d(high, 2), time)
        return self.out(self.leave(torch.cat([high, self.grow(low)], 1), time))


class Squeezed(nn.Module):
    """A depthwise convolution between two batch norms, its channels gated, with a scale for each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.grow, self.norm_a = nn.Conv2d(width, 2 * width, 1, bias=False), nn.BatchNorm2d(2 * width)
        self.depth = nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width)
        self.norm_b, self.gate = nn.BatchNorm2d(2 * width), nn.Conv2d(2 * width, 2 * width, 1)
        self.shrink, self.scale = nn.Conv2d(2 * width, width, 1), nn.Parameter(torch.full((width, 1, 1), 0.5))

    def weigh(self, x: torch.Tensor) -> torch.Tensor:
        return F.hardsigmoid(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm_b(self.depth(F.relu6(self.norm_a(self.grow(x)))))
        y = y * self.weigh(self.gate(y.mean((2, 3), keepdim=True)))
        return x + self.scale * self.shrink(y)


class Mobile(nn.Module):
    """A classifier of gated blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8)
        self.blocks, self.head = nn.Sequential(Squeezed(8), Squeezed(8)), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3)))


class Routed(nn.Module):
    """Experts of which each token is given to the best two."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.chosen = nn.Linear(WIDTH, 4, bias=False), 2
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(0, 1)
        chances, owners = self.router(rows).softmax(-1).topk(self.chosen, -1)
        chances = chances / chances.sum(-1, keepdim=True)
        made = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            tokens, places = (owners == number).nonzero(as_tuple=True)
            made.index_add_(0, tokens, F.silu(expert(rows[tokens])) * chances[tokens, places, None])
        return made.view_as(x)


class Mixture(nn.Module):
    """Two layers of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(VOCAB, WIDTH), nn.LayerNorm(WIDTH)
        self.first, self.second = Routed(), Routed()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        x = x + self.first(self.norm(x))
        return x + self.second(x)


class Listener(nn.Module):
    """Samples of sound, made alike in size, through convolutions and a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.norm = nn.Conv1d(1, 16, 10, 5, bias=False), nn.GroupNorm(16, 16)
        self.gru, self.head = nn.GRU(16, 12, batch_first=True, bidirectional=True), nn.Linear(24, 7)

    def prepare(self, samples: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(samples, samples.shape[-1:])

    def join(self, states: torch.Tensor) -> torch.Tensor:
        return states

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.norm(self.front(self.prepare(samples)[:, None])))
        states: Any = self.gru(x.transpose(1, 2))[0]
        return self.head(self.join(states)).log_softmax(-1)


def draw_pictures() -> torch.Tensor:
    """Return two images of 16 x 16 pixels."""
    return draw_numbers(2, 3, 16, 16)


BLOCK_NETWORKS = {
    "parallel": Network(Parallel, draw_tokens),
    "biased": Network(Biased, draw_tokens),
    "denoiser": Network(Denoiser, draw_noisy_images),
    "mobile": Network(Mobile, draw_pictures),
    "mixture": Network(Mixture, draw_tokens),
    "listener": Network(Listener, draw_samples),
}
NETWORKS.update(BLOCK_NETWORKS)
