"""Five ports that load every weight and are wrong, each with a mistake that ports of NEST have had.

`nndiff diff nemo.nnrec broken.py:axes_swapped` finds the first one, and so on.
"""

from __future__ import annotations

from typing import Any

import torch
from nest_ssl import Nest
from nest_ssl.conformer import HALF_STEP, ConformerEncoder, ConformerFeedForward, ConformerLayer
from nest_ssl.subsampling import ConvSubsampling
from port import inputs, loss, model
from torch import Tensor, nn

__all__ = ["inputs", "loss", "model"]


def axes_swapped() -> Nest:
    """Return a port that flattens frequency before channels; the shape is the same."""
    port = model()
    port.encoder.pre_encode.__class__ = FrequencyFirst
    return port


class FrequencyFirst(ConvSubsampling):
    """NeMo: channels first."""

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return frames whose elements are in another order than the weights."""
        x, lengths = self.conv(x, lengths)
        return self.out(x.permute(0, 2, 3, 1).flatten(2)), lengths


def order_swapped() -> Nest:
    """Return a port whose layers convolve before they attend; weights and shapes are the same."""
    port = model()
    for layer in port.encoder.layers:
        layer.__class__ = ConvolutionFirst
    return port


class ConvolutionFirst(ConformerLayer):
    """NeMo registers the convolution first, and runs attention first."""

    def forward(self, x: Tensor, att_mask: Tensor, pos_emb: Tensor, pad_mask: Tensor) -> Tensor:
        """Return the branches in the order in which they are registered."""
        x = x + self.dropout(self.feed_forward1(self.norm_feed_forward1(x))) * HALF_STEP
        x = self.add_convolution(x, pad_mask)
        x = self.add_attention(x, att_mask, pos_emb)
        x = x + self.dropout(self.feed_forward2(self.norm_feed_forward2(x))) * HALF_STEP
        return self.norm_out(x)


def padding_unmasked() -> Nest:
    """Return a port whose layers take padding for speech; all weights and shapes are the same."""
    port = model()
    port.encoder.__class__ = Unmasked
    return port


class Unmasked(ConformerEncoder):
    """NeMo gives every layer a mask of the padding, for attention and for the convolution."""

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the layers make of a batch without padding."""
        self.pos_enc.reserve(audio_signal.shape[-1])
        x, length = self.pre_encode(x=audio_signal.transpose(1, 2), lengths=length)
        x, pos_emb = self.pos_enc(x=x)
        pad_mask = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        att_mask = pad_mask[:, None, :] | pad_mask[:, :, None]
        for layer in self.layers:
            x = layer(x=x, att_mask=att_mask, pos_emb=pos_emb, pad_mask=pad_mask)
        return x.transpose(1, 2), length


def wrong_eps() -> Nest:
    """Return a port whose batch norms have the eps that other frameworks have."""
    port = model()
    for module in port.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eps = 1e-3
    return port


def extra_dropout() -> Nest:
    """Return a port with a dropout after the second linear layer too; right in eval mode."""
    port = model()
    for layer in port.encoder.layers:
        for module in (layer.feed_forward1, layer.feed_forward2):
            feed_forward: Any = module
            feed_forward.__class__ = DropsTwice
            feed_forward.dropout2 = nn.Dropout(feed_forward.dropout.p).train(feed_forward.training)
    return port


class DropsTwice(ConformerFeedForward):
    """NeMo drops after the activation alone."""

    dropout2: nn.Dropout

    def forward(self, x: Tensor) -> Tensor:
        """Return the output with a part of it dropped."""
        return self.dropout2(super().forward(x))
