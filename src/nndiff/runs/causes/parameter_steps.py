"""What one step of one run did to one parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nndiff.runs.case import INITIAL, RunCase, Where
from nndiff.runs.causes.algebra import ROUNDINGS, Fit, Row, fit_columns
from nndiff.runs.causes.onset import get_roundoff
from nndiff.runs.run import TensorKind

DRIFT_SHARE = 1e-3  # of an update that rounding of its gradient may move: the root of the share of such elements
COUNTER = "step"  # the optimiser's state that counts its steps


@dataclass(frozen=True)
class ParameterStep:
    """Hold the rows of one parameter around a step: what the optimiser was given, and what it made of it."""

    name: str
    weight: Row  # before the step
    update: Row  # weight after minus weight before
    gradient: Row | None
    before: Mapping[str, Row]  # the optimiser's state, by its names; empty before the first step
    after: Mapping[str, Row]
    count: float | None  # steps the optimiser has made, with this one
    mean_square: float | None  # of the gradient's elements, exact whatever was kept of it
    means: Mapping[str, tuple[float, float]]  # of the elements of each state, before and after the step; exact too
    is_exact: bool  # rows are all elements
    roundoff: float  # relative error of one rounding of a weight

    @property
    def rounding(self) -> float:
        """Return the length that rounding may leave in the update: it is a difference of rounded weights."""
        return ROUNDINGS * self.roundoff * float(np.linalg.norm(self.weight) + np.linalg.norm(self.update))


def read_step(case: RunCase, where: Where, place: int, name: str) -> ParameterStep | None:
    """Return what a step did to a parameter; None if its tensors around the step are not known or not finite."""
    weights = [case.row(where, moment, TensorKind.WEIGHT, name) for moment in (place - 1, place)]
    if weights[0] is None or weights[1] is None or not np.isfinite(weights[1]).all():
        return None
    return ParameterStep(
        name=name,
        weight=weights[0],
        update=weights[1] - weights[0],
        gradient=case.row(where, place, TensorKind.GRADIENT, name),
        before=_read_state(case, where, place - 1, name) if place - 1 != INITIAL else {},
        after=_read_state(case, where, place, name),
        count=read_counter(case, where, place, name),
        mean_square=_measure_mean_square(case, where, place, name),
        means=_read_means(case, where, place, name),
        is_exact=case.is_exact(name),
        roundoff=get_roundoff(case, where, place, TensorKind.WEIGHT, name),
    )


def _read_state(case: RunCase, where: Where, place: int, name: str) -> dict[str, Row]:
    """Return the state tensors that have the shape of the parameter."""
    tensors = case.tensors(where, place)
    weight = tensors.rows.get(case.key(where, TensorKind.WEIGHT, name))
    state = {}
    for kind in case.state_names(where, place):
        number = tensors.rows.get(case.key(where, TensorKind.STATE, name, kind))
        if kind == COUNTER or number is None or weight is None or tensors.shapes[number] != tensors.shapes[weight]:
            continue
        row = case.row(where, place, TensorKind.STATE, name, kind)
        if row is not None:
            state[kind] = row
    return state


def _measure_mean_square(case: RunCase, where: Where, place: int, name: str) -> float | None:
    statistics = case.statistics(where, place, TensorKind.GRADIENT, name)
    if statistics is None:
        return None
    tensors = case.tensors(where, place)
    count = int(tensors.counts[tensors.rows[case.key(where, TensorKind.GRADIENT, name)]])
    return float(statistics[0]) ** 2 / count if count else None


def _read_means(case: RunCase, where: Where, place: int, name: str) -> dict[str, tuple[float, float]]:
    means = {}
    for kind in case.state_names(where, place):
        after = case.statistics(where, place, TensorKind.STATE, name, kind)
        before = case.statistics(where, place - 1, TensorKind.STATE, name, kind) if place - 1 != INITIAL else None
        if after is not None:
            means[kind] = (0.0 if before is None else float(before[1]), float(after[1]))
    return means


def fit_updates(case: RunCase, place: int, name: str, has_drift: bool = False) -> Fit | None:
    """Return the candidate's update as a combination of the reference's and of the weights before it.

    Where the gradients differ by rounding, Adam and its like turn that into steps of full size for the few elements
    whose gradient is nothing but rounding.
    """
    reference, candidate = (read_step(case, where, place, name) for where in Where)
    if reference is None or candidate is None or not reference.update.any():
        return None
    columns = [reference.update]
    if reference.weight.any() and reference.update.size > 2:
        columns.append(reference.weight)
    rounding = reference.rounding + candidate.rounding
    if has_drift:
        rounding += DRIFT_SHARE * float(np.linalg.norm(candidate.update))
    return fit_columns(candidate.update, columns, rounding)


def read_counter(case: RunCase, where: Where, place: int, name: str) -> float | None:
    """Return how many steps the optimiser has made for a parameter, where it counts them."""
    statistics = case.statistics(where, place, TensorKind.STATE, name, COUNTER) if place != INITIAL else None
    return None if statistics is None else float(statistics[1])
