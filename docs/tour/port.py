"""The port of the README: the same encoder with its own names, and one wrong setting."""

from __future__ import annotations

import bert
import torch
from torch import nn

WIDTH = bert.WIDTH


class Block(nn.Module):
    """One layer, with query, key and value in one projection."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.norm1 = nn.LayerNorm(WIDTH, eps)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.norm2 = nn.LayerNorm(WIDTH, eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply attention, then the feed-forward block."""
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        x = self.norm1(x + self.proj(attended.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.mlp(x))


class Encoder(nn.Module):
    """The whole model."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps)
        self.blocks = nn.Sequential(Block(eps), Block(eps))
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of the first token."""
        return self.head(self.blocks(self.norm(self.embed(ids)))[:, 0])


def convert(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the reference's weights under the names of the port."""
    names = {
        "word_embeddings": "embed",
        "embedding_norm": "norm",
        "classifier": "head",
        "attention.output": "proj",
        "attention_norm": "norm1",
        "intermediate": "mlp.0",
        "output_norm": "norm2",
        "output": "mlp.2",
    }
    converted = {}
    for name, weight in weights.items():
        if ".attention.key." in name or ".attention.value." in name:
            continue
        if ".attention.query." in name:
            parts = [weights[name.replace("query", part)] for part in ("query", "key", "value")]
            name, weight = name.replace("attention.query", "qkv"), torch.cat(parts)
        for old, new in names.items():
            if f".{old}." in f".{name}":
                name = name.replace(old, new)
                break
        converted[name.replace("layer.", "blocks.")] = weight
    return converted


def model(eps: float = 1e-5) -> nn.Module:
    """Return the port with the default eps of nn.LayerNorm; BERT has 1e-12."""
    encoder = Encoder(eps)
    encoder.load_state_dict(convert(bert.model().state_dict()))  # every key matches
    return encoder.eval()


def fixed() -> nn.Module:
    """Return the port as it should be."""
    return model(eps=1e-12)
