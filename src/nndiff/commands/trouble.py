"""Trouble: what a failed command says on stderr, in one sentence, and the exit status it ends with."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from enum import Enum

from nndiff.errors import CheckpointError, NndiffError, UserCodeError
from nndiff.text import printable

_LONGEST = 2000  # characters of a sentence


class Hint(Enum):
    """What a user can do to learn more or to get further."""

    NONE = ""
    PARTIAL = "--partial loads the tensors that do fit"
    TRACEBACK = "set NNDIFF_TRACEBACK=1 to see the traceback"


@dataclass(frozen=True)
class Trouble:
    """Why a command failed."""

    sentence: str
    status: int = 2
    notes: tuple[str, ...] = ()  # what the failed command left on disk
    hint: Hint = Hint.NONE


def wants_traceback() -> bool:
    """Return True if the user asked for tracebacks in the environment."""
    return bool(os.environ.get("NNDIFF_TRACEBACK"))


def describe_error(error: BaseException, with_traceback: bool = False) -> Trouble:
    """Return what to say about an error; a traceback is only suggested where it tells more and was not shown yet."""
    traceback_hint = Hint.NONE if with_traceback else Hint.TRACEBACK
    if isinstance(error, NndiffError):
        hint = Hint.NONE
        if isinstance(error, UserCodeError):
            hint = traceback_hint
        elif isinstance(error, CheckpointError) and error.partial_loads:
            hint = Hint.PARTIAL
        return Trouble(str(error), error.exit_code, tuple(getattr(error, "__notes__", ())), hint)
    if isinstance(error, OSError):
        reason = (error.strerror or str(error)).lower()
        return Trouble(f"{error.filename or 'standard output'}: {reason}")
    if isinstance(error, KeyboardInterrupt):
        return Trouble("interrupted", status=130)
    if isinstance(error, MemoryError):
        return Trouble("out of memory")
    message = " ".join(str(error).split())
    name = type(error).__name__
    return Trouble(
        f"{name}: {message}: this is a bug in nndiff" if message else f"{name}: this is a bug in nndiff",
        hint=traceback_hint,
    )


def print_trouble(*sentences: str) -> None:
    """Write one line to stderr."""
    line = "; ".join(sentence for sentence in sentences if sentence)
    sys.stderr.write(f"nndiff: {printable(line, _LONGEST)}\n")
