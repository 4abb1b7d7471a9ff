"""State of the optimiser that one side lost on the way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nndiff.findings.causes import Cause
from nndiff.runs.case import INITIAL, RunCase, Where
from nndiff.runs.causes.algebra import ROUNDINGS, SINGLE_ROUNDOFF, fit_columns
from nndiff.runs.causes.onset import Explanation, Onset, explain, name_side, name_step
from nndiff.runs.causes.parameter_steps import read_counter, read_step
from nndiff.runs.causes.rules import MEAN, MOMENTUM_BUFFER
from nndiff.runs.run import TensorKind
from nndiff.text import first_few


def find_lost_state(onset: Onset) -> Iterator[Explanation]:
    """Yield that one side's optimiser began again: its counter, or its momentum without what came before."""
    restarted = list(_find_restart(onset))
    yield from restarted
    if not restarted and onset.knows_before and onset.before != INITIAL:
        yield from _find_forgotten_momentum(onset)


def _find_restart(onset: Onset) -> Iterator[Explanation]:
    """Yield that the optimiser of one side counts its steps from the start again."""
    case, place = onset.case, onset.place
    earlier = [before for before in case.tensor_places if before < place and before != INITIAL]
    if not earlier:
        return
    for where in Where:
        names = []
        counts: tuple[float, float] | None = None
        for name in case.parameter_names:
            before, after = (read_counter(case, where, moment, name) for moment in (earlier[-1], place))
            partner = read_counter(case, Where(1 - where), place, name)
            has_gradient = case.row(where, place, TensorKind.GRADIENT, name) is not None
            if (
                before is not None
                and after is not None
                # a counter that stands still without a gradient is that of a frozen parameter
                and (after < before or (after == before and has_gradient))
                and partner is not None
                and partner > before
            ):
                names.append(name)
                counts = before, after
        if counts is None:
            continue
        since = case.step(where, place).number - int(counts[1]) + 1
        restart = _find_place(case, where, since)
        step = name_step(case, restart) if restart is not None else name_step(case, place)
        evidence = (
            f"the {name_side(where)}'s optimiser begins again at {step}: it counts {counts[1]:.0f} steps at "
            f"{name_step(case, place)} after {counts[0]:.0f} at {name_step(case, earlier[-1])} ({first_few(names)})"
        )
        repair = f"load the optimiser's state too when the {name_side(where)} resumes: optimizer.load_state_dict(...)"
        start = place if restart is None else restart
        yield explain(case, start, Cause.STATE_LOST, names, evidence, repair, 0.97)


def _find_place(case: RunCase, where: Where, number: int) -> int | None:
    """Return the place of a side's step number, if it is a common step."""
    for place in range(len(case.steps)):
        if case.step(where, place).number == number:
            return place
    return None


def _find_forgotten_momentum(onset: Onset) -> Iterator[Explanation]:
    """Yield that the momentum of one side is made of this step's gradient alone, that of the other side is not."""
    case, place = onset.case, onset.place
    for where in Where:
        names = []
        for name in case.parameter_names:
            if _forgets_momentum(case, where, place, name) and not _forgets_momentum(
                case, Where(1 - where), place, name
            ):
                names.append(name)
        if not names or len(names) < len(case.parameter_names) / 2:
            continue
        evidence = (
            f"{name_step(case, place)}: the momentum in the {name_side(where)}'s optimiser is made of this step's "
            f"gradient alone, on the other side also of earlier ones ({first_few(names)})"
        )
        repair = f"load the optimiser's state too when the {name_side(where)} resumes: optimizer.load_state_dict(...)"
        yield explain(case, place, Cause.STATE_LOST, names, evidence, repair, 0.95)


def _forgets_momentum(case: RunCase, where: Where, place: int, name: str) -> bool:
    """Return True if the state before the step has no part in the state after it."""
    step = read_step(case, where, place, name)
    if step is None or step.gradient is None:
        return False
    for state in (MEAN, MOMENTUM_BUFFER):
        if state in step.before and state in step.after and step.before[state].any():
            columns = [column for column in (step.gradient, step.weight) if column.any()]
            lengths = float(np.linalg.norm(step.after[state]) + np.linalg.norm(step.gradient))
            fit = fit_columns(step.after[state], columns, ROUNDINGS * SINGLE_ROUNDOFF * lengths)
            return fit is not None and fit.reproduces
    return False
