"""The progress bar: after a second, on a terminal, and never elsewhere."""

from __future__ import annotations

import io

import pytest

from nndiff.commands import progress


class Screen(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.mark.parametrize(
    ("terminal", "quiet", "patience", "shown"),
    [(True, False, 0.0, True), (True, False, 60.0, False), (False, False, 0.0, False), (True, True, 0.0, False)],
)
def test_a_bar_is_shown_to_those_who_wait_and_watch(monkeypatch, terminal, quiet, patience, shown):
    screen = Screen(terminal)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(progress, "_PATIENCE", patience)
    monkeypatch.setenv("TERM", "xterm")
    with progress.ProgressBar("comparing", quiet) as bar:
        for done in range(0, 101, 10):
            bar(done, 100)
    assert ("comparing" in screen.getvalue()) is shown
