"""Operations that fold layers into one another: batch norm, the weight of a norm, adapters of low rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from nndiff.relations.operations import Fields, describe_factor, widen
from nndiff.relations.relation import Array


def spread(numbers: Array, axis: int, array: Array) -> Array:
    """Return numbers in the shape in which each goes with one place along an axis of an array."""
    if array.ndim <= axis or numbers.shape != (array.shape[axis],):
        raise ValueError(f"shape {numbers.shape} does not go along axis {axis} of shape {array.shape}")
    return widen(numbers).reshape((-1,) + (1,) * (array.ndim - axis - 1))


@dataclass(frozen=True)
class FoldBatchNorm:
    """Make (weight, bias) of a layer and the batch norm behind it: (weight, bias, gamma, beta, mean, variance)."""

    op: ClassVar[str] = "fold_batch_norm"
    eps: float
    axis: int  # of the weight, along which its outputs lie
    has_bias: bool  # False: the layer has none, and there are five arrays

    @classmethod
    def load(cls, fields: Fields) -> FoldBatchNorm:
        """Return a stored one."""
        return cls(fields.read_size("eps"), fields.read_axis("axis"), fields.read_flag("has_bias"))

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        return f"fold batch norm, eps {self.eps:g}, along axis {self.axis}"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return weight and bias, in float64."""
        if self.has_bias:
            weight, bias, gamma, beta, mean, variance = arrays
        else:
            weight, gamma, beta, mean, variance = arrays
            bias = np.zeros_like(mean)
        factors = widen(gamma) / np.sqrt(widen(variance) + self.eps)
        return [widen(weight) * spread(factors, self.axis, weight), widen(beta) + (widen(bias) - mean) * factors]


@dataclass(frozen=True)
class FoldNorm:
    """Make the weight of a layer and of the norm before it one, and their biases, where there are any."""

    op: ClassVar[str] = "fold_norm"
    axis: int  # of the weight, along which its inputs lie
    has_bias: bool  # of the layer: (weight, bias, gamma, beta); without it (weight, gamma, beta), or (weight, gamma)

    @classmethod
    def load(cls, fields: Fields) -> FoldNorm:
        """Return a stored one."""
        return cls(fields.read_axis("axis"), fields.read_flag("has_bias"))

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        return f"fold the norm before it, along axis {self.axis}"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the weight, and the bias where there is one of the norm, in float64."""
        weight, *others = arrays
        bias = others.pop(0) if self.has_bias and others else None
        if len(others) not in (1, 2):
            raise ValueError(f"{len(arrays)} arrays are no layer and its norm")
        folded = [widen(weight) * spread(others[0], self.axis, weight)]
        if len(others) == 2:
            shifted = np.tensordot(widen(weight), widen(others[1]), axes=([self.axis], [0]))
            folded.append(shifted if bias is None else shifted + bias)
        elif bias is not None:
            folded.append(widen(bias))
        return folded


@dataclass(frozen=True)
class AddLowRank:
    """Add an adapter to a weight: (weight, A, B) becomes weight + scale * B @ A."""

    op: ClassVar[str] = "add_low_rank"
    scale: float
    transposed: bool  # the weight is stored with its inputs first, as Conv1D of transformers does

    @classmethod
    def load(cls, fields: Fields) -> AddLowRank:
        """Return a stored one."""
        return cls(fields.read_factor("scale"), fields.read_flag("transposed"))

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        turned = "(B @ A).T" if self.transposed else "B @ A"
        return f"add {describe_factor(self.scale)} * {turned}"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the weight alone, in float64."""
        weight, down, up = arrays
        product = widen(up) @ widen(down)
        added = product.T if self.transposed else product
        if added.shape != weight.shape:
            raise ValueError(f"an adapter of shape {added.shape} does not fit a weight of shape {weight.shape}")
        return [widen(weight) + self.scale * added]


@dataclass(frozen=True)
class TakeBehind:
    """Take what the layer behind returns: (output of a layer, output of the one behind it) -> the second."""

    op: ClassVar[str] = "take_behind"
    is_batch_norm: bool  # the layer behind is one

    @classmethod
    def load(cls, fields: Fields) -> TakeBehind:
        """Return a stored one."""
        return cls(fields.read_flag("is_batch_norm"))

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        return f"output of the {'batch norm' if self.is_batch_norm else 'layer'} behind it"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the second array alone."""
        _, behind = arrays
        return [behind]


FOLD_OPERATIONS: tuple[Any, ...] = (FoldBatchNorm, FoldNorm, AddLowRank, TakeBehind)
