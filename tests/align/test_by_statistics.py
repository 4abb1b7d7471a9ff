"""Calls in long floats: near by their statistics, where these tell anything."""

from __future__ import annotations

import numpy as np
import pytest

from nndiff.align.by_statistics import near_calls
from nndiff.align.calls import Call
from nndiff.dtypes import DTYPES
from nndiff.tensors import NoData, Site, Slot, Stats, TensorRef, Trace


def call(name: str, numbers: np.ndarray) -> Call:
    """Return a call of which only statistics were kept."""
    stats = Stats(
        count=numbers.size,
        nonfinite=0,
        mean=float(numbers.mean()),
        std=float(numbers.std()),
        min=float(numbers.min()),
        max=float(numbers.max()),
        abs_max=float(np.abs(numbers).max()),
        l2=float(np.linalg.norm(numbers)),
    )
    trace = Trace(stats=stats, digest=name)
    tensor = TensorRef(
        f"{name}:output", numbers.shape, DTYPES["float32"], NoData("not kept"), None, Site(name, Slot.OUTPUT), trace
    )
    return Call(name, 0, "Linear", 0, (tensor,), True)


def are_paired(reference: np.ndarray, candidate: np.ndarray) -> bool:
    return bool(list(near_calls([call("r", reference)], [call("c", candidate)])))


NUMBERS = np.random.default_rng(0).standard_normal(1000)


@pytest.mark.parametrize(("factor", "expected"), [(1 + 0.7e-4, True), (1 + 2e-4, False)])
def test_statistics_are_near_within_rounding(factor: float, expected: bool) -> None:
    assert are_paired(NUMBERS, factor * NUMBERS) is expected


@pytest.mark.parametrize("changed", [0, 1])
def test_one_statistic_that_is_off_is_enough(changed: int) -> None:
    """The extremes of two normed tensors tell them apart where mean, spread and length are equal."""
    candidate = NUMBERS.copy()
    candidate[np.argsort(NUMBERS)[-changed]] *= 1.01
    assert not are_paired(NUMBERS, candidate)


@pytest.mark.parametrize(("count", "expected"), [(15, False), (16, True)])
def test_statistics_of_few_elements_tell_nothing(count: int, expected: bool) -> None:
    assert are_paired(NUMBERS[:count], NUMBERS[:count]) is expected


def test_constants_tell_nothing() -> None:
    assert not are_paired(np.full(100, 0.5), np.full(100, 0.5))
