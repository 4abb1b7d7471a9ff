"""Attention with relative positions, as in Transformer-XL."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

HIDDEN_SCORE = -10000.0
LONGEST_WAVE = 10000.0


class RelPositionalEncoding(nn.Module):
    """Scale the input, and give sines and cosines of the distance between any two frames."""

    pe: Tensor

    def __init__(
        self, d_model: int, dropout_rate: float, max_len: int, xscale: float | None, dropout_rate_emb: float
    ) -> None:
        super().__init__()
        self.d_model, self.xscale = d_model, xscale
        self.dropout = nn.Dropout(dropout_rate)
        self.dropout_emb = nn.Dropout(dropout_rate_emb) if dropout_rate_emb > 0 else None
        self.register_buffer("pe", self.make_encoding(max_len), persistent=False)

    def make_encoding(self, length: int) -> Tensor:
        """Return the encoding of the distances from length - 1 down to 1 - length."""
        distances = torch.arange(length - 1, -length, -1, dtype=torch.float32)[:, None]
        steps = torch.arange(0, self.d_model, 2, dtype=torch.float32)
        angles = distances * torch.exp(steps * -(math.log(LONGEST_WAVE) / self.d_model))
        encoding = torch.zeros(1, 2 * length - 1, self.d_model)
        encoding[0, :, 0::2] = torch.sin(angles)
        encoding[0, :, 1::2] = torch.cos(angles)
        return encoding

    def reserve(self, length: int) -> None:
        """Make the encoding long enough."""
        if self.pe.shape[1] < 2 * length - 1:
            self.pe = self.make_encoding(length).to(self.pe)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scaled input, and the encoding of the distances in it: (1, 2 * frames - 1, width)."""
        if self.xscale:
            x = x * self.xscale
        frames = x.shape[1]
        middle = self.pe.shape[1] // 2
        encoding = self.pe[:, middle + 1 - frames : middle + frames]
        if self.dropout_emb is not None:
            encoding = self.dropout_emb(encoding)
        return self.dropout(x), encoding


class RelPositionMultiHeadAttention(nn.Module):
    """Score keys by what they hold and by how far away they are."""

    def __init__(self, n_head: int, n_feat: int, dropout_rate: float, use_bias: bool) -> None:
        super().__init__()
        self.h, self.d_k = n_head, n_feat // n_head
        self.linear_q = nn.Linear(n_feat, n_feat, bias=use_bias)
        self.linear_k = nn.Linear(n_feat, n_feat, bias=use_bias)
        self.linear_v = nn.Linear(n_feat, n_feat, bias=use_bias)
        self.linear_out = nn.Linear(n_feat, n_feat, bias=use_bias)
        self.dropout = nn.Dropout(dropout_rate)
        self.linear_pos = nn.Linear(n_feat, n_feat, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(self.h, self.d_k))
        self.pos_bias_v = nn.Parameter(torch.zeros(self.h, self.d_k))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, pos_emb: Tensor) -> Tensor:
        """Return (batch, frames, width); `mask` (batch, frames, frames) is True where nothing may be looked at."""
        batch = query.shape[0]
        q = self.linear_q(query).view(batch, -1, self.h, self.d_k)
        k = self.linear_k(key).view(batch, -1, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(value).view(batch, -1, self.h, self.d_k).transpose(1, 2)
        p = self.linear_pos(pos_emb).view(1, -1, self.h, self.d_k).transpose(1, 2)
        by_distance = (q + self.pos_bias_v).transpose(1, 2) @ p.transpose(2, 3)
        by_content = (q + self.pos_bias_u).transpose(1, 2) @ k.transpose(2, 3)
        by_distance = shift_distances(by_distance)[..., : by_content.shape[-1]]
        scores = (by_content + by_distance) / math.sqrt(self.d_k)
        mask = mask[:, None]
        weights = torch.softmax(scores.masked_fill(mask, HIDDEN_SCORE), dim=-1).masked_fill(mask, 0.0)
        mixed = (self.dropout(weights) @ v).transpose(1, 2).reshape(batch, -1, self.h * self.d_k)
        return self.linear_out(mixed)


def shift_distances(scores: Tensor) -> Tensor:
    """Return scores by key from scores by distance, both (batch, heads, queries, distances).

    Row i begins at distance frames - 1 and must begin at distance i. With one column of zeros in front, reading the
    same memory in rows of another length moves each row by one more than the row above it.
    """
    batch, heads, queries, distances = scores.shape
    padded = functional.pad(scores, (1, 0)).view(batch, heads, distances + 1, queries)
    return padded[:, :, 1:].view(batch, heads, queries, distances)
