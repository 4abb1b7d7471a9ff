"""The port as nndiff runs it: `nndiff diff nemo.nnrec port.py`, `nndiff verify model.nemo --into port.py`."""

from __future__ import annotations

import os
from typing import Any

import torch
from nest_ssl import Nest, load, save

__all__ = ["inputs", "load", "loss", "model", "save"]

DEFAULT_SECONDS, SAMPLE_RATE = 1.0, 16000


def model() -> Nest:
    """Return the port with the checkpoint that NEST_CHECKPOINT names."""
    return load(os.environ.get("NEST_CHECKPOINT", "model.nemo"), os.environ.get("NEST_CONFIG")).eval()


def loss(model: Nest, inputs: Any, output: Any) -> torch.Tensor:
    """Return the loss that the model is trained with."""
    return model.compute_loss(output)
