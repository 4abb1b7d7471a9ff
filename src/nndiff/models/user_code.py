"""Run code that is not ours, and turn its troubles into one sentence with the place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import FrameSummary, extract_tb

from nndiff.errors import ModelError, NndiffError

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@contextmanager
def user_code(what: str, file: str | None = None) -> Iterator[None]:
    """Raise a ModelError for whatever goes wrong inside; the cause stays attached for a traceback."""
    try:
        yield
    except (NndiffError, KeyboardInterrupt):
        raise
    except SystemExit as error:
        raise ModelError(f"{what} ended the program (exit {error.code})") from error
    except Exception as error:
        raise ModelError(f"{what} failed{_place(error, file)}: {_sentence(error)}") from error


def _place(error: Exception, file: str | None) -> str:
    """Return the place in the user's file, else the innermost place that is not ours."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {_short(error.filename)}:{error.lineno}"
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(_OURS)]
    own = [frame for frame in frames if file and os.path.abspath(frame.filename) == os.path.abspath(file)]
    found: FrameSummary | None = (own or frames or [None])[-1]  # type: ignore[list-item]  # None where there is no frame
    return f" at {_short(found.filename)}:{found.lineno}" if found else ""


def _short(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:400]}" if text else type(error).__name__
