"""Numbers that were rounded to a shorter type on one side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from nndiff.findings.causes import Cause
from nndiff.runs.case import RunCase, Where
from nndiff.runs.causes.algebra import DIGITS
from nndiff.runs.causes.onset import Explanation, explain, name_side, name_step
from nndiff.runs.run import TensorKind
from nndiff.text import first_few

_PLAIN_DIGITS = 4  # numbers with fewer, such as 0, 1 and 0.5, fit any type
_TELLING_NUMBERS = 4  # that all fit a shorter type: one of float32 does by chance once in 2**13
_WORDS = {TensorKind.WEIGHT: "weights", TensorKind.GRADIENT: "gradients", TensorKind.STATE: "optimiser state"}


def find_precision(case: RunCase, place: int, kinds: Sequence[TensorKind]) -> Iterator[Explanation]:
    """Yield the first kind of tensor that was rounded to a shorter type on one side alone.

    The smallest and largest element of each tensor are known exactly even where only sketches are.
    """
    for kind in kinds:
        states = case.state_names(Where.REFERENCE, place) if kind is TensorKind.STATE else ("",)
        for state in states:
            types = [_find_type(case, where, place, kind, state) for where in Where]
            if types[0] == types[1] or None in types:
                continue
            where = min(Where, key=lambda side: DIGITS.get(str(types[side]), 64))
            keys = case.tensors(Where.REFERENCE, place).keys
            names = [key.name for key in keys if key.kind is kind and key.state == state and key.name in case.names]
            tensors = f"{_WORDS[kind]} {state}".strip()
            evidence = (
                f"{name_step(case, place)}: the {name_side(where)}'s {tensors} hold {types[where]} numbers only, "
                f"the other side's are {types[1 - where]} ({first_few(names)})"
            )
            repair = f"keep the {_WORDS[kind]} in the same type on both sides (float32 master weights and state)"
            yield explain(case, place, Cause.LOW_PRECISION, names, evidence, repair, 0.95)
            return


def _find_type(case: RunCase, where: Where, place: int, kind: TensorKind, state: str) -> str | None:
    """Return the shortest type that holds all of a side's tensors of a kind; None if that cannot be told."""
    tensors = case.tensors(where, place)
    rows = [row for row, key in enumerate(tensors.keys) if key.kind is kind and key.state == state]
    dtypes = {tensors.dtypes[row] for row in rows}
    if len(dtypes) != 1:
        return None
    (dtype,) = dtypes
    if dtype != "float32":
        return dtype
    extremes = np.unique(tensors.statistics[rows, 3:5])
    telling = extremes[np.isfinite(extremes) & ~fits_digits(extremes, _PLAIN_DIGITS)]
    if len(telling) < _TELLING_NUMBERS:
        return None
    return next(name for name, digits in DIGITS.items() if fits_digits(telling, digits).all())


def fits_digits(numbers: NDArray[np.float64], digits: int) -> NDArray[np.bool_]:
    """Return which numbers have a significand of so many bits."""
    significands, _ = np.frexp(numbers)
    scaled = significands * 2.0**digits
    return np.asarray(scaled == np.rint(scaled))
