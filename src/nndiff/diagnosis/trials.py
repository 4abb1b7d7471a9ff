"""A module on trial: what it was given, what the reference makes of it, and what the candidate makes of the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.diagnosis.modules import Module, Trees
from nndiff.diagnosis.tensor_values import read_wide
from nndiff.result import OwnError
from nndiff.tensors import TensorRef
from nndiff.tolerance import NOISE_FACTOR

# What a proven cause leaves unexplained is small beside what it explains.
MOST_LEFT = 0.1


@dataclass(frozen=True)
class Given:
    """Hold a tensor that the code on trial was given, equal on both sides."""

    name: str  # path of an argument (`0`, `attention_mask`), or of an inner call below the module (`q_proj`)
    is_argument: bool
    cls: str  # class of the inner module; "" for an argument
    tensor: TensorRef

    @cached_property
    def values(self) -> NDArray[Any]:
        """Return the elements in double precision; whole numbers and booleans as they are."""
        return read_wide(self.tensor) if self.tensor.dtype.kind in ("float", "complex") else self.tensor.numpy()


@dataclass(frozen=True)
class Trial:
    """Hold one own error with everything that an experiment about its cause needs; nothing is run again.

    The code on trial is that of one module: the whole of it, if it has no calls inside, else the code between two of
    its inner calls. It was given `given` on both sides and made `reference` and `candidate` of it.
    """

    error: OwnError
    reference: TensorRef
    candidate: TensorRef
    given: tuple[Given, ...]  # arguments of the module first, then outputs of the calls inside it, in order
    # what the module itself holds, by the reference's local name (`weight`); None where one side has none
    weights: Mapping[str, tuple[TensorRef | None, TensorRef | None]]
    model_weights: tuple[Mapping[str, TensorRef], Mapping[str, TensorRef]]  # everything both models hold, by name
    model_inputs: Mapping[str, TensorRef]  # by path: `input_ids`, `attention_mask`
    modules: tuple[Module, Module]  # the two modules: class, type, attributes, training
    trees: Trees  # all modules of both models, by path
    noise: float  # the noise floor at this place
    drew: bool = False  # the candidate's code drew random numbers
    unread_weights: tuple[str, ...] = ()  # of the module itself: known to differ, by digests alone

    @property
    def arguments(self) -> tuple[Given, ...]:
        """Return what the module was called with."""
        return tuple(given for given in self.given if given.is_argument)

    @property
    def inner(self) -> tuple[Given, ...]:
        """Return what the calls inside the module returned before."""
        return tuple(given for given in self.given if not given.is_argument)

    @cached_property
    def reference_values(self) -> NDArray[Any]:
        """Return what the reference made, in double precision."""
        return read_wide(self.reference)

    @cached_property
    def candidate_values(self) -> NDArray[Any]:
        """Return what the candidate made, in double precision."""
        return read_wide(self.candidate)

    def gives_reference(self, values: NDArray[Any]) -> bool:
        """Return True if values are what the reference made, within noise."""
        return self._is_within_noise(values, self.reference_values)

    def gives_candidate(self, values: NDArray[Any]) -> bool:
        """Return True if values are what the candidate made, within noise."""
        return self._is_within_noise(values, self.candidate_values)

    def _is_within_noise(self, values: NDArray[Any], made: NDArray[Any]) -> bool:
        if values.shape != made.shape:
            return False
        finite = np.isfinite(made)
        if not np.array_equal(np.where(finite, 0, made), np.where(np.isfinite(values), 0, values), equal_nan=True):
            return False  # NaN or infinite elsewhere, or of the other sign
        with np.errstate(invalid="ignore"):  # infinite on both sides
            left = float(np.max(np.abs(values - made), where=finite, initial=0.0))
        return left <= self.measure_room(made)

    def measure_room(self, made: NDArray[Any]) -> float:
        """Return how far numbers may be from what a side made: noise grows with what is made.

        The size of the error says nothing where it has none: of other shapes, of NaN.
        """
        room = NOISE_FACTOR * self.noise * max(1.0, self._compare_sizes(made))
        sides = self.reference_values, self.candidate_values
        if sides[0].shape == sides[1].shape and all(np.isfinite(side).all() for side in sides):
            room = min(room, MOST_LEFT * self.error.max_abs)
        return room

    def _compare_sizes(self, made: NDArray[Any]) -> float:
        """Return how many times larger what was made is than the reference, whose noise is known."""
        sizes = []
        for values in (made, self.reference_values):
            sizes.append(float(np.max(np.abs(values), where=np.isfinite(values), initial=0.0)))
        return sizes[0] / sizes[1] if sizes[1] else 1.0
