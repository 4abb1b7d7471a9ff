"""JSON from files: bounded before it is parsed, because one byte of it can become a hundred bytes of memory."""

from __future__ import annotations

import json
from typing import Any

from nndiff.errors import SourceError, UnsafeFileError
from nndiff.files import Window
from nndiff.sources.source import quote_name

_LARGEST = 32 << 20  # bytes; a hundred thousand tensors take about 15 MB
_MOST_VALUES = 1_500_000


def read_json(window: Window, what: str) -> dict[str, Any]:
    """Return the JSON object of a window; a name that appears twice is an error."""
    path = window.path
    if window.size > _LARGEST:
        raise UnsafeFileError(path, f"has {what} of {window.size} bytes; more than {_LARGEST} are not read")
    text = window.read(0, window.size)
    # every value but the first of a list or object follows a comma
    if text.count(b",") + text.count(b"[") + text.count(b"{") > _MOST_VALUES:
        raise UnsafeFileError(path, f"has {what} of more than {_MOST_VALUES} values; not read")

    def refuse_repeated_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for name, value in pairs:
            if name in entries:
                raise SourceError(path, f"holds two entries named {quote_name(name)}")
            entries[name] = value
        return entries

    try:
        document = json.loads(text, object_pairs_hook=refuse_repeated_names)
    except (ValueError, RecursionError):
        raise SourceError(path, f"has {what} that is not valid JSON") from None
    if not isinstance(document, dict):
        raise SourceError(path, f"has {what} that is not a JSON object")
    return document
