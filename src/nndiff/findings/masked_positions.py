"""Differences at padded positions only, where what a model computes may be thrown away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nndiff.diagnosis.site_pairs import SitePair
from nndiff.diagnosis.tensor_values import read_wide
from nndiff.findings.case import Case
from nndiff.findings.causes import Cause
from nndiff.relations.operations import MASKED_BELOW
from nndiff.result import Finding
from nndiff.tensors import Slot
from nndiff.text import plural
from nndiff.verdict import Verdict

_LARGEST_READ = 1 << 24  # elements of one tensor
_MOST_READ = 1 << 28  # elements in all
_MOST_LISTED = 10


class _Padding(NamedTuple):
    """Hold which positions (batch, position) an input leaves out, and what it says of them."""

    is_out: NDArray[np.bool_]
    words: str


def find_masked_positions(case: Case) -> Iterator[Finding]:
    """Yield how many tensors differ only at positions that an input, a mask or lengths, leaves out."""
    paddings = list(_read_paddings(case))
    failing = []
    for site in case.run.evidence:
        if site.was_compared and not site.passed and site.slot is not Slot.INPUT:  # the output that went into it tells
            failing.append(site)
    names: dict[str, list[str]] = {}  # by what is said of the positions
    read = 0
    for site in failing if paddings else ():
        pair = site.pair
        if pair.verdict is not Verdict.DIFFERENT or pair.shape[0] != pair.shape[1] or site.slot is Slot.MODEL_INPUT:
            continue
        if pair.differs_only_in_dtype:
            continue
        read += site.reference.count
        is_readable = not (site.reference.missing or site.candidate.missing)
        if not is_readable or site.reference.count > _LARGEST_READ or read > _MOST_READ:
            continue
        is_wrong = _find_wrong_elements(site)
        for padding in paddings:
            if any(not is_wrong[place].any() for place in _list_places(~padding.is_out, is_wrong.shape)):
                names.setdefault(padding.words, []).append(pair.name)
    if names:
        words, most = max(names.items(), key=lambda item: len(item[1]))
        yield Finding(
            Cause.MASKED_POSITIONS,
            tuple(most[:_MOST_LISTED]),
            f"{len(most):,} of {plural(len(failing), 'tensor')} that differ do so only where {words}",
            "leave padding out of the inputs, or compare the positions that count",
            1.0,
            harmless=len(most) == len(failing),  # else what stands there is read
        )


def _read_paddings(case: Case) -> Iterator[_Padding]:
    """Yield what model inputs leave out; singleton axes do not count."""
    shapes = [site.reference.shape for site in case.run.pairs if site.slot is Slot.MODEL_INPUT]
    for site in case.run.pairs:
        tensor = site.reference
        if site.slot is not Slot.MODEL_INPUT or tensor.missing or not site.passed or tensor.count > _LARGEST_READ:
            continue
        sizes = tuple(size for size in tensor.shape if size != 1)
        if len(sizes) == 2:
            mask = read_wide(tensor).reshape(sizes)
            for value in _list_left_out(np.unique(mask).tolist(), tensor.dtype.kind == "bool"):
                if is_padding(mask == value):
                    yield _Padding(mask == value, f"{tensor.name} is {value:g}")
        elif len(tensor.shape) == 1 and tensor.dtype.kind == "int":
            lengths = tensor.numpy()
            longest = int(lengths.max(initial=0))
            is_length = any(shape[:1] == tensor.shape and longest in shape[1:] for shape in shapes)
            if is_length and 0 <= lengths.min(initial=0) < longest and longest * len(lengths) <= _LARGEST_READ:
                yield _Padding(np.arange(longest) >= lengths[:, None], f"positions are beyond {tensor.name}")


def _list_left_out(values: list[float], is_boolean: bool) -> tuple[float, ...]:
    """Return which values of an input stand for padding: none, if it is no mask, as token ids are none.

    Additive masks hold a large negative number there, others 0; of booleans it may be either.
    """
    if values == [0, 1]:
        return (0, 1) if is_boolean else (0,)
    return (values[0],) if len(values) == 2 and values[0] <= MASKED_BELOW and values[1] == 0 else ()


def is_padding(is_out: NDArray[np.bool_]) -> bool:
    """Return True if positions (batch, position) that are left out are the end of each sample, or the beginning.

    Token types are 0 at the beginning of each sample as well; padding leaves the longest sample whole.
    """
    is_kept = ~is_out
    at_end = bool((is_kept[:, :-1] >= is_kept[:, 1:]).all())
    at_beginning = bool((is_kept[:, :-1] <= is_kept[:, 1:]).all())
    return at_end or (at_beginning and bool(is_kept.all(1).any()))


def _list_places(selected: NDArray[np.bool_], shape: tuple[int, ...]) -> Iterator[Any]:
    """Yield how positions select elements: positions are the second axis of a tensor, or the last (channels first)."""
    if len(shape) >= 2 and shape[:2] == selected.shape:
        yield selected
    if len(shape) > 2 and (shape[0], shape[-1]) == selected.shape:
        yield np.broadcast_to(selected.reshape(shape[0], *[1] * (len(shape) - 2), shape[-1]), shape)


def _find_wrong_elements(site: SitePair) -> NDArray[np.bool_]:
    """Return which elements are out of tolerance."""
    reference, candidate = read_wide(site.reference), read_wide(site.candidate)
    with np.errstate(all="ignore"):
        is_wrong = ~(np.abs(candidate - reference) <= site.pair.atol + site.pair.rtol * np.abs(reference))
    is_same = (reference == candidate) | (np.isnan(reference) & np.isnan(candidate))
    return np.asarray(is_wrong & ~is_same, dtype=bool)
