"""Squared errors by channel and by token, in one pass: in C where it was built, else in NumPy."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import DTYPES, DType

Floats = NDArray[np.float64]

# what C takes, in the order of the enum Type in native/native.h
_CODES = {name: code for code, name in enumerate(("float64", "float32", "float16", "bfloat16"))}


class Table(NamedTuple):
    """Hold raw elements of one side: tokens x channels, or outer tokens x channels x inner tokens."""

    raw: NDArray[Any]
    dtype: DType


class Grid(NamedTuple):
    """Say how elements lie: so many channels, each of so many tokens in a row."""

    channels: int
    inner: int


def add_errors(
    reference: Table, candidate: Table, grid: Grid, ends: tuple[float, float], by_channel: Floats, by_token: Floats
) -> int:
    """Add squared errors to the sums; return how many candidates are at one of the ends with the reference beyond it.

    What is not finite is left out.
    """
    native = import_native()
    if native is None:
        return _add_with_numpy(reference, candidate, grid, ends, by_channel, by_token)
    sides = (*pack_table(reference), *pack_table(candidate))
    clipped: int = native.places(*sides, *grid, *ends, by_channel, by_token)
    return clipped


def pack_table(side: Table) -> tuple[NDArray[np.uint8], int]:
    """Return the bytes of a side and the number of their type, as C takes them."""
    raw, dtype = side
    if dtype.name not in _CODES:
        raw, dtype = dtype.decode(raw).astype(np.float64), DTYPES["float64"]
    return np.ascontiguousarray(raw).view(np.uint8), _CODES[dtype.name]


def import_native() -> Any:
    """Return the C extension, or None where it was not built or is not wanted."""
    if os.environ.get("NNDIFF_ENGINE") == "numpy":
        return None
    try:
        from nndiff.stats import _native
    except ImportError:
        return None
    return _native if hasattr(_native, "ranks") else None  # a build from older sources lacks it


def _add_with_numpy(
    reference: Table, candidate: Table, grid: Grid, ends: tuple[float, float], by_channel: Floats, by_token: Floats
) -> int:
    ref, cand = (side.dtype.decode(side.raw).astype(np.float64) for side in (reference, candidate))
    with np.errstate(all="ignore"):
        squares = np.square(cand - ref)
    squares[~np.isfinite(squares)] = 0.0
    table = squares.reshape(-1, grid.channels, grid.inner)
    by_channel += table.sum(axis=(0, 2))
    by_token += table.sum(axis=1).reshape(-1)
    low, high = ends
    clipped = ((cand == high) & (ref > high)) | ((cand == low) & (ref < low))
    return int(np.count_nonzero(clipped))
