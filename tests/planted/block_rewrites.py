"""Two forms of blocks of other structure: folded, laid out, split and summed otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from block_networks import SIZE, draw_pictures, draw_tokens
from faults import replace_forward
from networks import HEADS, WIDTH
from rewrites import REWRITES, Sides, two
from torch import nn
from truth import rewrite

__all__ = ["REWRITES"]


def in_train_mode(name: str, change: Callable[[Any], None]) -> Sides:
    """Return a network and a rewritten copy, both in train mode."""
    reference, candidate = two(name, change)
    return reference.train(), candidate.train()


@rewrite(draw_pictures)
def channels_last_in_train_mode():
    return in_train_mode("mobile", lambda m: m.to(memory_format=torch.channels_last))


@rewrite(draw_pictures)
def convolutions_in_groups_apart():
    def forward(self, x):
        parts = x.chunk(self.groups, 1), self.weight.chunk(self.groups), self.bias.chunk(self.groups)
        return torch.cat([F.conv2d(x, weight, bias, padding=1) for x, weight, bias in zip(*parts, strict=True)], 1)

    def change(m):
        for block in m.blocks:
            replace_forward(block.depth, forward)

    return in_train_mode("mobile", change)


@rewrite(draw_pictures)
def batch_norm_folded_with_gradients():
    def change(m):
        m.stem = torch.nn.utils.fuse_conv_bn_eval(m.stem, m.norm)
        m.norm = nn.Identity()

    return two("mobile", change)


@torch.no_grad()
def fold_branch(block: Any) -> None:
    """Make the scale of a branch a part of the last convolution."""
    block.shrink.weight.mul_(block.scale[..., None])
    block.shrink.bias.mul_(block.scale.flatten())
    block.scale.fill_(1.0)


@rewrite(draw_pictures, backward=False)
def branch_scale_folded():
    return two("mobile", lambda m: [fold_branch(block) for block in m.blocks])


@torch.no_grad()
def fold_scale(attention: Any) -> None:
    """Make the scale of scores a part of what makes the queries."""
    attention.qkv.weight.view(HEADS, 3, SIZE, WIDTH)[:, 0] *= attention.scale
    attention.qkv.bias.view(HEADS, 3, SIZE)[:, 0] *= attention.scale
    attention.scale = 1.0


@rewrite(draw_tokens, backward=False)
def scale_of_scores_folded():
    return two("parallel", lambda m: [fold_scale(block.attention) for block in m.blocks])


@torch.no_grad()
def fold_norm(norm: Any, layer: Any) -> None:
    """Make weight and bias of a norm a part of the layer behind it."""
    layer.bias.add_(layer.weight @ norm.bias)
    layer.weight.mul_(norm.weight)
    norm.reset_parameters()


@rewrite(draw_tokens, backward=False)
def norms_folded_into_the_next_layers():
    def change(m):
        for block in m.blocks:
            fold_norm(block.norm_a, block.attention.qkv)
            fold_norm(block.norm_b, block.up)

    return two("parallel", change)


@rewrite(draw_tokens)
def queries_in_chunks():
    def forward(self, x):
        q, k, v = self.split(self.qkv(x))
        q, k, made = self.rotate(q), self.rotate(k), []
        places = torch.arange(x.shape[1])
        for start in range(0, x.shape[1], 4):
            scores = q[..., start : start + 4, :] @ k.mT * self.scale
            hidden = places[None] > places[start : start + 4, None]
            made.append(scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v)
        return self.dense(torch.cat(made, -2).transpose(1, 2).flatten(2))

    def change(m):
        for block in m.blocks:
            replace_forward(block.attention, forward)

    return two("parallel", change)


@rewrite(draw_tokens)
def branches_summed_in_place():
    def forward(self, x):
        return self.down(self.act(self.up(self.norm_b(x)))).add_(self.attention(self.norm_a(x))).add_(x)

    def change(m):
        for block in m.blocks:
            replace_forward(block, forward)

    return two("parallel", change)


@rewrite(draw_tokens)
def bias_of_scores_as_a_mask():
    def forward(self, x, bias):
        q, k, v = (layer(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        made = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
        return self.o(made.transpose(1, 2).flatten(2))

    def change(m):
        for layer in m.layers:
            replace_forward(layer, forward)

    return two("biased", change)


@rewrite(draw_tokens)
def chances_of_the_chosen_alone():
    def forward(self, x):
        rows = x.flatten(0, 1)
        scores, owners = self.router(rows).topk(self.chosen, -1)
        chances, made = scores.softmax(-1), torch.zeros_like(rows)
        for number, expert in reversed(list(enumerate(self.experts))):
            tokens, places = (owners == number).nonzero(as_tuple=True)
            made[tokens] += F.silu(expert(rows[tokens])) * chances[tokens, places, None]
        return made.view_as(x)

    def change(m):
        replace_forward(m.first, forward)
        replace_forward(m.second, forward)

    return two("mixture", change)
