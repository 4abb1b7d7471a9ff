"""The operations that relations are made of, and how their stored fields, which may be hostile, are read back."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import numpy as np

from nndiff.errors import ReportError
from nndiff.relations.relation import Array
from nndiff.tensors import MOST_AXES, Shape
from nndiff.text import printable

# What a stored relation may ask for: a saved result is a file from outside.
MOST_OPERATIONS = 16  # per side; the longest proven relation has 5
MOST_ELEMENTS = 1 << 30  # of a shape: no relation is proven for a tensor nearly as large
MOST_PLACES = 1 << 24  # along an axis: as many as the largest tensor whose axes are rearranged has elements

MOST_ROOT = 128  # factors up to which a square root is named: the root of 16,384, of the widest layer
MASKED_BELOW = -1e4  # the weakest additive mask in use: -10000 of BERT; others take -inf or the dtype's minimum


def describe_value(value: object) -> str:
    """Return a value for a message: short however large it is, and without control characters."""
    return printable(reprlib.repr(value), 60)


class Fields:
    """Read the fields of one stored operation; whatever is not as written by nndiff raises ReportError."""

    def __init__(self, op: str, stored: Mapping[str, Any]) -> None:
        self.op = op
        self.stored = stored

    def fail(self, name: str, expected: str) -> ReportError:
        """Return the error that names the field and what it should be."""
        got = describe_value(self.stored.get(name))
        return ReportError(f"a stored relation is damaged: {name!r} of {self.op!r} is {got}, expected {expected}")

    def read_integer(self, name: str, most: int) -> int:
        """Return a whole number from 0 to `most`."""
        number = self.stored.get(name)
        if type(number) is not int or not 0 <= number <= most:
            raise self.fail(name, f"a whole number from 0 to {most}")
        return number

    def read_integers(self, name: str, most: int, longest: int) -> tuple[int, ...]:
        """Return a list of whole numbers from 0 to `most`."""
        numbers = self.stored.get(name)
        if not isinstance(numbers, list) or len(numbers) > longest:
            raise self.fail(name, f"a list of at most {longest} whole numbers")
        for number in numbers:
            if type(number) is not int or not 0 <= number <= most:
                raise self.fail(name, f"a list of whole numbers from 0 to {most}")
        return tuple(numbers)

    def read_distinct(self, name: str, most: int, longest: int) -> tuple[int, ...]:
        """Return a list of whole numbers, none of them twice."""
        numbers = self.read_integers(name, most, longest)
        if len(set(numbers)) != len(numbers):
            raise self.fail(name, "a list without repetitions")
        return numbers

    def read_axis(self, name: str) -> int:
        """Return the number of an axis."""
        return self.read_integer(name, MOST_AXES - 1)

    def read_axes(self, name: str) -> tuple[int, ...]:
        """Return the numbers of some axes, none of them twice."""
        return self.read_distinct(name, MOST_AXES - 1, MOST_AXES)

    def read_shape(self, name: str) -> Shape:
        """Return a shape that fits into memory."""
        shape = self.read_integers(name, MOST_ELEMENTS, MOST_AXES)
        if math.prod(shape) > MOST_ELEMENTS:
            raise self.fail(name, f"a shape of at most {MOST_ELEMENTS} elements")
        return shape

    def read_factor(self, name: str) -> float:
        """Return a finite number other than zero."""
        number = self.stored.get(name)
        if not isinstance(number, float) or not math.isfinite(number) or number == 0:
            raise self.fail(name, "a finite number other than 0")
        return number

    def read_size(self, name: str) -> float:
        """Return a finite number that is not negative."""
        number = self.stored.get(name)
        if not isinstance(number, float) or not math.isfinite(number) or number < 0:
            raise self.fail(name, "a finite number, 0 or more")
        return number

    def read_numbers(self, name: str) -> tuple[float, ...]:
        """Return a list of finite numbers."""
        numbers = self.stored.get(name)
        if not isinstance(numbers, list) or len(numbers) > MOST_PLACES:
            raise self.fail(name, f"a list of at most {MOST_PLACES} numbers")
        for number in numbers:
            if not isinstance(number, float) or not math.isfinite(number):
                raise self.fail(name, "a list of finite numbers")
        return tuple(numbers)

    def read_factors(self, name: str) -> tuple[float, ...]:
        """Return a list of finite numbers other than zero."""
        factors = self.read_numbers(name)
        if 0.0 in factors:
            raise self.fail(name, "a list of numbers other than 0")
        return factors

    def read_word(self, name: str, words: Sequence[str]) -> str:
        """Return one of some words."""
        word = self.stored.get(name)
        if not isinstance(word, str) or word not in words:
            raise self.fail(name, "one of " + ", ".join(words))
        return word

    def read_flag(self, name: str) -> bool:
        """Return True or False."""
        flag = self.stored.get(name)
        if not isinstance(flag, bool):
            raise self.fail(name, "true or false")
        return flag


@dataclass(frozen=True)
class Reshape:
    """Give each array another shape, its elements in the same order."""

    op: ClassVar[str] = "reshape"
    shape: Shape

    @classmethod
    def load(cls, fields: Fields) -> Reshape:
        """Return a stored one."""
        return cls(fields.read_shape("shape"))

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        return f"reshape{list(self.shape)}"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays after it."""
        return [array.reshape(self.shape) for array in arrays]


