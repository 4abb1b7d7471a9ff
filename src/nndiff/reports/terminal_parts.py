"""What the sections of the terminal report share: styles, labelled lines, widths."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from nndiff.reports import ReportOptions
from nndiff.result import Comparison
from nndiff.verdict import Outcome, Verdict

LABEL = 11  # "  tolerance" and its kind stand in one column

STYLES = {
    Verdict.IDENTICAL: "green",
    Verdict.CLOSE: "cyan",
    Verdict.DIFFERENT: "red",
    Verdict.SHAPE: "red",
    Verdict.NOT_FINITE: "magenta",
    Verdict.NOT_COMPARED: "yellow",
}
OUTCOME_STYLES = {
    Outcome.IDENTICAL: "green",
    Outcome.CLOSE: "cyan",
    Outcome.DIFFERENT: "red",
    Outcome.NOTHING: "yellow",
}

Section = Callable[[Comparison, ReportOptions, int], Iterable[RenderableType]]


def entry(label: str, text: str | Text, indent: int = 2) -> RenderableType:
    """Return a labelled line that wraps under itself."""
    table = Table.grid(padding=0)
    table.add_column(width=LABEL + indent, no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(" " * indent + label, "dim"), Text(text) if isinstance(text, str) else text)
    return table


def more(number: int, indent: int = 2) -> Text:
    """Return the line that says how many rows were left out."""
    return Text(f"{' ' * indent}and {number:,} more; --top or --verbose shows them", "dim")


def name_width(width: int) -> int:
    """Return what a name must have before other columns may stay."""
    return max(12, 2 * width // 5)
