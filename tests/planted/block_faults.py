"""Faults in blocks of other structure: parallel, gated, routed, joined, with biases of scores."""

from __future__ import annotations

import block_networks  # noqa: F401  # adds its networks to those that have faults
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from block_networks import SIZE
from faults import FAULTS, replace_forward
from networks import HEADS
from truth import at, code_of, either, fault

__all__ = ["FAULTS"]

ATTENTION = code_of("blocks.1.attention", "blocks.1.attention.dense")


@fault("parallel", ATTENTION, "rope-layout", "rope layout of fused heads", backward=True)
def half_heads_interleaved(m):
    m.blocks[1].attention.is_interleaved = True


@fault("parallel", ATTENTION, "rope-theta", "rope theta of fused heads")
def half_heads_of_another_theta(m):
    m.blocks[1].attention.base = 100.0


@fault("parallel", ATTENTION, "rope-layout", "share of a head that is rotated")
def whole_heads_rotated(m):
    m.blocks[1].attention.rotated = SIZE


@fault("parallel", ATTENTION, "attention-scale", "attention scale of fused heads")
def fused_heads_divided_by_size(m):
    m.blocks[1].attention.scale = 1 / SIZE


@fault("parallel", ATTENTION, "concatenation", "layout of fused heads")
def fused_heads_split_one_after_the_other(m):
    m.blocks[1].attention.split = lambda joined: [
        part.unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for part in joined.chunk(3, -1)
    ]


@fault("parallel", code_of("blocks.0", "blocks.0.norm_b"), "residual", "blocks in sequence")
def branches_one_after_the_other(m):
    def forward(self, x):
        x = x + self.attention(self.norm_a(x))
        return x + self.down(self.act(self.up(self.norm_b(x))))

    replace_forward(m.blocks[0], forward)


@fault("biased", code_of("layers.1", "layers.1.o"), "bias-missing", "bias of scores missing")
def bias_of_scores_missing(m):
    plain = m.layers[1].forward
    m.layers[1].forward = lambda x, bias: plain(x, None)


@fault("biased", code_of("layers.0", "layers.0.o"), "attention-scale", "attention scale beside a bias")
def biased_scores_scaled(m):
    def forward(self, x, bias):
        q, k, v = (layer(x).unflatten(-1, (HEADS, SIZE)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.o(((q @ k.mT / SIZE**0.5 + bias).softmax(-1) @ v).transpose(1, 2).flatten(2))

    replace_forward(m.layers[0], forward)


@fault("denoiser", code_of("", "leave"), "interpolation", "align corners of a part", backward=True)
def joined_part_with_aligned_corners(m):
    m.grow = lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)


@fault("denoiser", code_of("inner", "inner.second"), "layer-skipped", "branch for each channel missing")
def time_not_added(m):
    replace_forward(m.inner, lambda self, x, time: self.second(F.silu(self.norm(self.first(x)))))


@fault("denoiser", code_of("", "embed"), "position-layout concatenation", "order of sines and cosines")
def cosines_first(m):
    plain = m.encode
    m.encode = lambda times: torch.cat(plain(times).chunk(2, -1)[::-1], -1)


@fault("mobile", at("blocks.1"), "activation", "gate of channels", is_reversed=True)
def gate_by_sigmoid(m):
    m.blocks[1].weigh = torch.sigmoid


@fault("mobile", at("blocks.0"), "collapsed not-loaded", "scale of a branch not loaded", backward=True)
def branch_scaled_to_nothing(m):
    m.blocks[0].scale.data.fill_(1e-6)


@fault("mixture", code_of("first", "first.experts.0"), "own-code", "experts chosen otherwise")
def one_expert_chosen(m):
    m.first.chosen = 1


@fault("mixture", at("second.router"), "rows-permuted head-order", "order of experts")
def experts_in_another_order(m):
    weight = m.second.router.weight
    weight.data.copy_(weight[[1, 2, 3, 0]])


@fault("listener", code_of("", "front"), "preprocessing", "samples not standardised")
def samples_as_they_are(m):
    m.prepare = lambda samples: samples


@fault("listener", code_of("", "head"), "concatenation", "concatenation order behind a module")
def states_joined_in_another_order(m):
    m.join = lambda states: torch.cat(states.chunk(2, -1)[::-1], -1)


@fault("listener", either("gru"), "gate-order", "gate order of a GRU")
def gru_gates_exchanged(m):
    for parameter in m.gru.parameters():
        parameter.data.copy_(torch.cat([parameter.data.chunk(3)[gate].clone() for gate in (1, 0, 2)]))
