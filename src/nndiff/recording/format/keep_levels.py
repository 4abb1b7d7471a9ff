"""How much of each tensor is kept: a level by pattern, and the sketch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from nndiff.errors import UsageError
from nndiff.names import matches_any
from nndiff.recording.format.layout import KEEP_LEVELS

SKETCH = 1024  # values in a sketch


@dataclass(frozen=True)
class Keep:
    """Hold the rules: the first pattern that matches a site decides, else the default."""

    default: str = "full"
    rules: tuple[tuple[str, str], ...] = ()  # pattern, level

    def level(self, module: str, name: str) -> str:
        """Return the level for a site."""
        for pattern, level in self.rules:
            if matches_any(module, (pattern,)) or matches_any(name, (pattern,)):
                return level
        return self.default


def parse_keep(specs: str | Sequence[str] | Keep) -> Keep:
    """Return the rules of `LEVEL` and `LEVEL:PATTERN` texts; with patterns only, everything else is kept as stats."""
    if isinstance(specs, Keep):
        return specs
    default: str | None = None
    rules: list[tuple[str, str]] = []
    for spec in (specs,) if isinstance(specs, str) else specs:
        level, colon, pattern = spec.partition(":")
        if level not in KEEP_LEVELS or (colon and not pattern):
            raise UsageError(f"keep {spec!r} is not LEVEL or LEVEL:PATTERN with a level of {', '.join(KEEP_LEVELS)}")
        if colon:
            rules.append((pattern, level))
        elif default is not None and default != level:
            raise UsageError(f"keep has two levels for everything, {default!r} and {level!r}: give one a pattern")
        else:
            default = level
    return Keep(default or ("stats" if rules else "full"), tuple(rules))


def lower_level(level: str, highest: str) -> str:
    """Return the level, but no higher than `highest`."""
    return min(level, highest, key=KEEP_LEVELS.index)


@lru_cache(maxsize=256)
def sketch_positions(count: int) -> NDArray[np.int64]:
    """Return the positions of a sketch: one in each of SKETCH equal stretches, always the same ones."""
    if count <= SKETCH:
        return np.arange(count, dtype=np.int64)
    edges = np.arange(SKETCH + 1, dtype=np.int64) * count // SKETCH
    lengths = (edges[1:] - edges[:-1]).astype(np.uint64)
    return edges[:-1] + (_splitmix64(SKETCH) % lengths).astype(np.int64)


def _splitmix64(count: int) -> NDArray[np.uint64]:
    """Return splitmix64 of 0, 1, 2, ...: well mixed, and four lines in any language."""
    with np.errstate(over="ignore"):
        value = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = value ^ (value >> np.uint64(31))
    return mixed
