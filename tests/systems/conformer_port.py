"""NeMo's Conformer in plain PyTorch, with names of its own: what the ports of whole models are made of.

In train mode it draws random numbers where NeMo does and in the same order, so that one seed gives both the same.
"""

from __future__ import annotations

import io
import math
import os
import re
import tarfile
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

NAMES = (
    (r"^preprocessor\.featurizer\.fb$", "frontend.filters"),
    (r"^preprocessor\.featurizer\.", "frontend."),
    (r"^encoder\.pre_encode\.conv\.0\.", "stem.first."),
    (r"^encoder\.pre_encode\.conv\.2\.", "stem.halve.0.depthwise."),
    (r"^encoder\.pre_encode\.conv\.3\.", "stem.halve.0.pointwise."),
    (r"^encoder\.pre_encode\.conv\.5\.", "stem.halve.1.depthwise."),
    (r"^encoder\.pre_encode\.conv\.6\.", "stem.halve.1.pointwise."),
    (r"^encoder\.pre_encode\.out\.", "stem.project."),
    (r"^encoder\.layers\.(\d+)\.", r"blocks.\1."),
    (r"^decoder\.decoder_layers\.0\.", "head."),
    (r"\.norm_feed_forward(\d)\.", r".ffn\1.norm."),
    (r"\.feed_forward(\d)\.linear1\.", r".ffn\1.up."),
    (r"\.feed_forward(\d)\.linear2\.", r".ffn\1.down."),
    (r"\.norm_self_att\.", ".norm_att."),
    (r"\.self_attn\.linear_(\w)\.", r".att.\1_proj."),
    (r"\.self_attn\.linear_out\.", ".att.o_proj."),
    (r"\.self_attn\.linear_pos\.", ".att.r_proj."),
    (r"\.self_attn\.pos_bias_(\w)$", r".att.bias_\1"),
    (r"\.conv\.pointwise_conv1\.", ".conv.expand."),
    (r"\.conv\.depthwise_conv\.", ".conv.mix."),
    (r"\.conv\.batch_norm\.", ".conv.bn."),
    (r"\.conv\.pointwise_conv2\.", ".conv.reduce."),
)


@dataclass(frozen=True)
class Sizes:
    """Hold the sizes of a model."""

    mel: int
    multiple: int  # of which the number of frames is made one; 0 leaves it
    channels: int
    halvings: int
    width: int
    inner: int
    heads: int
    kernel: int
    layers: int = 2
    drop: float = 0.1


class Frontend(nn.Module):
    """Turn a waveform into normalised log mel features."""

    unbiased = 1.0
    dither = 1e-5

    def __init__(self, sizes):
        super().__init__()
        self.multiple = sizes.multiple
        self.register_buffer("window", torch.zeros(400))
        self.register_buffer("filters", torch.zeros(1, sizes.mel, 257))

    def forward(self, wave, lengths):
        if self.training:
            wave = wave + self.dither * torch.randn_like(wave)
        heard = torch.arange(wave.shape[1]) < lengths[:, None]
        wave = torch.cat([wave[:, :1], wave[:, 1:] - 0.97 * wave[:, :-1]], dim=1).masked_fill(~heard, 0.0)
        spectrum = torch.stft(
            wave, 512, 160, 400, self.window, center=True, pad_mode="constant", return_complex=True
        )  # fmt: skip
        power = torch.view_as_real(spectrum).pow(2).sum(-1).sqrt().pow(2)
        mel = torch.log(self.filters @ power + 2**-24)
        frames = lengths // 160
        valid = (torch.arange(mel.shape[-1]) < frames[:, None])[:, None]
        mean = torch.where(valid, mel, 0.0).sum(2) / frames[:, None]
        spread = torch.where(valid, mel - mean[..., None], 0.0).pow(2).sum(2) / (frames[:, None] - self.unbiased)
        mel = ((mel - mean[..., None]) / (spread.sqrt() + 1e-5)[..., None]).masked_fill(~valid, 0.0)
        return functional.pad(mel, (0, -mel.shape[-1] % self.multiple if self.multiple else 0)), frames


class Halve(nn.Module):
    """Make one frame of two, channel by channel."""

    def __init__(self, channels):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, stride=2, padding=1, groups=channels)
        self.pointwise = nn.Conv2d(channels, channels, 1)
        self.act = nn.ReLU()

    def forward(self, x, lengths):
        x = only(self.pointwise(only(self.depthwise(x), lengths)), lengths)
        return self.act(x)


class Stem(nn.Module):
    """Make one frame of four or eight."""

    def __init__(self, sizes):
        super().__init__()
        self.first, self.act = nn.Conv2d(1, sizes.channels, 3, stride=2, padding=1), nn.ReLU()
        self.halve = nn.ModuleList(Halve(sizes.channels) for _ in range(sizes.halvings - 1))
        self.project = nn.Linear(sizes.channels * (sizes.mel >> sizes.halvings), sizes.width)

    def forward(self, x, lengths):
        x = only(x.transpose(1, 2).unsqueeze(1), lengths)
        lengths = (lengths - 1) // 2 + 1
        x = only(self.act(only(self.first(x), lengths)), lengths)
        for halve in self.halve:
            lengths = (lengths - 1) // 2 + 1
            x = only(halve(x, lengths), lengths)
        return self.project(self.flat(x)), lengths

    @staticmethod
    def flat(x):
        return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def only(x, lengths):
    """Return the frames that are there, and 0 for those that pad."""
    return x * (torch.arange(x.shape[2]) < lengths[:, None])[:, None, :, None]


