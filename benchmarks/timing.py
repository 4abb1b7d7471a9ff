"""Time things against each other on a noisy machine: the middle one of several rounds, taken in turn."""

from __future__ import annotations

import resource
import statistics
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
    def best_ratio(self) -> float | None:
        """Return the ratio of the best rounds, where both had several."""
        return self._other_ratio("best")

    @property
    def cpu_ratio(self) -> float | None:
        """Return the ratio in processor time, where both were measured."""
        return self._other_ratio("cpu")

    def _other_ratio(self, name: str) -> float | None:
        ours, theirs = getattr(self.ours, name, 0.0), getattr(self.theirs, name, 0.0)
        if not ours or not theirs:
            return None
        return theirs / ours if self.is_speedup else ours / theirs

    @property
    def is_speedup(self) -> bool:
        return self.target.startswith(">=")

    @property
    def met(self) -> bool | None:
        if not self.target:
            return None
        limit = float(self.target[2:].strip().rstrip("x"))
        return self.ratio >= limit if self.is_speedup else self.ratio <= limit


class Took(float):
    """Be the seconds of the middle round; know those of the best, and the least processor seconds."""

    best: float = 0.0
    cpu: float = 0.0


def took(rounds: list[float], cpu: list[float]) -> Took:
    """Return what rounds of so many seconds and processor seconds come to."""
    made = Took(statistics.median(rounds))
    made.best, made.cpu = min(rounds), min(cpu)
    return made


def cpu_seconds() -> float:
    """Return the processor time of this process and of those it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def in_turns(*ways: Callable[[], object], rounds: int = 7) -> list[Took]:
    """Return the time of each way; they take turns, so that noise hits all alike."""
    walls: list[list[float]] = [[] for _ in ways]
    cpus: list[list[float]] = [[] for _ in ways]
    for _ in range(rounds):
        for number, way in enumerate(ways):
            start, used = time.perf_counter(), cpu_seconds()
            made = way()
            walls[number].append(time.perf_counter() - start)
            cpus[number].append(cpu_seconds() - used)
            del made  # throwing results away is no part of getting them
    return [took(wall, cpu) for wall, cpu in zip(walls, cpus, strict=True)]
