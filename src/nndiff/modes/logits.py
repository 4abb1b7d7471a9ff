"""How two models choose: KL divergence and agreement of their first choices."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from nndiff.facts.modes import LogitFacts
from nndiff.modes.folder import LayerOutput

_BLOCK = 1 << 18  # elements in float64
_FEW = 5  # choices


def compare_logits(reference: LayerOutput, candidate: LayerOutput) -> LogitFacts:
    """Return how far the choices of two outputs of equal shapes agree, over all rows of all samples."""
    rows = same = among_few = 0
    divergence = 0.0
    is_trivial = False
    for ref, cand in zip(reference.parts, candidate.parts, strict=True):
        classes = ref.shape[-1] if ref.shape else 0
        if not classes:
            continue
        is_trivial = is_trivial or classes <= _FEW
        step = max(1, _BLOCK // classes) * classes
        for start in range(0, ref.count, step):
            stop = min(ref.count, start + step)
            ref_rows = ref.dtype.decode(ref.read(start, stop)).astype(np.float64).reshape(-1, classes)
            cand_rows = cand.dtype.decode(cand.read(start, stop)).astype(np.float64).reshape(-1, classes)
            choice = ref_rows.argmax(axis=1)
            chooses = ~np.isnan(cand_rows).any(axis=1)  # a row with NaN chooses nothing
            same += int(np.count_nonzero(chooses & (choice == cand_rows.argmax(axis=1))))
            at_choice = np.take_along_axis(cand_rows, choice[:, None], axis=1)
            among_few += int(np.count_nonzero(chooses & ((cand_rows > at_choice).sum(axis=1) < _FEW)))
            divergence += _sum_divergence(ref_rows, cand_rows)
            rows += len(ref_rows)
    if not rows:
        return LogitFacts(math.nan, math.nan, math.nan)
    return LogitFacts(divergence / rows, same / rows, math.nan if is_trivial else among_few / rows)


def _sum_divergence(ref: NDArray[np.float64], cand: NDArray[np.float64]) -> float:
    """Return the sum over rows of KL(reference || candidate), in nats."""
    with np.errstate(all="ignore"):
        ref_log, cand_log = _log_softmax(ref), _log_softmax(cand)
        probabilities = np.exp(ref_log)
        terms = np.where(probabilities > 0, probabilities * (ref_log - cand_log), 0.0)
    return float(terms.sum())


def _log_softmax(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted: NDArray[np.float64] = rows - rows.max(axis=1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result
