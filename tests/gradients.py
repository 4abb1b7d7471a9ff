"""What several tests plant: gradients that are changed on their way, under values that are handed on as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Change = Callable[[torch.Tensor], torch.Tensor]


class _Changed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, change: Change, copied: bool) -> torch.Tensor:
        ctx.change = change
        return tensor.clone() if copied else tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.change(grad), None, None


def with_gradient(tensor: torch.Tensor, change: Change, *, copied: bool = True) -> torch.Tensor:
    """Return a tensor whose gradient is passed through `change`; not copied, nothing is seen of it going forward."""
    return _Changed.apply(tensor, change, copied)


def slightly(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose gradient becomes a tenth too large."""
    return with_gradient(tensor, lambda grad: grad * 1.1)
