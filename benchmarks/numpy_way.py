"""The metrics of a layer comparison as they are usually written, one NumPy call after the other (seeds/004)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def compare(reference: NDArray[Any], candidate: NDArray[Any]) -> dict[str, float]:
    ref, cand = reference.astype(np.float64), candidate.astype(np.float64)
    diff = cand - ref
    size = np.abs(diff)
    mse = np.mean(diff**2)
    return {
        "ref_mean": np.mean(ref),
        "ref_std": np.std(ref),
        "ref_min": np.min(ref),
        "ref_max": np.max(ref),
        "cand_mean": np.mean(cand),
        "cand_std": np.std(cand),
        "cand_min": np.min(cand),
        "cand_max": np.max(cand),
        "diff_mean": np.mean(diff),
        "diff_std": np.std(diff),
        "mae": np.mean(size),
        "max_abs": np.max(size),
        "mse": mse,
        "rmse": np.sqrt(mse),
        "rel_mse": mse / np.mean(ref**2),
        "rel_mae": np.mean(size) / np.mean(np.abs(ref)),
        "correlation": np.corrcoef(ref.ravel(), cand.ravel())[0, 1],
        **{f"p{share}": np.percentile(size, share) for share in (50, 90, 95, 99)},
    }
