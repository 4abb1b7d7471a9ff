"""JSON from files: bounded before it is parsed, because a byte of it can become a hundred of memory."""

from __future__ import annotations

import json
from typing import Any

from nndiff.errors import SourceError, UnsafeFileError
from nndiff.files import Window
from nndiff.sources.source import shown

_LARGEST = 32 << 20  # a hundred thousand tensors take some 15 MB
_MOST_VALUES = 1_500_000


def read_json(window: Window, what: str) -> dict[str, Any]:
    """Return the JSON object of a window; a name that is there twice is an error, never a choice."""
    path = window.path
    if window.size > _LARGEST:
        raise UnsafeFileError(path, f"has {what} of {window.size} bytes; more than {_LARGEST} are not read")
    text = window.read(0, window.size)
    # every value but the first of a list or object stands behind a comma
    if sum(text.count(sign) for sign in (b",", b"[", b"{")) > _MOST_VALUES:
        raise UnsafeFileError(path, f"has {what} of more than {_MOST_VALUES} values; not read")
    try:
        found = json.loads(text, object_pairs_hook=lambda pairs: _unique(path, pairs))
    except (ValueError, RecursionError):
        raise SourceError(path, f"has {what} that is not valid JSON") from None
    if not isinstance(found, dict):
        raise SourceError(path, f"has {what} that is not a JSON object")
    return found


def _unique(path: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise SourceError(path, f"holds two entries of the name {shown(twice)}")
    return found
