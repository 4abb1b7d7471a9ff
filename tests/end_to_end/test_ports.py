"""BERT on torch's own encoder, with other names for everything: the same model passes, a wrong gradient is found.

GPT-2 and Llama against ports of them are in test_new_user.py, fused attention in test_fused.py.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nndiff

WIDTH, HEADS, LAYERS = 32, 4, 3
TOKENS = {"input_ids": torch.randint(0, 90, (2, 11), generator=torch.Generator().manual_seed(1))}


def spread(model):
    """Return a model whose parameters are not all alike, as those of a fresh one are."""
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


class OnTorch(nn.Module):
    """BERT on torch's own encoder, which hides its attention in one module."""

    def __init__(self, padding):
        super().__init__()
        self.word = nn.Embedding(100, WIDTH, padding_idx=padding)
        self.position, self.kind, self.ln = nn.Embedding(64, WIDTH), nn.Embedding(2, WIDTH), nn.LayerNorm(WIDTH, 1e-12)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, 0.0, "gelu", 1e-12, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.pool = nn.Linear(WIDTH, WIDTH)

    def forward(self, input_ids):
        places = self.position(torch.arange(input_ids.shape[1]))
        x = self.enc(self.ln(self.word(input_ids) + places + self.kind(torch.zeros_like(input_ids))))
        return {"last_hidden_state": x, "pooler_output": torch.tanh(self.pool(x[:, 0]))}


def bert(padding=0):
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=64,
        max_position_embeddings=64, attn_implementation="eager", hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip
    theirs, ours = spread(BertModel(config)), OnTorch(padding).eval()
    first = theirs.embeddings
    pairs = [
        (first.word_embeddings, ours.word),
        (first.position_embeddings, ours.position),
        (first.token_type_embeddings, ours.kind),
        (first.LayerNorm, ours.ln),
        (theirs.pooler.dense, ours.pool),
    ]
    for one, other in zip(theirs.encoder.layer, ours.enc.layers, strict=True):
        own = one.attention.self
        with torch.no_grad():
            for name in ("weight", "bias"):
                parts = [getattr(each, name) for each in (own.query, own.key, own.value)]
                getattr(other.self_attn, f"in_proj_{name}").copy_(torch.cat(parts))
        pairs += [
            (one.attention.output.dense, other.self_attn.out_proj),
            (one.attention.output.LayerNorm, other.norm1),
            (one.intermediate.dense, other.linear1),
            (one.output.dense, other.linear2),
            (one.output.LayerNorm, other.norm2),
        ]
    for one, other in pairs:
        other.load_state_dict(one.state_dict())
    return theirs, ours


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("flipped", [False, True], ids=["", "flipped"])
def test_a_port_is_the_same(flipped, backward):
    one, other = bert()
    result = nndiff.compare(*((other, one) if flipped else (one, other)), inputs=TOKENS, backward=backward)
    failing = [(pair.name, pair.candidate_name, pair.method.value) for pair in result.pairs if not pair.verdict.passed]
    assert result.exit_code == 0, (failing, [left for left in result.leftovers if left.counts])
    assert all(finding.harmless for finding in result.findings)


def test_a_gradient_that_only_padding_stops_is_found():
    """The forward pass says nothing of `padding_idx`; the gradient of its row does."""
    tokens = {"input_ids": torch.cat([TOKENS["input_ids"], torch.zeros(2, 1, dtype=torch.long)], 1)}
    one, other = bert(padding=None)
    assert nndiff.compare(one, other, inputs=tokens).exit_code == 0
    result = nndiff.compare(one, other, inputs=tokens, backward=True)
    assert result.exit_code == 1
    wrong = [pair.candidate_name for pair in result.pairs if not pair.verdict.passed and pair.decides]
    assert wrong == ["word.weight:param_grad"]
