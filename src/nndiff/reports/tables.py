"""Tables for a terminal that fit its width: columns go by priority, names are shortened, hints are never cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

GAP = 2
ELLIPSIS = "…"
ALWAYS = 100  # a column of this priority shrinks but stays
_NARROWEST_COLUMN = 4


@dataclass(frozen=True)
class Column:
    """Describe one column; those with the lowest `keep` go first where there is no room."""

    title: str
    keep: int
    right: bool = False
    least: int | None = None  # shrinks down to this many cells; None: as wide as its widest cell
    brief: int | None = None  # instead of going, it shows only so many cells of its text
    below: bool = False  # instead of going, its text stands uncut on lines of its own under the row


@dataclass(frozen=True)
class Cell:
    """Hold a text and its style."""

    text: str
    style: str = ""


UNKNOWN = Cell("")  # in a row that stands for several others


@dataclass(frozen=True)
class Layout:
    """Hold the columns that stand in the row, their widths, and those that stand below it."""

    widths: dict[int, int]
    brief: frozenset[int] = frozenset()
    below: tuple[int, ...] = ()


def shorten(text: str, width: int, head: float = 0.5) -> str:
    """Return text of at most this many terminal cells, cut so that `head` of what stays is its beginning."""
    if cell_len(text) <= width:
        return text
    if width <= 1:
        return ELLIPSIS[:width]
    front = int((width - 1) * head)
    return _take_cells(text, front) + ELLIPSIS + _take_cells(text[::-1], width - 1 - front)[::-1]


def shorten_all(texts: Sequence[str], width: int) -> list[str]:
    """Return texts cut to fit, at the place that keeps most of them distinct: in the middle, or nearer an end."""
    if all(cell_len(text) <= width for text in texts):
        return list(texts)
    attempts = ([shorten(text, width, head) for text in texts] for head in (0.5, 0.67, 0.33, 0.8, 0.2, 0.0))
    return max(attempts, key=lambda cut: len(set(cut)))


def fold(text: str, width: int) -> list[str]:
    """Return the text in lines of at most this many cells, broken at blanks where there are any."""
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        joined = f"{line} {word}" if line else word
        if cell_len(joined) <= width:
            line = joined
            continue
        if line:
            lines.append(line)
        while cell_len(word) > width:
            piece = _take_cells(word, width) or word[:1]
            lines.append(piece)
            word = word[len(piece) :]
        line = word
    return [*lines, line] if line else lines


def _take_cells(text: str, width: int) -> str:
    """Return the longest beginning that fits."""
    used = 0
    for index, char in enumerate(text):
        used += cell_len(char)
        if used > width:
            return text[:index]
    return text


def format_table(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int, indent: int = 2
) -> Iterator[Text]:
    """Yield the table line by line, titles first where there are any."""
    layout = fit_columns(columns, rows, width - indent)
    if any(columns[index].title for index in layout.widths):
        titles = [Cell("" if index in layout.brief else column.title, "dim") for index, column in enumerate(columns)]
        yield _format_line(columns, titles, layout.widths, indent)
    texts: dict[int, list[str]] = {}
    for index, column_width in layout.widths.items():
        column_texts = [row[index].text for row in rows]
        if index in layout.brief:
            texts[index] = [_take_cells(text, column_width) for text in column_texts]
        else:
            texts[index] = shorten_all(column_texts, column_width)
    shared = [cell for index in layout.below if (cell := find_shared_cell(rows, index))]
    for number, row in enumerate(rows):
        cells = list(row)
        for index, column_texts in texts.items():
            cells[index] = Cell(column_texts[number], row[index].style)
        yield _format_line(columns, cells, layout.widths, indent)
        for index in layout.below:
            if row[index] not in shared:
                yield from _format_below(row[index], width, indent)
    for cell in shared:
        yield from _format_below(Cell(f"every row: {cell.text}", cell.style), width, indent)


def find_shared_cell(rows: Sequence[Sequence[Cell]], index: int) -> Cell | None:
    """Return the cell that stands in every row of a column; None if there is none, or only one row."""
    cells = [row[index] for row in rows if row[index] is not UNKNOWN]
    return cells[0] if len(cells) > 1 and cells[0].text and len(set(cells)) == 1 else None


def _format_below(cell: Cell, width: int, indent: int) -> Iterator[Text]:
    for line in fold(cell.text, width - indent - 4):
        yield Text(" " * (indent + 4), no_wrap=True).append(line, style=cell.style or None)


def fit_columns(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int) -> Layout:
    """Return the columns that have room, with their widths; empty columns are left out."""
    natural: dict[int, int] = {}
    for index, column in enumerate(columns):
        if any(row[index].text for row in rows):
            natural[index] = max(cell_len(column.title), *(cell_len(row[index].text) for row in rows))
    least: dict[int, int] = {}
    for index, full in natural.items():
        smallest = columns[index].least
        least[index] = full if smallest is None else min(full, max(smallest, cell_len(columns[index].title)))
    below: list[int] = []
    brief: set[int] = set()
    while len(least) > 1 and _sum_widths(least) > width:
        going = [index for index in least if columns[index].keep < ALWAYS and index not in brief]
        if not going:
            break
        first = min(going, key=lambda index: columns[index].keep)
        short = columns[first].brief
        if short is not None:
            brief.add(first)
            least[first] = natural[first] = short
            continue
        del least[first]
        if columns[first].below:
            below.append(first)
    return Layout(_spread_room(columns, least, natural, width), frozenset(brief), tuple(sorted(below)))


def _sum_widths(widths: dict[int, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def _spread_room(
    columns: Sequence[Column], least: dict[int, int], natural: dict[int, int], width: int
) -> dict[int, int]:
    """Give spare width to columns that can shrink, the most important first; shrink further if there is too little."""
    spare = width - _sum_widths(least)
    for index in sorted(least, key=lambda index: -columns[index].keep):
        if columns[index].least is None:
            continue
        change = min(spare, natural[index] - least[index])
        if spare < 0:
            change = max(change, _NARROWEST_COLUMN - least[index])
        least[index] += change
        spare -= change
    return least


def _format_line(columns: Sequence[Column], row: Sequence[Cell], widths: dict[int, int], indent: int) -> Text:
    line = Text(" " * indent, no_wrap=True)
    for position, index in enumerate(sorted(widths)):
        column = columns[index]
        text = shorten(row[index].text, widths[index])
        padding = " " * (widths[index] - cell_len(text))
        line.append(" " * GAP if position else "")
        line.append(padding if column.right else "")
        line.append(text, style=row[index].style or None)
        line.append("" if column.right else padding)
    line.rstrip()
    return line
