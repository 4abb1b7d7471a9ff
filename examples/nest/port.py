"""The port as nndiff runs it: `nndiff diff nemo.nnrec port.py`, `nndiff verify model.nemo --into port.py`."""

from __future__ import annotations

import os
from typing import Any

import torch
from nest_ssl import Nest, load, save

__all__ = ["inputs", "load", "loss", "model", "save"]

LENGTHS = (20000, 14000)  # samples; rows of unequal length show whether padding is masked


def model() -> Nest:
    """Return the port with the checkpoint that NEST_CHECKPOINT names."""
    return load(os.environ.get("NEST_CHECKPOINT", "model.nemo"), os.environ.get("NEST_CONFIG")).eval()


def inputs() -> dict[str, Any]:
    """Return noise and noisier noise, in rows of unequal length."""
    lengths = torch.tensor(LENGTHS)
    is_heard = torch.arange(max(LENGTHS)) < lengths[:, None]
    clean = 0.1 * torch.randn(is_heard.shape) * is_heard
    noisy = clean + 0.01 * torch.randn(is_heard.shape) * is_heard
    return {
        "input_signal": clean,
        "input_signal_length": lengths,
        "noisy_input_signal": noisy,
        "noisy_input_signal_length": lengths,
        "apply_mask": True,
    }


def loss(model: Nest, inputs: Any, output: Any) -> torch.Tensor:
    """Return the loss that the model is trained with."""
    return model.compute_loss(output)
