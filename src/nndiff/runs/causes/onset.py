"""The step at which two runs part, and what is known right before it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nndiff.facts.run_summary import choose_loss
from nndiff.facts.runs import ALL, Quantity
from nndiff.findings.causes import Cause
from nndiff.result import Finding
from nndiff.runs.case import INITIAL, RunCase, Where
from nndiff.runs.causes.algebra import DIGITS
from nndiff.runs.run import TensorKind

# Share of a vector by which rounding in another order moves the gradients of a network in float32.
ROUNDING_SHARE = 1e-5
_SMALL_DRIFT = 1e-4  # relative distance of weights up to which gradients of two runs are still nearly the same
_AMPLIFICATION = 30.0  # times the drift of the weights, relative: how far gradients may move with it
_TENSOR_QUANTITIES = (Quantity.INITIAL_WEIGHTS, Quantity.GRADIENTS, Quantity.WEIGHTS, Quantity.OPTIMIZER)


@dataclass(frozen=True)
class Explanation:
    """Hold a finding and the place in the steps from which on it holds."""

    place: int
    finding: Finding


@dataclass(frozen=True)
class Onset:
    """Name the first place at which tensors of two runs are not the same, and what can be computed there."""

    case: RunCase
    place: int

    @property
    def before(self) -> int:
        """Return the place right before; it has tensors only if `knows_before`."""
        return self.place - 1

    @cached_property
    def knows_before(self) -> bool:
        """Return True if both runs kept their tensors right before the step too."""
        return self.place != INITIAL and self.case.is_consecutive(self.place)

    @cached_property
    def same_start(self) -> bool:
        """Return True if both runs make the step from the same weights, buffers and data, rounding aside."""
        if not self.knows_before or has_other_data(self.case, self.place):
            return False
        if self.drift > _SMALL_DRIFT:
            return False
        # a bias before batch norm drifts freely, has no effect, and takes the running mean with it
        return bool(self.noise) or self.measure(self.before, TensorKind.BUFFER) <= _SMALL_DRIFT

    @cached_property
    def drift(self) -> float:
        """Return the relative distance of the weights right before the step, which rounding may have made."""
        return self.measure(self.before, TensorKind.WEIGHT)

    @property
    def gradient_share(self) -> float:
        """Return the share of a gradient that rounding and the drift of the weights may move."""
        return ROUNDING_SHARE + _AMPLIFICATION * self.drift

    @cached_property
    def equal_start(self) -> bool:
        """Return True if both runs make the step from the same weights and buffers, bit for bit, and the same data."""
        if not self.same_start:
            return False
        kinds = (TensorKind.WEIGHT, TensorKind.BUFFER)
        return not any(list_unequal(self.case, self.before, kind) for kind in kinds)

    @cached_property
    def has_drift(self) -> bool:
        """Return True if the gradients are not the same bit for bit."""
        return self.has_gradients and bool(list_unequal(self.case, self.place, TensorKind.GRADIENT))

    @cached_property
    def same_loss(self) -> bool | None:
        """Return True if the losses of the step are equal, rounding aside; None if a side has none."""
        losses = read_losses(self.case, self.place)
        if losses is None:
            return None
        if not all(math.isfinite(loss) for loss in losses):
            return all(math.isnan(loss) for loss in losses) or losses[0] == losses[1]
        return abs(losses[0] - losses[1]) <= ROUNDING_SHARE * abs(losses[0])

    @cached_property
    def has_gradients(self) -> bool:
        """Return True if both sides kept gradients of the step."""
        for where in Where:
            keys = self.case.tensors(where, self.place).keys
            if not any(key.kind is TensorKind.GRADIENT for key in keys):
                return False
        return True

    @cached_property
    def same_gradients(self) -> bool | None:
        """Return True if the gradients of the step are equal, rounding aside; None if a side has none."""
        if not self.has_gradients:
            return None
        return self.measure(self.place, TensorKind.GRADIENT) <= ROUNDING_SHARE

    @cached_property
    def same_state_before(self) -> bool:
        """Return True if both optimisers begin the step with the same state, rounding aside."""
        if not self.knows_before or self.before == INITIAL:
            return self.knows_before
        states = self.case.state_names(Where.REFERENCE, self.before)
        return all(self.measure(self.before, TensorKind.STATE, state) <= ROUNDING_SHARE for state in states)

    def list_noise(self, where: Where) -> frozenset[str]:
        """Return the parameters whose gradient is so small beside the others that it is made of rounding.

        That of a bias before batch norm is one: it would be 0, and whatever is done to it tells nothing.
        """
        norms = {}
        for name in self.case.parameter_names:
            statistics = self.case.statistics(where, self.place, TensorKind.GRADIENT, name)
            if statistics is not None:
                norms[name] = float(statistics[0])
        limit = ROUNDING_SHARE * math.sqrt(sum(norm**2 for norm in norms.values()))
        return frozenset(name for name, norm in norms.items() if 0 < norm <= limit)

    @cached_property
    def noise(self) -> frozenset[str]:
        """Return the parameters whose gradient is made of rounding on a side."""
        if self.place == INITIAL:
            return frozenset()
        return self.list_noise(Where.REFERENCE) | self.list_noise(Where.CANDIDATE)

    def measure(self, place: int, kind: TensorKind, state: str = "") -> float:
        """Return the relative distance of all tensors of a kind at a place; one that a side lacks counts as zeros.

        Parameters with gradients of rounding size are left out. The distance is infinite if what was kept does not
        tell that of tensors that are not the same.
        """
        tensors = [self.case.tensors(where, place) for where in Where]
        squared = distance = 0.0
        for name in self.case.names:
            if name in self.noise:
                continue
            rows = [
                side.rows.get(self.case.key(where, kind, name, state))
                for where, side in zip(Where, tensors, strict=True)
            ]
            if rows[0] is not None:
                squared += float(np.nan_to_num(tensors[0].statistics[rows[0], 0])) ** 2
            if None not in rows and np.array_equal(tensors[0].digests[rows[0]], tensors[1].digests[rows[1]]):
                continue
            reference, candidate = (self.case.row(where, place, kind, name, state) for where in Where)
            if reference is None and candidate is None:
                if rows != [None, None]:
                    return math.inf
                continue
            distance += float(
                np.square((0 if candidate is None else candidate) - (0 if reference is None else reference)).sum()
            )
        if distance == 0:
            return 0.0
        return math.sqrt(distance / squared) if squared else math.inf


def list_onsets(case: RunCase) -> list[Onset]:
    """Return the first step at which tensors are not the same and, in order, those at which more than rounding begins.

    These are the first steps at which weights, gradients or state are farther apart than rounding makes them, and
    those at which the distance of the weights jumps.
    """
    numbers: set[int] = set()
    for quantity in _TENSOR_QUANTITIES:
        mark = case.facts.first_unequal.get(quantity)
        if mark is not None:
            numbers.add(mark.number)
    if not numbers:
        return []
    first = min(numbers)
    numbers = {first} | {jump.mark.number for jump in case.facts.jumps}
    for kind in range(3):
        for step in case.facts.steps:
            group = (step.groups, step.gradients or {}, step.optimizer or {})[kind].get(ALL)
            if group is not None and not group.rel_l2 <= ROUNDING_SHARE:
                numbers.add(step.mark.number)
                break
    places = number_places(case)
    return [Onset(case, places[number]) for number in sorted(numbers) if number >= first]


def number_places(case: RunCase) -> dict[int, int]:
    """Return the place of each of the reference's step numbers among the common steps."""
    places = {case.step(Where.REFERENCE, place).number: place for place in range(len(case.steps))}
    places[INITIAL] = INITIAL
    return places


