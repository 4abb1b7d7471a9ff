"""Small networks of real architectures, hand-written ones among them: made once, copied for every case."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch import nn

VOCAB, WIDTH, INNER, LAYERS, HEADS, POSITIONS = 100, 32, 64, 3, 4, 64


@dataclass(frozen=True)
class Network:
    """Hold how a network is made and what it is fed."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], Any]


def _draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def token_ids() -> dict[str, Any]:
    """Return two sequences of 12 tokens."""
    return {"input_ids": torch.randint(3, VOCAB, (2, 12), generator=_draw(1))}


def padded_right() -> dict[str, Any]:
    """Return two sequences, the first with four padded positions at its end."""
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, 8:] = 0
    return {**token_ids(), "attention_mask": mask}


def padded_both() -> dict[str, Any]:
    """Return two sequences with padded positions at their ends: no row of an inverted mask hides everything."""
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, 8:] = 0
    mask[1, 10:] = 0
    return {**token_ids(), "attention_mask": mask}


def padded_left() -> dict[str, Any]:
    """Return two sequences, the first with four padded positions at its start."""
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, :4] = 0
    return {**token_ids(), "attention_mask": mask}


def image() -> dict[str, Any]:
    """Return two images of 32 x 32 pixels."""
    return {"pixel_values": torch.randn(2, 3, 32, 32, generator=_draw(1))}


def picture() -> torch.Tensor:
    """Return two images of 16 x 16 pixels."""
    return torch.randn(2, 3, 16, 16, generator=_draw(1))


def speech() -> dict[str, Any]:
    """Return two spectrograms with the tokens heard so far."""
    return {
        "input_features": torch.randn(2, 16, 32, generator=_draw(1)),
        "decoder_input_ids": torch.randint(3, VOCAB, (2, 10), generator=_draw(2)),
    }


def words() -> torch.Tensor:
    """Return two sentences of 10 words."""
    return torch.randint(0, VOCAB, (2, 10), generator=_draw(1))


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=2, max_position_embeddings=POSITIONS, rms_norm_eps=1e-6,
        attn_implementation="eager",
    )  # fmt: skip
    return LlamaForCausalLM(config)


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCAB, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=POSITIONS, bos_token_id=1,
        eos_token_id=2, attn_implementation="eager",
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def _bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, max_position_embeddings=POSITIONS, attn_implementation="eager",
    )  # fmt: skip
    return BertModel(config)


def _gemma() -> nn.Module:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=2, head_dim=8, query_pre_attn_scalar=12, sliding_window=4, attn_logit_softcapping=5.0,
        final_logit_softcapping=3.0, max_position_embeddings=POSITIONS, attn_implementation="eager", use_cache=False,
    )  # fmt: skip
    return Gemma2ForCausalLM(config)


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=INNER, image_size=32,
        patch_size=8, pooler_output_size=WIDTH, attn_implementation="eager",
    )  # fmt: skip
    return ViTModel(config)


def _resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetModel

    return ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], layer_type="basic"))


def _mamba() -> nn.Module:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=LAYERS, state_size=8, use_cache=False,
        tie_word_embeddings=False,
    )  # fmt: skip
    return MambaForCausalLM(config)


def _whisper() -> nn.Module:
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        vocab_size=VOCAB, d_model=WIDTH, encoder_layers=2, decoder_layers=2, encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS, encoder_ffn_dim=INNER, decoder_ffn_dim=INNER, num_mel_bins=16,
        max_source_positions=16, max_target_positions=POSITIONS, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, attn_implementation="eager", use_cache=False,
    )  # fmt: skip
    return WhisperModel(config)


class Tagger(nn.Module):
    """Give every word of a sentence a tag."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 24)
        self.lstm = nn.LSTM(24, 20, batch_first=True, bidirectional=True)
        self.head = nn.Linear(40, 7)

    def forward(self, sentence: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.embedding(sentence))
        return self.head(hidden)


class Unit(nn.Module):
    """A convolution with its group norm and a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.act = nn.ReLU()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(self.act(self.norm(x)))


class Scaler(nn.Module):
    """Double the size of an image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)


class ConvNet(nn.Module):
    """A small net for images that shrinks, grows back, and joins what it had before."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.unit = Unit(8)
        self.down = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.pool = nn.AvgPool2d(3, stride=1, padding=1)
        self.peak = nn.MaxPool2d(3, stride=2, padding=0)
        self.mid = nn.Conv2d(8, 8, 3, padding=1)
        self.up = Scaler()
        self.join = nn.Conv2d(16, 12, 3, padding=1)
        self.shrink = nn.AdaptiveAvgPool2d(4)
        self.head = nn.Linear(12 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.unit(self.stem(x))
        low = self.pool(F.relu(self.down(x)))
        high = self.up(self.mid(low))
        x = F.relu(self.join(torch.cat([x, high], 1)))
        x = self.shrink(self.peak(x))
        return self.head(x.flatten(1))


NETWORKS = {
    "llama": Network(_llama, token_ids),
    "gpt2": Network(_gpt2, token_ids),
    "bert": Network(_bert, token_ids),
    "gemma": Network(_gemma, token_ids),
    "vit": Network(_vit, image),
    "resnet": Network(_resnet, image),
    "mamba": Network(_mamba, token_ids),
    "whisper": Network(_whisper, speech),
    "tagger": Network(Tagger, words),
    "convnet": Network(ConvNet, picture),
}


@functools.cache
def _prototype(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = NETWORKS[name].make().eval()
    randomise(model)
    return model


def fresh(name: str) -> nn.Module:
    """Return a network of its own, with the same weights every time, ready to run."""
    return copy.deepcopy(_prototype(name))


@torch.no_grad()
def randomise(model: nn.Module) -> None:
    """Draw weights of the size that training gives them: no two norms, biases, rows or channels are alike.

    Fresh weights hide faults: norms of ones, biases of zeros, and scores so small that every position gets the same
    attention. Rows of an embedding differ in size, so that eps and a factor cannot be taken for each other.
    """
    generator = _draw(9)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad:
                continue  # computed, not trained: positions of Whisper
            noise = torch.randn(parameter.shape, generator=generator)
            if name in ("A_log", "D"):
                parameter.add_(0.05 * noise)
            elif "Norm" in type(module).__name__ or parameter.ndim < 2:
                parameter.add_(0.2 * noise)
            elif isinstance(module, nn.Embedding):
                sizes = 0.4 + 1.2 * torch.rand(len(parameter), 1, generator=generator)
                parameter.copy_(noise * sizes)
            elif type(module).__name__ == "Conv1D":  # of GPT-2: inputs first
                parameter.copy_(noise * parameter.shape[0] ** -0.5)
            else:
                parameter.copy_(noise * (parameter[0].numel() or 1) ** -0.5)
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.add_(0.2 * torch.randn(module.running_mean.shape, generator=generator))
            module.running_var.mul_(0.5 + torch.rand(module.running_var.shape, generator=generator))
