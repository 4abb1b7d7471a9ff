"""A progress bar for work that takes longer than a second, on a terminal only."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

_PATIENCE = 1.0  # seconds before a bar is worth showing


class ProgressBar:
    """Show how much is done; be silent where the work is short or nobody looks."""

    def __init__(self, what: str, quiet: bool = False) -> None:
        self._what = what
        self._watched = not quiet and sys.stderr.isatty()
        self._start = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        """Take note of progress."""
        if not self._watched or (self._bar is None and time.monotonic() - self._start < _PATIENCE):
            return
        if self._bar is None:
            self._open(total)
        self._bar.update(self._task, completed=done, total=total)

    def _open(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(self._what, total=total)
        self._bar.start()
