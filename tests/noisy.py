"""Two models compared by the noise floor: the reference is recorded with noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import nndiff


def compare_by_noise(
    folder: Path, reference: torch.nn.Module, candidate: torch.nn.Module, inputs: Any, *, noise: int = 2, **options: Any
) -> nndiff.Comparison:
    """Record both models on the same inputs and compare them; `options` are those of `record` and of `compare`."""
    judging = {name: options.pop(name) for name in ("atol", "rtol", "tolerance", "noise_factor") if name in options}
    paths = [folder / "reference.nnrec", folder / "candidate.nnrec"]
    nndiff.record(reference, inputs, path=paths[0], overwrite=True, noise=noise, **options)
    nndiff.record(candidate, inputs, path=paths[1], overwrite=True, **options)
    return nndiff.compare(*paths, **judging)


def worst_times(result: nndiff.Comparison) -> tuple[float, str]:
    """Return the largest multiple of the noise among all pairs with a floor, and where it is."""
    times = [(pair.times_noise, pair.name) for pair in result.pairs if pair.times_noise is not None]
    assert times
    return max(times)