class Feed(nn.Module):
    """Feed forward, with its norm."""

    def __init__(self, sizes):
        super().__init__()
        self.norm, self.up, self.act = nn.LayerNorm(sizes.width), nn.Linear(sizes.width, sizes.inner), nn.SiLU()
        self.drop, self.down = nn.Dropout(sizes.drop), nn.Linear(sizes.inner, sizes.width)

    def forward(self, x):
        return self.down(self.drop(self.act(self.up(self.norm(x)))))


class Attention(nn.Module):
    """Attention with relative positions."""

    shift = 1

    def __init__(self, sizes):
        super().__init__()
        self.heads, self.size = sizes.heads, sizes.width // sizes.heads
        self.scale = math.sqrt(self.size)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(sizes.width, sizes.width) for _ in range(4))
        self.r_proj = nn.Linear(sizes.width, sizes.width, bias=False)
        self.bias_u, self.bias_v = (nn.Parameter(torch.zeros(self.heads, self.size)) for _ in range(2))
        self.drop = nn.Dropout(sizes.drop)

    def forward(self, x, positions, hidden):
        batch, time, _ = x.shape
        q, k, v = (each(x).view(batch, time, self.heads, -1) for each in (self.q_proj, self.k_proj, self.v_proj))
        r = self.r_proj(positions).view(1, -1, self.heads, self.size).transpose(1, 2)
        content = (q + self.bias_u).transpose(1, 2) @ k.permute(0, 2, 3, 1)
        place = (q + self.bias_v).transpose(1, 2) @ r.transpose(2, 3)
        padded = functional.pad(place, (1, 0)).view(batch, self.heads, -1, time)
        place = padded[:, :, self.shift :][:, :, : 2 * time - 1].reshape(batch, self.heads, time, -1)[..., :time]
        scores = ((content + place) / self.scale).masked_fill(hidden[:, None], -10000.0)
        weights = self.drop(scores.softmax(-1).masked_fill(hidden[:, None], 0.0))
        return self.o_proj((weights @ v.transpose(1, 2)).transpose(1, 2).reshape(batch, time, -1))


class Convolution(nn.Module):
    """The convolution between attention and the second feed forward."""

    def __init__(self, sizes):
        super().__init__()
        width, kernel = sizes.width, sizes.kernel
        self.expand, self.mix = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, kernel, groups=width)
        self.mix.padding = ((kernel - 1) // 2,)
        self.bn, self.act, self.reduce = nn.BatchNorm1d(width), nn.SiLU(), nn.Conv1d(width, width, 1)

    def forward(self, x, padding):
        x = functional.glu(self.expand(x.transpose(1, 2)), dim=1)
        beyond = (x.shape[2] - padding.shape[1]) // 2
        x = x.masked_fill(functional.pad(padding, (beyond, beyond))[:, None], 0.0)
        return self.reduce(self.act(self.bn(self.mix(x)))).transpose(1, 2)


class Block(nn.Module):
    """One layer."""

    order = ("att", "conv")

    def __init__(self, sizes):
        super().__init__()
        self.ffn1, self.att, self.conv, self.ffn2 = Feed(sizes), Attention(sizes), Convolution(sizes), Feed(sizes)
        self.norm_att, self.norm_conv, self.norm_out = (nn.LayerNorm(sizes.width) for _ in range(3))
        self.drop = nn.Dropout(sizes.drop)

    def forward(self, x, positions, hidden, padding):
        x = x + self.drop(self.ffn1(x)) * 0.5
        for part in self.order:
            x = x + self.drop(
                self.att(self.norm_att(x), positions, hidden)
                if part == "att"
                else self.conv(self.norm_conv(x), padding)
            )
        x = x + self.drop(self.ffn2(x)) * 0.5
        return self.norm_out(x)


class Conformer(nn.Module):
    """Features and encoder, which models put their heads on."""

    def __init__(self, sizes):
        super().__init__()
        self.scale = math.sqrt(sizes.width)
        self.frontend, self.stem, self.drop = Frontend(sizes), Stem(sizes), nn.Dropout(sizes.drop)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))

    def encode(self, features, frames):
        x, lengths = self.stem(features, frames)
        x = self.drop(x * self.scale)
        padding = torch.arange(x.shape[1]) >= lengths[:, None]
        for block in self.blocks:
            x = block(x, self.positions(*x.shape[1:]), self.hidden(padding), padding)
        return x, lengths

    @staticmethod
    def hidden(padding):
        return padding[:, None, :] | padding[:, :, None]

    @staticmethod
    def positions(time, width):
        steps = torch.arange(time - 1, -time, -1.0)[:, None] * torch.exp(
            torch.arange(0, width, 2.0) * -(math.log(10000.0) / width)
        )
        return torch.stack([steps.sin(), steps.cos()], dim=-1).reshape(1, 2 * time - 1, width)


def loaded(port, names=NAMES):
    """Return a port with the weights of the .nemo file that PORT_WEIGHTS names, in eval mode."""
    with tarfile.open(os.environ["PORT_WEIGHTS"]) as archive:
        member = next(name for name in archive.getnames() if name.endswith("model_weights.ckpt"))
        weights = torch.load(io.BytesIO(archive.extractfile(member).read()), weights_only=True)
    renamed = {}
    for name, tensor in weights.items():
        for pattern, new in names:
            name = re.sub(pattern, new, name)
        renamed[name] = tensor
    port.load_state_dict(renamed, strict=True)
    return port.eval()
