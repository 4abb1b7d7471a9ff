"""What the two runs start from."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from nndiff.findings.causes import Cause
from nndiff.runs.case import INITIAL, RunCase, Where
from nndiff.runs.causes.algebra import ROUNDINGS, SURE, Fit, fit_columns
from nndiff.runs.causes.onset import ROUNDING_SHARE, Explanation, explain, get_roundoff, list_unequal, name_side
from nndiff.runs.causes.precision import find_precision
from nndiff.runs.run import TensorKind
from nndiff.text import first_few, plural


def find_initialisation(case: RunCase) -> Iterator[Explanation]:
    """Yield which weights and buffers the runs do not share before the first step."""
    if INITIAL not in case.tensor_places:
        return
    names = []
    kinds: dict[str, TensorKind] = {}
    for kind in (TensorKind.WEIGHT, TensorKind.BUFFER):
        for name in list_unequal(case, INITIAL, kind):
            kinds[name] = kind
            if _measure_distance(case, kind, name) > ROUNDING_SHARE:
                names.append(name)
    rounded = list(find_precision(case, INITIAL, [TensorKind.WEIGHT]))
    if kinds and rounded:
        yield from rounded
        return
    if not names:
        return
    weights = [name for name in names if kinds[name] is TensorKind.WEIGHT]
    total = len(case.parameter_names)
    share = "all" if len(weights) == total else f"{len(weights)} of"
    detail = _describe_difference(case, kinds[names[0]], names[0])
    which = detail if len(names) == 1 else f"{first_few(names)}; {detail}"
    evidence = f"{share} {plural(total, 'parameter')} start from different values: {which}"
    repair = "load the same initial checkpoint on both sides, or seed right before the model is built"
    yield explain(case, INITIAL, Cause.INITIAL_WEIGHTS, names, evidence, repair, 0.98)


def _measure_distance(case: RunCase, kind: TensorKind, name: str) -> float:
    """Return the distance of one tensor before the first step, relative to the reference."""
    reference, candidate = (case.row(where, INITIAL, kind, name) for where in Where)
    if reference is None or candidate is None or reference.size != candidate.size:
        return np.inf
    length = float(np.linalg.norm(reference))
    distance = float(np.linalg.norm(candidate - reference))
    return distance / length if length else distance


def _describe_difference(case: RunCase, kind: TensorKind, name: str) -> str:
    """Return how one tensor differs: by a factor, in its spread, or only in the numbers that were drawn."""
    fit = _fit_scale(case, kind, name)
    if fit is not None and fit.reproduces:
        return f"{name} is {fit.coefficients[0]:.4g} times the reference's"
    statistics = [case.statistics(where, INITIAL, kind, name) for where in Where]
    if statistics[0] is None or statistics[1] is None:
        return f"{name} has other values"
    spreads = [float(numbers[2]) for numbers in statistics if numbers is not None]
    for where in Where:
        if spreads[where] == 0 < spreads[1 - where]:
            return f"{name} is constant in the {name_side(where)}, drawn at random on the other side"
    text = f"{name} has standard deviation {spreads[0]:.3g} against {spreads[1]:.3g}"
    # the logarithm of the standard deviation of n normal numbers has a standard error of sqrt(1 / 2n)
    if max(spreads) > min(spreads) * math.exp(SURE / math.sqrt(case.counts[name])):
        return f"{text}: another initialisation"
    return f"{text}, as near as two draws are: another seed"


def _fit_scale(case: RunCase, kind: TensorKind, name: str) -> Fit | None:
    reference, candidate = (case.row(where, INITIAL, kind, name) for where in Where)
    if reference is None or candidate is None or reference.size != candidate.size:
        return None
    roundoff = get_roundoff(case, Where.CANDIDATE, INITIAL, kind, name)
    return fit_columns(candidate, [reference], ROUNDINGS * roundoff * float(np.linalg.norm(candidate)))
