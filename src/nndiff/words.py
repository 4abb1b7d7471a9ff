"""Words around numbers and names, for every message."""

from __future__ import annotations

from collections.abc import Sequence


def plural(number: int, word: str) -> str:
    """Return `1 tensor`, `2 tensors`."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def counted(names: Sequence[str], word: str) -> str:
    """Return how many there are and which comes first: `1 module (fc)`, `3 modules (fc first)`."""
    return f"{plural(len(names), word)} ({names[0]}{' first' if len(names) > 1 else ''})"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first few names, and that there are more."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
