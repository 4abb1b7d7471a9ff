"""Attention of transformers as the reference: Llama, Gemma, GPT-2, BERT, ViT and Whisper, each with planted faults."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from attention_trials import make_trial
from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.attention import ATTENTION

transformers = pytest.importorskip("transformers")


def sharpen(module: nn.Module) -> nn.Module:
    """Return a module with weights large enough for scores to matter."""
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape) * (0.4 if weight.ndim > 1 else 0.1))
    return module.eval()


def change(module: nn.Module, **attributes: Any) -> nn.Module:
    candidate = copy.deepcopy(module)
    for name, value in attributes.items():
        setattr(candidate, name, value)
    return candidate


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def prove(reference: nn.Module, candidate: nn.Module, *args: Any, **kwargs: Any) -> Any:
    trial = make_trial(reference, candidate, *args, **kwargs)
    assert ATTENTION.applies(trial)
    proof = ATTENTION.prove(trial)
    assert proof is not None
    return proof


def make_causal(batch: int, length: int, padded: int = 0) -> torch.Tensor:
    """Return the additive mask that transformers hands to attention."""
    closed = torch.ones(length, length).triu(1).bool().expand(batch, 1, length, length).clone()
    if padded:
        closed[0, :, :, -padded:] = True
    return torch.zeros(batch, 1, length, length).masked_fill(closed, torch.finfo(torch.float32).min)


def make_llama(groups: int = 2) -> tuple[nn.Module, Callable[[int, int], Any]]:
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    config = transformers.LlamaConfig(
        hidden_size=48, num_attention_heads=6, num_key_value_heads=groups, attn_implementation="eager"
    )
    rotary = LlamaRotaryEmbedding(config)

    def rotate(batch: int, length: int) -> Any:
        return rotary(torch.zeros(1), torch.arange(length).expand(batch, length))

    return sharpen(LlamaAttention(config, 0)), rotate


@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_llama_with_another_scale(groups, implementation):
    reference, rotate = make_llama(groups)
    reference.config._attn_implementation = implementation
    candidate = change(reference, scaling=1.0)
    mask = make_causal(2, 11)
    assert prove(reference, candidate, draw(2, 11, 48), rotate(2, 11), mask).cause == Cause.ATTENTION_SCALE


@pytest.mark.parametrize(("length", "padded"), [(11, 0), (14, 3)])
def test_llama_without_its_mask(length, padded):
    reference, rotate = make_llama()
    mask = make_causal(2, length, padded)

    class Forgetful(type(reference)):
        def forward(self, hidden, positions, mask=None, **kwargs):
            return super().forward(hidden, positions, None, **kwargs)

    candidate = copy.deepcopy(reference)
    candidate.__class__ = Forgetful
    proof = prove(reference, candidate, draw(2, length, 48), rotate(2, length), mask)
    assert proof.cause == Cause.CAUSAL_MASK
    assert ("ignores the padding" in proof.evidence) == bool(padded)


@pytest.mark.parametrize("groups", [2, 3])
def test_llama_whose_heads_are_tiled(groups, monkeypatch):
    reference, rotate = make_llama(groups)

    class Tiled(type(reference)):
        def forward(self, *args, **kwargs):
            from transformers.models.llama import modeling_llama

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(modeling_llama, "repeat_kv", lambda x, count: x.repeat(1, count, 1, 1))
                return super().forward(*args, **kwargs)

    candidate = copy.deepcopy(reference)
    candidate.__class__ = Tiled
    proof = prove(reference, candidate, draw(2, 11, 48), rotate(2, 11), make_causal(2, 11))
    assert proof.cause == Cause.KEY_VALUE_GROUPS


def interleave(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)


@pytest.mark.parametrize("groups", [2, 6])
def test_llama_with_interleaved_rotation(groups):
    reference, rotate = make_llama(groups)

    class Interleaved(type(reference)):
        def forward(self, *args, **kwargs):
            from transformers.models.llama import modeling_llama

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(modeling_llama, "rotate_half", interleave)
                return super().forward(*args, **kwargs)

    candidate = copy.deepcopy(reference)
    candidate.__class__ = Interleaved
    proof = prove(reference, candidate, draw(2, 11, 48), rotate(2, 11), make_causal(2, 11))
    assert proof.cause == Cause.ROPE_LAYOUT


@pytest.mark.parametrize("fault", [{"attn_logit_softcapping": None}, {"attn_logit_softcapping": 3.0}])
def test_gemma_with_another_cap(fault):
    from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention, Gemma2RotaryEmbedding

    config = transformers.Gemma2Config(
        hidden_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=16, attn_implementation="eager",
        attn_logit_softcapping=5.0, query_pre_attn_scalar=8,
    )  # fmt: skip
    reference = sharpen(Gemma2Attention(config, 0))
    positions = Gemma2RotaryEmbedding(config)(torch.zeros(1), torch.arange(9).expand(2, 9))
    proof = prove(reference, change(reference, **fault), draw(2, 9, 48), positions, make_causal(2, 9))
    assert proof.cause == Cause.SOFTCAP


def make_gpt2() -> nn.Module:
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

    config = transformers.GPT2Config(n_embd=48, n_head=4, attn_implementation="sdpa")
    return sharpen(GPT2Attention(config, layer_idx=0))


class PortOfGpt2(nn.Module):
    """A port with its own names."""

    def __init__(self, source: nn.Module, **choices: Any) -> None:
        super().__init__()
        self.qkv, self.proj, self.choices = source.c_attn, source.c_proj, choices

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.choices.get("swapped"):
            q, k = k, q
        if "window" in self.choices:
            ones = torch.ones(x.shape[1], x.shape[1]).bool()
            mask = ones.tril() & ones.triu(1 - self.choices["window"])
            merged = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            causal = self.choices.get("causal", True)
            merged = functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=self.choices.get("scale"))
        return self.proj(merged.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("length", [9, 20])
@pytest.mark.parametrize(
    ("choices", "cause"),
    [
        ({"scale": 1.0}, Cause.ATTENTION_SCALE),
        ({"causal": False}, Cause.CAUSAL_MASK),
        ({"swapped": True}, Cause.ROLES_SWAPPED),
        ({"window": 4}, Cause.SLIDING_WINDOW),
    ],
)
def test_ports_of_gpt2(length, choices, cause):
    reference = make_gpt2()
    assert prove(reference, PortOfGpt2(reference, **choices), draw(2, length, 48)).cause == cause


@pytest.mark.parametrize("length", [9, 20])
@pytest.mark.parametrize(("fault", "cause"), [("scale", Cause.ATTENTION_SCALE), ("mask", Cause.PADDING_MASK)])
def test_bert(length, fault, cause):
    from transformers.models.bert.modeling_bert import BertSelfAttention

    config = transformers.BertConfig(hidden_size=48, num_attention_heads=4, attn_implementation="eager")
    reference = sharpen(BertSelfAttention(config))
    mask = torch.zeros(2, 1, 1, length)
    mask[0, ..., -3:] = torch.finfo(torch.float32).min

    class Forgetful(BertSelfAttention):
        def forward(self, hidden, mask=None, *args, **kwargs):
            return super().forward(hidden, None, *args, **kwargs)

    candidate = change(reference, scaling=48**-0.5)
    if fault == "mask":
        candidate = copy.deepcopy(reference)
        candidate.__class__ = Forgetful
    assert prove(reference, candidate, draw(2, length, 48), mask).cause == cause


@pytest.mark.parametrize("length", [10, 17])
def test_vit_with_another_scale(length):
    from transformers.models.vit import modeling_vit

    config = transformers.ViTConfig(hidden_size=48, num_attention_heads=6, attn_implementation="sdpa")
    attention = getattr(modeling_vit, "ViTSelfAttention", None) or modeling_vit.ViTAttention
    reference = sharpen(attention(config))
    assert prove(reference, change(reference, scaling=0.5), draw(2, length, 48)).cause == Cause.ATTENTION_SCALE


@pytest.mark.parametrize(("queries", "keys"), [(5, 13), (13, 5)])
def test_whisper_cross_attention(queries, keys):
    from transformers.models.whisper.modeling_whisper import WhisperAttention

    config = transformers.WhisperConfig(d_model=48, decoder_attention_heads=4, attn_implementation="eager")
    reference = sharpen(WhisperAttention(48, 4, is_decoder=True, layer_idx=0, config=config))

    hidden, encoded = draw(2, queries, 48), draw(2, keys, 48)
    for fault, cause in (({"scaling": 0.7}, Cause.ATTENTION_SCALE), ({"num_heads": 8, "head_dim": 6}, Cause.ATTRIBUTE)):
        proof = prove(reference, change(reference, **fault), hidden, key_value_states=encoded)
        assert proof.cause == cause, proof
