"""How a hostile file is made, and what must be said of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def garbage(size: int) -> bytes:
    """Return bytes without meaning, the same every time: what is said of them depends on what they are."""
    return random.Random(size).randbytes(size)


@dataclass(frozen=True)
class Case:
    """Know how a hostile file is made and what must be said of it."""

    name: str
    make: Callable[[Path, str], Any]
    suffix: str
    trouble: str | None  # a pattern of the message; None: it opens, and nothing happens
    part: str = ""
    heavy: bool = False  # takes seconds

    def write(self, folder: Path, canary: Path) -> str:
        """Write the file and return what to open."""
        path = folder / f"{self.name}{self.suffix}"
        made = self.make(path, f"touch {canary}")
        if isinstance(made, bytes):
            path.write_bytes(made)
        return f"{path}::{self.part}" if self.part else str(path)


CASES: dict[str, Case] = {}

Make = Callable[[Path, str], Any]


def case(suffix: str, trouble: str | None = None, part: str = "", heavy: bool = False) -> Callable[[Make], Make]:
    def register(make: Make) -> Make:
        CASES[make.__name__] = Case(make.__name__, make, suffix, trouble, part, heavy)
        return make

    return register
