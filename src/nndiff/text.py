"""Text for people: names that print safely, words with their number, short lists."""

from __future__ import annotations

from collections.abc import Sequence


def printable(text: str, limit: int | None = None) -> str:
    """Return text that cannot move the cursor, change colours or turn the writing direction."""
    safe = "".join(char if char.isprintable() else _escape(char) for char in text)
    if limit is not None and len(safe) > limit:
        return safe[: limit - 1] + "…"
    return safe


def plural(number: int, word: str) -> str:
    """Return `1 tensor`, `2 tensors`."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def counted(names: Sequence[str], word: str) -> str:
    """Return how many there are and which comes first: `1 module (fc)`, `3 modules (fc first)`."""
    return f"{plural(len(names), word)} ({names[0]}{' first' if len(names) > 1 else ''})"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first few names, and that there are more."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def first_few(texts: Sequence[str], most: int = 3, between: str = ", ") -> str:
    """Return the first few texts, and how many more there are."""
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return between.join(texts[:most]) + more


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
