"""Tables that fit: columns dropped by priority, names shortened in the middle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

GAP = 2
ELLIPSIS = "…"


@dataclass(frozen=True)
class Column:
    """Describe one column; those with the lowest `keep` go first where there is no room."""

    title: str
    keep: int
    right: bool = False
    least: int | None = None  # shrinks down to this many cells; None: as wide as its widest cell


@dataclass(frozen=True)
class Cell:
    """Hold a text and its style."""

    text: str
    style: str = ""


def shorten(text: str, width: int, head: float = 0.5) -> str:
    """Return text of at most this many terminal cells, cut so that `head` of what stays is its beginning."""
    if cell_len(text) <= width:
        return text
    if width <= 1:
        return ELLIPSIS[:width]
    front = int((width - 1) * head)
    return _take(text, front) + ELLIPSIS + _take(text[::-1], width - 1 - front)[::-1]


def shorten_all(texts: Sequence[str], width: int) -> list[str]:
    """Return texts that fit, cut where most of them stay apart: in the middle if that does, or nearer an end."""
    if all(cell_len(text) <= width for text in texts):
        return list(texts)
    tries = ([shorten(text, width, head) for text in texts] for head in (0.5, 0.67, 0.33, 0.8, 0.2, 0.0))
    return max(tries, key=lambda cut: len(set(cut)))


def _take(text: str, width: int) -> str:
    """Return the longest beginning that fits."""
    used = 0
    for index, char in enumerate(text):
        used += cell_len(char)
        if used > width:
            return text[:index]
    return text


def lines(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int, indent: int = 2) -> Iterator[Text]:
    """Yield the table line by line, titles first where there are any."""
    widths = fit(columns, rows, width - indent)
    if any(columns[index].title for index in widths):
        yield _line(columns, [Cell(column.title, "dim") for column in columns], widths, indent)
    cut = {index: shorten_all([row[index].text for row in rows], widths[index]) for index in widths}
    for number, row in enumerate(rows):
        cells = [Cell(cut[index][number], cell.style) if index in cut else cell for index, cell in enumerate(row)]
        yield _line(columns, cells, widths, indent)


def fit(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> dict[int, int]:
    """Return {column: width} of the columns that have room; empty columns are left out."""
    natural = {
        index: max(cell_len(column.title), *(cell_len(row[index].text) for row in rows))
        for index, column in enumerate(columns)
        if any(row[index].text for row in rows)
    }
    least = {index: min(full, _least(columns[index], full)) for index, full in natural.items()}
    while len(least) > 1 and _total(least) > width:
        first_to_go = min(least, key=lambda index: columns[index].keep)
        if columns[first_to_go].keep >= ALWAYS:
            break
        del least[first_to_go]
    return _spread(columns, least, natural, width)


ALWAYS = 100  # a column of this priority shrinks but stays


def _least(column: Column, full: int) -> int:
    return full if column.least is None else max(column.least, cell_len(column.title))


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def _spread(columns: Sequence[Column], least: dict[int, int], natural: dict[int, int], width: int) -> dict[int, int]:
    """Give what is left to the columns that shrink, the most important first; take where even that is too much."""
    spare = width - _total(least)
    for index in sorted(least, key=lambda index: -columns[index].keep):
        if columns[index].least is None:
            continue
        change = min(spare, natural[index] - least[index])
        change = max(change, 4 - least[index]) if spare < 0 else change
        least[index] += change
        spare -= change
    return least


def _line(columns: Sequence[Column], row: Sequence[Cell], widths: dict[int, int], indent: int) -> Text:
    line = Text(" " * indent, no_wrap=True)
    for position, index in enumerate(sorted(widths)):
        text = shorten(row[index].text, widths[index])
        padding = " " * (widths[index] - cell_len(text))
        line.append(" " * GAP if position else "")
        line.append(padding if columns[index].right else "")
        line.append(text, style=row[index].style or None)
        line.append("" if columns[index].right else padding)
    line.rstrip()
    return line
