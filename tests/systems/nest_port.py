"""A port of NeMo's NEST to plain PyTorch, with names of its own, and faults as ports have them.

`model` is right; every other factory has one fault. The weights are those of the .nemo file PORT_WEIGHTS names.
"""

from __future__ import annotations

import torch
from conformer_port import NAMES, Conformer, Sizes, loaded
from torch import nn
from torch.nn import functional

SIZES = Sizes(mel=80, multiple=16, channels=32, halvings=3, width=64, inner=256, heads=4, kernel=9)
COMBINED = 8  # frames of features for one frame of the encoder, and for one token
NEST_NAMES = (
    *NAMES,
    (r"^mask_processor\.mask_embedding$", "hide.filler"),
    (r"^quantizer\.proj\.", "tokens.project."),
    (r"^quantizer\.codebooks$", "tokens.codes"),
)


class Hide(nn.Module):
    """Put the same vector in place of blocks of frames."""

    ahead = 0

    def __init__(self, size, block=40, often=0.01):
        super().__init__()
        self.block, self.often = block, often
        self.filler = nn.Parameter(torch.zeros(size), requires_grad=False)

    def forward(self, features, frames, given=None):
        """Hide what begins at random, or what is given as (batch, frames) or (batch, features, frames)."""
        batch, _, time = features.shape
        torch.rand(self.ahead)
        starts = (torch.rand(batch, time) < self.often) & (torch.arange(time) + self.block <= frames[:, None])
        before = functional.pad(starts.int(), (self.block, 0)).cumsum(1)
        hidden = (before[:, self.block :] > before[:, :time])[:, None]
        if given is not None:
            hidden = (given if given.ndim == 3 else given[:, None]) > 0
        masks = hidden.to(features.dtype).expand_as(features)
        return torch.where(masks > 0, self.filler[:, None], features), masks


class Tokens(nn.Module):
    """Name for every few frames the code that is nearest to their random projection, and give it too."""

    power = 2.0

    def __init__(self, size, code=16, classes=64):
        super().__init__()
        self.project = nn.Linear(size * COMBINED, code, bias=False).requires_grad_(False)
        self.codes = nn.Parameter(torch.zeros(1, classes, code, dtype=torch.float64), requires_grad=False)

    def forward(self, features):
        batch, _, time = features.shape
        points = self.project(features.transpose(1, 2).reshape(batch, time // COMBINED, -1))
        apart = functional.normalize(points, dim=-1)[:, :, None].double() - self.codes
        nearest = torch.linalg.vector_norm(apart, self.power, dim=-1).argmin(-1)
        return self.codes[0, nearest].transpose(1, 2)[..., None], nearest[..., None]


class Nest(Conformer):
    """The whole, from a clean and a noisy waveform to log probabilities of tokens."""

    threshold = 0.8

    def __init__(self):
        super().__init__(SIZES)
        self.hide, self.tokens = Hide(SIZES.mel), Tokens(SIZES.mel)
        self.head = nn.Conv1d(SIZES.width, 64, 1)

    def forward(
        self,
        input_signal,
        input_signal_length,
        noisy_input_signal,
        noisy_input_signal_length,
        apply_mask=False,
        masks=None,
    ):
        clean, _ = self.frontend(input_signal, input_signal_length)
        noisy, frames = self.frontend(noisy_input_signal, noisy_input_signal_length)
        _, targets = self.tokens(clean)
        hidden = torch.zeros_like(noisy)
        if apply_mask or masks is not None:
            noisy, hidden = self.hide(noisy, frames, masks)
        x, lengths = self.encode(noisy, frames)
        logits = self.head(x.transpose(1, 2)).transpose(1, 2)[..., None]  # one set of tokens
        return self.log_probs(logits), lengths, hidden, targets

    @staticmethod
    def log_probs(logits):
        return logits.log_softmax(2)


def model():
    return loaded(Nest(), NEST_NAMES)


def loss(model, inputs, output):
    """Return the mean negative log probability of the tokens whose frames are hidden."""
    log_probs, _, hidden, targets = output
    batch, _, time = hidden.shape
    judged = hidden.transpose(1, 2).reshape(batch, time // COMBINED, -1).mean(-1) > model.threshold
    return functional.nll_loss(log_probs[judged][..., 0], targets[judged][..., 0])


def rounds_otherwise():
    """Right, but for the last bits: the axis the probabilities lie along is another one in memory."""
    port = model()
    port.log_probs = lambda logits: logits[..., 0].log_softmax(-1)[..., None]
    return port


def draws_otherwise():
    """Right, if it is given the mask: its own is another one."""
    port = model()
    port.hide.ahead = 1
    return port


def wrong_normalisation():
    port = model()
    port.frontend.unbiased = 0.0
    return port


def wrong_distance():
    port = model()
    port.tokens.power = 1.0
    return port


def wrong_eps():
    port = model()
    port.blocks[0].norm_out.eps = 1e-3
    return port


def wrong_attention_scale():
    port = model()
    port.blocks[1].att.scale = SIZES.width**0.5
    return port


def wrong_attention_mask():
    """Hide the frames that pad from those that ask, and not those that ask in vain."""
    port = model()
    port.hidden = lambda padding: padding[:, None, :].expand(-1, padding.shape[1], -1)
    return port


def padding_swapped():
    port = model()
    conv = port.blocks[0].conv
    conv.expand.padding, conv.mix.padding = conv.mix.padding, conv.expand.padding
    return port


def axes_swapped():
    port = model()
    port.stem.flat = lambda x: x.permute(0, 2, 3, 1).flatten(2)
    return port


def lengths_off():
    port = model()
    port.stem.register_forward_hook(lambda module, args, output: (output[0], output[1] - 1))
    return port


def order_swapped():
    port = model()
    port.blocks[0].order = ("conv", "att")
    return port


def detached():
    """Let no gradient through the convolution of a layer."""
    port = model()
    port.blocks[1].conv.register_forward_hook(lambda module, args, output: output.detach())
    return port


def detached_positions():
    """Let no gradient through the part of attention that knows positions."""
    port = model()
    port.blocks[0].att.r_proj.register_forward_hook(lambda module, args, output: output.detach())
    return port


def one_dropout_more():
    port = model()
    port.head = nn.Sequential(nn.Dropout(0.1), port.head)
    return port


def judges_all_frames():
    port = model()
    port.threshold = -1.0
    return port
