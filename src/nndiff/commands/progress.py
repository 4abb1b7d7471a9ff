"""A progress bar for work that takes longer than a second, on a terminal only."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

_PATIENCE = 1.0  # seconds before a bar is worth showing


class ProgressBar:
    """Show how much is done; stay silent if the work is short or nobody watches."""

    def __init__(self, what: str, quiet: bool = False) -> None:
        self.is_watched = not quiet and sys.stderr is not None and sys.stderr.isatty()
        self._what = what
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

    def __call__(self, done: int, total: int | None) -> None:
        """Show that so much is done; `total` is None if nobody knows it."""
        if not self.is_watched:
            return
        if self._bar is None:
            if time.monotonic() - self._start < _PATIENCE:
                return
            self.open(total)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)

    def open(self, total: int | None = None) -> None:
        """Show the bar at once."""
        if not self.is_watched:
            return
        try:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
        except ImportError:  # models are recorded in environments that have little more than torch
            self.is_watched = False
            return
        columns: list[Any] = [TextColumn("{task.description}"), BarColumn()]
        if total is None:
            columns.append(TextColumn("{task.completed:,} calls"))
        else:
            columns += [TaskProgressColumn(), TimeRemainingColumn()]
        # what a model prints goes where it would go without the bar
        self._bar = Progress(
            *columns,
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task(self._what, total=total)
        self._bar.start()