def read_scalars(case: RunCase, where: Where, place: int) -> Mapping[str, float]:
    """Return the scalars of a step; of old dumps those that both sides have, so that no checkpoint is opened again."""
    if case.run(where).description.keep == "dump":
        return {name: pair[where] for name, pair in case.facts.steps[place].scalars.items()}
    return case.step(where, place).scalars


def read_losses(case: RunCase, place: int) -> tuple[float, float] | None:
    """Return the losses of a step, of the loss that reports name; None if a side has none."""
    loss = choose_loss(case.facts.steps)
    return None if loss is None else case.facts.steps[place].scalars.get(loss)


def has_other_data(case: RunCase, place: int) -> bool:
    """Return True if both sides know the batch of a step and it is not the same."""
    return case.facts.steps[place].same_data is False


def list_unequal(case: RunCase, place: int, kind: TensorKind, state: str = "") -> list[str]:
    """Return the tensors of a kind that both sides have and that are not the same bit for bit."""
    reference, candidate = (case.tensors(where, place) for where in Where)
    names = []
    for name in case.names:
        row = reference.rows.get(case.key(Where.REFERENCE, kind, name, state))
        partner = candidate.rows.get(case.key(Where.CANDIDATE, kind, name, state))
        if row is None or partner is None:
            continue
        if not np.array_equal(reference.digests[row], candidate.digests[partner]):
            names.append(name)
    return names


def is_unchanged(case: RunCase, where: Where, place: int, earlier: int, kind: TensorKind, name: str) -> bool:
    """Return True if a tensor has the same bits at two places of one run."""
    key = case.key(where, kind, name)
    tensors, before = case.tensors(where, place), case.tensors(where, earlier)
    if key not in tensors.rows or key not in before.rows:
        return False
    return np.array_equal(tensors.digests[tensors.rows[key]], before.digests[before.rows[key]])


def get_roundoff(case: RunCase, where: Where, place: int, kind: TensorKind, name: str, state: str = "") -> float:
    """Return the largest relative error of one rounding in the element type of a tensor."""
    tensors = case.tensors(where, place)
    row = tensors.rows.get(case.key(where, kind, name, state))
    dtype = "float32" if row is None else tensors.dtypes[row]
    return 2.0 ** -DIGITS.get(dtype, DIGITS["float32"])


def is_finite(case: RunCase, where: Where, place: int) -> bool:
    """Return True if no tensor of a step holds NaN or infinity."""
    return not np.nansum(case.tensors(where, place).statistics[:, 5])


def name_step(case: RunCase, place: int) -> str:
    """Return what a step is called: `epoch 0, batch 10`."""
    if place == INITIAL:
        return "before the first step"
    step = case.step(Where.REFERENCE, place)
    if step.epoch is None:
        return f"step {step.number}"
    return f"epoch {step.epoch}" if step.batch is None else f"epoch {step.epoch}, batch {step.batch}"


def explain(
    case: RunCase,
    place: int,
    cause: Cause,
    where: Sequence[str],
    evidence: str,
    repair: str,
    confidence: float,
    harmless: bool = False,
) -> Explanation:
    """Return a finding about the candidate, with its place."""
    finding = Finding(cause, tuple(where), evidence, repair, confidence, harmless, case.facts.candidate)
    return Explanation(place, finding)


def name_side(where: Where) -> str:
    """Return `reference` or `candidate`."""
    return "candidate" if where else "reference"
