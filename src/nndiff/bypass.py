"""A wrong gradient that is handed on past a module: a residual that is detached or scaled.

What is too much or too little is then a multiple of a gradient that is good: that of what the residual is added to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.sites import SitePair
from nndiff.tensors import TensorRef

_LARGEST = 1 << 22  # elements of one tensor
_MOST_READ = 1 << 26  # elements in all
_STRAIGHT = 1e-4

Array = NDArray[Any]


@dataclass(frozen=True)
class Bypass:
    """Say that what is wrong with a gradient is a multiple of another."""

    gradient: SitePair
    factor: float

    @property
    def done(self) -> str:
        """Return what was done to the gradient on its way past."""
        return "cut off" if abs(self.factor + 1) < _STRAIGHT else f"multiplied by {1 + self.factor:.4g}"


def bypassed(site: SitePair, takers: Sequence[SitePair], good: Iterable[SitePair]) -> Bypass | None:
    """Return the good gradient, of none that took the output, that explains what is wrong at a site."""
    if not _readable(site):
        return None
    wrong = _flat(site.candidate) - _flat(site.reference)
    ways = {each.reference.trace.order for each in takers}
    alike = _nearest(site, [each for each in good if each.reference.shape == site.reference.shape and _readable(each)])
    own = [each for each in alike if each.reference.trace.forward in ways]
    if any(_factor(wrong, each) is not None for each in own):
        return None  # those that took it may hand on too much of their own
    return next(_explaining(wrong, [each for each in alike if each not in own]), None)


def _nearest(site: SitePair, gradients: list[SitePair]) -> list[SitePair]:
    """Return those that were reached shortly before or after, as many as may be read."""
    when = int(site.reference.trace.order)
    most = max(1, _MOST_READ // max(1, site.reference.count))
    return sorted(gradients, key=lambda each: abs(int(each.reference.trace.order) - when))[:most]


def _explaining(wrong: Array, gradients: Iterable[SitePair]) -> Iterator[Bypass]:
    for each in gradients:
        factor = _factor(wrong, each)
        if factor is not None:
            yield Bypass(each, factor)


def _readable(site: SitePair) -> bool:
    one, other = _kept(site.reference), _kept(site.candidate)
    return site.reference.shape == site.candidate.shape and one is not None and other is not None


def _kept(tensor: TensorRef) -> TensorRef | None:
    """Return what can be read of a tensor: all of it, or its sketch, which is of the same places for one shape."""
    sketch = tensor.trace.sketch
    kept = sketch if tensor.missing and isinstance(sketch, TensorRef) else tensor
    return None if kept.missing or kept.count > _LARGEST else kept


def _flat(tensor: TensorRef) -> Array:
    kept = _kept(tensor)
    assert kept is not None  # it was found readable
    numbers: Array = kept.numpy().ravel()
    return numbers.astype(np.complex128 if np.iscomplexobj(numbers) else np.float64)


def _factor(wrong: Array, gradient: SitePair) -> float | None:
    """Return what a gradient must be multiplied with to be what is wrong; None where it cannot be."""
    numbers = _flat(gradient.reference)
    size = float(np.vdot(numbers, numbers).real)
    if not (np.isfinite(size) and size > 0 and np.isfinite(wrong).all()):
        return None
    factor = float(np.vdot(numbers, wrong).real) / size
    rest = np.linalg.norm(wrong - factor * numbers)
    return factor if factor and rest < _STRAIGHT * np.linalg.norm(wrong) else None