@dataclass(frozen=True)
class Flatten:
    """Put the elements of each array into one row."""

    op: ClassVar[str] = "flatten"

    @classmethod
    def load(cls, fields: Fields) -> Flatten:
        """Return a stored one."""
        return cls()

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        return "flatten"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays after it."""
        return [array.reshape(-1) for array in arrays]


@dataclass(frozen=True)
class Permute:
    """Put the axes of each array in another order."""

    op: ClassVar[str] = "permute"
    axes: tuple[int, ...]

    @classmethod
    def load(cls, fields: Fields) -> Permute:
        """Return a stored one."""
        return cls(fields.read_axes("axes"))

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        return f"permute{self.axes}"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays after it."""
        return [array.transpose(self.axes) for array in arrays]


@dataclass(frozen=True)
class Slice:
    """Take a stretch along one axis."""

    op: ClassVar[str] = "slice"
    axis: int
    start: int
    stop: int

    @classmethod
    def load(cls, fields: Fields) -> Slice:
        """Return a stored one."""
        start = fields.read_integer("start", MOST_ELEMENTS)
        stop = fields.read_integer("stop", MOST_ELEMENTS)
        if stop < start:
            raise fields.fail("stop", f"a whole number from {start}")
        return cls(fields.read_axis("axis"), start, stop)

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        return f"[{self.start}:{self.stop}] along axis {self.axis}"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays after it."""
        cut = []
        for array in arrays:
            if array.ndim <= self.axis or array.shape[self.axis] < self.stop:
                raise ValueError(f"shape {array.shape} has no {self.text}")
            window = [slice(None)] * self.axis + [slice(self.start, self.stop)]
            cut.append(array[tuple(window)])
        return cut


@dataclass(frozen=True)
class Take:
    """Take some places along one axis, in this order, none of them twice."""

    op: ClassVar[str] = "take"
    axis: int
    places: tuple[int, ...]

    @classmethod
    def load(cls, fields: Fields) -> Take:
        """Return a stored one."""
        return cls(fields.read_axis("axis"), fields.read_distinct("places", MOST_ELEMENTS, MOST_PLACES))

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        first = ", ".join(str(place) for place in self.places[:4])
        more = f", ... {len(self.places)} in all" if len(self.places) > 4 else ""
        return f"take places {first}{more} along axis {self.axis}"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays after it."""
        places = np.asarray(self.places, np.intp)
        return [np.take(array, places, self.axis) for array in arrays]


