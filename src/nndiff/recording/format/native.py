"""The functions in C that recording uses where they were built; without them it is slower and finds the same."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

_WORTH = 1 << 20  # bytes: below this a second thread costs more than it saves


def _find() -> Any:
    if os.environ.get("NNDIFF_ENGINE") == "numpy" or sys.byteorder != "little":
        return None
    try:
        from nndiff.stats import _native
    except ImportError:
        return None
    return _native if hasattr(_native, "hashes") else None  # one built from older sources lacks it


native = _find()  # nndiff.stats._native, or None


@cache
def workers() -> int:
    """Return how many threads may look at one tensor."""
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def threads_for(size: int) -> int:
    """Return how many threads so many bytes are worth."""
    return workers() if size >= _WORTH else 1
