"""Time things against each other on a noisy machine: best of several rounds, taken in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """Hold one line of the table: ours against another way, or against the target."""

    what: str
    ours: float  # seconds
    against: str
    theirs: float
    target: str = ""  # such as "<= 2x" (ours at most twice theirs) or ">= 50x" (ours 50 times as fast)

    @property
    def ratio(self) -> float:
        """Return ours / theirs, or for a target of speed-up theirs / ours."""
        return self.theirs / self.ours if self.is_speedup else self.ours / self.theirs

    @property
    def is_speedup(self) -> bool:
        return self.target.startswith(">=")

    @property
    def met(self) -> bool | None:
        if not self.target:
            return None
        limit = float(self.target[2:].strip().rstrip("x"))
        return self.ratio >= limit if self.is_speedup else self.ratio <= limit


def best(*ways: Callable[[], object], rounds: int = 7) -> list[float]:
    """Return the shortest time of each way; they take turns, so that noise hits all alike."""
    least = [float("inf")] * len(ways)
    for _ in range(rounds):
        for number, way in enumerate(ways):
            start = time.perf_counter()
            way()
            least[number] = min(least[number], time.perf_counter() - start)
    return least
