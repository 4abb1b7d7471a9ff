"""What the slots of a recording mean when it is compared: what counts, and on which scale."""

from __future__ import annotations

import math
from collections.abc import Iterable

from nndiff.tensors import TensorRef

GRADIENTS = ("grad_output", "param_grad", "model_input_grad")
# Inside a model implementations may differ in how they cut it into modules; what goes in and comes out may not.
_INNER = ("input", "output", "grad_output", "recompute")


def is_gradient(tensor: TensorRef) -> bool:
    """Tell whether a recorded tensor is a gradient."""
    return tensor.meta.get("slot") in GRADIENTS


def is_inner(tensor: TensorRef) -> bool:
    """Tell whether a tensor is of a module inside the model: without a partner it is listed, no difference."""
    return tensor.meta.get("slot") in _INNER and bool(tensor.meta.get("module"))


def is_final(tensor: TensorRef) -> bool:
    """Tell whether a tensor is an output of the model itself."""
    return tensor.meta.get("slot") == "output" and not tensor.meta.get("module")


def gradient_scale(tensors: Iterable[TensorRef]) -> float:
    """Return what atol is multiplied with for gradients: their largest value, at most 1.

    Gradients have no scale of their own: with a mean loss over a large batch all are far below any atol,
    and all would pass. Single ones that are zero but for noise are still judged on the scale of all.
    """
    sizes = [tensor.meta["stats"].abs_max for tensor in tensors if is_gradient(tensor) and tensor.meta.get("stats")]
    largest = max((size for size in sizes if math.isfinite(size)), default=1.0)
    return min(1.0, largest) if largest > 0 else 1.0
