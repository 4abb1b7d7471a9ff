"""Fold: a batch norm in the layer before it, or the weight of a norm in the layer behind it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nndiff.relations.along import choose_plain_number
from nndiff.relations.fold_operations import FoldBatchNorm, FoldNorm
from nndiff.relations.operations import Concatenate, Flatten, widen
from nndiff.relations.proof import SAMPLED, is_readable, read_array, read_places, sample_places
from nndiff.relations.relation import Array, Operation, Relation
from nndiff.relations.rounding import FORMATS, measure_spacing
from nndiff.tensors import TensorRef
from nndiff.verdict import RelationKind

ROUNDINGS = 8.0  # units of rounding, of the terms of an element: a root, a quotient, products and sums, stored at last
EPS_IN_USE = (1e-5, 1e-3, 1e-6, 1e-4, 1e-8, 1e-12)  # of batch norms, tried before any other number

JOINED: tuple[Operation, ...] = (Flatten(), Concatenate(0))


def measure_unit(tensors: Sequence[TensorRef]) -> float:
    """Return the unit of rounding of the shortest type among some tensors."""
    return 2.0 ** -min(FORMATS[tensor.dtype.name].digits for tensor in tensors)


def is_foldable(tensors: Sequence[TensorRef]) -> bool:
    """Return True if all tensors can be read and are of float types."""
    return all(is_readable(tensor) and tensor.dtype.name in FORMATS for tensor in tensors)


def agree_but_for_rounding(made: Array, stored: Array, sizes: Array, unit: float, stored_as: str = "") -> bool:
    """Return True if every element is as made, but for the rounding of its terms; `sizes` are their moduli added up.

    What is stored as a shorter type than that of its terms is rounded to it once, at last.
    """
    if made.shape != stored.shape:
        return False
    with np.errstate(all="ignore"):  # what is not finite agrees with nothing
        room = ROUNDINGS * unit * sizes + (measure_spacing(made, stored_as) / 2 if stored_as else 0.0)
        return bool(np.isfinite(made).all() and np.all(np.abs(made - widen(stored)) <= room))


def prove_batch_norm(
    reference: Sequence[TensorRef],
    candidate: Sequence[TensorRef],
    atol: float,
    rtol: float,
    hints: Sequence[Relation] = (),
) -> Relation | None:
    """Return how (weight, bias) of one side are made of (weight, [bias], gamma, beta, mean, variance) of the other."""
    if min(len(reference), len(candidate)) != 2 or max(len(reference), len(candidate)) not in (5, 6):
        return None
    on_reference = len(reference) > 2
    parts, folded = (reference, candidate) if on_reference else (candidate, reference)
    if parts[0].shape != folded[0].shape or not is_foldable((*parts, *folded)):
        return None
    channels = parts[-1].shape
    if len(channels) != 1 or any(tensor.shape != channels for tensor in (*parts[1:], folded[1])):
        return None
    unit = measure_unit((*parts, *folded))
    if parts[0].shape[0] == channels[0] and not has_one_factor(parts[0], folded[0], unit):
        return None
    arrays = [widen(read_array(tensor)) for tensor in parts]
    stored = [widen(read_array(tensor)) for tensor in folded]
    for axis in (0, 1):  # 1: of a transposed convolution
        if axis < len(parts[0].shape) and parts[0].shape[axis] == channels[0]:
            eps = find_eps(arrays, stored, axis, measure_unit(parts), [tensor.dtype.name for tensor in folded])
            if eps is not None:
                operation = FoldBatchNorm(eps, axis, len(parts) == 6)
                operations = ((operation, *JOINED), JOINED)
                return Relation(RelationKind.FOLD, *(operations if on_reference else operations[::-1]))
    return None


def has_one_factor(weight: TensorRef, folded: TensorRef, unit: float) -> bool:
    """Return False if a few elements of the first output channel have no common factor: then nothing more is read."""
    few = min(weight.count // weight.shape[0], SAMPLED)
    elements, folded_elements = [
        tensor.dtype.decode(tensor.read(0, few)).astype(np.float64) for tensor in (weight, folded)
    ]
    largest = int(np.abs(elements).argmax())
    products = folded_elements * elements[largest], elements * folded_elements[largest]
    return bool(np.all(np.abs(products[0] - products[1]) <= 2 * ROUNDINGS * unit * np.abs(products[1])))


def find_eps(
    arrays: Sequence[Array], stored: Sequence[Array], axis: int, unit: float, stored_as: Sequence[str]
) -> float | None:
    """Return the eps with which a batch norm was folded, if that gives every element; else None.

    The factor of each channel leaves an interval for it. Channels of small variance tell most. `unit` is that of the
    terms, `stored_as` are the types of folded weight and bias.
    """
    weight, gamma, beta, mean, variance = arrays[0], *arrays[-4:]
    if not np.all(variance >= 0):
        return None
    bias = arrays[1] if len(arrays) == 6 else np.zeros_like(mean)
    rows, folded_rows = np.moveaxis(weight, axis, 0), np.moveaxis(stored[0], axis, 0)
    rows, folded_rows = rows.reshape(len(rows), -1), folded_rows.reshape(len(rows), -1)
    with np.errstate(all="ignore"):
        factors = np.sum(rows * folded_rows, axis=1) / np.sum(rows * rows, axis=1)
        spreads = np.square(gamma / factors)
        error = 2 * ROUNDINGS * max(unit, 2.0 ** -FORMATS[stored_as[0]].digits) * spreads
    tells = np.isfinite(spreads)
    if not tells.any():
        return None
    low = float(np.max((spreads - error - variance)[tells]))
    high = float(np.min((spreads + error - variance)[tells]))
    if low > high or high < 0:
        return None
    choices = [eps for eps in EPS_IN_USE if low <= eps <= high]
    for eps in (*choices, choose_plain_number(max(low, 0.0), high, ())):
        operation = FoldBatchNorm(eps, axis, len(arrays) == 6)
        with np.errstate(all="ignore"):
            made = operation.apply(arrays)
            factor = gamma / np.sqrt(variance + eps)
            bias_sizes = np.abs(beta) + np.abs(factor) * (np.abs(bias) + np.abs(mean))
        sizes = np.abs(made[0]), bias_sizes
        agreeing = [
            agree_but_for_rounding(made[number], stored[number], sizes[number], unit, stored_as[number])
            for number in (0, 1)
        ]
        if all(agreeing):
            return eps
    return None


def prove_norm(
    reference: Sequence[TensorRef],
    candidate: Sequence[TensorRef],
    atol: float,
    rtol: float,
    hints: Sequence[Relation] = (),
) -> Relation | None:
    """Return how the weights of a layer and of the norm before it agree once they are one: (weight, gamma) on a side.

    A side that folded them may have kept the norm, with ones, or another one (a smoothed one), or left it out.
    """
    if not (1 <= len(reference) <= 2 and 1 <= len(candidate) <= 2) or len(reference) + len(candidate) < 3:
        return None
    if reference[0].shape != candidate[0].shape or not is_foldable((*reference, *candidate)):
        return None
    unit = measure_unit((*reference, *candidate))
    places = sample_places(reference[0].shape)
    samples = [widen(read_places(tensors[0], places)) for tensors in (reference, candidate)]
    for axis in range(len(reference[0].shape) - 1, -1, -1):
        norms = [widen(read_array(tensors[1])) if len(tensors) == 2 else None for tensors in (reference, candidate)]
        if any(norm is not None and norm.shape != (reference[0].shape[axis],) for norm in norms):
            continue
        few = [scale_sample(sample, norm, places[axis]) for sample, norm in zip(samples, norms, strict=True)]
        if not agree_but_for_rounding(few[0], few[1], np.abs(few[0]), unit):
            continue
        sides: list[tuple[Operation, ...]] = [(FoldNorm(axis, False),) if norm is not None else () for norm in norms]
        relation = Relation(RelationKind.FOLD, *sides)
        made = relation.apply(
            [read_array(tensor) for tensor in reference], [read_array(tensor) for tensor in candidate]
        )
        if made[0].any() and agree_but_for_rounding(widen(made[0]), made[1], np.abs(widen(made[0])), unit):
            return relation
    return None


def may_hold_norm(weight: TensorRef, folded: TensorRef) -> bool:
    """Return False if a few elements show that no factors of rows or columns lie between two matrices, or none but 1.

    Then no norm is folded into one of them, and none needs to be tried.
    """
    if not is_foldable((weight, folded)):
        return False
    unit = measure_unit((weight, folded))
    places = sample_places(weight.shape)
    elements, folded_elements = widen(read_places(weight, places)), widen(read_places(folded, places))
    if agree_but_for_rounding(elements, folded_elements, np.abs(elements), unit):
        return False
    for axis in (0, 1):
        neighbours = list(places)
        neighbours[1 - axis] = (places[1 - axis] + 1) % weight.shape[1 - axis]  # in the same row or column
        products = (
            folded_elements * widen(read_places(weight, neighbours)),
            elements * widen(read_places(folded, neighbours)),
        )
        if agree_but_for_rounding(products[0], products[1], 2 * np.abs(products[0]), unit):
            return True
    return False


def scale_sample(sample: Array, norm: Array | None, places: Array) -> Array:
    """Return some elements of a weight, each multiplied with its number of the norm."""
    return sample if norm is None else sample * norm[places]
