"""Sites that agree once their axes are put in another order or one side is repeated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from nndiff.divergence import SitePair
from nndiff.result import Finding
from nndiff.verdict import Verdict

_LARGEST = 1 << 24  # elements: both sides are held in memory
_MOST_AXES = 5
_MOST_TRIED = 40


def layout_findings(sites: Sequence[SitePair]) -> Iterator[Finding]:
    """Yield what would agree after a rearrangement; it is said, and never called equal."""
    tried = 0
    for site in sites:
        if not _worth_a_look(site) or tried >= _MOST_TRIED:
            continue
        tried += 1
        one, other = (side.numpy().astype(np.float64) for side in (site.reference, site.candidate))
        axes = _permutation(one, other, site.pair.atol, site.pair.rtol)
        if axes is not None:
            yield Finding(
                "permuted",
                (site.pair.name,),
                f"the candidate's axes {axes} are the reference's in order: {list(other.shape)} to {list(one.shape)}",
                f"permute{axes} on the candidate's side",
                0.99,
            )
        elif _broadcasts(one, other, site.pair.atol, site.pair.rtol):
            yield Finding(
                "broadcast",
                (site.pair.name,),
                f"one side is the other repeated: shapes {list(one.shape)} and {list(other.shape)}",
                "expand the smaller side, or drop the repeated axis",
                0.95,
            )


def _worth_a_look(site: SitePair) -> bool:
    one, other = site.reference, site.candidate
    if site.passed or one.missing or other.missing or max(one.count, other.count) > _LARGEST or not one.count:
        return False
    if site.pair.verdict is Verdict.SHAPE:
        return True
    # of the same shape: only where an axis can be exchanged for another of its size and little else is alike
    repeated = len(set(one.shape)) < len([size for size in one.shape if size > 1])
    metrics = site.pair.metrics
    return repeated and metrics is not None and not metrics.cosine > 0.99


def _permutation(
    one: NDArray[np.float64], other: NDArray[np.float64], atol: float, rtol: float
) -> tuple[int, ...] | None:
    if one.ndim != other.ndim or one.ndim > _MOST_AXES or sorted(one.shape) != sorted(other.shape):
        return None
    for axes in permutations(range(one.ndim)):
        if axes == tuple(range(one.ndim)):
            continue
        turned = other.transpose(axes)
        if turned.shape == one.shape and np.allclose(turned, one, atol=atol, rtol=rtol, equal_nan=True):
            return axes
    return None


def _broadcasts(one: NDArray[np.float64], other: NDArray[np.float64], atol: float, rtol: float) -> bool:
    if one.shape == other.shape:
        return False
    try:
        wide = np.broadcast_shapes(one.shape, other.shape)
    except ValueError:
        return False
    if np.prod(wide) > _LARGEST:
        return False
    return bool(
        np.allclose(np.broadcast_to(other, wide), np.broadcast_to(one, wide), atol=atol, rtol=rtol, equal_nan=True)
    )
