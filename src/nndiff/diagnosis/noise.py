"""What rounding alone may do: the scale of gradients, sums over many places, errors that grow from layer to layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.diagnosis.site_pairs import SitePair
from nndiff.metrics import Metrics
from nndiff.result import Note, NoteSlug, Pair
from nndiff.stats import Job
from nndiff.stats.engine import get_engine
from nndiff.tensors import Slot, TensorRef
from nndiff.tolerance import DEFAULT_ATOL
from nndiff.verdict import Verdict

# The scale of gradients ------------------------------------------------------------------------------------------

# A gradient far below the largest of its kind is noise: it is judged on this share of that largest value.
NOISE_SHARE_OF_KIND = 0.01
# Factors of atol, at the default tolerance of float32 (1e-5): a few last digits of the largest value,
LAST_DIGITS = 0.1
# the last digits of a sum of numbers of one size, which grow with the root of how many there are,
LAST_DIGITS_OF_SUM = 0.05
# equal numbers, which some kernels round the same way each time they are added to one sum,
LAST_DIGITS_OF_EQUALS = 0.004
# but never more than a thousandth of what the gradient comes to.
MOST_LAST_DIGITS = 100
# A sum of terms of any sign comes to the root of how many there are. A gradient below this share of that is no signal.
NOISE_SHARE_OF_SUM = 0.1


class GradientScale:
    """Know what atol is multiplied with for each gradient: its own largest value, at most 1, or more for rounding.

    Gradients have no scale of their own: behind a mean over a large batch all are far below any atol, and
    all would pass. Those that are zero but for noise are judged on a hundredth of the largest of their kind.
    Rounding is forgiven on any scale: that of the largest value, and of the terms that a gradient is the sum of,
    more so where it is nothing else (the bias in front of a batch norm).
    """

    def __init__(self, tensors: Iterable[TensorRef]) -> None:
        self._largest_by_slot: dict[Slot, float] = {}
        self._terms_by_module: dict[str, tuple[float, int]] = {}  # sum of the moduli at its outputs, and how many
        for tensor in tensors:
            slot, module = tensor.site.slot, tensor.site.module
            is_of_loss = slot is Slot.GRAD_OUTPUT and not module  # what the loss hands to the model itself
            if not slot.is_gradient or is_of_loss:
                continue
            self._largest_by_slot[slot] = max(self._largest_by_slot.get(slot, 0.0), _get_largest(tensor))
            if slot is Slot.GRAD_OUTPUT:
                total, count = self._terms_by_module.get(module, (0.0, 0))
                self._terms_by_module[module] = total + _bound_moduli(tensor), count + tensor.count

    def of(self, tensor: TensorRef, atol: float = DEFAULT_ATOL) -> float:
        """Return the factor of an atol for one tensor; 1 for what is no gradient or has no statistics.

        What rounding comes to does not grow with the tolerance asked for.
        """
        if not tensor.site.slot.is_gradient or not tensor.trace.stats:
            return 1.0
        largest = _get_largest(tensor)
        scale = max(largest, NOISE_SHARE_OF_KIND * self._largest_by_slot.get(tensor.site.slot, 0.0))
        if scale <= 0:
            return 1.0
        rounding = max(LAST_DIGITS * largest, self._get_rounding_of_sum(tensor, largest))
        return max(min(1.0, scale), rounding * min(1.0, DEFAULT_ATOL / atol) if atol > 0 else 0.0)

    def _get_rounding_of_sum(self, tensor: TensorRef, largest: float) -> float:
        """Return what rounding comes to in the gradient of a parameter, which is a sum over all places."""
        total, count = self._terms_by_module.get(tensor.site.module, (0.0, 0))
        if not total or tensor.site.slot is not Slot.PARAM_GRAD or not tensor.count:
            return 0.0
        sums = tensor.shape[0] if tensor.shape else 1
        places = count / sums
        of_sum = LAST_DIGITS_OF_SUM * total / sums * math.sqrt(places)
        # the terms of a weight are also multiplied with inputs, whose size is unknown
        noise = min(DEFAULT_ATOL * of_sum, NOISE_SHARE_OF_SUM * total / sums / math.sqrt(places))
        is_noise_alone = len(tensor.shape) <= 1 and largest <= noise
        if is_noise_alone:
            return of_sum
        return min(max(of_sum, LAST_DIGITS_OF_EQUALS * total / sums * places), MOST_LAST_DIGITS * largest)


def _get_largest(tensor: TensorRef) -> float:
    stats = tensor.trace.stats
    return stats.abs_max if stats and math.isfinite(stats.abs_max) else 0.0


def _bound_moduli(tensor: TensorRef) -> float:
    """Return the sum of the moduli, or more: what it is if all are of one size."""
    stats = tensor.trace.stats
    return math.sqrt(tensor.count) * stats.l2 if stats and math.isfinite(stats.l2) else 0.0


# Biases ----------------------------------------------------------------------------------------------------------

# How far a bias gradient may be from the sum at the outputs, as a share of the sum of the moduli: what rounding in
# float32 makes of any sum,
SUM_ERROR = 2e-6
# what it adds with the root of how many terms there are,
SUM_ERROR_PER_ROOT = 2e-8
# and, with many terms, little of what a sum of numbers of any sign comes to.
MOST_SUM_ERROR = 0.002
# The last digits of the gradient itself, by dtype; those of float64 are nothing beside the errors above.
OWN_ERROR = {"float64": 0.0, "float32": 1e-6, "float16": 4e-3, "bfloat16": 3e-2}
_LARGEST_SUMMED = 1 << 26  # elements
_SUMMED_AT_ONCE = 1 << 20  # elements

SUM_OF_GRADIENTS = Note(
    NoteSlug.SUM_OF_GRADIENTS, "judged as the sum of the gradients at the module's outputs, at their tolerance together"
)


def judge_bias_gradients(pairs: Sequence[SitePair]) -> list[Pair]:
    """Return the judged pairs; gradients of biases that differ are judged again as the sums they are.

    A bias gradient is the sum of the gradients at its module's outputs, over thousands of places. Rounding that
    nobody would mind at any of them adds up, and where the sum is zero but for that (in front of a batch norm), it is
    all there is. Where the gradients at the outputs pass, and each side's bias gradient is proven to be their sum, it
    may be as far off as all of them together.
    """
    at_outputs: dict[tuple[str, str], list[SitePair]] = {}
    for site in pairs:
        if site.slot is Slot.GRAD_OUTPUT:
            at_outputs.setdefault((site.pair.candidate, site.module), []).append(site)
    judged = []
    for site in pairs:
        differs = site.slot is Slot.PARAM_GRAD and site.pair.verdict is Verdict.DIFFERENT
        is_vector = len(site.reference.shape) == 1 and site.reference.shape == site.candidate.shape
        is_readable = not (site.reference.missing or site.candidate.missing)
        if differs and is_vector and is_readable:
            judged.append(_judge_as_sum(site, at_outputs.get((site.pair.candidate, site.module), [])))
        else:
            judged.append(site.pair)
    return judged


def _judge_as_sum(bias: SitePair, outputs: Sequence[SitePair]) -> Pair:
    pair, size = bias.pair, bias.reference.count
    for site in outputs:
        is_summable = site.reference.shape == site.candidate.shape and site.reference.count <= _LARGEST_SUMMED
        is_readable = not (site.reference.missing or site.candidate.missing)
        is_of_partner = site.candidate_module == bias.candidate_module
        if not (site.passed and is_summable and is_readable and is_of_partner):
            return pair
    places = sum(site.reference.count for site in outputs) / size
    reference_moduli = _prove_sum(bias.reference, [site.reference for site in outputs], places)
    candidate_moduli = _prove_sum(bias.candidate, [site.candidate for site in outputs], places)
    if reference_moduli is None or candidate_moduli is None:
        return pair
    scale = sum(site.pair.scale * (site.reference.count / size) for site in outputs)
    scale += float(min(reference_moduli.min(), candidate_moduli.min()))
    if not scale > pair.scale > 0:
        return pair
    atol = pair.atol / pair.scale * scale
    metrics = next(iter(get_engine().measure([Job(bias.reference, bias.candidate, atol, pair.rtol)])))
    verdict = metrics.judge(pair.dtype[0] == pair.dtype[1])
    return replace(pair, verdict=verdict, stored=metrics, atol=atol, scale=scale, notes=(*pair.notes, SUM_OF_GRADIENTS))


def _prove_sum(bias: TensorRef, gradients: Sequence[TensorRef], places: float) -> NDArray[np.float64] | None:
    """Return the sums of the moduli along an axis, if the bias gradient is the sum of all gradients along it."""
    own_error = OWN_ERROR.get(bias.dtype.name)
    if not gradients or own_error is None:
        return None
    root = math.sqrt(places)
    sum_error = min(SUM_ERROR + SUM_ERROR_PER_ROOT * root, MOST_SUM_ERROR / root)
    expected = bias.numpy().astype(np.float64)
    for axes in zip(*(_list_axes(gradient, bias.count) for gradient in gradients), strict=False):
        sums, moduli = np.zeros(bias.count), np.zeros(bias.count)
        for gradient, axis in zip(gradients, axes, strict=True):
            _add_sums(gradient.numpy(), axis, sums, moduli)
        if bool(np.all(np.abs(expected - sums) <= sum_error * moduli + own_error * np.abs(sums))):
            return moduli
    return None


def _list_axes(gradient: TensorRef, size: int) -> list[int]:
    """Return the axes that may be that of the bias."""
    if gradient.dtype.kind != "float":
        return []
    return [axis for axis, length in enumerate(gradient.shape) if length == size]


def _add_sums(array: NDArray[Any], axis: int, sums: NDArray[np.float64], moduli: NDArray[np.float64]) -> None:
    """Add the sums of elements and moduli along an axis, in pieces that are small enough to be widened."""
    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    step = max(1, _SUMMED_AT_ONCE // max(1, array.shape[axis]))
    for start in range(0, rows.shape[1], step):
        block = rows[:, start : start + step].astype(np.float64)
        sums += block.sum(axis=1)
        moduli += np.abs(block, out=block).sum(axis=1)


# Rounding that grows ---------------------------------------------------------------------------------------------

# One operation, or one sum for each root of its terms, costs this many eps.
EPS_PER_OPERATION = 2.0
# Longer sums are added up in pieces, and time is seldom summed over.
MOST_TERMS = 1 << 14
# Errors of fewer elements may point in one direction by chance.
FEWEST_TELLING_ELEMENTS = 32
# A difference this much along the tensor itself, or along a constant, is a factor or a shift: rounding is neither.
SYSTEMATIC_COSINE = 0.9
# Gradients: that of a softmax which is nearly certain is a difference of equals.
STEEPNESS_OF_GRADIENTS, GROWTH_OF_GRADIENTS = 4.0, 8.0
# What is called no rounding must be so beyond doubt: this many eps, and this many times the error before it.
FAULT_EPS, FAULT_JUMP = 1000.0, 100.0


@dataclass(frozen=True)
class Precision:
    """Say what rounding does in one element type."""

    name: str
    eps: float
    wider: str  # the type to compare in, where rounding all but vanishes
    steepness: float  # what a steep function, a softmax of large numbers, may make of the error it is given
    most_eps: float  # how many eps errors may grow to and still be taken for rounding
    rounds_every_term: bool = True  # short types keep their sums in float32


_LONG, _SHORT = (32.0, 1024.0), (4.0, 16.0)  # steepness and most_eps: short types have few digits to lose
PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("float64", 2.0**-52, "", *_LONG),
        Precision("float32", 2.0**-23, "float64", *_LONG),
        Precision("bfloat16", 2.0**-7, "float32", *_SHORT, rounds_every_term=False),
        Precision("float16", 2.0**-10, "float32", *_SHORT, rounds_every_term=False),
        Precision("complex128", 2.0**-52, "", *_LONG),
        Precision("complex64", 2.0**-23, "float64", *_LONG),
    )
}


@dataclass(frozen=True)
class Rounding:
    """Say that the first divergence looks like rounding, and whether everything after it does too."""

    precision: Precision
    error: float  # of the first site that is out, relative to its own size
    worst: float  # of all sites that look like rounding
    jump: SitePair | None = None  # the first site that does not look like rounding
    jumped_to: float = 0.0
    doubtful: SitePair | None = None  # a gradient that may not, while every output does

    @property
    def text(self) -> str:
        """Return how far the first site is off, relative to its size and in eps."""
        digits = f"{self.error / self.precision.eps:.2g} eps of {self.precision.name}"
        return f"off by {self.error:.1e} of its size, {digits}"


def look_for_rounding(pairs: Sequence[SitePair], first: SitePair, tensors: Mapping[int, TensorRef]) -> Rounding | None:
    """Return how the first divergence looks like rounding; None where it or what follows does not, or may not.

    Where activations are large their last digits alone may be out of tolerance. Rounding is small beside the whole
    tensor, a few last digits of its type, more where sums are long, has no direction, and grows from layer to layer
    without a jump. It is a judgement: a fault as small as rounding looks the same. `tensors` are those of the
    reference by their order, which tell how long sums are.
    """
    precision = get_precision(first.pair)
    inputs_agree = all(site.passed for site in pairs if site.slot is Slot.MODEL_INPUT)
    if precision is None or first.slot is Slot.MODEL_INPUT or not inputs_agree or first.pair.differs_only_in_dtype:
        return None
    error = measure_relative_error(first.pair.metrics)
    worst, strange = 0.0, None
    for site in pairs:
        if site.slot is Slot.INPUT:
            continue  # the outputs that went into it tell
        if site.pair.metrics is None and not site.pair.certain:
            continue  # a guess without numbers proves nothing
        if is_rounding(site, worst, _count_terms(site, tensors)):
            worst = max(worst, measure_relative_error(site.pair.metrics))
        elif not site.passed:  # what passes may be noise about zero, whose relative size says nothing
            strange = site
            break
    if strange is None:
        return Rounding(precision, error, worst)
    strange_error, strange_precision = measure_relative_error(strange.pair.metrics), get_precision(strange.pair)
    if first.slot is Slot.OUTPUT and (strange.is_gradient or strange.slot is Slot.LOSS):
        return Rounding(precision, error, worst, jumped_to=strange_error, doubtful=strange)
    if strange_precision is None or strange.pair.order <= first.pair.order or strange.is_gradient:
        return None
    is_beyond_doubt = strange_error > max(FAULT_EPS * strange_precision.eps, FAULT_JUMP * worst)
    return Rounding(precision, error, worst, strange, strange_error) if is_beyond_doubt else None


def is_rounding(site: SitePair, worst_before: float, terms: int) -> bool:
    """Return True if rounding explains the error of a site, given the worst before it and the length of its sums."""
    numbers, precision = site.pair.metrics, get_precision(site.pair)
    if numbers is None or precision is None or numbers.nonfinite_unequal:
        return False
    own = EPS_PER_OPERATION * precision.eps * (math.sqrt(terms) if precision.rounds_every_term else 1.0)
    inherited, most = precision.steepness * worst_before, precision.most_eps * precision.eps
    if site.is_gradient:
        inherited, most = STEEPNESS_OF_GRADIENTS * inherited, GROWTH_OF_GRADIENTS * most
    if measure_relative_error(numbers) > min(inherited + own, most):
        return False
    return site.passed or site.is_gradient or not _is_systematic(numbers, precision)


def get_precision(pair: Pair) -> Precision | None:
    """Return the coarser type of both sides; None where one of them knows no rounding."""
    reference, candidate = (PRECISIONS.get(name) for name in pair.dtype)
    if reference is None or candidate is None:
        return None
    return max(reference, candidate, key=lambda precision: precision.eps)


def measure_relative_error(numbers: Metrics | None) -> float:
    """Return the size of a difference relative to the reference: of the whole tensor, or of its largest element."""
    if numbers is None:
        return math.inf
    if numbers.unequal == 0:
        return 0.0
    largest = max(abs(numbers.ref_min), abs(numbers.ref_max))
    of_largest = numbers.max_abs / largest if largest > 0 else math.inf
    if not (math.isfinite(numbers.rel_l2) and math.isfinite(of_largest)):
        return math.inf
    return max(numbers.rel_l2, of_largest)


def _count_terms(site: SitePair, tensors: Mapping[int, TensorRef]) -> int:
    """Return how many terms a sum has at most: the longest axis of what a call was given and returned."""
    longest = max(site.reference.shape, default=1)
    for link in site.reference.trace.inputs:
        tensor = tensors.get(link.event) if link.event is not None else None
        if tensor is not None:
            longest = max(longest, *tensor.shape, 1)
    return min(MOST_TERMS, longest)


def _is_systematic(numbers: Metrics, precision: Precision) -> bool:
    """Return True if a difference is a factor or a shift of all elements, which rounding is not."""
    is_small = measure_relative_error(numbers) <= 2 * EPS_PER_OPERATION * precision.eps
    if numbers.count < FEWEST_TELLING_ELEMENTS or is_small:
        return False
    reference_square = numbers.ref_mean**2 + numbers.ref_std**2
    candidate_square = numbers.cand_mean**2 + numbers.cand_std**2
    both = math.sqrt(reference_square * numbers.mse)
    # c^2 = r^2 + 2rd + d^2: what remains of the squares is the product of tensor and difference
    along_tensor = abs(candidate_square - reference_square - numbers.mse) / 2 / both if both > 0 else 0.0
    along_constant = abs(numbers.diff_mean) / numbers.rmse
    return max(along_tensor, along_constant) > SYSTEMATIC_COSINE
