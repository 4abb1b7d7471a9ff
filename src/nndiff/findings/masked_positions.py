"""Differences at padded positions only: what a model computes there is thrown away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.diagnosis.site_pairs import SitePair
from nndiff.diagnosis.tensor_values import read_wide
from nndiff.findings.case import Case
from nndiff.findings.causes import Cause
from nndiff.result import Finding
from nndiff.tensors import Slot
from nndiff.text import plural
from nndiff.verdict import Verdict

_LARGEST_READ = 1 << 24  # elements of one tensor
_MOST_READ = 1 << 28  # elements in all
_MOST_LISTED = 10


def find_masked_positions(case: Case) -> Iterator[Finding]:
    """Yield how many tensors differ only at positions that a mask among the inputs leaves out."""
    masks = list(_read_masks(case))
    failing = [site for site in case.run.evidence if not site.passed and site.was_compared]
    names, mask_name, read = [], "", 0
    for site in failing if masks else ():
        pair = site.pair
        if pair.verdict is not Verdict.DIFFERENT or pair.shape[0] != pair.shape[1] or site.slot is Slot.MODEL_INPUT:
            continue
        read += site.reference.count
        is_readable = not (site.reference.missing or site.candidate.missing)
        if not is_readable or site.reference.count > _LARGEST_READ or read > _MOST_READ:
            continue
        for name, mask in masks:
            if pair.shape[0][:2] == mask.shape and _differs_only_where(site, mask == 0):
                names.append(pair.name)
                mask_name = name
                break
    if names:
        yield Finding(
            Cause.MASKED_POSITIONS,
            tuple(names[:_MOST_LISTED]),
            f"{len(names):,} of {plural(len(failing), 'tensor')} that differ do so only where {mask_name} is 0",
            "leave padding out of the inputs, or compare the positions that count",
            1.0,
            harmless=True,
        )


def _read_masks(case: Case) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the model inputs over (batch, positions) that hold zeros and ones alone; token ids hold more."""
    for site in case.run.pairs:
        tensor = site.reference
        is_small = len(tensor.shape) == 2 and tensor.count <= _LARGEST_READ
        if site.slot is not Slot.MODEL_INPUT or not is_small or tensor.missing or not site.passed:
            continue
        mask = tensor.numpy()
        if set(np.unique(mask).tolist()) == {0, 1}:
            yield tensor.name, mask


def _differs_only_where(site: SitePair, is_masked: NDArray[np.bool_]) -> bool:
    """Return True if all elements out of tolerance are at masked positions of the first two axes."""
    reference, candidate = read_wide(site.reference), read_wide(site.candidate)
    with np.errstate(all="ignore"):
        is_out = ~(np.abs(candidate - reference) <= site.pair.atol + site.pair.rtol * np.abs(reference))
    is_out &= ~((reference == candidate) | (np.isnan(reference) & np.isnan(candidate)))
    return not bool(is_out[~is_masked].any())
