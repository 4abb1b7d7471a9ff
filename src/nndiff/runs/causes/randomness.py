"""Random numbers drawn in the forward pass: dropout, or another seed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from nndiff.findings.causes import Cause
from nndiff.runs.case import RunCase, Where
from nndiff.runs.causes.onset import Explanation, Onset, explain, name_side, name_step


def find_randomness(onset: Onset) -> Iterator[Explanation]:
    """Yield that the forward passes of a step drew different random numbers.

    The states of the generators are known after each step. They must have been equal before the step (or the step is
    the first), differ after it, and a side must draw random numbers in steps at all.
    """
    case, place = onset.case, onset.place
    if not onset.same_start or (onset.same_loss is not False and onset.same_gradients is not False):
        return
    apart = list_parted_generators(case, place)
    earlier = set(list_parted_generators(case, place - 1)) if place > 0 else set()
    drawing = [where for where in Where if _draws_in_steps(case, where, apart)]
    if not apart or set(apart) & earlier or not drawing:
        return
    if len(drawing) == 1:
        evidence = f"only the {name_side(drawing[0])} draws random numbers in its steps"
    elif place > 0:
        evidence = "both sides draw random numbers in the step, and not the same"
    else:
        evidence = "both sides draw random numbers in their steps, from different states: another seed, or more draws"
    evidence = (
        f"{name_step(case, place)}: weights and data are equal, the loss or the gradients are not, and the state of "
        f"{', '.join(apart)} differs after the step; {evidence}"
    )
    repair = "compare dropout (rates, train and eval mode) and seed both sides right before the training"
    yield explain(case, place, Cause.DROPOUT, (), evidence, repair, 0.9 if len(drawing) == 1 or place > 0 else 0.7)


def list_parted_generators(case: RunCase, place: int) -> list[str]:
    """Return the generators that both sides know and that are in different states after a step."""
    reference, candidate = (case.step(where, place).random_states for where in Where)
    return [name for name in reference if name in candidate and reference[name] != candidate[name]]


def _draws_in_steps(case: RunCase, where: Where, generators: list[str]) -> bool:
    """Return True if a generator moves from a step to the next of one epoch."""
    steps = case.run(where).steps
    for before, after in itertools.pairwise(steps):
        if before.epoch == after.epoch:
            for name in generators:
                if before.random_states.get(name) != after.random_states.get(name):
                    return True
    return False


def draws_random_numbers(case: RunCase) -> bool:
    """Return True if the steps of both runs draw random numbers."""
    for where in Where:
        steps = case.run(where).steps
        if not steps or not _draws_in_steps(case, where, list(steps[0].random_states)):
            return False
    return True
