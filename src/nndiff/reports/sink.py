"""Where a report goes: standard output or a path, and what that place can show."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from nndiff.errors import UsageError

PLAIN_WIDTH = 100  # columns where there is no terminal: files, pipes, logs


@dataclass(frozen=True)
class Sink:
    """Name a place for a report; `path` None is standard output."""

    path: str | None
    width: int = PLAIN_WIDTH
    color: bool = False

    @property
    def key(self) -> str | None:
        """Return what is equal for two spellings of one place."""
        return None if self.path is None else os.path.realpath(self.path)

    def refuse(self, files: Iterable[str | os.PathLike[str]], reason: str) -> None:
        """Raise if writing here would overwrite one of these files."""
        if self.path is None:
            return
        for file in files:
            if _same_file(self.path, file):
                raise UsageError(f"{self.path}: {reason}; a report would overwrite it: give another path")


def for_path(path: str) -> Sink:
    """Return the sink of a file."""
    return Sink(path)


def for_stdout() -> Sink:
    """Return the sink of standard output, as wide and colourful as what reads it."""
    tty = _is_terminal()
    # COLUMNS counts everywhere: it is how a person sets the width of a pipe
    width = shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns if tty or os.environ.get("COLUMNS") else PLAIN_WIDTH
    return Sink(None, max(width, 20), _wants_color(tty))


def _wants_color(tty: bool) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return tty and os.environ.get("TERM") != "dumb"


def _is_terminal() -> bool:
    try:
        return sys.stdout is not None and sys.stdout.isatty()
    except ValueError:  # closed
        return False


def _same_file(path: str, other: str | os.PathLike[str]) -> bool:
    try:
        return os.path.samefile(path, other)
    except (OSError, ValueError):  # a label need not be a file
        return False