@dataclass(frozen=True)
class Arrange:
    """Put several arrays in another order."""

    op: ClassVar[str] = "arrange"
    order: tuple[int, ...]

    @classmethod
    def load(cls, fields: Fields) -> Arrange:
        """Return a stored one."""
        return cls(fields.read_distinct("order", MOST_PLACES, MOST_PLACES))

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        return f"in the order {self.order}"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays after it."""
        return [arrays[number] for number in self.order]


@dataclass(frozen=True)
class Concatenate:
    """Put several arrays one behind the other along an axis they have."""

    op: ClassVar[str] = "concatenate"
    axis: int

    @classmethod
    def load(cls, fields: Fields) -> Concatenate:
        """Return a stored one."""
        return cls(fields.read_axis("axis"))

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        return f"concatenate along axis {self.axis}"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays after it."""
        return [np.concatenate(arrays, self.axis)]


@dataclass(frozen=True)
class Stack:
    """Put several arrays of one shape one behind the other along a new axis."""

    op: ClassVar[str] = "stack"
    axis: int

    @classmethod
    def load(cls, fields: Fields) -> Stack:
        """Return a stored one."""
        return cls(fields.read_axis("axis"))

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        return f"stack along axis {self.axis}"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays after it."""
        return [np.stack(arrays, self.axis)]


@dataclass(frozen=True)
class Expand:
    """Repeat each array along its axes of one element, up to a shape."""

    op: ClassVar[str] = "expand"
    shape: Shape

    @classmethod
    def load(cls, fields: Fields) -> Expand:
        """Return a stored one."""
        return cls(fields.read_shape("shape"))

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        return f"expand{list(self.shape)}"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays after it; nothing is copied."""
        return [np.broadcast_to(array, self.shape) for array in arrays]


@dataclass(frozen=True)
class SumOver:
    """Add up each array over some axes, which keep one element: the gradient of what was expanded."""

    op: ClassVar[str] = "sum"
    axes: tuple[int, ...]

    @classmethod
    def load(cls, fields: Fields) -> SumOver:
        """Return a stored one."""
        return cls(fields.read_axes("axes"))

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        return f"sum over axes {self.axes}"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays after it, in float64 or complex128."""
        return [widen(array).sum(axis=self.axes, keepdims=True) for array in arrays]


@dataclass(frozen=True)
class Add:
    """Add up several arrays of one shape: the two biases of a recurrent layer."""

    op: ClassVar[str] = "add"

    @classmethod
    def load(cls, fields: Fields) -> Add:
        """Return a stored one."""
        return cls()

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        return "add"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the sum alone, in the type of the arrays."""
        if len({array.shape for array in arrays}) != 1:
            raise ValueError(f"shapes {[array.shape for array in arrays]} cannot be added")
        total = arrays[0]
        for array in arrays[1:]:
            total = np.add(total, array)
        return [total]


@dataclass(frozen=True)
class Multiply:
    """Multiply every element with one factor."""

    op: ClassVar[str] = "multiply"
    factor: float

    @classmethod
    def load(cls, fields: Fields) -> Multiply:
        """Return a stored one."""
        return cls(fields.read_factor("factor"))

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        return f"multiply by {describe_factor(self.factor)}"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays after it, in float64 or complex128."""
        return [widen(array) * self.factor for array in arrays]


@dataclass(frozen=True)
class WeightNorm:
    """Make a weight of its size and its direction, (g, v): g * v / |v|."""

    op: ClassVar[str] = "weight_norm"
    axes: tuple[int, ...]  # those the norm runs over

    @classmethod
    def load(cls, fields: Fields) -> WeightNorm:
        """Return a stored one."""
        return cls(fields.read_axes("axes"))

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        return f"g * v / |v|, norm over axes {self.axes}"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the weight alone, in float64."""
        size, direction = arrays
        _, unit = split_direction(widen(direction), self.axes)
        return [_spread_size(size, direction, self.axes) * unit]


