"""Gradients that differ although both runs were at the same weights and were given the same batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from nndiff.findings.causes import Cause
from nndiff.runs.case import INITIAL, RunCase, Where
from nndiff.runs.causes.algebra import Fit, Row, agree_within, fit_columns
from nndiff.runs.causes.onset import (
    ROUNDING_SHARE,
    Explanation,
    Onset,
    explain,
    is_finite,
    name_side,
    name_step,
    read_losses,
)
from nndiff.runs.run import TensorKind
from nndiff.text import first_few

_STEPS_LOOKED_AT = 16  # recorded steps whose norms are compared with a cap
_SAME_CAP = 1e-4  # relative: torch divides by the norm plus 1e-6
_LARGEST_WHOLE = 4096  # whole factors up to here are named as such


def find_gradients(onset: Onset) -> Iterator[Explanation]:
    """Yield what was done to the gradients of one side."""
    case, place = onset.case, onset.place
    if not onset.same_start or not onset.has_gradients or onset.same_gradients:
        return
    if not all(is_finite(case, where, place) for where in Where):
        return
    explanations = [
        *_find_missing(onset),
        *_find_accumulated(onset),
        *_find_scaled(onset),
        *_find_clamped(onset),
    ]
    yield from explanations[:2]


def list_gradients(case: RunCase, where: Where, place: int) -> dict[str, Row]:
    """Return the gradients of a side that are not zero."""
    gradients = {}
    for name in case.names:
        statistics = case.statistics(where, place, TensorKind.GRADIENT, name)
        row = case.row(where, place, TensorKind.GRADIENT, name)
        if row is not None and statistics is not None and statistics[0] > 0:
            gradients[name] = row
    return gradients


def _find_missing(onset: Onset) -> Iterator[Explanation]:
    """Yield the parameters that have a gradient on one side only."""
    case, place = onset.case, onset.place
    gradients = [list_gradients(case, where, place) for where in Where]
    for where in Where:
        names = [name for name in gradients[1 - where] if name not in gradients[where] and name not in onset.noise]
        if not names or not gradients[where]:
            continue
        trainable = case.run(where).description.trainable
        own_names = [case.names[name] if where else name for name in names]
        if trainable is not None and not trainable & set(own_names):
            reason = "there they do not require one"
        else:
            reason = "there it is missing or zero"
        evidence = (
            f"{name_step(case, place)}: {first_few(names)} have no gradient in the {name_side(where)} ({reason}), "
            f"norm {_measure_norm(gradients[1 - where], names):.3g} on the other side"
        )
        repair = "look for requires_grad=False, detach() and no_grad() there; freeze the same parameters on both sides"
        yield explain(case, place, Cause.FROZEN, names, evidence, repair, 0.95)


def _measure_norm(gradients: dict[str, Row], names: Sequence[str]) -> float:
    return math.sqrt(sum(float(np.square(gradients[name]).sum()) for name in names))


def _find_accumulated(onset: Onset) -> Iterator[Explanation]:
    """Yield that a side's gradient is the other side's plus its own of the step before."""
    case, place = onset.case, onset.place
    if onset.before == INITIAL:
        return
    for where in Where:
        now, fresh = (list_gradients(case, side, place) for side in (where, Where(1 - where)))
        old = list_gradients(case, where, onset.before)
        names = [name for name in now if name in fresh and name in old and name not in onset.noise]
        if not names:
            continue
        target, column, earlier = (np.concatenate([rows[name] for name in names]) for rows in (now, fresh, old))
        fit = fit_columns(target, [column, earlier], _round(onset, target, earlier))
        if fit is None or not fit.reproduces:
            continue
        if all(agree_within(float(coefficient), 1.0, 10 * onset.gradient_share) for coefficient in fit.coefficients):
            evidence = (
                f"{name_step(case, place)}: the {name_side(where)}'s gradients are the other side's plus its own of "
                f"the step before (they leave {fit.residual / fit.length:.1e} unexplained)"
            )
            repair = f"call optimizer.zero_grad() in every step of the {name_side(where)}"
            yield explain(case, place, Cause.GRADIENTS_ACCUMULATED, names, evidence, repair, 0.97)
            return


def _round(onset: Onset, *rows: Row) -> float:
    """Return the length that rounding may leave of gradients computed along another way."""
    return onset.gradient_share * sum(float(np.linalg.norm(row)) for row in rows)


def _find_scaled(onset: Onset) -> Iterator[Explanation]:
    """Yield that gradients differ by one factor: clipped, accumulated, averaged otherwise."""
    case, place = onset.case, onset.place
    gradients = [list_gradients(case, where, place) for where in Where]
    names = [name for name in gradients[0] if name in gradients[1] and name not in onset.noise]
    if not names:
        return
    changed: list[str] = []
    fits: list[Fit] = []
    for name in names:
        fit = fit_columns(gradients[1][name], [gradients[0][name]], _round(onset, gradients[1][name]))
        if fit is not None and fit.reproduces and abs(fit.coefficients[0] - 1) <= onset.gradient_share:
            continue
        changed.append(name)
        fits += [fit] if fit is not None else []
    if not changed:
        return
    target, column = (np.concatenate([gradients[where][name] for name in changed]) for where in (1, 0))
    whole = fit_columns(target, [column], _round(onset, target))
    if whole is None or not whole.reproduces:
        return
    factor = float(whole.coefficients[0])
    if agree_within(factor, 1.0, onset.gradient_share):
        return
    if len(changed) == len(names):
        clipped = _explain_norm_cap(onset, factor, names)
        if clipped is not None:
            yield clipped
            return
    losses = read_losses(case, place)
    loss = ""
    if losses is not None:
        same = agree_within(losses[1], factor * losses[0], ROUNDING_SHARE)
        loss = "; so is the loss" if same else "; the loss is not" if onset.same_loss else ""
    share = "all gradients" if len(changed) == len(names) else f"the gradients of {first_few(changed)}"
    evidence = f"{name_step(case, place)}: {share} are {factor:.6g} times the reference's{loss}"
    repair = f"compare {_name_reasons(case, place, factor, len(changed) == len(names))}"
    yield explain(case, place, Cause.GRADIENTS_SCALED, changed, evidence, repair, 0.95)


def find_whole_factor(factor: float) -> int | None:
    """Return the whole number that a factor or its inverse is, or None."""
    size = max(abs(factor), 1 / abs(factor))
    whole = round(size)
    return whole if 2 <= whole <= _LARGEST_WHOLE and agree_within(size, whole, 10 * ROUNDING_SHARE) else None


def _name_reasons(case: RunCase, place: int, factor: float, concerns_all: bool) -> str:
    """Return what usually makes such a factor."""
    whole = find_whole_factor(factor)
    data = case.step(Where.REFERENCE, place).data
    size = data[0].shape[0] if data and data[0].shape else None
    if not concerns_all:
        return "whether these parameters are shared (counted twice) or their gradients are averaged differently"
    if whole is not None and whole == size:
        return f"the reduction of the loss: {whole} is the batch size, so one side sums and the other averages"
    if whole is not None:
        return f"accumulation steps and number of processes: one side divides by {whole}, the other does not"
    return "the reduction and the weight of the loss, loss scaling and gradient averaging"


def _explain_norm_cap(onset: Onset, factor: float, names: Sequence[str]) -> Explanation | None:
    """Return that one side's gradient norm never exceeds a number that it reaches."""
    case, place = onset.case, onset.place
    where = Where.CANDIDATE if factor < 1 else Where.REFERENCE
    places = [later for later in case.tensor_places if later >= place][:_STEPS_LOOKED_AT]
    norms = [_measure_total_norm(case, where, later) for later in places]
    partners = [_measure_total_norm(case, Where(1 - where), later) for later in places]
    cap = norms[0]
    reached = sum(agree_within(norm, cap, _SAME_CAP) for norm in norms)
    if any(norm > cap * (1 + _SAME_CAP) for norm in norms):
        return None
    is_round = agree_within(cap, float(f"{cap:.1e}"), ROUNDING_SHARE) and find_whole_factor(factor) is None
    if reached < 2 and not is_round:
        return None
    # one factor for all steps is no cap: then the other side's norm would stay the same too
    if reached >= 2 and sum(agree_within(norm, partners[0], _SAME_CAP) for norm in partners) == reached:
        return None
    evidence = (
        f"{name_step(case, place)}: the {name_side(where)}'s gradient norm is {cap:.6g} against {partners[0]:.4g}, "
        f"with the same direction; it reaches {cap:.6g} in {reached} of {len(norms)} recorded steps, never more"
    )
    repair = f"clip gradients on both sides or on neither: the {name_side(where)} clips their norm at {cap:.4g}"
    return explain(case, place, Cause.GRADIENTS_CLIPPED, names, evidence, repair, 0.95 if reached >= 2 else 0.85)


