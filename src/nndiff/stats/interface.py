"""What an engine is asked for and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from nndiff.metrics import Metrics
from nndiff.tensors import TensorRef

Progress = Callable[[int], None]  # told the number of elements done since last time


class Job(NamedTuple):
    """Ask for the numbers of two tensors of the same shape, judged at a tolerance."""

    reference: TensorRef
    candidate: TensorRef
    atol: float
    rtol: float


class Engine(Protocol):
    """Measure pairs in the order given, with flat memory."""

    name: str

    def measure(self, jobs: Iterable[Job], progress: Progress | None = None) -> Iterator[Metrics]:
        """Yield the metrics of each job."""
