"""The FastConformer encoder: feed forward, attention, convolution, feed forward, many times over."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional

from nest_ssl.attention import RelPositionalEncoding, RelPositionMultiHeadAttention
from nest_ssl.features import mask_until
from nest_ssl.subsampling import ConvSubsampling

HALF_STEP = 0.5  # a feed forward counts half


class ConformerFeedForward(nn.Module):
    """Two linear layers; all of a model share one activation."""

    def __init__(self, d_model: int, d_ff: int, dropout: float, use_bias: bool, activation: nn.Module) -> None:
        super().__init__()
        self.linear1 = nn.Linear(d_model, d_ff, bias=use_bias)
        self.activation = activation
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(d_ff, d_model, bias=use_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, frames, width)."""
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class ConformerConvolution(nn.Module):
    """Look at a few frames on either side, channel by channel."""

    def __init__(self, d_model: int, kernel_size: int, use_bias: bool) -> None:
        super().__init__()
        padding = (kernel_size - 1) // 2
        self.pointwise_conv1 = nn.Conv1d(d_model, 2 * d_model, kernel_size=1, bias=use_bias)
        self.depthwise_conv = nn.Conv1d(d_model, d_model, kernel_size, padding=padding, groups=d_model, bias=use_bias)
        self.batch_norm = nn.BatchNorm1d(d_model)
        self.activation = nn.SiLU()
        self.pointwise_conv2 = nn.Conv1d(d_model, d_model, kernel_size=1, bias=use_bias)

    def forward(self, x: Tensor, pad_mask: Tensor) -> Tensor:
        """Return (batch, frames, width); `pad_mask` (batch, frames) is True at padding."""
        x = functional.glu(self.pointwise_conv1(x.transpose(1, 2)), dim=1)
        x = self.depthwise_conv(x.masked_fill(pad_mask[:, None], 0.0))
        return self.pointwise_conv2(self.activation(self.batch_norm(x))).transpose(1, 2)


class ConformerLayer(nn.Module):
    """Four residual branches, each after a norm of its own, and a norm at the end."""

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        n_heads: int,
        conv_kernel_size: int,
        dropout: float,
        dropout_att: float,
        use_bias: bool,
        activation: nn.Module,
    ) -> None:
        super().__init__()
        self.norm_feed_forward1 = nn.LayerNorm(d_model)
        self.feed_forward1 = ConformerFeedForward(d_model, d_ff, dropout, use_bias, activation)
        self.norm_conv = nn.LayerNorm(d_model)
        self.conv = ConformerConvolution(d_model, conv_kernel_size, use_bias)
        self.norm_self_att = nn.LayerNorm(d_model)
        self.self_attn = RelPositionMultiHeadAttention(n_heads, d_model, dropout_att, use_bias)
        self.norm_feed_forward2 = nn.LayerNorm(d_model)
        self.feed_forward2 = ConformerFeedForward(d_model, d_ff, dropout, use_bias, activation)
        self.dropout = nn.Dropout(dropout)
        self.norm_out = nn.LayerNorm(d_model)

    def forward(self, x: Tensor, att_mask: Tensor, pos_emb: Tensor, pad_mask: Tensor) -> Tensor:
        """Return (batch, frames, width)."""
        x = x + self.dropout(self.feed_forward1(self.norm_feed_forward1(x))) * HALF_STEP
        x = self.add_attention(x, att_mask, pos_emb)
        x = self.add_convolution(x, pad_mask)
        x = x + self.dropout(self.feed_forward2(self.norm_feed_forward2(x))) * HALF_STEP
        return self.norm_out(x)

    def add_attention(self, x: Tensor, att_mask: Tensor, pos_emb: Tensor) -> Tensor:
        """Return the input with what attention adds to it."""
        normed = self.norm_self_att(x)
        return x + self.dropout(self.self_attn(query=normed, key=normed, value=normed, mask=att_mask, pos_emb=pos_emb))

    def add_convolution(self, x: Tensor, pad_mask: Tensor) -> Tensor:
        """Return the input with what the convolution adds to it."""
        return x + self.dropout(self.conv(self.norm_conv(x), pad_mask=pad_mask))


class ConformerEncoder(nn.Module):
    """Subsample features, then run the layers."""

    def __init__(
        self,
        feat_in: int,
        n_layers: int,
        d_model: int,
        subsampling_factor: int = 4,
        subsampling_conv_channels: int = -1,
        ff_expansion_factor: int = 4,
        n_heads: int = 4,
        xscaling: bool = True,
        pos_emb_max_len: int = 5000,
        conv_kernel_size: int = 31,
        use_bias: bool = True,
        dropout: float = 0.1,
        dropout_pre_encoder: float = 0.1,
        dropout_emb: float = 0.1,
        dropout_att: float = 0.0,
    ) -> None:
        super().__init__()
        channels = d_model if subsampling_conv_channels == -1 else subsampling_conv_channels
        self.pre_encode = ConvSubsampling(subsampling_factor, feat_in, d_model, channels)
        self.pos_enc = RelPositionalEncoding(
            d_model,
            dropout_rate=dropout_pre_encoder,
            max_len=pos_emb_max_len,
            xscale=math.sqrt(d_model) if xscaling else None,
            dropout_rate_emb=dropout_emb,
        )
        activation = nn.SiLU()
        self.layers = nn.ModuleList()
        for _ in range(n_layers):
            layer = ConformerLayer(
                d_model,
                d_ff=d_model * ff_expansion_factor,
                n_heads=n_heads,
                conv_kernel_size=conv_kernel_size,
                dropout=dropout,
                dropout_att=dropout_att,
                use_bias=use_bias,
                activation=activation,
            )
            self.layers.append(layer)

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """Return (batch, width, frames) and the lengths, from features (batch, mel, frames) and theirs."""
        self.pos_enc.reserve(audio_signal.shape[-1])
        x, length = self.pre_encode(x=audio_signal.transpose(1, 2), lengths=length)
        x, pos_emb = self.pos_enc(x=x)
        pad_mask = ~mask_until(length, x.shape[1])
        att_mask = pad_mask[:, None, :] | pad_mask[:, :, None]
        for layer in self.layers:
            x = layer(x=x, att_mask=att_mask, pos_emb=pos_emb, pad_mask=pad_mask)
        return x.transpose(1, 2), length
