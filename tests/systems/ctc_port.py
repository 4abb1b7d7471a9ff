"""A port of NeMo's Conformer with CTC to plain PyTorch, with names of its own, and faults as ports have them.

`model` is right; every other factory has one fault. The weights are those of the .nemo file PORT_WEIGHTS names.
"""

from __future__ import annotations

import io
import math
import os
import re
import tarfile

import torch
from torch import nn
from torch.nn import functional

NAMES = (
    (r"^preprocessor\.featurizer\.fb$", "frontend.filters"),
    (r"^preprocessor\.featurizer\.", "frontend."),
    (r"^encoder\.pre_encode\.conv\.0\.", "stem.first."),
    (r"^encoder\.pre_encode\.conv\.2\.", "stem.depthwise."),
    (r"^encoder\.pre_encode\.conv\.3\.", "stem.pointwise."),
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


class Frontend(nn.Module):
    """Turn a waveform into normalised log mel features."""

    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.zeros(400))
        self.register_buffer("filters", torch.zeros(1, 40, 257))

    def forward(self, wave, lengths):
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
        spread = torch.where(valid, mel - mean[..., None], 0.0).pow(2).sum(2) / (frames[:, None] - 1.0)
        return ((mel - mean[..., None]) / (spread.sqrt() + 1e-5)[..., None]).masked_fill(~valid, 0.0), frames


class Stem(nn.Module):
    """Make one frame of four."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8)
        self.pointwise = nn.Conv2d(8, 8, 1)
        self.act1, self.act2 = nn.ReLU(), nn.ReLU()
        self.project = nn.Linear(80, 32)

    def forward(self, x, lengths):
        x = self._only(x.transpose(1, 2).unsqueeze(1), lengths)
        lengths = (lengths - 1) // 2 + 1
        x = self.act1(self._only(self.first(x), lengths))
        lengths = (lengths - 1) // 2 + 1
        x = self.pointwise(self._only(self.depthwise(x), lengths))
        x = self._only(self.act2(self._only(x, lengths)), lengths)
        return self.project(x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)), lengths

    @staticmethod
    def _only(x, lengths):
        return x * (torch.arange(x.shape[2]) < lengths[:, None])[:, None, :, None]


class Feed(nn.Module):
    """Feed forward, with its norm."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.act, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32)

    def forward(self, x):
        return self.down(self.act(self.up(self.norm(x))))


class Attention(nn.Module):
    """Attention of two heads with relative positions."""

    shift = 1

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(32, 32) for _ in range(4))
        self.r_proj = nn.Linear(32, 32, bias=False)
        self.bias_u, self.bias_v = (nn.Parameter(torch.zeros(2, 16)) for _ in range(2))

    def forward(self, x, positions, hidden):
        batch, time, _ = x.shape
        q, k, v = (each(x).view(batch, time, 2, 16) for each in (self.q_proj, self.k_proj, self.v_proj))
        r = self.r_proj(positions).view(1, -1, 2, 16).transpose(1, 2)
        content = (q + self.bias_u).transpose(1, 2) @ k.permute(0, 2, 3, 1)
        place = (q + self.bias_v).transpose(1, 2) @ r.transpose(2, 3)
        padded = functional.pad(place, (1, 0)).view(batch, 2, -1, time)
        place = padded[:, :, self.shift :][:, :, : 2 * time - 1].reshape(batch, 2, time, -1)[..., :time]
        scores = ((content + place) / 4.0).masked_fill(hidden[:, None], -10000.0)
        weights = scores.softmax(-1).masked_fill(hidden[:, None], 0.0)
        return self.o_proj((weights @ v.transpose(1, 2)).transpose(1, 2).reshape(batch, time, 32))


class Convolution(nn.Module):
    """The convolution between attention and the second feed forward."""

    def __init__(self):
        super().__init__()
        self.expand, self.mix = nn.Conv1d(32, 64, 1), nn.Conv1d(32, 32, 5, padding=2, groups=32)
        self.bn, self.act, self.reduce = nn.BatchNorm1d(32), nn.SiLU(), nn.Conv1d(32, 32, 1)

    def forward(self, x, padding):
        x = functional.glu(self.expand(x.transpose(1, 2)), dim=1).masked_fill(padding[:, None], 0.0)
        return self.reduce(self.act(self.bn(self.mix(x)))).transpose(1, 2)


class Block(nn.Module):
    """One layer."""

    def __init__(self):
        super().__init__()
        self.ffn1, self.att, self.conv, self.ffn2 = Feed(), Attention(), Convolution(), Feed()
        self.norm_att, self.norm_conv, self.norm_out = (nn.LayerNorm(32) for _ in range(3))

    def forward(self, x, positions, hidden, padding):
        x = x + self.ffn1(x) * 0.5
        x = x + self.att(self.norm_att(x), positions, hidden)
        x = x + self.conv(self.norm_conv(x), padding)
        x = x + self.ffn2(x) * 0.5
        return self.norm_out(x)


class Port(nn.Module):
    """The whole, from waveform to log probabilities."""

    scale = math.sqrt(32)

    def __init__(self):
        super().__init__()
        self.frontend, self.stem = Frontend(), Stem()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Conv1d(32, 10, 1)

    def forward(self, input_signal, input_signal_length):
        x, lengths = self.stem(*self.frontend(input_signal, input_signal_length))
        x = x * self.scale
        padding = torch.arange(x.shape[1]) >= lengths[:, None]
        hidden = padding[:, None, :] | padding[:, :, None]
        for block in self.blocks:
            x = block(x, self.positions(x.shape[1]), hidden, padding)
        log_probs = self.head(x.transpose(1, 2)).transpose(1, 2).log_softmax(-1)
        return log_probs, lengths, log_probs.argmax(-1)

    @staticmethod
    def positions(time):
        steps = torch.arange(time - 1, -time, -1.0)[:, None] * torch.exp(
            torch.arange(0, 32, 2.0) * -(math.log(10000.0) / 32)
        )
        return torch.stack([steps.sin(), steps.cos()], dim=-1).reshape(1, 2 * time - 1, 32)


def model():
    with tarfile.open(os.environ["PORT_WEIGHTS"]) as archive:
        name = next(name for name in archive.getnames() if name.endswith("model_weights.ckpt"))
        weights = torch.load(io.BytesIO(archive.extractfile(name).read()), weights_only=True)
    renamed = {}
    for name, tensor in weights.items():
        for pattern, new in NAMES:
            name = re.sub(pattern, new, name)
        renamed[name] = tensor
    port = Port()
    port.load_state_dict(renamed, strict=True)
    return port.eval()


def loss(model, inputs, output):
    """Return the loss as docs/nemo.md states its labels."""
    log_probs, lengths, _ = output
    columns = min(8, int(lengths.min()))
    labels = torch.tensor([[(row + column) % 9 for column in range(columns)] for row in range(len(lengths))])
    each = functional.ctc_loss(
        log_probs.transpose(0, 1), labels, lengths, torch.full((len(lengths),), columns), blank=9, reduction="none"
    )
    return each.mean()


def wrong_eps():
    port = model()
    port.blocks[1].norm_conv.eps = 1e-3
    return port


def no_scaling():
    port = model()
    port.scale = 1.0
    return port


def shifted():
    port = model()
    port.blocks[0].att.shift = 0
    return port


def no_padding_mask():
    port = model()
    port.blocks[0].conv.register_forward_pre_hook(lambda module, args: (args[0], torch.zeros_like(args[1])))
    return port