@dataclass(frozen=True)
class WeightNormGradient:
    """Make the gradients of size and direction of that of the weight, (dW, g, v) -> (dg, dv), by the chain rule."""

    op: ClassVar[str] = "weight_norm_gradient"
    axes: tuple[int, ...]  # those the norm runs over

    @classmethod
    def load(cls, fields: Fields) -> WeightNormGradient:
        """Return a stored one."""
        return cls(fields.read_axes("axes"))

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        return f"gradients of g and v, norm over axes {self.axes}"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the gradient of the size, in its own shape, and that of the direction, in float64."""
        weight_gradient, size, direction = arrays
        length, unit = split_direction(widen(direction), self.axes)
        size_gradient = np.sum(widen(weight_gradient) * unit, axis=self.axes, keepdims=True)
        factor = _spread_size(size, direction, self.axes) / length
        direction_gradient = factor * (weight_gradient - size_gradient * unit)
        return [size_gradient.reshape(size.shape), direction_gradient]


class MaskForm(str, Enum):
    """Say how a mask marks the places that take part."""

    TRUE_KEEPS = "true keeps"  # True or 1 where attention is allowed
    TRUE_MASKS = "true masks"  # True or 1 where it is not
    ADDITIVE = "additive"  # 0 where it is allowed, hugely negative where it is not


@dataclass(frozen=True)
class AsMask:
    """Make a boolean mask of each array, True where a place takes part."""

    op: ClassVar[str] = "mask"
    form: MaskForm

    @classmethod
    def load(cls, fields: Fields) -> AsMask:
        """Return a stored one."""
        try:
            return cls(MaskForm(fields.stored.get("form")))
        except ValueError:
            raise fields.fail("form", "one of " + ", ".join(form.value for form in MaskForm)) from None

    @property
    def text(self) -> str:
        """Return it as a person would write it."""
        return f"as mask ({self.form.value})"

    def apply(self, arrays: Sequence[Array]) -> Sequence[Array]:
        """Return the arrays after it."""
        if self.form is MaskForm.ADDITIVE:
            return [array > MASKED_BELOW for array in arrays]
        return [(array != 0) == (self.form is MaskForm.TRUE_KEEPS) for array in arrays]


def widen(array: Array) -> Array:
    """Return numbers as float64, or complex128 where they are complex."""
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def describe_factor(factor: float) -> str:
    """Return a factor for a text; what is the root of a whole number, or one over it, by that name too."""
    size = abs(factor)
    for root, kind in ((size, ""), (1 / size, "1/")):
        square = round(root * root) if 1 < root < MOST_ROOT else 0
        if square and math.isqrt(square) ** 2 != square and size in list_roots(square):
            return f"{factor:.6g} = {'-' if factor < 0 else ''}{kind}sqrt({square})"
    return f"{factor:.6g}"


def list_roots(square: int) -> list[float]:
    """Return the root of a number and one over it, as float64 and float32 have them."""
    root = math.sqrt(square)
    single = float(np.float32(root))
    return [root, single, 1 / root, float(np.float32(1 / root)), 1 / single]


def split_direction(direction: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the length of a direction over some axes, never 0, and its unit vectors."""
    length = np.sqrt(np.sum(np.square(np.abs(direction)), axis=axes, keepdims=True))
    length = np.maximum(length, np.finfo(np.float64).tiny)
    return length, direction / length


def _spread_size(size: Array, direction: Array, axes: tuple[int, ...]) -> Array:
    """Return the sizes in the shape in which they are multiplied with the directions."""
    shape = tuple(1 if axis in axes else length for axis, length in enumerate(direction.shape))
    return widen(size).reshape(shape)


OPERATIONS: tuple[Any, ...] = (
    Reshape,
    Flatten,
    Permute,
    Slice,
    Take,
    Arrange,
    Concatenate,
    Stack,
    Expand,
    SumOver,
    Add,
    Multiply,
    WeightNorm,
    WeightNormGradient,
    AsMask,
)
