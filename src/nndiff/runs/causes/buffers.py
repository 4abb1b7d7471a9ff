"""Running statistics of batch norm: kept with another momentum, or not kept at all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nndiff.findings.causes import Cause
from nndiff.runs.case import RunCase, Where
from nndiff.runs.causes.algebra import ROUNDINGS, SINGLE_ROUNDOFF, Fit, Row, fit_columns
from nndiff.runs.causes.onset import Explanation, Onset, explain, is_unchanged, list_unequal, name_side, name_step
from nndiff.runs.run import TensorKind
from nndiff.text import first_few, plural

_STATISTICS = ("running_mean", "running_var")
_COUNTER = "num_batches_tracked"
_REPAIR = "give batch norm the same momentum on both sides; other frameworks call 1 - m what PyTorch calls m"
_SAME_MOMENTUM = 1e-2  # relative: what layers with few channels leave of one momentum


def find_buffers(onset: Onset) -> Iterator[Explanation]:
    """Yield that batch norm is in eval mode on one side, or moves its statistics by another momentum."""
    case, place = onset.case, onset.place
    if not onset.same_start:
        return
    names = [name for name in case.names if name.rpartition(".")[2] in _STATISTICS]
    for where in Where:
        still = []
        for name in names:
            fixed, partner_fixed = (
                is_unchanged(case, side, place, onset.before, TensorKind.BUFFER, name)
                for side in (where, Where(1 - where))
            )
            if fixed and not partner_fixed:
                still.append(name)
        if still:
            layers = {name.rpartition(".")[0] for name in still}
            evidence = (
                f"{name_step(case, place)}: the {name_side(where)} leaves the running statistics of "
                f"{plural(len(layers), 'batch norm layer')} as they are, the other side moves them ({first_few(still)})"
            )
            repair = (
                f"the {name_side(where)} trains with these layers in eval mode (or track_running_stats=False): call "
                "model.train() on both sides, or eval() on the same layers"
            )
            yield explain(case, place, Cause.BATCH_NORM_MODE, still, evidence, repair, 0.95)
            return
    yield from _find_momentum(onset, names)


def _find_momentum(onset: Onset, names: list[str]) -> Iterator[Explanation]:
    """Yield that running statistics move by another share of the way to those of the same batch."""
    case, place = onset.case, onset.place
    shared = [name for name in names if (_count_passes(case, place, name) or 0) > 1]
    if shared:
        yield from _find_momentum_of_passes(onset, shared)
        return
    ratios: dict[str, float] = {}
    for name in names:
        fit = _fit_moves(case, place, name)
        if fit is not None and fit.reproduces and fit.differs(0, 1.0):
            ratios[name] = float(fit.coefficients[0])
    if not ratios:
        return
    ratio = float(np.median(list(ratios.values())))
    if any(abs(value - ratio) > _SAME_MOMENTUM * abs(ratio) for value in ratios.values()):
        return
    momentum = _solve_momentum(case, place + 1, list(ratios))
    values = f" (momentum {momentum / ratio:.3g} against {momentum:.3g})" if momentum is not None else ""
    evidence = (
        f"{name_step(case, place)}: the candidate moves the running statistics of batch norm {ratio:.4g} times as far "
        f"as the reference does{values}: {first_few(list(ratios))}"
    )
    yield explain(case, place, Cause.BATCH_NORM_MOMENTUM, list(ratios), evidence, _REPAIR, 0.95)


def _find_momentum_of_passes(onset: Onset, names: list[str]) -> Iterator[Explanation]:
    """Yield that layers that are used several times in a step keep their statistics differently.

    The statistics of the single passes are not known, so the momentum cannot be solved for. But gradients that are
    equal bit for bit went through equal activations, and what is left to differ is the momentum.
    """
    case, place = onset.case, onset.place
    unequal = [name for name in list_unequal(case, place, TensorKind.BUFFER) if name in names]
    statistics = {name.rpartition(".")[2] for name in unequal}
    if statistics != set(_STATISTICS) or not onset.equal_start or not onset.has_gradients or onset.has_drift:
        return
    lengths = np.zeros(2)
    for name in unequal:
        rows = _read_moves(case, place, name)
        if rows is None:
            return
        lengths += [float(np.square(move).sum()) for move in rows[:2]]
    ratio = float(np.sqrt(lengths[1] / lengths[0])) if lengths[0] else np.inf
    evidence = (
        f"{name_step(case, place)}: the candidate moves the running statistics of batch norm about {ratio:.3g} times "
        f"as far as the reference does, while data and gradients are equal bit for bit: {first_few(unequal)}"
    )
    yield explain(case, place, Cause.BATCH_NORM_MOMENTUM, unequal, evidence, _REPAIR, 0.9)


def _count_passes(case: RunCase, place: int, name: str) -> int | None:
    """Return how often both runs used the layer of a buffer in a step; None if that differs or is not known."""
    counter = f"{name.rpartition('.')[0]}.{_COUNTER}"
    passes = set()
    for where in Where:
        before, after = (case.row(where, moment, TensorKind.BUFFER, counter) for moment in (place - 1, place))
        if before is None or after is None:
            return None
        passes.add(round(float(after[0] - before[0])))
    return passes.pop() if len(passes) == 1 else None


def _read_moves(case: RunCase, place: int, name: str) -> tuple[Row, Row, Row, Row] | None:
    """Return how far a buffer moves in both runs, and where it was before in both."""
    moves, starts = [], []
    for where in Where:
        before, after = (case.row(where, moment, TensorKind.BUFFER, name) for moment in (place - 1, place))
        if before is None or after is None:
            return None
        moves.append(after - before)
        starts.append(before)
    return moves[0], moves[1], starts[0], starts[1]


def _fit_moves(case: RunCase, place: int, name: str) -> Fit | None:
    rows = _read_moves(case, place, name)
    if rows is None or not rows[0].any():
        return None
    reference, candidate, start, _ = rows
    lengths = float(np.linalg.norm(start) + np.linalg.norm(reference) + np.linalg.norm(candidate))
    return fit_columns(candidate, [reference], 2 * ROUNDINGS * SINGLE_ROUNDOFF * lengths)


def _solve_momentum(case: RunCase, place: int, names: list[str]) -> float | None:
    """Return the candidate's momentum from the step after the one at which the buffers part.

    With r the ratio of the momenta and the same batch statistics on both sides, the candidate's move is r times the
    reference's plus its momentum times the distance that the buffers had before.
    """
    if place >= len(case.steps) or not case.is_consecutive(place):
        return None
    targets, moves, gaps = [], [], []
    for name in names:
        rows = _read_moves(case, place, name)
        if rows is None:
            return None
        targets.append(rows[1])
        moves.append(rows[0])
        gaps.append(rows[2] - rows[3])
    target, move, gap = (np.concatenate(rows) for rows in (targets, moves, gaps))
    lengths = float(sum(np.linalg.norm(row) for row in (target, move, gap)))
    starts = [case.row(Where.REFERENCE, place - 1, TensorKind.BUFFER, name) for name in names]
    lengths += float(sum(np.linalg.norm(start) for start in starts if start is not None))
    fit = fit_columns(target, [move, gap], 4 * ROUNDINGS * SINGLE_ROUNDOFF * lengths)
    return float(fit.coefficients[1]) if fit is not None and fit.reproduces else None
