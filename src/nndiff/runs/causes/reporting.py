"""Scalars that are reported differently while the trainings are the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from nndiff.facts.run_summary import choose_loss, is_loss
from nndiff.facts.runs import Quantity
from nndiff.findings.causes import Cause
from nndiff.runs.case import RunCase, Where
from nndiff.runs.causes.algebra import agree_within
from nndiff.runs.causes.gradients import find_whole_factor
from nndiff.runs.causes.onset import ROUNDING_SHARE, Explanation, Onset, explain, name_step, read_losses

_TRAINED = (Quantity.INITIAL_WEIGHTS, Quantity.DATA, Quantity.GRADIENTS, Quantity.WEIGHTS, Quantity.OPTIMIZER)
_FEWEST_STEPS = 3  # a factor or an average of fewer may be chance
_UNITS = {100.0: "percent against a share", 1 / math.log(2): "bits against nats", 1 / math.log(10): "log10 against ln"}


def find_reporting(case: RunCase) -> Iterator[Explanation]:
    """Yield the scalars that differ although weights, gradients and data are the same at every recorded step."""
    facts = case.facts
    is_trained_alike = all(facts.parting.get(quantity) is None for quantity in _TRAINED)
    mark = facts.first_unequal.get(Quantity.WEIGHTS)
    if not is_trained_alike or mark is not None or Quantity.WEIGHTS in facts.unknown or not case.tensor_places:
        return
    last = max(case.tensor_places)
    for name in _list_scalars(case):
        places, reference, candidate = _read_values(case, name)
        places = [place for place in places if place <= last + 1]  # what was not recorded may differ later
        if not places:
            continue
        count = len(places)
        reference, candidate = reference[:count], candidate[:count]
        apart = [
            index for index in range(count) if not agree_within(reference[index], candidate[index], ROUNDING_SHARE)
        ]
        if not apart:
            continue
        relation = _describe_relation(case, reference, candidate)
        if not relation and not is_loss(name):
            continue  # a time, a temperature: it may well differ
        relation = relation or "they follow no constant factor"
        evidence = (
            f"{name} differs in {len(apart)} of {count} steps, first at {name_step(case, places[apart[0]])} "
            f"({reference[apart[0]]:.6g} against {candidate[apart[0]]:.6g}), while all recorded weights are equal: "
            f"{relation}"
        )
        repair = f"only the reporting differs: compare how {name} is averaged, scaled and logged"
        first = places[apart[0]]
        yield explain(case, first, Cause.REPORTING, (name,), evidence, repair, 0.95, harmless=not is_loss(name))


def _list_scalars(case: RunCase) -> list[str]:
    """Return the scalars that both sides have at the first common step, without the settings of the optimisers."""
    if not case.facts.steps:
        return []
    return [name for name in case.facts.steps[0].scalars if not name.rpartition("/")[2].isdigit()]


def _read_values(case: RunCase, name: str) -> tuple[list[int], list[float], list[float]]:
    """Return a scalar at all steps at which both sides have a number."""
    places: list[int] = []
    reference: list[float] = []
    candidate: list[float] = []
    for place, step in enumerate(case.facts.steps):
        numbers = step.scalars.get(name, (math.nan, math.nan))
        if all(math.isfinite(number) for number in numbers):
            places.append(place)
            reference.append(numbers[0])
            candidate.append(numbers[1])
    return places, reference, candidate


def _describe_relation(case: RunCase, reference: Sequence[float], candidate: Sequence[float]) -> str:
    """Return how one side's values follow from the other's, if they do at every step."""
    if len(reference) < _FEWEST_STEPS:
        return ""
    first, second = np.array(reference), np.array(candidate)
    if first.any() and (first != 0).all():
        ratios = second / first
        ratio = float(np.median(ratios))
        if ratio and (np.abs(ratios - ratio) <= ROUNDING_SHARE * abs(ratio)).all():
            return f"the candidate's is {ratio:.6g} times the reference's at every step{_name_ratio(case, ratio)}"
    shift = second - first
    if np.ptp(shift) <= ROUNDING_SHARE * float(np.abs(first).max()):
        return f"the candidate's is {float(np.median(shift)):+.6g} away from the reference's at every step"
    for side, (raw, averaged) in enumerate(((first, second), (second, first))):
        word = "candidate" if side == 0 else "reference"
        means = np.cumsum(raw) / np.arange(1, len(raw) + 1)
        if np.allclose(averaged, means, rtol=ROUNDING_SHARE, atol=0):
            return f"the {word}'s is the mean of the other side's since the first step"
        # averaged[t] = d * averaged[t-1] + (1 - d) * raw[t]
        way = raw[1:] - averaged[:-1]
        share = float(way @ np.diff(averaged) / (way @ way)) if way.any() else 0.0
        if 0 < share < 1 and np.allclose(
            np.diff(averaged), share * way, atol=ROUNDING_SHARE * float(np.abs(raw).max())
        ):
            return f"the {word}'s is a moving average of the other side's with decay {1 - share:.4g}"
    return ""


def _name_ratio(case: RunCase, ratio: float) -> str:
    """Return where a constant ratio usually comes from."""
    for unit, words in _UNITS.items():
        if agree_within(ratio, unit, ROUNDING_SHARE) or agree_within(1 / ratio, unit, ROUNDING_SHARE):
            return f" ({words})"
    data = case.step(Where.REFERENCE, 0).data
    whole = find_whole_factor(ratio)
    if whole is not None and data and data[0].shape and data[0].shape[0] == whole:
        return f" ({whole} is the batch size: sum against mean)"
    return f" ({whole}: accumulation steps or number of processes)" if whole is not None else ""


def find_reported_loss(onset: Onset) -> Iterator[Explanation]:
    """Yield that the losses of a step differ while its weights, data and gradients are equal."""
    case, place = onset.case, onset.place
    if not onset.equal_start or onset.same_loss is not False or not onset.same_gradients:
        return
    loss, losses = choose_loss(case.facts.steps), read_losses(case, place)
    if loss is None or losses is None:
        return
    evidence = (
        f"{name_step(case, place)}: {loss} {losses[0]:.6g} against {losses[1]:.6g}, while weights, data and gradients "
        "of the step are equal"
    )
    repair = "only the reporting differs: compare how the loss is averaged, scaled and logged"
    yield explain(case, place, Cause.REPORTING, (loss,), evidence, repair, 0.9)
