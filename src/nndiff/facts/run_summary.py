"""What the steps of two training runs come to: curves over the steps, and their mean, extremes and last value."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import TypeVar

from nndiff.facts.runs import ALL, GroupNumbers, RunFacts, StepComparison

WEIGHTS, GRADIENTS, OPTIMIZER = "weights", "gradients", "optimizer"
_LOSS_NAME = "loss"
_ACCURACY_NAMES = ("acc", "accuracy")
_LOG_SPAN = 100.0  # a curve that spans more shows nothing of its small values on a linear axis
_T = TypeVar("_T")


class CurveKind(str, Enum):
    """Say what a curve is of: what is worst in it, and how it is drawn."""

    DISTANCE = "distance"  # from 0 up: the largest is worst
    COSINE = "cosine"  # from 1 down: the smallest is worst
    LEVEL = "level"  # a loss or an accuracy of one side


class Panel(str, Enum):
    """Name a picture of curves that belong together."""

    WEIGHT_L2 = "weight L2"
    WEIGHT_COSINE = "weight cosine"
    LOSS = "loss"
    LOSS_DIFFERENCE = "loss difference"
    ACCURACY = "accuracy"
    ACCURACY_DIFFERENCE = "accuracy difference"


@dataclass(frozen=True)
class Spread:
    """Sum up a curve; what is not finite is counted and left out."""

    mean: float
    low: float
    high: float
    last: float
    finite: int
    not_finite: int


@dataclass(frozen=True)
class Curve:
    """Hold one number over the steps; None where a step does not have it."""

    key: str  # as in the columns of a CSV file: weights.all.l2, loss.reference
    label: str
    kind: CurveKind
    values: tuple[float | None, ...]  # one for each step of the comparison
    panel: Panel | None = None  # where it is drawn

    @property
    def numbers(self) -> list[float]:
        """Return the values that are there and finite."""
        return [value for value in self.values if value is not None and math.isfinite(value)]

    @property
    def places(self) -> list[int]:
        """Return the places of the steps that have a value: scalars are kept at all, tensors at every so many."""
        return [place for place, value in enumerate(self.values) if value is not None]

    def thin(self, width: int) -> list[tuple[int, float]]:
        """Return at most `width` of the values, each with its place.

        Where steps share one, it is the worst of them, of a level their mean, and NaN if any of them is not finite.
        """
        points = []
        for share in split_evenly(self.places, width):
            values = [value for value in (self.values[place] for place in share) if value is not None]
            if not all(map(math.isfinite, values)):
                merged = math.nan
            elif self.kind is CurveKind.LEVEL:
                merged = sum(value / len(values) for value in values)
            else:
                merged = min(values) if self.kind is CurveKind.COSINE else max(values)
            points.append((share[0], merged))
        return points

    @property
    def spread(self) -> Spread | None:
        """Return mean, extremes and last value; None where there is no number at all."""
        present = [value for value in self.values if value is not None]
        finite = self.numbers
        if not present:
            return None
        if not finite:
            return Spread(math.nan, math.nan, math.nan, present[-1], 0, len(present))
        low, high = min(finite), max(finite)
        mean = sum(value / len(finite) for value in finite)  # no sum that overflows
        mean = min(max(mean, low), high)  # rounding must not put the mean of equal values beside them
        return Spread(mean, low, high, present[-1], len(finite), len(present) - len(finite))


def split_evenly(items: Sequence[_T], width: int) -> list[Sequence[_T]]:
    """Return the items in at most `width` neighbouring shares of about the same size."""
    count = min(width, len(items))
    places = [number * len(items) // max(1, count) for number in range(count + 1)]
    return [items[begin:end] for begin, end in pairwise(places)]


def share_limits(curve: Curve, curves: Sequence[Curve]) -> tuple[float, float] | None:
    """Return the limits that both sides of a scalar are drawn between, so that they can be compared."""
    if curve.kind is not CurveKind.LEVEL:
        return None
    numbers = [number for item in curves if item.panel is curve.panel for number in item.numbers]
    return (min(numbers), max(numbers)) if numbers else None


def fits_log_axis(values: Sequence[float]) -> bool:
    """Return True if values without a sign span so much that a linear axis would hide most of them."""
    positive = [value for value in values if value > 0]
    return bool(positive) and min(values) >= 0 and max(positive) / _LOG_SPAN > min(positive)


def list_groups(steps: Sequence[StepComparison]) -> list[str]:
    """Return the groups of weights that any step has, all parameters first."""
    names = dict.fromkeys(name for step in steps for name in step.groups)
    return sorted(names, key=lambda name: name != ALL)


def list_scalars(steps: Sequence[StepComparison]) -> list[str]:
    """Return the scalars that any step has on both sides, in the order of their appearance."""
    return list(dict.fromkeys(name for step in steps for name in step.scalars))


def is_loss(name: str) -> bool:
    """Return True for a scalar that is a loss by its name: it counts for the verdict, other scalars are shown."""
    return _LOSS_NAME in name.lower()


def choose_loss(steps: Sequence[StepComparison]) -> str | None:
    """Return the scalar that is the loss: `loss`, or else the first with loss in its name."""
    losses = [name for name in list_scalars(steps) if is_loss(name)]
    if _LOSS_NAME in losses:
        return _LOSS_NAME
    return losses[0] if losses else None


def choose_accuracy(steps: Sequence[StepComparison]) -> str | None:
    """Return the scalar that is the accuracy: `acc` or `accuracy`, in any case."""
    return next((name for name in list_scalars(steps) if name.lower() in _ACCURACY_NAMES), None)


def draw_curves(facts: RunFacts) -> list[Curve]:
    """Return every curve of a comparison that has a value: weights by group, gradients, optimiser, loss, accuracy."""
    steps = facts.steps
    curves: list[Curve] = []
    for group in list_groups(steps):
        curves += draw_group(steps, WEIGHTS, group)
    for quantity in (GRADIENTS, OPTIMIZER):
        curves += draw_group(steps, quantity, ALL)
    loss, accuracy = choose_loss(steps), choose_accuracy(steps)
    if loss is not None:
        curves += draw_scalar(steps, loss, Panel.LOSS, Panel.LOSS_DIFFERENCE)
    if accuracy is not None:
        curves += draw_scalar(steps, accuracy, Panel.ACCURACY, Panel.ACCURACY_DIFFERENCE)
    return [curve for curve in curves if curve.spread is not None]


def draw_group(steps: Sequence[StepComparison], quantity: str, group: str) -> Iterator[Curve]:
    """Yield L2 and cosine of a group of tensors over the steps."""
    words = {WEIGHTS: "weight", GRADIENTS: "gradient", OPTIMIZER: "optimizer"}
    of_group = "" if group == ALL else f", {group}"
    distances: list[float | None] = []
    cosines: list[float | None] = []
    for step in steps:
        numbers = (get_groups(step, quantity) or {}).get(group)
        distances.append(None if numbers is None else numbers.l2)
        cosines.append(None if numbers is None else numbers.cosine)
    yield Curve(
        f"{quantity}.{group}.l2",
        f"{words[quantity]} L2{of_group}",
        CurveKind.DISTANCE,
        tuple(distances),
        Panel.WEIGHT_L2 if quantity == WEIGHTS else None,
    )
    yield Curve(
        f"{quantity}.{group}.cosine",
        f"{words[quantity]} cosine{of_group}",
        CurveKind.COSINE,
        tuple(cosines),
        Panel.WEIGHT_COSINE if quantity == WEIGHTS else None,
    )


def get_groups(step: StepComparison, quantity: str) -> Mapping[str, GroupNumbers] | None:
    """Return the numbers of one quantity at a step, by group."""
    return {WEIGHTS: step.groups, GRADIENTS: step.gradients, OPTIMIZER: step.optimizer}[quantity]


def draw_scalar(steps: Sequence[StepComparison], name: str, panel: Panel, apart_panel: Panel) -> Iterator[Curve]:
    """Yield a scalar of both sides over the steps, and how far apart they are."""
    pairs = [step.scalars.get(name) for step in steps]
    references = tuple(None if pair is None else pair[0] for pair in pairs)
    candidates = tuple(None if pair is None else pair[1] for pair in pairs)
    apart = tuple(None if pair is None else abs(pair[1] - pair[0]) for pair in pairs)
    title = panel.value
    yield Curve(f"{name}.reference", f"{title}, reference", CurveKind.LEVEL, references, panel)
    yield Curve(f"{name}.candidate", f"{title}, candidate", CurveKind.LEVEL, candidates, panel)
    yield Curve(f"{name}.difference", f"{title} difference", CurveKind.DISTANCE, apart, apart_panel)


def largest_error(facts: RunFacts) -> float:
    """Return the largest relative standard deviation of any L2: 0 where whole tensors were compared."""
    largest = 0.0
    for step in facts.steps:
        for quantity in (WEIGHTS, GRADIENTS, OPTIMIZER):
            for numbers in (get_groups(step, quantity) or {}).values():
                largest = max(largest, numbers.error)
    return largest
