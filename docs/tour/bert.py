"""The reference of the README: a small BERT encoder with the names Hugging Face gives it."""

from __future__ import annotations

import torch
from torch import nn

WIDTH = 64


class SelfAttention(nn.Module):
    """Attention with one projection each for query, key and value."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Attend over the sequence with 4 heads."""
        query, key, value = (
            projection(hidden).unflatten(-1, (4, -1)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        return self.output(attended.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """One post-norm transformer layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = SelfAttention()
        self.attention_norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.intermediate = nn.Linear(WIDTH, 4 * WIDTH)
        self.activation = nn.GELU()
        self.output = nn.Linear(4 * WIDTH, WIDTH)
        self.output_norm = nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply attention, then the feed-forward block."""
        hidden = self.attention_norm(hidden + self.attention(hidden))
        return self.output_norm(hidden + self.output(self.activation(self.intermediate(hidden))))


class Bert(nn.Module):
    """Embeddings, two layers and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(1000, WIDTH)
        self.embedding_norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.layer = nn.ModuleList(Layer() for _ in range(2))
        self.classifier = nn.Linear(WIDTH, 2)
        nn.init.normal_(self.word_embeddings.weight, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):  # as if trained, so that no two norms are equal
                nn.init.normal_(module.weight, mean=1.0, std=0.1)
                nn.init.normal_(module.bias, std=0.1)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of the first token."""
        hidden = self.embedding_norm(self.word_embeddings(input_ids))
        for layer in self.layer:
            hidden = layer(hidden)
        return self.classifier(hidden[:, 0])


def model() -> nn.Module:
    """Return the model; nndiff calls this."""
    torch.manual_seed(0)
    return Bert().eval()


def inputs() -> torch.Tensor:
    """Return the token ids that both models are fed."""
    return torch.randint(0, 1000, (2, 16))
