"""Differences of the size of rounding: small beside the tensor itself, and grown from layer to layer without a jump.

A tolerance is about single elements, and where activations are large their last digits alone may be out of it. What
rounding leaves is told by its size relative to the whole tensor: a few last digits of its type, more where sums are
long, in no one direction. It is a judgement: a fault as small as rounding looks the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nndiff.recorded import is_gradient
from nndiff.sites import SitePair
from nndiff.metrics import Metrics
from nndiff.tensors import TensorRef


@dataclass(frozen=True)
class Precision:
    """Say what rounding does in one element type."""

    name: str
    eps: float
    wider: str  # the type to compare in, where rounding all but vanishes
    steep: float  # what a steep function, a softmax of large numbers, may make of the error it is given
    most: float  # how many eps errors may grow to and still be taken for rounding
    long_sums: bool = True  # sums are rounded at every term; those of short types are kept in float32


_LONG, _SHORT = (32.0, 1024.0), (4.0, 16.0)
_PRECISIONS = {
    each.name: each
    for each in (
        Precision("float64", 2.0**-52, "", *_LONG),
        Precision("float32", 2.0**-23, "float64", *_LONG),
        Precision("bfloat16", 2.0**-7, "float32", *_SHORT, long_sums=False),
        Precision("float16", 2.0**-10, "float32", *_SHORT, long_sums=False),
        Precision("complex128", 2.0**-52, "", *_LONG),
        Precision("complex64", 2.0**-23, "float64", *_LONG),
    )
}
_FEW = 2.0  # eps that one operation costs, or one sum for each root of its terms
_LONGEST = 1 << 14  # terms of a sum: longer ones are added up in pieces, and time is seldom summed over
_TELLING = 32  # elements: the errors of fewer may have one direction by chance
_STRAIGHT = 0.9
_STEEPER, _MORE = 4.0, 8.0  # times, for gradients: that of a softmax which is nearly certain is a difference of equals
# What is told as no rounding must be so beyond doubt: eps, and times the error before it.
_FAULT, _JUMP = 1000.0, 100.0


@dataclass(frozen=True)
class Rounding:
    """Say that where two runs part first looks like rounding, and whether all after it does too."""

    precision: Precision
    error: float  # of the first site that is out, relative to its own size
    worst: float  # of all of them, as far as they look like rounding
    jump: SitePair | None = None  # the first site that does not
    jumped_to: float = 0.0
    doubtful: SitePair | None = None  # a gradient that may not, while every output does

    @property
    def text(self) -> str:
        """Return how far the first site is off, as people who know floats would say it."""
        digits = f"{self.error / self.precision.eps:.2g} eps of {self.precision.name}"
        return f"off by {self.error:.1e} of its size, {digits}"


def rounding(sites: Sequence[SitePair], first: SitePair, tensors: Mapping[int, TensorRef]) -> Rounding | None:
    """Return whether the first divergence looks like rounding; None where it or what follows does not, or may not.

    `tensors` are those of the reference by their order, which tell how long sums are.
    """
    precision = _precision(first)
    if precision is None or first.slot == "model_input" or not _worth_asking(sites):
        return None
    growth = _Growth(tensors)
    strange = growth.follow(filter(is_made, sites))
    if strange is None:
        return Rounding(precision, _error(first.pair.metrics), growth.worst)
    size, found = _error(strange.pair.metrics), _precision(strange)
    backward = is_gradient(strange.reference) or strange.slot == "loss"
    if backward and first.slot == "output":
        return Rounding(precision, _error(first.pair.metrics), growth.worst, jumped_to=size, doubtful=strange)
    beyond_doubt = found is not None and size > max(_FAULT * found.eps, _JUMP * growth.worst)
    if strange.pair.order <= first.pair.order or is_gradient(strange.reference) or not beyond_doubt:
        return None
    return Rounding(precision, _error(first.pair.metrics), growth.worst, strange, size)


def is_made(site: SitePair) -> bool:
    """Tell whether a site is of something the run made or holds; of what modules were given their outputs tell."""
    return site.slot != "input"


def _worth_asking(sites: Iterable[SitePair]) -> bool:
    return all(site.passed for site in sites if site.slot == "model_input")


class _Growth:
    """Follow errors in order of execution, as long as rounding explains them."""

    def __init__(self, tensors: Mapping[int, TensorRef]) -> None:
        self._tensors = tensors
        self.worst = 0.0

    def follow(self, sites: Iterable[SitePair]) -> SitePair | None:
        """Return the first site that is out and not by rounding."""
        for site in sites:
            if self._explains(site):
                self.worst = max(self.worst, _error(site.pair.metrics))
            elif not site.passed:  # what passes may be noise about zero, whose relative size says nothing
                return site
        return None

    def _explains(self, site: SitePair) -> bool:
        numbers, precision = site.pair.metrics, _precision(site)
        if numbers is None or precision is None or numbers.nonfinite_unequal:
            return False
        error = _error(numbers)
        gradient = is_gradient(site.reference)
        one = _FEW * precision.eps * (math.sqrt(self._terms(site)) if precision.long_sums else 1.0)
        inherited = precision.steep * self.worst * (_STEEPER if gradient else 1.0)
        most = precision.most * precision.eps * (_MORE if gradient else 1.0)
        systematic = not (site.passed or gradient) and _is_systematic(numbers, precision)
        return error <= min(inherited + one, most) and not systematic

    def _terms(self, site: SitePair) -> int:
        """Return how many terms a sum has at most: the longest axis of what a call was given and returned."""
        links = site.reference.trace.inputs
        given = (self._tensors.get(link.event) for link in links if link.event is not None)
        shapes = (site.reference.shape, *(tensor.shape for tensor in given if tensor is not None))
        return min(_LONGEST, max((size for shape in shapes for size in shape), default=1))


def _precision(site: SitePair) -> Precision | None:
    """Return the coarser of the types of both sides; None where one of them knows no rounding."""
    found = [_PRECISIONS.get(name) for name in site.pair.dtype]
    known = [each for each in found if each is not None]
    return max(known, key=lambda each: each.eps) if len(known) == len(found) else None


def _error(numbers: Metrics | None) -> float:
    """Return the size of a difference relative to the reference: of the whole, or of its largest element."""
    if numbers is None:
        return math.inf
    if numbers.unequal == 0:
        return 0.0
    largest = max(abs(numbers.ref_min), abs(numbers.ref_max))
    sizes = numbers.rel_l2, numbers.max_abs / largest if largest > 0 else math.inf
    return max(sizes) if all(map(math.isfinite, sizes)) else math.inf


def _is_systematic(numbers: Metrics, precision: Precision) -> bool:
    """Tell whether a difference is a factor or a shift of all elements, which rounding is not."""
    if numbers.count < _TELLING or _error(numbers) <= 2 * _FEW * precision.eps:
        return False
    one, other = (mean**2 + std**2 for mean, std in _moments(numbers))
    both = math.sqrt(one * numbers.mse)
    along = abs(other - one - numbers.mse) / 2 / both if both > 0 else 0.0
    return max(along, abs(numbers.diff_mean) / numbers.rmse) > _STRAIGHT


def _moments(numbers: Metrics) -> tuple[tuple[float, float], tuple[float, float]]:
    return (numbers.ref_mean, numbers.ref_std), (numbers.cand_mean, numbers.cand_std)
