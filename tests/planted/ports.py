"""Ports of Llama, GPT-2 and BERT as people write them: other names, fused layers, functional code, copied weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from networks import HEADS, INNER, LAYERS, POSITIONS, VOCAB, WIDTH
from torch import nn

SIZE = WIDTH // HEADS  # of a head


def split_heads(x: torch.Tensor) -> torch.Tensor:
    """Return (batch, heads, positions, size)."""
    return x.unflatten(-1, (-1, SIZE)).transpose(1, 2)


def merge_heads(x: torch.Tensor) -> torch.Tensor:
    """Return (batch, positions, width)."""
    return x.transpose(1, 2).flatten(2)


class ScaleNorm(nn.Module):
    """RMS norm by the functional."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.eps = nn.Parameter(torch.ones(WIDTH)), 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (WIDTH,), self.gain, self.eps)


class Mixer(nn.Module):
    """Grouped attention with fused qkv and rotary positions in complex numbers' place: cos and sin made here."""

    theta = 10000.0
    scale: float | None = None
    tiled = False

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def turn(self, x: torch.Tensor) -> torch.Tensor:
        speeds = 1.0 / self.theta ** (torch.arange(0, SIZE, 2).float() / SIZE)
        angles = torch.arange(x.shape[-2]).float()[:, None] * speeds
        cos, sin = angles.cos(), angles.sin()
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).split([WIDTH, WIDTH // 2, WIDTH // 2], -1)
        q, k, v = self.turn(split_heads(q)), self.turn(split_heads(k)), split_heads(v)
        if self.tiled:
            k, v = k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)
        else:
            k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        return self.out(merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)))


class FeedForward(nn.Module):
    """SwiGLU with gate and up in one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.wide(x).chunk(2, -1)
        return self.narrow(F.silu(gate) * up)


class LlamaBlock(nn.Module):
    """One layer of the port."""

    def __init__(self) -> None:
        super().__init__()
        self.pre, self.mix, self.mid, self.feed = ScaleNorm(), Mixer(), ScaleNorm(), FeedForward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mix(self.pre(x))
        return x + self.feed(self.mid(x))


class LlamaPort(nn.Module):
    """Llama in other words."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(LlamaBlock() for _ in range(LAYERS))
        self.last, self.unembed = ScaleNorm(), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.tokens(input_ids)
        for block in self.blocks:
            x = block(x)
        return {"logits": self.unembed(self.last(x))}


class GPTBlock(nn.Module):
    """One layer of the port: q, k, v apart, no modules for attention and MLP."""

    approximate = "tanh"

    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.grow, self.shrink = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (split_heads(layer(x)) for layer in (self.q, self.k, self.v))
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = (q @ k.mT / SIZE**0.5).masked_fill(hidden, float("-inf"))
        return self.o(merge_heads(scores.softmax(-1) @ v))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.n1(x))
        return x + self.shrink(F.gelu(self.grow(self.n2(x)), approximate=self.approximate))


class GPTPort(nn.Module):
    """GPT-2 in other words."""

    first = 0  # position of the first token

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.stack = nn.ModuleList(GPTBlock() for _ in range(LAYERS))
        self.final = nn.LayerNorm(WIDTH)

    def forward(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]) + self.first)
        for block in self.stack:
            x = block(x)
        return {"logits": self.final(x) @ self.words.weight.t()}


class Encoder(nn.Module):
    """One layer of the port of BERT, norms after the sums."""

    approximate = "none"

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.one, self.two = nn.LayerNorm(WIDTH, eps=1e-12), nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        q, k, v = (split_heads(part) for part in self.qkv(x).chunk(3, -1))
        scores = (q / SIZE**0.5) @ k.mT
        scores = scores.masked_fill(~seen[:, None, None, :], torch.finfo(scores.dtype).min)
        x = self.one(x + self.o(merge_heads(scores.softmax(-1) @ v)))
        return self.two(x + self.narrow(F.gelu(self.wide(x), approximate=self.approximate)))


