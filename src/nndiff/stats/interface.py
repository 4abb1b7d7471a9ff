"""What an engine takes and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from nndiff.metrics import Metrics
from nndiff.tensors import TensorRef

Progress = Callable[[int], None]  # called with the number of elements done since the last call


class Job(NamedTuple):
    """Name two tensors of the same shape to measure, and the tolerance to judge them at."""

    reference: TensorRef
    candidate: TensorRef
    atol: float
    rtol: float


class Engine(Protocol):
    """Measure pairs in the order given, with flat memory."""

    name: str

    def measure(self, jobs: Iterable[Job], progress: Progress | None = None) -> Iterator[Metrics]:
        """Yield the metrics of each job."""
