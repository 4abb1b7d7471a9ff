"""Weights that are one tensor on one side and two on the other: the gradient of the one is the sum of both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.lost import SIDES, Left
from nndiff.result import Finding
from nndiff.sites import SitePair
from nndiff.tensors import Stats, TensorRef

_LARGEST = 1 << 24  # elements: several are held in memory
_ALIKE = 1e-3
_MOST = 16  # gradients without a partner that are looked at


def untied(sites: Sequence[SitePair], left: Left) -> Iterator[tuple[Finding, frozenset[str]]]:
    """Yield where weights are tied on one side only, each with the names of the gradients that explains."""
    failing = [site for site in sites if site.slot == "param_grad" and not site.passed]
    for number, tensors in enumerate(left):
        alone = [each for each in tensors if each.site.slot == "param_grad"][:_MOST]
        for site in failing:
            parts = [each for each in alone if each.shape == site.reference.shape]
            for some in (*([each] for each in parts), parts if len(parts) > 1 else []):
                if some and _adds_up(site, some, number):
                    yield _finding(site, some, number), frozenset(each.name for each in some)
                    break


def _adds_up(site: SitePair, parts: Sequence[TensorRef], number: int) -> bool:
    """Tell whether what a side has in several gradients, the other has in one."""
    apart, whole = (site.reference, site.candidate)[:: -1 if number else 1]
    if apart.shape != whole.shape or apart.count > _LARGEST or any(each.missing for each in (apart, whole, *parts)):
        return False
    if not _may_add_up(apart, whole, parts):
        return False
    total = np.sum([_wide(each) for each in (apart, *parts)], axis=0)
    return bool(np.allclose(total, _wide(whole), atol=site.pair.atol, rtol=site.pair.rtol))


def _may_add_up(apart: TensorRef, whole: TensorRef, parts: Sequence[TensorRef]) -> bool:
    """Tell whether the sums of all elements add up, where statistics were taken: that needs no reading."""
    tensors = whole, apart, *parts
    stats: list[Stats] = [each.trace.stats for each in tensors if each.trace.stats]
    if len(stats) < len(tensors):
        return True
    total, *others = [each.mean * each.count for each in stats]
    most = sum(each.l2 for each in stats) * math.sqrt(max(1, whole.count))  # what they could come to
    return abs(sum(others) - total) <= _ALIKE * most


def _wide(tensor: TensorRef) -> NDArray[Any]:
    numbers = tensor.numpy()
    return numbers.astype(np.complex128 if np.iscomplexobj(numbers) else np.float64)


def _finding(site: SitePair, parts: Sequence[TensorRef], number: int) -> Finding:
    here, there = SIDES[number], SIDES[1 - number]
    names = [each.name.partition(":")[0] for each in (site.candidate if number else site.reference, *parts)]
    return Finding(
        "untied",
        (site.pair.name, *(each.name for each in parts)),
        f"tied in the {there}, not in the {here}: its gradients of {' and '.join(names)} add up to the {there}'s one",
        "tie them, or keep them apart, on both sides",
        0.97,
    )
