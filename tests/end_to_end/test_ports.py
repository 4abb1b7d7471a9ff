"""Ports with other names for everything: the same model passes, and a bug in the port is found at its place."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
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


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        heads = (each(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (self.query, self.key, self.value))
        return self.proj(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x)), approximate="tanh"))


class Port(nn.Module):
    """GPT-2 as somebody might write it: attention apart, no Conv1D, other names."""

    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(100, WIDTH), nn.Embedding(64, WIDTH)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, 100, bias=False)
        self.out.weight = self.tok.weight

    def forward(self, input_ids):
        x = self.tok(input_ids) + self.pos(torch.arange(input_ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


def copied(layer, weight, bias):
    with torch.no_grad():
        layer.weight.copy_(weight.t())
        layer.bias.copy_(bias)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=100, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=64, use_cache=False,
        attn_implementation="eager", bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    theirs, ours = spread(GPT2LMHeadModel(config)), Port().eval()
    body = theirs.transformer
    for one, other in ((body.wte, ours.tok), (body.wpe, ours.pos), (body.ln_f, ours.norm)):
        other.load_state_dict(one.state_dict())
    for one, other in zip(body.h, ours.blocks, strict=True):
        other.norm1.load_state_dict(one.ln_1.state_dict())
        other.norm2.load_state_dict(one.ln_2.state_dict())
        fused = one.attn.c_attn
        parts = zip(("query", "key", "value"), fused.weight.chunk(3, 1), fused.bias.chunk(3), strict=True)
        for name, weight, bias in parts:
            copied(getattr(other.attention, name), weight, bias)
        for source, target in (
            (one.attn.c_proj, other.attention.proj),
            (one.mlp.c_fc, other.fc1),
            (one.mlp.c_proj, other.fc2),
        ):
            copied(target, source.weight, source.bias)
    return theirs, ours


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
@pytest.mark.parametrize("make", [gpt2, bert], ids=["gpt2", "bert"])
def test_a_port_is_the_same(make, flipped, backward):
    one, other = make()
    result = nndiff.compare(*((other, one) if flipped else (one, other)), inputs=TOKENS, backward=backward)
    failing = [(pair.name, pair.candidate_name, pair.method.value) for pair in result.pairs if not pair.verdict.passed]
    assert result.exit_code == 0, (failing, [left for left in result.leftovers if left.counts])
    assert all(finding.harmless for finding in result.findings)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_a_norm_of_a_port_is_found_by_what_it_does(backward):
    one, other = gpt2()
    other.blocks[1].norm2.eps = 1e-2
    first = nndiff.compare(one, other, inputs=TOKENS, backward=backward).first_divergence
    assert (first.name, first.candidate_name) == ("transformer.h.1.ln_2:output", "blocks.1.norm2:output")
    assert first.settings["eps"] == (1e-5, 1e-2)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_a_key_of_a_port_is_found_in_the_fused_layer(backward):
    one, other = gpt2()
    with torch.no_grad():
        other.blocks[1].attention.key.weight[0] *= 1.2
    first = nndiff.compare(one, other, inputs=TOKENS, backward=backward).first_divergence
    assert first.name == "transformer.h.1.attn.c_attn:output.[key]"
    assert first.candidate_name == "blocks.1.attention.key:output"


def test_a_gradient_that_only_padding_stops_is_found():
    """The forward pass says nothing of `padding_idx`; the gradient of its row does."""
    tokens = {"input_ids": torch.cat([TOKENS["input_ids"], torch.zeros(2, 1, dtype=torch.long)], 1)}
    one, other = bert(padding=None)
    assert nndiff.compare(one, other, inputs=tokens).exit_code == 0
    result = nndiff.compare(one, other, inputs=tokens, backward=True)
    assert result.exit_code == 1
    wrong = [pair.candidate_name for pair in result.pairs if not pair.verdict.passed and pair.decides]
    assert wrong == ["word.weight:param_grad"]
