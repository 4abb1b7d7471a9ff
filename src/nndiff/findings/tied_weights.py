"""Weights that are one tensor on one side and several on the other: the gradient of the one is the sum of all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from nndiff.diagnosis.missing_gradients import Unpaired
from nndiff.diagnosis.site_pairs import SitePair
from nndiff.diagnosis.tensor_values import read_wide
from nndiff.findings.causes import Cause
from nndiff.result import SIDES, Finding
from nndiff.tensors import Slot, Stats, TensorRef

# How far the sums of all elements may be from adding up, as a share of what they could come to: rounding, no more.
SUMS_ADD_UP = 1e-3
_LARGEST_READ = 1 << 24  # elements: several tensors are held in memory
_MOST_TRIED = 16  # gradients without a partner


def find_untied(pairs: Sequence[SitePair], unpaired: Unpaired) -> Iterator[tuple[Finding, frozenset[str]]]:
    """Yield where weights are tied on one side only, each with the names of the gradients that explains."""
    differing = [site for site in pairs if site.slot is Slot.PARAM_GRAD and not site.passed]
    for side, gradients in enumerate(unpaired):
        alone = [gradient for gradient in gradients if gradient.site.slot is Slot.PARAM_GRAD][:_MOST_TRIED]
        for site in differing:
            terms = [gradient for gradient in alone if gradient.shape == site.reference.shape]
            choices = [[gradient] for gradient in terms]
            if len(terms) > 1:
                choices.append(terms)
            for choice in choices:
                if _adds_up(site, choice, side):
                    yield _describe_untied(site, choice, side), frozenset(gradient.name for gradient in choice)
                    break


def _adds_up(site: SitePair, terms: Sequence[TensorRef], side: int) -> bool:
    """Return True if the gradients a side has apart add up to the one of the other side."""
    apart, total = site.tensors[side], site.tensors[1 - side]
    if apart.shape != total.shape or apart.count > _LARGEST_READ:
        return False
    if any(tensor.missing for tensor in (apart, total, *terms)) or not _may_add_up([apart, *terms], total):
        return False
    summed = np.sum([read_wide(tensor) for tensor in (apart, *terms)], axis=0)
    return bool(np.allclose(summed, read_wide(total), atol=site.pair.atol, rtol=site.pair.rtol))


def _may_add_up(terms: Sequence[TensorRef], total: TensorRef) -> bool:
    """Return False if the recorded means prove that the tensors do not add up: that needs no reading."""
    stats: list[Stats] = []
    for tensor in (total, *terms):
        if tensor.trace.stats is None:
            return True
        stats.append(tensor.trace.stats)
    sums = [tensor_stats.mean * tensor_stats.count for tensor_stats in stats]
    most = sum(tensor_stats.l2 for tensor_stats in stats) * math.sqrt(max(1, total.count))
    return abs(sum(sums[1:]) - sums[0]) <= SUMS_ADD_UP * most


def _describe_untied(site: SitePair, terms: Sequence[TensorRef], side: int) -> Finding:
    apart_side, tied_side = SIDES[side], SIDES[1 - side]
    parameters = []
    for tensor in (site.tensors[side], *terms):
        parameters.append(f"{tensor.site.module}.{tensor.site.tensor}".lstrip("."))
    return Finding(
        Cause.UNTIED,
        (site.pair.name, *(gradient.name for gradient in terms)),
        f"tied in the {tied_side} only: the {apart_side}'s gradients of {' and '.join(parameters)} add up to one of "
        f"the {tied_side}",
        "tie the weights on both sides, or on neither",
        0.97,
    )
