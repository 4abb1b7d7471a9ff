"""What the slots of a recording mean when it is compared: what counts, and on which scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from nndiff.tensors import TensorRef

GRADIENTS = ("grad_output", "grad_input", "param_grad", "model_input_grad")
# Inside a model implementations may differ in how they cut it into modules; what goes in and comes out may not.
_INNER = ("input", "output", "grad_output", "grad_input", "recompute")
_OWNED = ("param", "param_grad")


def is_gradient(tensor: TensorRef) -> bool:
    """Tell whether a recorded tensor is a gradient."""
    return tensor.site.slot in GRADIENTS


def is_inner(tensor: TensorRef) -> bool:
    """Tell whether a tensor is of a module inside the model: without a partner it is listed, no difference."""
    return is_inner_slot(tensor.site.slot, tensor.site.module)


def is_inner_slot(slot: str | None, module: str | None) -> bool:
    """Tell whether what was taken at this slot is of a module inside the model."""
    return slot in _INNER and bool(module)


def is_owned_slot(slot: str | None) -> bool:
    """Tell whether a slot holds a parameter or the gradient of one."""
    return slot in _OWNED


def is_owned(tensor: TensorRef) -> bool:
    """Tell whether a tensor is a parameter or the gradient of one."""
    return is_owned_slot(tensor.site.slot)


def is_final(tensor: TensorRef) -> bool:
    """Tell whether a tensor is an output of the model itself."""
    return tensor.site.slot == "output" and not tensor.site.module


def not_asked_for(tensor: TensorRef, other: Mapping[str, Any]) -> bool:
    """Tell whether the other recording was made without this kind of tensor: no difference of the models."""
    slot = tensor.site.slot
    if slot == "grad_input":  # nndiff record takes none
        return True
    holds = other.get("holds")  # of a layout that has no place for some
    of_model = slot in ("input", "grad_output") and not tensor.site.module
    if isinstance(holds, list) and (slot not in holds or of_model):
        return True
    if other.get("backward") is False and (slot in GRADIENTS or slot == "loss"):
        return True
    return other.get("params") is False and slot == "param"


def was_cut_off(meta: Mapping[str, Any]) -> bool:
    """Tell whether a recording ends before its run did."""
    return meta.get("complete") is False


def reached(tensors: Mapping[str, TensorRef], paired: Iterable[str], other: Mapping[str, Any]) -> float:
    """Return the order of the last site the other recording came to; no end where it was not cut off."""
    if not was_cut_off(other):
        return math.inf
    return max((tensors[name].trace.order for name in paired), default=-1)