class BertPort(nn.Module):
    """BERT in other words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(size, WIDTH) for size in (VOCAB, POSITIONS, 2))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.stack = nn.ModuleList(Encoder() for _ in range(LAYERS))
        self.pool = nn.Linear(WIDTH, WIDTH)

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        places = self.places(torch.arange(input_ids.shape[1]))
        return self.norm(self.words(input_ids) + places + self.kinds(torch.zeros_like(input_ids)))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        seen = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        x = self.embed(input_ids)
        for block in self.stack:
            x = block(x, seen.bool())
        return {"last_hidden_state": x, "pooler_output": torch.tanh(self.pool(x[:, 0]))}


@torch.no_grad()
def _copy_linear(target: nn.Linear, *sources: Any, turned: bool = False) -> None:
    """Copy one or several layers, one below the other, into one."""
    weights = [source.weight.t() if turned else source.weight for source in sources]
    target.weight.copy_(torch.cat(weights))
    if target.bias is not None:
        target.bias.copy_(torch.cat([source.bias for source in sources]))


@torch.no_grad()
def port_llama(model: Any) -> nn.Module:
    """Return the port of a Llama with its weights."""
    port = LlamaPort().eval()
    port.tokens.weight.copy_(model.model.embed_tokens.weight)
    for block, layer in zip(port.blocks, model.model.layers, strict=True):
        block.pre.gain.copy_(layer.input_layernorm.weight)
        block.mid.gain.copy_(layer.post_attention_layernorm.weight)
        _copy_linear(block.mix.qkv, layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
        _copy_linear(block.mix.out, layer.self_attn.o_proj)
        _copy_linear(block.feed.wide, layer.mlp.gate_proj, layer.mlp.up_proj)
        _copy_linear(block.feed.narrow, layer.mlp.down_proj)
    port.last.gain.copy_(model.model.norm.weight)
    _copy_linear(port.unembed, model.lm_head)
    return port


@torch.no_grad()
def port_gpt2(model: Any) -> nn.Module:
    """Return the port of a GPT-2 with its weights."""
    port, body = GPTPort().eval(), model.transformer
    port.words.weight.copy_(body.wte.weight)
    port.places.weight.copy_(body.wpe.weight)
    for block, layer in zip(port.stack, body.h, strict=True):
        block.n1.load_state_dict(layer.ln_1.state_dict())
        block.n2.load_state_dict(layer.ln_2.state_dict())
        for place, linear in enumerate((block.q, block.k, block.v)):
            part = slice(place * WIDTH, (place + 1) * WIDTH)
            linear.weight.copy_(layer.attn.c_attn.weight[:, part].t())
            linear.bias.copy_(layer.attn.c_attn.bias[part])
        _copy_linear(block.o, layer.attn.c_proj, turned=True)
        _copy_linear(block.grow, layer.mlp.c_fc, turned=True)
        _copy_linear(block.shrink, layer.mlp.c_proj, turned=True)
    port.final.load_state_dict(body.ln_f.state_dict())
    return port


@torch.no_grad()
def port_bert(model: Any) -> nn.Module:
    """Return the port of a BERT with its weights."""
    port, embeddings = BertPort().eval(), model.embeddings
    port.words.weight.copy_(embeddings.word_embeddings.weight)
    port.places.weight.copy_(embeddings.position_embeddings.weight)
    port.kinds.weight.copy_(embeddings.token_type_embeddings.weight)
    port.norm.load_state_dict(embeddings.LayerNorm.state_dict())
    for block, layer in zip(port.stack, model.encoder.layer, strict=True):
        _copy_linear(block.qkv, layer.attention.self.query, layer.attention.self.key, layer.attention.self.value)
        _copy_linear(block.o, layer.attention.output.dense)
        _copy_linear(block.wide, layer.intermediate.dense)
        _copy_linear(block.narrow, layer.output.dense)
        block.one.load_state_dict(layer.attention.output.LayerNorm.state_dict())
        block.two.load_state_dict(layer.output.LayerNorm.state_dict())
    _copy_linear(port.pool, model.pooler.dense)
    return port


PORTS: dict[str, Callable[[Any], nn.Module]] = {"llama": port_llama, "gpt2": port_gpt2, "bert": port_bert}
