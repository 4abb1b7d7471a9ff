"""An average of the weights that was recorded in place of the weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nndiff.findings.causes import Cause
from nndiff.runs.case import RunCase, Where
from nndiff.runs.causes.algebra import ROUNDINGS, SURE, Fit, fit_columns
from nndiff.runs.causes.onset import Explanation, Onset, explain, get_roundoff, name_side, name_step
from nndiff.runs.run import TensorKind
from nndiff.text import first_few

_MOST_STEPS = 6  # that are looked at, over the whole run
_FEWEST_STEPS = 2  # the first alone may as well be a smaller learning rate


def find_average(onset: Onset) -> Iterator[Explanation]:
    """Yield that one side's weights are a moving average of the other side's, step by step."""
    case, place = onset.case, onset.place
    places = [later for later in range(max(place, 0), len(case.steps)) if case.is_consecutive(later)]
    if not places:
        return
    chosen = np.unique(np.linspace(0, len(places) - 1, _MOST_STEPS).round().astype(int))
    for where in Where:
        fits: list[Fit] = []
        is_average = True
        for index in chosen:
            fit = _fit_average(case, where, places[index])
            if fit is not None and fit.is_blurred:
                continue  # an average moves little at first
            is_average = fit is not None and fit.reproduces and 0 < fit.coefficients[0] < 1 - SURE * fit.errors[0]
            if fit is None or not is_average:
                break
            fits.append(fit)
        if len(fits) < _FEWEST_STEPS or not is_average:
            continue
        decays = [1 - float(fit.coefficients[0]) for fit in fits]
        decay = f"{decays[-1]:.6g}"
        if max(decays) - min(decays) > SURE * max(float(fit.errors[0]) for fit in fits):
            decay = f"{min(decays):.6g} to {max(decays):.6g} (warming up)"
        evidence = (
            f"from {name_step(case, place)} on the {name_side(where)}'s weights are the moving average of the other "
            f"side's with decay {decay}, in each of {len(fits)} steps ({first_few(case.parameter_names)})"
        )
        repair = f"the {name_side(where)} saved the averaged (EMA) weights: compare raw weights with raw weights"
        yield explain(case, place, Cause.AVERAGED_WEIGHTS, case.parameter_names, evidence, repair, 0.95)
        return


def _fit_average(case: RunCase, where: Where, place: int) -> Fit | None:
    """Return by which share of the way a side's weights move towards the other side's."""
    moves, ways = [], []
    rounding = 0.0
    for name in case.parameter_names:
        before, after = (case.row(where, moment, TensorKind.WEIGHT, name) for moment in (place - 1, place))
        goal = case.row(Where(1 - where), place, TensorKind.WEIGHT, name)
        if before is None or after is None or goal is None:
            continue
        moves.append(after - before)
        ways.append(goal - before)
        rounding += (get_roundoff(case, where, place, TensorKind.WEIGHT, name) * float(np.linalg.norm(after))) ** 2
    if not moves:
        return None
    return fit_columns(np.concatenate(moves), [np.concatenate(ways)], ROUNDINGS * float(np.sqrt(rounding)))
