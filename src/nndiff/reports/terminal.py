"""The report for people at a terminal; rich is imported only where there is more to say than the verdict."""

from __future__ import annotations

from nndiff.reports import ReportOptions, summary
from nndiff.result import Comparison
from nndiff.verdict import Outcome

# As the whole report colours its first line; written out, so that the verdict alone need not wait for rich.
_BOLD = {
    Outcome.IDENTICAL: "\x1b[1;32m",
    Outcome.CLOSE: "\x1b[1;36m",
    Outcome.DIFFERENT: "\x1b[1;31m",
    Outcome.NOTHING: "\x1b[1;33m",
}
_DIM, _PLAIN = "\x1b[2;39m", "\x1b[0m"


class TerminalReport:
    """Render the result as text, in colour where that is wanted."""

    name = "terminal"

    def render(self, comparison: Comparison, options: ReportOptions) -> str:
        """Return the whole document; quiet is one line, however narrow the terminal is."""
        if not options.quiet and comparison.modes is not None:
            from nndiff.reports.modes_terminal import render_modes

            return render_modes(comparison, options)
        if not options.quiet:
            from nndiff.reports.terminal_sections import render_sections

            return render_sections(comparison, options)
        verdict, status = summary.verdict_line(comparison)
        if not options.color:
            return f"{verdict}{status}\n"
        return f"{_BOLD[comparison.outcome]}{verdict}{_PLAIN}{_DIM}{status}{_PLAIN}\n"
