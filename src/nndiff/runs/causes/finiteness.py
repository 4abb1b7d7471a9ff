"""Numbers that are not finite, and steps that one side did not make."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from nndiff.findings.causes import Cause
from nndiff.runs.case import RunCase, Where
from nndiff.runs.causes.onset import Explanation, Onset, explain, is_unchanged, name_side, name_step, read_losses
from nndiff.runs.causes.parameter_steps import read_step
from nndiff.runs.causes.updates import read_parameter_settings
from nndiff.runs.run import TensorKind
from nndiff.text import first_few, plural

_STEPS_LOOKED_AT = 16  # recorded steps in which updates are counted


def find_finiteness(onset: Onset) -> Iterator[Explanation]:
    """Yield that one side has NaN or infinity where the other has numbers."""
    case, place = onset.case, onset.place
    if place < 0:
        return
    sides = [_list_nonfinite(case, where, place) for where in Where]
    for where in Where:
        if sides[where] and not sides[1 - where]:
            evidence = (
                f"{name_step(case, place)}: {first_few(sides[where])} of the {name_side(where)} hold NaN or infinity, "
                "the other side's are finite"
            )
            if _is_still(case, where, place):
                evidence += "; it makes no update in this step (skipped, as a gradient scaler does)"
            repair = "record the forward pass at this step (nndiff record) and look for the first module that overflows"
            yield explain(case, place, Cause.NOT_FINITE, sides[where], evidence, repair, 0.9)
            return


def _list_nonfinite(case: RunCase, where: Where, place: int) -> list[str]:
    """Return what is not finite on a side: the loss, or tensors by name."""
    names = []
    losses = read_losses(case, place)
    if losses is not None and not math.isfinite(losses[where]):
        names.append("loss")
    if case.has_tensors(where, place):
        tensors = case.tensors(where, place)
        for row in np.flatnonzero(tensors.statistics[:, 5] > 0):
            key = tensors.keys[int(row)]
            if key.kind is TensorKind.GRADIENT:
                names.append(key.name)
    return names


def _is_still(case: RunCase, where: Where, place: int) -> bool:
    """Return True if a side changes none of its weights in a step."""
    if not case.is_consecutive(place):
        return False
    names = case.parameter_names
    return all(is_unchanged(case, where, place, place - 1, TensorKind.WEIGHT, name) for name in names)


def find_skipped_steps(onset: Onset) -> Iterator[Explanation]:
    """Yield that one side makes no update in a step in which the other makes one."""
    case, place = onset.case, onset.place
    if not onset.knows_before:
        return
    still = [_is_still(case, where, place) for where in Where]
    if still[0] == still[1]:
        return
    where = Where.CANDIDATE if still[Where.CANDIDATE] else Where.REFERENCE
    settings = read_parameter_settings(case, where, place)
    if settings and all(values.get("lr") == 0 for values in settings.values()):
        return
    places = [later for later in case.tensor_places if later >= place and case.is_consecutive(later)]
    places = places[:_STEPS_LOOKED_AT]
    count = sum(_is_still(case, where, later) for later in places)
    evidence = (
        f"{name_step(case, place)}: the {name_side(where)} changes no weight, the other side does; the same in {count} "
        f"of {plural(len(places), 'step')} from there on"
    )
    repair = (
        f"look for steps without optimizer.step() in the {name_side(where)}: gradient accumulation, a gradient scaler "
        "that skips, a condition on the loss"
    )
    yield explain(case, place, Cause.STEP_SKIPPED, (), evidence, repair, 0.95)


def find_frozen(onset: Onset) -> Iterator[Explanation]:
    """Yield the parameters that one side never changes while the other does."""
    case, place = onset.case, onset.place
    earlier = [before for before in case.tensor_places if before < place]
    if not earlier:
        return
    for where in Where:
        settings = read_parameter_settings(case, where, place)
        names = []
        moving = 0
        for name in case.parameter_names:
            fixed, partner_fixed = (
                is_unchanged(case, side, place, earlier[-1], TensorKind.WEIGHT, name)
                for side in (where, Where(1 - where))
            )
            moving += not fixed
            if (
                fixed
                and not partner_fixed
                and settings.get(name, {}).get("lr") != 0
                and _should_move(onset, where, name)
            ):
                names.append(name)
        if names and moving:
            groups = case.run(where).description.param_groups
            own_names = {case.names[name] if where else name for name in names}
            known = {member for group in groups for member in group}
            reason = "; its optimiser was not given them" if groups and not own_names & known else ""
            evidence = (
                f"{name_step(case, place)}: the {name_side(where)} does not change {first_few(names)}, the other side "
                f"does{reason}"
            )
            repair = "give the optimisers of both sides the same parameters, and freeze the same ones"
            yield explain(case, place, Cause.FROZEN, names, evidence, repair, 0.9)
            return


def _should_move(onset: Onset, where: Where, name: str) -> bool:
    """Return False if a parameter that stays has next to no gradient, or moves on the other side by rounding alone."""
    case, place = onset.case, onset.place
    if name in onset.noise:
        return False
    partner = read_step(case, Where(1 - where), place, name) if onset.knows_before else None
    return partner is None or float(np.linalg.norm(partner.update)) > partner.rounding
