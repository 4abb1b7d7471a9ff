"""Narrowing: what was joined of parts is tried again without those that are equal on both sides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nndiff.diagnosis.trials import Trial
from nndiff.dtypes import from_numpy
from nndiff.findings.hypotheses.operands import Array, is_forward_trial
from nndiff.tensors import MemoryData, TensorRef
from nndiff.tolerance import NOISE_FACTOR


def narrow_trial(trial: Trial) -> tuple[Trial, str] | None:
    """Return the trial of the places along one axis at which the sides differ, and which they are.

    None if they are no block, or all there is. Samples of a batch are no parts.
    """
    if not is_forward_trial(trial) or trial.reference.shape != trial.candidate.shape:
        return None
    sides = trial.reference_values, trial.candidate_values
    if not (np.isfinite(sides[0]).all() and np.isfinite(sides[1]).all()):
        return None
    differs = np.abs(sides[1] - sides[0]) > NOISE_FACTOR * trial.noise
    for axis in range(differs.ndim - 1, 0, -1):
        places = np.flatnonzero(differs.any(tuple(other for other in range(differs.ndim) if other != axis)))
        if not len(places) or len(places) == differs.shape[axis] or places[-1] - places[0] + 1 > len(places):
            continue
        part = slice(int(places[0]), int(places[-1]) + 1)
        names = f"at places {part.start} to {part.stop - 1} along axis {axis}, the only ones that differ"
        cut = [_cut_tensor(tensor, values, axis, part) for tensor, values in _list_sides(trial)]
        return replace(trial, reference=cut[0], candidate=cut[1]), names
    return None


def _list_sides(trial: Trial) -> list[tuple[TensorRef, Array]]:
    return [(trial.reference, trial.reference_values), (trial.candidate, trial.candidate_values)]


def _cut_tensor(tensor: TensorRef, values: Array, axis: int, part: slice) -> TensorRef:
    taken = np.ascontiguousarray(values[(slice(None),) * axis + (part,)])
    dtype = from_numpy(taken.dtype)
    assert dtype is not None, "float64 is a dtype"
    trace = replace(tensor.trace, digest=None, stats=None, sketch=None)
    return replace(tensor, shape=taken.shape, dtype=dtype, data=MemoryData(taken), trace=trace)
