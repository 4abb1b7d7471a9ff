"""Elements of recorded tensors as far as they were kept, and whether two of them agree."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.stats import Job
from nndiff.stats.engine import get_engine
from nndiff.stats.shortcuts import judge_unmeasured
from nndiff.tensors import TensorRef
from nndiff.verdict import Verdict


def read_wide(tensor: TensorRef) -> NDArray[Any]:
    """Return the elements in double precision."""
    numbers = tensor.numpy()
    return numbers.astype(np.complex128 if np.iscomplexobj(numbers) else np.float64)


def tensors_agree(reference: TensorRef, candidate: TensorRef, atol: float, rtol: float) -> bool | None:
    """Return whether two tensors are within a tolerance; None where what was kept does not tell."""
    known = judge_unmeasured(reference, candidate, atol, rtol)
    if known is None:
        metrics = next(iter(get_engine().measure([Job(reference, candidate, atol, rtol)])))
        return metrics.judge(same_dtype=True).passed
    if known.verdict is Verdict.SHAPE and reference.count == candidate.count:
        return None  # the same elements may have another layout
    return None if known.verdict is Verdict.NOT_COMPARED else known.verdict.passed
