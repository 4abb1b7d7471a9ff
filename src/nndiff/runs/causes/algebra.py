"""Linear algebra on rows: which combination of known vectors another vector is, and how exactly that can be known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float64]

DIGITS = {"bfloat16": 8, "float16": 11, "float32": 24}  # of the significands, in bits
SINGLE_ROUNDOFF = 2.0 ** -DIGITS["float32"]  # relative error of one rounding; rows are float32 whatever the tensor is
ROUNDINGS = 8  # roundings of each number that an update, a gradient or a sketch may have gone through
SURE = 6  # standard errors between two numbers that are not the same
TELLING = 0.05  # share of a vector that rounding may blur before nothing can be read from it
_INDEPENDENT = 1e-5  # smallest singular value of columns of length 1 that still point in different directions


@dataclass(frozen=True)
class Fit:
    """Say which combination of columns comes nearest to a vector."""

    coefficients: Row
    errors: Row  # one standard error of each coefficient
    residual: float  # length of what the combination leaves
    rounding: float  # length that rounding alone may leave
    length: float  # of the vector

    @property
    def reproduces(self) -> bool:
        """Return True if the combination is the vector up to rounding, and rounding does not hide that."""
        return self.residual <= self.rounding and not self.is_blurred

    @property
    def is_blurred(self) -> bool:
        """Return True if rounding hides whatever the combination is."""
        return self.rounding > TELLING * self.length

    def differs(self, index: int, expected: float) -> bool:
        """Return True if a coefficient is surely not the expected number."""
        return bool(abs(self.coefficients[index] - expected) > SURE * self.errors[index])


def fit_columns(target: Row, columns: Sequence[Row], rounding: float) -> Fit | None:
    """Return the least-squares fit of a vector by columns; None if they are too short or point the same way."""
    lengths = np.array([np.linalg.norm(column) for column in columns])
    if target.size <= len(columns) or not lengths.all():
        return None
    matrix = np.stack(columns, axis=1) / lengths
    basis, singular, directions = np.linalg.svd(matrix, full_matrices=False)
    if singular[-1] < _INDEPENDENT * singular[0]:
        return None
    coefficients = directions.T @ ((basis.T @ target) / singular)
    residual = float(np.linalg.norm(target - matrix @ coefficients))
    # the error of each element, from what is left or from rounding, whichever is more
    spread = max(residual / math.sqrt(target.size - len(columns)), rounding / ROUNDINGS / math.sqrt(target.size))
    errors = spread * np.linalg.norm(directions.T / singular, axis=1)
    return Fit(coefficients / lengths, errors / lengths, residual, rounding, float(np.linalg.norm(target)))


def agree_within(first: float, second: float, share: float) -> bool:
    """Return True if two numbers are apart by no more than a share of the larger one."""
    return abs(first - second) <= share * max(abs(first), abs(second))
