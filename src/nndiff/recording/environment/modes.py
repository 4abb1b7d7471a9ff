"""Train and eval mode of modules."""

from __future__ import annotations

from typing import Literal

import torch

Mode = Literal["train", "eval"]


def is_training(module: torch.nn.Module) -> bool:
    """Return True if a module is in train mode; frozen TorchScript has no modes, and no flag for them."""
    return bool(getattr(module, "training", False))


def get_mode(model: torch.nn.Module) -> str:
    """Return train, eval or mixed."""
    flags = {is_training(module) for module in model.modules()}
    if len(flags) == 2:
        return "mixed"
    return "train" if flags == {True} else "eval"


def set_training_flag(module: torch.nn.Module, training: bool | None) -> None:
    """Set the flag of one module; None for a module that has none, where model.train() may have left one."""
    if training is not None:
        module.training = training
    else:
        vars(module).pop("training", None)
