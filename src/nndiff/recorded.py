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


_OF_KIND = 0.01
# At the default tolerance of float32, 1e-5: a few last digits of a number, and those of a sum of numbers of
# one size, which grow with the root of how many there are; but no more than a thousandth of what it comes to.
_ROUNDING, _ROUNDING_OF_SUM, _MOST_ROUNDING = 0.1, 0.05, 100
# Equal numbers are rounded the same way each time they are added to one sum, as some kernels do.
_ROUNDING_OF_EQUALS = 0.004
_DEFAULT = 1e-5
_OF_NOISE = 0.1  # of a sum of terms of any sign, which comes to the root of how many there are: less is nothing


class GradientScale:
    """Know what atol is multiplied with for each gradient: its own largest value, at most 1.

    Gradients have no scale of their own: behind a mean over a large batch all are far below any atol, and
    all would pass. Those that are zero but for noise are judged on a hundredth of the largest of their kind.
    Rounding is forgiven on any scale: that of the largest value, and of the terms that a gradient is the sum of,
    more so where it has nothing else (the bias in front of a batch norm).
    """

    def __init__(self, tensors: Iterable[TensorRef]) -> None:
        self._largest: dict[Any, float] = {}
        self._terms: dict[Any, tuple[float, int]] = {}  # by module: the sum of the moduli at its outputs, how many
        for tensor in tensors:
            if is_gradient(tensor) and not is_final_gradient(tensor):
                slot = tensor.site.slot
                self._largest[slot] = max(self._largest.get(slot, 0.0), _largest(tensor))
                if slot == "grad_output":
                    module = tensor.site.module
                    total, count = self._terms.get(module, (0.0, 0))
                    self._terms[module] = total + _moduli(tensor), count + tensor.count

    def of(self, tensor: TensorRef) -> float:
        """Return the factor for one tensor; 1 for what is no gradient or has no statistics."""
        if not is_gradient(tensor) or not tensor.trace.stats:
            return 1.0
        own = _largest(tensor)
        scale = max(own, _OF_KIND * self._largest.get(tensor.site.slot, 0.0))
        return max(min(1.0, scale), _ROUNDING * own, self._rounding_of_sum(tensor, own)) if scale > 0 else 1.0

    def _rounding_of_sum(self, tensor: TensorRef, own: float) -> float:
        """Return what rounding comes to in the gradient of a parameter, which is a sum over all places."""
        total, count = self._terms.get(tensor.site.module, (0.0, 0))
        if not total or tensor.site.slot != "param_grad" or not tensor.count:
            return 0.0
        sums = tensor.shape[0] if tensor.shape else 1
        places = count / sums
        most = _ROUNDING_OF_SUM * total / sums * math.sqrt(places)
        # of a weight the terms are also multiplied with inputs, of whose size nothing is known
        noise = min(_DEFAULT * most, _OF_NOISE * total / sums / math.sqrt(places))
        nothing_else = len(tensor.shape) <= 1 and own <= noise
        if nothing_else:
            return most
        return min(max(most, _ROUNDING_OF_EQUALS * total / sums * places), _MOST_ROUNDING * own)


def is_final_gradient(tensor: TensorRef) -> bool:
    """Tell whether a gradient is the one the loss hands to the model's own output."""
    return tensor.site.slot == "grad_output" and not tensor.site.module


def _largest(tensor: TensorRef) -> float:
    stats = tensor.trace.stats
    return float(stats.abs_max) if stats and math.isfinite(stats.abs_max) else 0.0


def _moduli(tensor: TensorRef) -> float:
    """Return the sum of the moduli, or more: what it is if all are of one size."""
    stats = tensor.trace.stats
    return math.sqrt(tensor.count) * float(stats.l2) if stats and math.isfinite(stats.l2) else 0.0
