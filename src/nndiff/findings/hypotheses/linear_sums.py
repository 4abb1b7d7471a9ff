"""Tensors as sums of given ones: which are added, and by what factor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.diagnosis.trials import Given, Trial
from nndiff.findings.hypotheses.operands import can_read, spread_values

Array = NDArray[Any]

MOST_TERMS = 12  # given tensors of which sums are made: the last ones, and the module's arguments
SAMPLED = 4096  # elements by which factors are found; all are compared then
NO_FACTOR = 1e-3  # a factor so small is zero, if that gives the numbers as well
NEAR_FACTOR = 1e-3  # relative: a factor so near a usual one is that, if it gives the numbers as well
LARGEST_SUM = 1 << 24  # elements of a tensor


@dataclass(frozen=True)
class Term:
    """Hold a given tensor that may be added, under the names it goes by."""

    given: Given
    names: tuple[str, ...]
    values: Array


def list_terms(trial: Trial, shape: tuple[int, ...]) -> list[Term]:
    """Return the given tensors that go along a shape, each once: dropout and identity hand on what they are given."""
    terms: list[Term] = []
    for given in trial.given:
        if given.tensor.dtype.kind != "float" or not can_read(given.tensor):
            continue
        values = spread_values(given.values, shape)
        if values is None or not np.isfinite(values).all() or not values.any():
            continue
        same = next((place for place, term in enumerate(terms) if np.array_equal(term.values, values)), None)
        if same is None:
            terms.append(Term(given, (given.name,), values))
        else:
            terms[same] = Term(terms[same].given, (*terms[same].names, given.name), values)
    if len(terms) > MOST_TERMS:
        arguments = [term for term in terms if term.given.is_argument][:2]
        terms = arguments + terms[len(arguments) - MOST_TERMS :]
    return terms


def find_factors(terms: Sequence[Term], made: Array, usual: Iterable[float]) -> Mapping[int, float] | None:
    """Return the factors of the sum nearest to what was made, on a sample; those that do not matter are left out."""
    step = max(1, made.size // SAMPLED)
    wanted = made.reshape(-1)[::step]
    columns = np.stack([term.values.reshape(-1)[::step] for term in terms], 1)
    if not np.isfinite(wanted).all() or len(wanted) < 2 * len(terms):
        return None
    chosen = list(range(len(terms)))
    solved: Array = np.zeros(0)
    while chosen:
        solved = np.linalg.lstsq(columns[:, chosen], wanted, rcond=None)[0]
        kept = [place for place, factor in zip(chosen, solved, strict=True) if abs(factor) > NO_FACTOR]
        if kept == chosen:
            break
        chosen = kept
    if not chosen:
        return {}
    usual = list(usual)
    return {place: name_factor(float(factor), usual) for place, factor in zip(chosen, solved, strict=True)}


def name_factor(factor: float, usual: Iterable[float]) -> float:
    """Return the usual factor next to a solved one, or the solved one."""
    best = min(usual, key=lambda number: abs(number - factor))
    return best if abs(best - factor) <= NEAR_FACTOR * abs(factor) else factor


def list_usual_factors(width: int, numbers: Iterable[float] = ()) -> list[float]:
    """Return factors that occur in code: small ones, roots of 2 and of the width, and those of settings."""
    factors = [1.0, 2.0, 0.5, 0.25, 4.0, math.sqrt(2), 1 / math.sqrt(2), math.sqrt(width), 1 / math.sqrt(width), 3.0]
    factors += [number for number in numbers if number]
    return [sign * factor for factor in factors for sign in (1.0, -1.0)]


def add_up(terms: Sequence[Term], factors: Mapping[int, float]) -> Array:
    """Return the sum."""
    total: Array = np.zeros(terms[0].values.shape)
    for place, factor in factors.items():
        total += factor * terms[place].values
    return total
