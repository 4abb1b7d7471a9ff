"""What remains: rounding that grows, or a difference that no cause explains and what is ruled out for it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nndiff.facts.runs import ALL, GrowthKind, Quantity
from nndiff.findings.causes import Cause
from nndiff.runs.case import INITIAL, RunCase, Where
from nndiff.runs.causes.onset import (
    ROUNDING_SHARE,
    Explanation,
    Onset,
    explain,
    list_unequal,
    name_step,
    number_places,
    read_losses,
)
from nndiff.runs.causes.parameter_steps import DRIFT_SHARE, read_step
from nndiff.runs.causes.randomness import draws_random_numbers
from nndiff.runs.run import TensorKind
from nndiff.text import first_few

_STEEP = 1e4  # times the distance of the weights: a loss that moves by more is not the same function of them
_LEAP = 1e4  # times: what one step makes of a distance of rounding size where a ReLU switches stays below
_LARGE = 1e-4  # relative distance of weights that matters
_FEW_ROUNDINGS = 1e-6  # relative distance of weights after some steps that rounding alone makes
_WORDS = {
    Quantity.INITIAL_WEIGHTS: "initial weights",
    Quantity.DATA: "data",
    Quantity.LOSS: "loss",
    Quantity.GRADIENTS: "gradients",
    Quantity.WEIGHTS: "weights",
    Quantity.OPTIMIZER: "optimiser state",
}


def is_rounding(onset: Onset) -> bool:
    """Return True if what parts at a step is no more than rounding in another order makes of equal numbers."""
    if not onset.knows_before:
        growth = onset.case.facts.growth
        is_chaos = growth is not None and growth.kind in (GrowthKind.EXPONENTIAL, GrowthKind.CONSTANT)
        return is_chaos and onset.measure(onset.place, TensorKind.WEIGHT) <= _FEW_ROUNDINGS
    if not onset.same_start or onset.same_loss is False or onset.same_gradients is False:
        return False
    if onset.measure(onset.place, TensorKind.BUFFER) > ROUNDING_SHARE:
        return False
    # Adam makes whole steps of gradients that are nothing but rounding, such as those of the biases of attention keys
    alike, apart = count_moved_alike(onset)
    return alike >= apart if onset.has_drift else apart == 0


def count_moved_alike(onset: Onset) -> tuple[int, int]:
    """Return how many parameters are moved alike in both runs, rounding aside, and how many are not."""
    share = DRIFT_SHARE if onset.has_drift else ROUNDING_SHARE
    counts = [0, 0]
    for name in onset.case.parameter_names:
        reference, candidate = (read_step(onset.case, where, onset.place, name) for where in Where)
        if name in onset.noise or reference is None or candidate is None:
            continue
        distance = float(np.linalg.norm(candidate.update - reference.update))
        allowed = reference.rounding + candidate.rounding + share * float(np.linalg.norm(reference.update))
        counts[distance > allowed] += 1
    return counts[0], counts[1]


def explain_rounding(onset: Onset) -> Explanation:
    """Return that the runs part by rounding, which is no fault."""
    case, place = onset.case, onset.place
    kinds = ((TensorKind.GRADIENT, "gradients"), (TensorKind.WEIGHT, "weights"), (TensorKind.BUFFER, "buffers"))
    sizes = []
    for kind, word in kinds:
        distance = onset.measure(place, kind)
        if distance:
            sizes.append(f"{word} by {distance:.1e}")
    growth = case.facts.growth
    grown = ""
    if growth is not None and growth.first:
        kind_of_growth = "" if growth.kind is GrowthKind.IRREGULAR else f", {growth.kind.value} growth"
        grown = (
            f"; the relative distance of the weights goes from {growth.first:.1e} to {growth.last:.1e}{kind_of_growth}"
        )
    evidence = (
        f"the first difference, at {name_step(case, place)}, has the size of rounding ({', '.join(sizes)}), everything "
        f"before it is equal{grown}"
    )
    confidence = 0.9 if onset.knows_before else 0.6
    if case.facts.jumps:
        jump = max(case.facts.jumps, key=lambda jump: jump.factor)
        at = name_step(case, number_places(case)[jump.mark.number])
        evidence += (
            f"; at {at} it grows {jump.factor:.0f} times as fast as before, as where a ReLU or a maximum switches"
        )
        confidence = min(confidence, 0.7)
    repair = "nothing to repair: other kernels or another order of sums; to be sure, train some steps in float64"
    return explain(case, place, Cause.ROUNDING, (), evidence, repair, confidence, harmless=True)


def find_leap(case: RunCase) -> Iterator[Explanation]:
    """Yield that a distance of rounding size becomes a large one in a single step, and nothing explains it."""
    before = 0.0
    for place, step in enumerate(case.facts.steps):
        weights = step.groups.get(ALL)
        if weights is None:
            continue
        if case.is_consecutive(place) and 0 < before * _LEAP < weights.rel_l2 and weights.rel_l2 > _LARGE:
            evidence = (
                f"{name_step(case, place)}: the relative distance of the weights, which rounding began, goes from "
                f"{before:.1e} to {weights.rel_l2:.1e} in one step, most in {weights.max_l2_name}"
            )
            repair = "look at what happens in this step on one side only"
            names = (weights.max_l2_name,) if weights.max_l2_name else ()
            yield explain(case, place, Cause.UNEXPLAINED, names, evidence, repair, 0.4)
            return
        before = weights.rel_l2


def find_passes(onset: Onset) -> Iterator[Explanation]:
    """Yield that the forward or the backward pass itself differs: nothing that goes into it does."""
    case, place = onset.case, onset.place
    if not onset.same_start or (onset.same_loss is not False and onset.same_gradients is not False):
        return
    step = name_step(case, place)
    equal = "weights, buffers and data" if case.facts.steps[place].same_data else "weights and buffers"
    losses = read_losses(case, place)
    if losses is not None and onset.same_loss is False and onset.same_gradients is not True:
        if abs(losses[1] - losses[0]) <= _STEEP * onset.measure(onset.before, TensorKind.WEIGHT) * abs(losses[0]):
            return
        evidence = (
            f"{equal} are equal right before {step}, its loss is not ({losses[0]:.6g} against {losses[1]:.6g}): the "
            "forward pass or the loss function differs"
        )
        if draws_random_numbers(case):
            evidence += "; both sides draw as many random numbers, so another dropout rate is possible"
        repair = "compare one forward pass: nndiff run REF_MODEL CAND_MODEL, in train mode, with a batch of this step"
        yield explain(case, place, Cause.FORWARD_PASS, (), evidence, repair, 0.8)
    elif onset.same_gradients is False and onset.equal_start:  # the least drift may switch a ReLU
        names = [name for name in list_unequal(case, place, TensorKind.GRADIENT) if name not in onset.noise]
        is_known = all(case.widths.get(name) for name in names)
        relation = ", not by one factor" if is_known else "; only statistics of them were kept"
        known = "and the loss are equal" if onset.same_loss else "are equal; the loss is not known"
        evidence = (
            f"{step}: {equal} {known}, the gradients of {len(names)} parameters are not, going backwards first in "
            f"{names[-1]}{relation}"
        )
        repair = "compare the backward pass: nndiff run REF_MODEL CAND_MODEL; look at custom backward functions, detach"
        yield explain(case, place, Cause.GRADIENTS_ONLY, names[::-1], evidence, repair, 0.8)


def find_remainder(case: RunCase, onset: Onset | None) -> Iterator[Explanation]:
    """Yield what is known of a difference that is out of tolerance and has no explanation."""
    if case.facts.first_divergence is None:
        return
    divergence = case.facts.first_divergence
    places = number_places(case)
    place = places.get(divergence.mark.number, INITIAL)
    unknown = "; ".join(f"{_WORDS[quantity]}: {why}" for quantity, why in case.facts.unknown.items())
    unknown = f"; not known: {unknown}" if unknown else ""
    if onset is not None and onset.same_start and onset.has_gradients and onset.same_gradients:
        names = list_unequal(case, onset.place, TensorKind.WEIGHT)
        if names:
            evidence = (
                f"{name_step(case, onset.place)}: weights before, data and gradients are equal, the updates are not "
                f"({first_few(names)}): no factor and no share of the weights explains it"
            )
            repair = "compare the optimisers: class, settings, state, and what changes weights beside them"
            yield explain(case, onset.place, Cause.UPDATE_RULE, names, evidence, repair, 0.7)
            return
        names = list_unequal(case, onset.place, TensorKind.BUFFER)
        if names:
            evidence = f"{name_step(case, onset.place)}: only buffers differ ({first_few(names)}), weights are equal"
            repair = "compare how these buffers are updated"
            yield explain(case, onset.place, Cause.UNEXPLAINED, names, evidence, repair, 0.5)
            return
    word = _WORDS[divergence.quantity]
    equal = [_WORDS[quantity] for quantity, mark in case.facts.parting.items()
             if mark is None and quantity not in case.facts.unknown]  # fmt: skip
    same = f"; the same at every recorded step: {', '.join(equal)}" if equal else ""
    gap = ""
    if onset is not None and not onset.knows_before and onset.place != INITIAL:
        gap = (
            f"; tensors right before {name_step(case, onset.place)} were not recorded, so its update cannot be replayed"
        )
    evidence = f"{word} part at {name_step(case, place)}; the recorded settings do not differ{same}{unknown}{gap}"
    repair = "record every step around it (every=1 or steps=[...]) with model, optimizer and data, before zero_grad()"
    where = (divergence.tensor,) if divergence.tensor else ()
    yield explain(case, place, Cause.UNEXPLAINED, where, evidence, repair, 0.5)