def _measure_total_norm(case: RunCase, where: Where, place: int) -> float:
    """Return the norm of all gradients of a step."""
    tensors = case.tensors(where, place)
    rows = [row for row, key in enumerate(tensors.keys) if key.kind is TensorKind.GRADIENT]
    return math.sqrt(float(np.square(tensors.statistics[rows, 0]).sum()))


def _find_clamped(onset: Onset) -> Iterator[Explanation]:
    """Yield that no element of one side's gradients exceeds a number that several tensors reach."""
    case, place = onset.case, onset.place
    for where in Where:
        extremes = []
        for name in case.names:
            statistics = case.statistics(where, place, TensorKind.GRADIENT, name)
            if statistics is not None:
                extremes += [abs(float(statistics[3])), abs(float(statistics[4]))]
        largest = max(extremes, default=0.0)
        partner = case.tensors(Where(1 - where), place)
        rows = [row for row, key in enumerate(partner.keys) if key.kind is TensorKind.GRADIENT]
        if extremes.count(largest) < 2 or not largest or np.abs(partner.statistics[rows, 3:5]).max() <= largest:
            continue
        names = [name for name in case.names if _is_clamped(onset, where, name, largest)]
        if not names:
            continue
        evidence = (
            f"{name_step(case, place)}: no element of the {name_side(where)}'s gradients exceeds {largest:.6g}, which "
            f"{extremes.count(largest)} extremes reach exactly; the other side's do"
        )
        repair = f"clip gradient values on both sides or on neither: the {name_side(where)} clips at {largest:.4g}"
        yield explain(case, place, Cause.GRADIENTS_CLIPPED, names, evidence, repair, 0.9)
        return


def _is_clamped(onset: Onset, where: Where, name: str, largest: float) -> bool:
    """Return True if a gradient is the other side's, clamped; on sketches only that it reaches the limit is known."""
    case, place = onset.case, onset.place
    row, partner = (case.row(side, place, TensorKind.GRADIENT, name) for side in (where, Where(1 - where)))
    statistics = case.statistics(where, place, TensorKind.GRADIENT, name)
    if row is None or partner is None or statistics is None or largest not in np.abs(statistics[3:5]):
        return False
    if not case.is_exact(name):
        return True
    clamped = np.clip(partner, -largest, largest)
    return float(np.linalg.norm(row - clamped)) <= _round(onset, row)
