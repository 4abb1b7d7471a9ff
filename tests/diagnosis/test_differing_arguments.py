"""A layer that is given something else by the module around it is not blamed for what it makes of it."""

from __future__ import annotations

import torch
from torch import nn

import nndiff


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores, self.out = nn.Linear(8, 5), nn.Linear(8, 8)

    def forward(self, x, mask):
        return self.out(self.scores(x).masked_fill(mask, -1e4).softmax(-1) @ x)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.norm = Attention(), nn.LayerNorm(8)

    def forward(self, x, mask):
        return x + self.attention(self.norm(x), mask=mask)


class Encoder(nn.Module):
    """Give its layer a mask of the last frames."""

    def __init__(self, padded=2, factor=1.0):
        super().__init__()
        self.embed, self.layer, self._padded = nn.Linear(8, 8), Layer(), padded
        self.layer.attention.scores.register_forward_hook(lambda module, args, output: output * factor)

    def forward(self, x):
        return self.layer(self.embed(x), mask=(torch.arange(5) >= 5 - self._padded).expand(2, 5, 5))


class Whole(nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = Encoder(**options)

    def forward(self, x):
        return self.encoder(x)


def find_first(**options):
    inputs = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(3))
    return nndiff.compare(Whole(), Whole(**options), inputs=inputs).first_divergence


def test_a_mask_that_differs_is_blamed_on_the_module_that_makes_it():
    first = find_first(padded=0)
    assert (first.name, first.module) == ("encoder:output", "encoder")
    assert (first.after, first.before) == ("encoder.embed:output", "encoder.layer:input.mask")


def test_where_the_arguments_agree_the_layer_that_uses_them_is_where_to_look():
    assert find_first(factor=2.0).name == "encoder.layer.attention.scores:output"
