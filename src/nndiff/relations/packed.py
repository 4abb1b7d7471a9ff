"""The operation that makes numbers of packed integers and their scales, in the forms that quantisers store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import numpy as np

from nndiff.relations.operations import Fields, widen
from nndiff.relations.relation import Array

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where AWQ puts the eight numbers of a word
BLOCK_SIDES = (128, 128)  # blocks with one scale, where scales of an 8-bit float weight have two axes


class PackedForm(str, Enum):
    """Say how a quantiser lays out integers and scales."""

    PLAIN = "plain"  # a number for each element, scales for the tensor, its rows, groups or blocks
    GPTQ = "gptq"  # words along the inputs, which come first; zero points packed along the outputs
    AWQ = "awq"  # words along the outputs, which come last, in an order of their own
    ROWS = "rows"  # words along the inputs, which come last; no zero points (compressed-tensors)


@dataclass(frozen=True)
class Dequantise:
    """Make a weight of (integers, scales), (integers, scales, zero points) or those and the groups of the inputs."""

    op: ClassVar[str] = "dequantise"
    form: PackedForm
    bits: int
    offset: int  # added to zero points, or taken for them where there are none
    divisor: float  # that scales are stored multiplied with: 127 for the largest elements of rows

    @classmethod
    def load(cls, fields: Fields) -> Dequantise:
        """Return a stored one."""
        form = PackedForm(fields.read_word("form", [form.value for form in PackedForm]))
        bits = fields.read_integer("bits", 8)
        if bits not in (2, 4, 8):
            raise fields.fail("bits", "2, 4 or 8")
        return cls(form, bits, fields.read_integer("offset", 128), fields.read_factor("divisor"))

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        return f"dequantise {self.bits} bits ({self.form.value})"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the weight alone, outputs first, in float64."""
        return [self.make_weight(arrays)[0]]

    def make_weight(self, arrays: Sequence[Array]) -> tuple[Array, Array]:
        """Return the weight and the step of each of its elements; raise ValueError if the arrays do not fit."""
        if not 2 <= len(arrays) <= 4:
            raise ValueError(f"{len(arrays)} arrays are no packed weight")
        packed, scales = arrays[0], widen(arrays[1]) / self.divisor
        if self.form is PackedForm.PLAIN:
            steps = spread_scales(scales, packed.shape)
            zeros = spread_scales(widen(arrays[2]), packed.shape) if len(arrays) > 2 else self.offset
            return (widen(packed) - zeros) * steps, steps
        if packed.ndim != 2 or scales.ndim != 2:
            raise ValueError(f"packed integers of shape {packed.shape} and scales of shape {scales.shape}")
        axis = 0 if self.form is PackedForm.GPTQ else 1
        order = AWQ_ORDER if self.form is PackedForm.AWQ else None
        numbers = unpack_words(packed, self.bits, axis, order)
        if self.form is PackedForm.ROWS:
            steps = spread_scales(scales, numbers.shape)
            return (numbers - self.offset) * steps, steps
        places = group_inputs(numbers.shape[0], scales.shape[0], arrays[3] if len(arrays) > 3 else None)
        zeros = np.full(scales.shape, float(self.offset))
        if len(arrays) > 2:
            zeros = unpack_words(arrays[2], self.bits, 1, order)[: len(scales), : scales.shape[1]] + self.offset
        if zeros.shape != scales.shape or scales.shape[1] != numbers.shape[1]:
            raise ValueError(f"scales of shape {scales.shape} do not fit packed integers of shape {packed.shape}")
        steps = scales[places]
        return ((numbers - zeros[places]) * steps).T, steps.T


def unpack_words(words: Array, bits: int, axis: int, order: Sequence[int] | None = None) -> Array:
    """Return the numbers that words hold, the lowest bits first, along an axis; as float64."""
    if words.ndim != 2 or not np.issubdtype(words.dtype, np.integer) or words.dtype.itemsize * 8 % bits:
        raise ValueError(f"{words.dtype} of shape {words.shape} holds no packed numbers")
    count = words.dtype.itemsize * 8 // bits
    if order is not None and len(order) != count:
        raise ValueError(f"an order of {len(order)} numbers for {count} in a word")
    unsigned = words.astype(np.int64)
    places = range(count) if order is None else order
    numbers = np.stack([(unsigned >> (bits * place)) & ((1 << bits) - 1) for place in places], axis=axis + 1)
    shape = list(words.shape)
    shape[axis] *= count
    return numbers.reshape(shape).astype(np.float64)


def spread_scales(scales: Array, shape: tuple[int, ...]) -> Array:
    """Return scales in the shape of a weight: of the tensor, of rows, of groups in a row, or of blocks."""
    if scales.size == 1:
        return np.broadcast_to(scales.reshape(()), shape)
    if scales.ndim == 1:
        scales = scales.reshape((-1,) + (1,) * (len(shape) - 1))
    if scales.ndim != len(shape):
        raise ValueError(f"scales of shape {scales.shape} do not fit a weight of shape {shape}")
    for axis, (count, length) in enumerate(zip(scales.shape, shape, strict=True)):
        if count in (1, length):
            continue
        # blocks of a fixed side, the last of them cut off, or as many equal groups as there are scales
        is_blocked = axis < len(BLOCK_SIDES) and count == -(-length // BLOCK_SIDES[axis])
        side = BLOCK_SIDES[axis] if is_blocked else length // count
        if not is_blocked and length % count:
            raise ValueError(f"{count} scales for {length} places")
        scales = np.repeat(scales, side, axis=axis).take(range(length), axis=axis)
    return np.broadcast_to(scales, shape)


def group_inputs(inputs: int, groups: int, given: Array | None) -> Array:
    """Return the group of each input: as given, or equal groups in turn."""
    if given is not None:
        if given.shape != (inputs,) or not np.issubdtype(given.dtype, np.integer):
            raise ValueError(f"groups of shape {given.shape} for {inputs} inputs")
        return given.astype(np.intp)
    if not groups or inputs % groups:
        raise ValueError(f"{groups} groups for {inputs} inputs")
    return np.arange(inputs) // (inputs // groups)


PACKED_OPERATIONS: tuple[Any, ...] = (Dequantise,)
