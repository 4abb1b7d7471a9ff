"""Weight norm: a weight that is computed at each call as g * v / |v|, and what that makes of its gradient."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nndiff.tensors import Shape, TensorRef
from nndiff.tolerance import AUTO

_Numbers = NDArray[np.float64]

_ALIKE = 1e-3  # how far numbers may be apart, relatively, by rounding alone
_OF_TERMS = 1e-5  # and by what the terms come to that they are the sum of
_APART = re.compile(r"(.+)_([gv])")
_COMPUTED = re.compile(r"(?:(.*)\.)?parametrizations\.([^.]+)")
_ROLES = {"original0": "g", "original1": "v"}


class Made(NamedTuple):
    """Say of which weight a parameter may be the size or the direction."""

    module: str
    weight: str
    role: str  # g or v


def made_of(module: str, tensor: str) -> Made | None:
    """Return what a parameter is by its name, if weight norm gives such names."""
    computed, apart = original_of(module, tensor), _APART.fullmatch(tensor)
    if computed and tensor in _ROLES:
        return Made(*computed, _ROLES[tensor])
    return Made(module, apart[1], apart[2]) if apart else None


def original_of(module: str, tensor: str) -> tuple[str, str] | None:
    """Return the module and name of what a parametrisation computes from a parameter, if one does."""
    computed = _COMPUTED.fullmatch(module)
    return (computed[1] or "", computed[2]) if computed and tensor.startswith("original") else None


class Normed(NamedTuple):
    """Hold the size and the direction of a weight: the parameters, or their gradients."""

    g: TensorRef
    v: TensorRef


def fits(g: Shape, v: Shape) -> bool:
    """Tell whether one may hold the norms of the other."""
    return any(True for _ in _spread(g, v))


def _spread(g: Shape, v: Shape) -> Iterator[Shape]:
    """Yield the shapes in which the sizes may be multiplied with the directions."""
    if len(g) == len(v) and all(one in (1, other) for one, other in zip(g, v, strict=True)):
        yield g
    elif math.prod(g) == 1:
        yield (1,) * len(v)
    elif len(g) == 1:
        for axis, size in enumerate(v):
            if size == g[0]:
                yield tuple(size if each == axis else 1 for each in range(len(v)))


def is_weight(weight: TensorRef, normed: Normed) -> bool:
    """Tell whether a weight is what its size and direction make."""
    v, plain = _numbers(normed.v), _numbers(weight)
    within = _within(weight, normed.v)
    for shape in _spread(normed.g.shape, normed.v.shape):
        over = _axes(shape)
        size, direction = _numbers(normed.g).reshape(shape), _direction(v, over)
        if _close(plain, size * direction, over, within, 0.0):
            return True
    return False


def is_gradient(weight: TensorRef, normed: Normed, values: Normed, noise: float) -> bool:
    """Tell whether the gradients of size and direction are those that the chain rule makes of that of the weight."""
    whole, got, v = _numbers(weight), _numbers(normed.v), _numbers(values.v)
    within = _within(weight, normed.v)
    for shape in _spread(normed.g.shape, normed.v.shape):
        over = _axes(shape)
        direction = _direction(v, over)
        of_size = np.sum(whole * direction, axis=over, keepdims=True)
        factor = _numbers(values.g).reshape(shape) / np.maximum(_norm(v, over), np.finfo(np.float64).tiny)
        of_direction = factor * (whole - of_size * direction)
        terms = max(_OF_TERMS, _rounding(weight, normed.v)) * _norm(whole, over) + noise
        if np.all(np.abs(_numbers(normed.g).reshape(shape) - of_size) <= within * np.abs(of_size) + terms) and _close(
            got, of_direction, over, within, np.abs(factor) * terms + noise
        ):
            return True
    return False


def _close(got: _Numbers, wanted: _Numbers, over: tuple[int, ...], within: float, besides: _Numbers | float) -> bool:
    """Tell whether all rows agree: what is not finite does not."""
    return bool(np.all(_norm(got - wanted, over) <= within * _norm(wanted, over) + besides))


def _within(*tensors: TensorRef) -> float:
    return max(_ALIKE, _rounding(*tensors))


def _rounding(*tensors: TensorRef) -> float:
    return max(AUTO.for_pair(each.dtype, each.dtype)[1] for each in tensors)


def _axes(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(axis for axis, size in enumerate(shape) if size == 1)


def _norm(numbers: _Numbers, over: tuple[int, ...]) -> _Numbers:
    found: _Numbers = np.sqrt(np.sum(np.square(numbers), axis=over, keepdims=True))
    return found


def _direction(v: _Numbers, over: tuple[int, ...]) -> _Numbers:
    found: _Numbers = v / np.maximum(_norm(v, over), np.finfo(np.float64).tiny)
    return found


def _numbers(tensor: TensorRef) -> _Numbers:
    found: Any = tensor.numpy()
    return np.asarray(found, np.float64)
