"""How far the tensors of one step of two runs are apart: each tensor, and groups of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nndiff.facts.runs import GroupNumbers
from nndiff.runs.case import read_row
from nndiff.runs.run import StepTensors
from nndiff.stats import Job
from nndiff.stats.engine import get_engine
from nndiff.stats.sketches import relative_error

L2, MIN, MAX, NONFINITE = 0, 3, 4, 5  # columns of StepTensors.statistics

NOISE_SHARE_OF_KIND = 0.1  # in float32 every gradient has noise of some 1e-7 of the largest one of its step

MISSING = -1  # the row of a tensor that a step lacks: it counts as zeros


@dataclass(frozen=True)
class RowPairs:
    """Say which rows of two steps belong together, by the reference's names; MISSING stands for a tensor that lacks."""

    names: tuple[str, ...]
    reference: NDArray[np.int64]
    candidate: NDArray[np.int64]
    atols: NDArray[np.float64]
    rtols: NDArray[np.float64]  # 0 for whole numbers
    scales: NDArray[np.int64]  # 0: judged as it is; tensors of another number are judged on the scale of their like


@dataclass(frozen=True)
class Distances:
    """Hold the distance of each pair of tensors; arrays of one entry per pair."""

    names: tuple[str, ...]
    identical: NDArray[np.bool_]
    out: NDArray[np.bool_]  # out of tolerance
    known: NDArray[np.bool_]  # False where what was kept does not tell the distance
    l2: NDArray[np.float64]
    reference_l2: NDArray[np.float64]
    candidate_l2: NDArray[np.float64]
    max_abs: NDArray[np.float64]  # NaN where only sketches were kept
    error: NDArray[np.float64]  # one standard deviation of l2, relative; 0 where it is exact

    def select(self, chosen: NDArray[np.bool_]) -> Distances:
        """Return the distances of some of the pairs."""
        return Distances(
            tuple(name for name, is_chosen in zip(self.names, chosen, strict=True) if is_chosen),
            self.identical[chosen],
            self.out[chosen],
            self.known[chosen],
            self.l2[chosen],
            self.reference_l2[chosen],
            self.candidate_l2[chosen],
            self.max_abs[chosen],
            self.error[chosen],
        )

    @property
    def worst_name(self) -> str | None:
        """Return the tensor that is farthest out relative to its size: one that is out of tolerance, else any."""
        if not self.names:
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.where(self.l2 > 0, self.l2 / self.reference_l2, 0.0)
        relative = np.where(np.isnan(relative), np.inf, relative)
        if self.out.any():
            relative = np.where(self.out, relative, -1.0)
        return self.names[int(np.argmax(relative))]


def measure_distances(reference: StepTensors, candidate: StepTensors, pairs: RowPairs) -> Distances:
    """Return how far the paired tensors of two steps are apart.

    Equal digests are equal tensors. Whole tensors are measured by the engine, element by element; so are tensors whose
    rows are all their elements. Of sketches the L2 distance is known, and judged by what the rule for elements allows
    at most: atol * sqrt(n) + rtol * |reference|. A tensor that one side lacks (no gradient, no state) counts as zeros.
    """
    is_lone = (pairs.reference == MISSING) | (pairs.candidate == MISSING)
    statistics = []
    for tensors, rows in ((reference, pairs.reference), (candidate, pairs.candidate)):
        statistics.append(np.where((rows == MISSING)[:, None], 0.0, np.nan_to_num(tensors.statistics[rows])))
    sizes = [np.abs(side[:, [MIN, MAX]]).max(axis=1, initial=0.0) for side in statistics]
    same_digests = (reference.digests[pairs.reference] == candidate.digests[pairs.candidate]).all(axis=1)
    count = len(pairs.names)
    distances = Distances(
        pairs.names,
        identical=same_digests & ~is_lone,
        out=statistics[0][:, NONFINITE] != statistics[1][:, NONFINITE],
        known=np.ones(count, bool),
        l2=np.where(is_lone, statistics[0][:, L2] + statistics[1][:, L2], 0.0),
        reference_l2=statistics[0][:, L2],
        candidate_l2=statistics[1][:, L2],
        max_abs=np.where(is_lone, np.maximum(sizes[0], sizes[1]), 0.0),
        error=np.zeros(count),
    )
    pairs = replace(pairs, atols=_scale_atols(pairs, sizes[0]))
    distances.out[is_lone] |= distances.max_abs[is_lone] > pairs.atols[is_lone]
    _measure_pairs(distances, reference, candidate, pairs, np.flatnonzero(~is_lone & ~distances.identical))
    # sketches take what is not finite for zeros: no distance follows from that
    is_finite = (statistics[0][:, NONFINITE] == 0) & (statistics[1][:, NONFINITE] == 0)
    distances.l2[~is_finite & ~distances.identical] = math.nan
    distances.max_abs[~is_finite & ~distances.identical] = math.nan
    return distances


