"""Layers whose weights are on trial: which known layer computes what the reference made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from nndiff.diagnosis.modules import get_settings
from nndiff.diagnosis.tensor_values import read_wide
from nndiff.diagnosis.trials import Trial
from nndiff.findings.hypotheses.normalisation import choose_tensors, identify_norms
from nndiff.findings.hypotheses.norms import read_eps
from nndiff.findings.hypotheses.operands import Array, can_read, list_operands, pair_own_weights
from nndiff.findings.hypotheses.recurrent import read_recurrent_kind, run_recurrent
from nndiff.findings.hypotheses.spatial import convolve, convolve_transposed, read_sizes, read_window

Weights = Mapping[str, Array]


@dataclass(frozen=True)
class Layer:
    """Say what a layer makes of its weights; what it was given is part of it."""

    kind: str
    compute: Callable[[Weights], Array | None]

    def run(self, weights: Weights) -> Array | None:
        """Return what the layer makes with some weights; None if they do not fit."""
        try:
            with np.errstate(all="ignore"):
                return self.compute(weights)
        except (ValueError, IndexError, KeyError):
            return None


def read_weights(trial: Trial, side: int) -> dict[str, Array]:
    """Return what a side's module holds itself, by the reference's names, in double precision."""
    weights = {}
    for name, tensors in pair_own_weights(trial).items():
        tensor = tensors[side]
        if tensor is not None and tensor.dtype.kind == "float" and can_read(tensor):
            weights[name] = read_wide(tensor)
    return weights


def find_matrix(weights: Weights) -> str:
    """Return the name of the one tensor of several axes; "" if there is none, or more than one."""
    names = [name for name, values in weights.items() if values.ndim >= 2]
    return names[0] if len(names) == 1 else ""


def find_bias(weights: Weights) -> str:
    """Return the name of the one tensor of one axis beside a matrix; "" if there is none, or more than one."""
    names = [name for name, values in weights.items() if values.ndim == 1]
    return names[0] if len(names) == 1 else ""


def keep(values: Array) -> Array:
    """Return numbers as they are."""
    return values


def list_layers(trial: Trial, side: int, prepare: Callable[[Array], Array] = keep) -> Iterator[Layer]:
    """Yield the layers that fit what was given, once prepared, and what a side holds, with that side's settings."""
    weights = read_weights(trial, side)
    if not weights:
        return
    matrix, bias = find_matrix(weights), find_bias(weights)
    if not bias:
        bias = find_bias(read_weights(trial, 1 - side))
    yield from _list_embeddings(trial, matrix)
    for given in list_operands(trial):
        values = prepare(given.values)
        if matrix and weights[matrix].ndim == 2:
            yield Layer("linear", partial(_run_linear, values, matrix, bias, (1, 0)))
            yield Layer("linear, transposed", partial(_run_linear, values, matrix, bias, (0, 1)))
        elif matrix:
            yield from _list_convolutions(trial, side, values, matrix, bias)
        if "weight_ih_l0" in weights:
            yield from _list_recurrent(trial, side, values, weights)
        yield from _list_norms(trial, side, values, weights)
        if len(weights) == 1:
            (name,) = weights
            yield Layer("factor", partial(_multiply, values, name))
            yield Layer("sum", partial(_add, values, name))


def _run_linear(values: Array, matrix: str, bias: str, axes: tuple[int, int], held: Weights) -> Array:
    made: Array = values @ held[matrix].transpose(axes)
    return made + held[bias] if bias in held else made


def _multiply(values: Array, name: str, held: Weights) -> Array:
    return np.asarray(values * held[name])


def _add(values: Array, name: str, held: Weights) -> Array:
    return np.asarray(values + held[name])


def _look_up(places: Array, name: str, held: Weights) -> Array:
    return np.asarray(held[name][places])


def _list_embeddings(trial: Trial, matrix: str) -> Iterator[Layer]:
    for given in trial.given:
        if matrix and given.tensor.dtype.kind in ("int", "uint") and can_read(given.tensor):
            places = given.values.astype(np.int64)
            yield Layer("embedding", partial(_look_up, places, matrix))


def _list_convolutions(trial: Trial, side: int, values: Array, matrix: str, bias: str) -> Iterator[Layer]:
    settings = get_settings(trial.modules[side])

    def compute(held: Weights) -> Array | None:
        kernel = held[matrix].shape[2:]
        window = read_window(settings, kernel)
        if window is None:
            return None
        if not settings.get("transposed"):
            return convolve(values, held[matrix], held.get(bias), window)
        extra = read_sizes(settings.get("output_padding", 0), len(kernel)) or (0,) * len(kernel)
        groups = settings.get("groups", 1)
        return convolve_transposed(values, held[matrix], held.get(bias), window, extra, int(groups))

    yield Layer("convolution", compute)


def _list_recurrent(trial: Trial, side: int, values: Array, weights: Weights) -> Iterator[Layer]:
    kind = read_recurrent_kind(weights)
    batch_first = bool(get_settings(trial.modules[side]).get("batch_first"))
    if kind is not None:
        yield Layer(kind, lambda held: run_recurrent(kind, values, held, batch_first))


def _list_norms(trial: Trial, side: int, values: Array, weights: Weights) -> Iterator[Layer]:
    made: Any = (trial.reference_values, trial.candidate_values)[side]
    if values.shape != made.shape or values.ndim < 2 or any(held.ndim > 1 for held in weights.values()):
        return
    is_made = (trial.gives_reference, trial.gives_candidate)[side]
    room, eps = trial.measure_room(made), read_eps(trial, side)
    norm = next(identify_norms(values, choose_tensors(weights), made, room, is_made, eps), None)
    if norm is not None:
        yield Layer("norm", lambda held: norm.run(values, choose_tensors(held)))
