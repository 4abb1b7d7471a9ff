"""A training run as it is read: its steps, and the tensors of those that were recorded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nndiff.tensors import Shape, TensorRef


class TensorKind(str, Enum):
    """Say what a tensor of a training step is."""

    WEIGHT = "weight"  # a parameter, after the step
    BUFFER = "buffer"
    GRADIENT = "gradient"  # the one the step was made with
    STATE = "state"  # of the optimiser


@dataclass(frozen=True, slots=True)
class TensorKey:
    """Name a tensor of a training step."""

    kind: TensorKind
    name: str  # of the parameter or buffer in the model
    state: str = ""  # exp_avg, momentum_buffer, ...


@dataclass(frozen=True)
class BatchPart:
    """Hold the fingerprint of one tensor of a batch."""

    path: str  # place in the tuple or dict that was given as data: "0", "1", "labels"
    shape: Shape
    dtype: str
    digest: str
    samples: bytes = b""  # 8 bytes for each sample along the first axis; empty where there is no such axis


@dataclass(frozen=True)
class Step:
    """Hold what is known of one step of a training."""

    number: int  # global, from 0
    epoch: int | None
    batch: int | None
    scalars: Mapping[str, float]  # loss, acc, ...; lr/0, weight_decay/0, momentum/0, ... of each parameter group
    data: tuple[BatchPart, ...] | None = None  # None: no batch was given
    random_states: Mapping[str, str] = field(default_factory=dict)  # {generator: digest of its state after the step}
    has_tensors: bool = False


@dataclass(frozen=True)
class StepTensors:
    """Hold the tensors of one recorded step: statistics and digests of all, sketches or elements of some.

    Row i of every field is about keys[i]. The columns of `statistics` are l2, mean, std, min, max, count of elements
    that are not finite (`nndiff.stats.sketches`). A tensor whose width is its count was kept element by element, as
    float32; one of width 0 has no sketch.
    """

    keys: tuple[TensorKey, ...]
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    statistics: NDArray[np.float64]
    digests: NDArray[np.uint8]
    widths: NDArray[np.int64]
    sketches: NDArray[np.float32]
    seed: int = 0
    tensors: tuple[TensorRef | None, ...] = ()  # whole tensors, where they were kept; empty: none

    @cached_property
    def rows(self) -> Mapping[TensorKey, int]:
        """Return the row of each tensor."""
        return {key: row for row, key in enumerate(self.keys)}

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Return where the sketch of each row begins, and at last where all end."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.widths)])

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Return how many numbers each tensor has; a complex element is two."""
        counts = []
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            counts.append(math.prod(shape) * (2 if dtype.startswith("complex") else 1))
        return np.array(counts, np.int64)

    @cached_property
    def kept_widths(self) -> NDArray[np.int64]:
        """Return how many numbers can be had of each tensor: all of its own where it is whole, else its sketch."""
        if not self.tensors:
            return self.widths
        is_whole = np.array([tensor is not None for tensor in self.tensors], bool)
        return np.where(is_whole, self.counts, self.widths)

    def sketch(self, row: int) -> NDArray[np.float32]:
        """Return the sketch of one tensor; its elements where the width is the count."""
        return self.sketches[self.offsets[row] : self.offsets[row + 1]]

    def whole(self, row: int) -> TensorRef | None:
        """Return one tensor whole, or None where it was not kept."""
        return self.tensors[row] if self.tensors else None


@dataclass(frozen=True)
class RunDescription:
    """Describe a run as a whole."""

    keep: str  # full, sketch, stats; `dump` for checkpoints of other tools
    optimizer: str = ""  # its class, where known
    model: str = ""  # its class, where known
    param_groups: tuple[tuple[str, ...], ...] = ()  # names of the parameters in each group, where known
    trainable: frozenset[str] | None = None  # parameters that require a gradient; None: not known
    holds_gradients: bool = True  # False: this kind of run never has any
    holds_data: bool = True
    counts_completed: bool = False  # checkpoint-1 is the state after the first step, which a recorder numbers 0
    environment: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Run(Protocol):
    """Be a training run that can be compared."""

    @property
    def label(self) -> str:
        """Return what the run is called: its path."""

    @property
    def description(self) -> RunDescription:
        """Return what is known of the run as a whole."""

    @property
    def steps(self) -> Sequence[Step]:
        """Return the steps in the order they were made, without repetitions."""

    @property
    def has_initial(self) -> bool:
        """Return True if the state before the first step was kept."""

    def read_tensors(self, step: int | None) -> StepTensors:
        """Return the tensors of the step at this place in `steps`; None: the state before the first."""
