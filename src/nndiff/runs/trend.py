"""How the distance of two trainings develops: growth, sudden jumps, leading parameters, which side is better."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nndiff.facts.runs import Growth, GrowthKind, Jump, SignTest, StepComparison, WeightDetails

FEWEST_POINTS = 4  # with fewer, any curve fits
CONSTANT_FACTOR = 2.0  # a distance that stays within this factor does not grow
LARGEST_RESIDUAL = 0.5  # of a fit, in natural logarithms: beyond it the curve is none of the known ones
JUMP_FACTOR = 10.0  # times the usual increase: growth by doubling from step to step stays below
JUMP_WINDOW = 5  # increases before a step that say what is usual
MOST_LEADERS = 5


def describe_growth(numbers: NDArray[np.int64], distances: NDArray[np.float64]) -> Growth | None:
    """Return how the relative distance of the weights grows over global step numbers; None without any."""
    if distances.size == 0 or not np.isfinite(distances).all():
        return None
    apart = np.flatnonzero(distances > 0)
    if apart.size == 0:
        return Growth(GrowthKind.NONE, 0.0, 0.0)
    start = int(apart[0])
    times = (numbers[start:] - numbers[start]).astype(np.float64)
    logs = np.log(np.maximum(distances[start:], np.finfo(float).tiny))
    first, last = float(distances[start]), float(distances[-1])
    if times.size < FEWEST_POINTS:
        return Growth(GrowthKind.IRREGULAR, first, last)
    if logs.max() - logs.min() < math.log(CONSTANT_FACTOR):
        return Growth(GrowthKind.CONSTANT, first, last)
    # exponential growth ends when the runs have nothing left in common: the fit is of what comes before
    rising = slice(0, max(FEWEST_POINTS, int(np.argmax(logs >= logs.max() - math.log(CONSTANT_FACTOR))) + 1))
    rate, offset = np.polyfit(times[rising], logs[rising], 1)
    exponential = _measure_residual(rate * times[rising] + offset, logs[rising])
    values = np.exp(logs[rising])
    increase, base = np.polyfit(times[rising], values, 1, w=1 / values)
    line = np.maximum(increase * times[rising] + base, values.min() / 10)
    linear = _measure_residual(np.log(line), logs[rising])
    if min(exponential, linear) > LARGEST_RESIDUAL or last < first:
        return Growth(GrowthKind.IRREGULAR, first, last)
    if exponential < linear:
        return Growth(GrowthKind.EXPONENTIAL, first, last, math.log(2) / float(rate))
    return Growth(GrowthKind.LINEAR, first, last)


def _measure_residual(fitted: NDArray[np.float64], logs: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(np.square(fitted - logs))))


def find_jumps(details: WeightDetails) -> tuple[Jump, ...]:
    """Return the steps at which the distance suddenly grows, and the parameter that grows most there."""
    squares = np.square(np.nan_to_num(details.l2))
    increases = np.diff(np.sqrt(squares.sum(axis=1)))
    jumps = []
    for place in range(JUMP_WINDOW, increases.size):
        usual = float(np.median(np.abs(increases[place - JUMP_WINDOW : place])))
        if usual > 0 and increases[place] > JUMP_FACTOR * usual:
            leader = int(np.argmax(squares[place + 1] - squares[place]))
            jumps.append(Jump(details.marks[place + 1], float(increases[place]) / usual, details.names[leader]))
    return tuple(jumps)


def find_leaders(details: WeightDetails) -> tuple[tuple[str, float], ...]:
    """Return the parameters with the largest shares of the squared distance at the last step."""
    if not details.marks:
        return ()
    squares = np.square(np.nan_to_num(details.l2[-1]))
    total = float(squares.sum())
    if not 0 < total < math.inf:
        return ()
    order = np.argsort(-squares, kind="stable")[:MOST_LEADERS]
    return tuple((details.names[index], float(squares[index]) / total) for index in order if squares[index] > 0)


def compare_losses(steps: Sequence[StepComparison], loss: str) -> SignTest | None:
    """Count at how many steps each side has the lower loss, and how likely chance is as one-sided."""
    losses = [step.scalars[loss] for step in steps if loss in step.scalars]
    losses = [pair for pair in losses if math.isfinite(pair[0]) and math.isfinite(pair[1])]
    lower_in_reference = sum(reference < candidate for reference, candidate in losses)
    lower_in_candidate = sum(candidate < reference for reference, candidate in losses)
    decided = lower_in_reference + lower_in_candidate
    if decided == 0:
        return None
    fewer = min(lower_in_reference, lower_in_candidate)
    tail = sum(math.comb(decided, count) for count in range(fewer + 1))
    p_value = min(1.0, 2 * tail / 2**decided)  # whole numbers of any size: the quotient is a float
    return SignTest(lower_in_reference, lower_in_candidate, len(losses) - decided, p_value)