def _scale_atols(pairs: RowPairs, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the absolute tolerance of each pair; gradients and states below 1 have it on their own scale."""
    atols: NDArray[np.float64] = pairs.atols.copy()
    for scale in np.unique(pairs.scales[pairs.scales > 0]):
        alike = pairs.scales == scale
        floor = NOISE_SHARE_OF_KIND * sizes[alike].max(initial=0.0)
        atols[alike] *= np.minimum(1.0, np.maximum(sizes[alike], floor))
    return atols


def _measure_pairs(
    distances: Distances,
    reference: StepTensors,
    candidate: StepTensors,
    pairs: RowPairs,
    indexes: NDArray[np.int64],
) -> None:
    """Measure the pairs that are not the same bit for bit, each by what was kept of it."""
    whole, sketched = [], []
    for index in indexes:
        rows = int(pairs.reference[index]), int(pairs.candidate[index])
        if reference.shapes[rows[0]] != candidate.shapes[rows[1]]:
            distances.l2[index], distances.max_abs[index], distances.out[index] = math.inf, math.inf, True
        elif reference.counts[rows[0]] == 0:
            continue  # nothing was kept of an empty tensor, and nothing in it can differ
        elif reference.whole(rows[0]) is not None and candidate.whole(rows[1]) is not None:
            whole.append(index)
        elif reference.kept_widths[rows[0]] and candidate.kept_widths[rows[1]]:
            sketched.append(index)
        else:  # statistics alone: norms bound the distance from below
            least = abs(distances.reference_l2[index] - distances.candidate_l2[index])
            limit = pairs.atols[index] * math.sqrt(reference.counts[rows[0]])
            distances.out[index] |= least > limit + pairs.rtols[index] * distances.reference_l2[index]
            distances.known[index] = False
            distances.l2[index] = distances.max_abs[index] = math.nan
    _measure_whole(distances, reference, candidate, pairs, whole)
    if sketched:
        _measure_rows(distances, reference, candidate, pairs, np.array(sketched))


def _measure_whole(
    distances: Distances,
    reference: StepTensors,
    candidate: StepTensors,
    pairs: RowPairs,
    indexes: Sequence[int],
) -> None:
    """Fill in the pairs of which both sides kept all elements in their own type."""
    jobs = []
    for index in indexes:
        tensors = reference.whole(int(pairs.reference[index])), candidate.whole(int(pairs.candidate[index]))
        assert tensors[0] is not None  # the caller has looked
        assert tensors[1] is not None
        jobs.append(Job(tensors[0], tensors[1], float(pairs.atols[index]), float(pairs.rtols[index])))
    for index, job, metrics in zip(indexes, jobs, get_engine().measure(jobs), strict=True):
        distances.l2[index], distances.max_abs[index] = metrics.l2, metrics.max_abs
        distances.out[index] = bool(metrics.mismatched)
        distances.identical[index] = metrics.unequal == 0 and job.reference.dtype == job.candidate.dtype


def _measure_rows(
    distances: Distances,
    reference: StepTensors,
    candidate: StepTensors,
    pairs: RowPairs,
    indexes: NDArray[np.int64],
) -> None:
    """Fill in the pairs of which sketches, or all elements as float32, were kept: one row of numbers each."""
    rows = pairs.reference[indexes], pairs.candidate[indexes]
    counts = reference.counts[rows[0]]
    widths = np.minimum(reference.kept_widths[rows[0]], candidate.kept_widths[rows[1]])
    base = _gather_rows(reference, rows[0], widths)
    difference = np.abs(_gather_rows(candidate, rows[1], widths) - base)
    starts = np.cumsum(widths) - widths
    is_whole = widths == counts
    allowed = np.repeat(pairs.atols[indexes], widths) + np.repeat(pairs.rtols[indexes], widths) * np.abs(base)
    l2 = np.sqrt(np.add.reduceat(np.square(difference), starts))
    out = np.where(
        is_whole,
        np.logical_or.reduceat(difference > allowed, starts),
        l2 > pairs.atols[indexes] * np.sqrt(counts) + pairs.rtols[indexes] * distances.reference_l2[indexes],
    )
    distances.l2[indexes] = l2
    distances.out[indexes] |= out
    distances.max_abs[indexes] = np.where(is_whole, np.maximum.reduceat(difference, starts), np.nan)
    distances.error[indexes] = np.where(is_whole, 0.0, relative_error(1) / np.sqrt(widths))


def _gather_rows(tensors: StepTensors, rows: NDArray[np.int64], widths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return rows of these widths one after the other; the usual case, all as they are stored, copies once."""
    is_stored = not tensors.tensors and bool((tensors.widths[rows] == widths).all())
    if is_stored and rows.size and bool((np.diff(rows) == 1).all()):
        return tensors.sketches[tensors.offsets[rows[0]] : tensors.offsets[rows[-1] + 1]].astype(np.float64)
    pieces = []
    for row, width in zip(rows.tolist(), widths.tolist(), strict=True):
        pieces.append(tensors.sketch(row) if is_stored else read_row(tensors, row, width))
    return np.concatenate(pieces).astype(np.float64)


def sum_up_group(distances: Distances) -> GroupNumbers | None:
    """Return the numbers of a group of tensors, taken as one long vector; None for an empty group."""
    if not distances.names:
        return None
    squares = np.square(distances.l2)
    reference_squares, candidate_squares = np.square(distances.reference_l2), np.square(distances.candidate_l2)
    l2, norm = math.sqrt(float(squares.sum())), math.sqrt(float(reference_squares.sum()))
    product = float((reference_squares + candidate_squares - squares).sum()) / 2
    lengths = norm * math.sqrt(float(candidate_squares.sum()))
    if l2 == 0:
        cosine = 1.0
    else:
        cosine = min(1.0, max(-1.0, product / lengths)) if lengths > 0 and math.isfinite(product) else math.nan
    error = 0.0
    if l2 > 0 and math.isfinite(l2):
        error = math.sqrt(float(np.square(2 * distances.error * squares).sum())) / (2 * l2 * l2)
    knows_max = not np.isnan(distances.max_abs).any()
    farthest = int(np.argmax(np.where(np.isnan(distances.l2), -1.0, distances.l2)))
    largest = int(np.argmax(distances.max_abs)) if knows_max else 0
    return GroupNumbers(
        l2=l2,
        rel_l2=l2 / norm if norm > 0 else (0.0 if l2 == 0 else math.inf),
        cosine=cosine,
        max_abs=float(distances.max_abs[largest]) if knows_max else None,
        max_abs_name=distances.names[largest] if knows_max and l2 > 0 else None,
        mean_l2=float(distances.l2.mean()),
        max_l2=float(distances.l2[farthest]),
        max_l2_name=distances.names[farthest] if l2 > 0 else None,
        error=error,
        tensors=len(distances.names),
        identical=int(distances.identical.sum()),
        out=int(distances.out.sum()),
    )
