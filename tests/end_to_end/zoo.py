"""Small models of real architectures, built from configs: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Exhibit:
    """Hold how a model is made and what it is fed."""

    make: Callable[..., torch.nn.Module]
    inputs: Callable[[], dict[str, Any]]


def _tokens(size: int = 100) -> dict[str, Any]:
    return {"input_ids": torch.randint(0, size, (2, 12), generator=torch.Generator().manual_seed(1))}


def _llama(attention: str = "eager") -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, attn_implementation=attention,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def _bert(attention: str = "eager") -> torch.nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=64, attn_implementation=attention,
    )  # fmt: skip
    return BertModel(config)


def _mamba() -> torch.nn.Module:
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(MambaConfig(vocab_size=100, hidden_size=32, num_hidden_layers=3, state_size=8))


def _whisper(attention: str = "eager") -> torch.nn.Module:
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        vocab_size=100, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=16, max_source_positions=50,
        max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        attn_implementation=attention,
    )  # fmt: skip
    return WhisperModel(config)


def _whisper_inputs() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {
        "input_features": torch.randn(2, 16, 100, generator=generator),
        "decoder_input_ids": torch.randint(3, 100, (2, 6), generator=generator),
    }


def _resnet() -> torch.nn.Module:
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], layer_type="basic")
    return ResNetModel(config)


def _image() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))}


ZOO = {
    "llama": Exhibit(_llama, _tokens),
    "bert": Exhibit(_bert, _tokens),
    "mamba": Exhibit(_mamba, _tokens),
    "whisper": Exhibit(_whisper, _whisper_inputs),
    "resnet": Exhibit(_resnet, _image),
}


def built(name: str, **options: Any) -> torch.nn.Module:
    """Return a model of the zoo, the same weights every time, ready to run."""
    torch.manual_seed(0)
    return ZOO[name].make(**options).eval()
