"""A port of NeMo's Conformer with CTC to plain PyTorch, with names of its own, and faults as ports have them.

`model` is right; every other factory has one fault. The weights are those of the .nemo file PORT_WEIGHTS names.
"""

from __future__ import annotations

import torch
from conformer_port import Conformer, Sizes, loaded
from torch import nn
from torch.nn import functional

SIZES = Sizes(mel=40, multiple=0, channels=8, halvings=2, width=32, inner=64, heads=2, kernel=5)


class Port(Conformer):
    """The whole, from waveform to log probabilities."""

    def __init__(self):
        super().__init__(SIZES)
        self.head = nn.Conv1d(32, 10, 1)

    def forward(self, input_signal, input_signal_length):
        x, lengths = self.encode(*self.frontend(input_signal, input_signal_length))
        log_probs = self.head(x.transpose(1, 2)).transpose(1, 2).log_softmax(-1)
        return log_probs, lengths, log_probs.argmax(-1)


def model():
    return loaded(Port())


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
