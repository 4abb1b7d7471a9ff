"""What the sections of the html report share: escaped text, the parts of a table."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from nndiff.reports import wording
from nndiff.text import printable
from nndiff.verdict import Outcome, Verdict

TABLE_END = "</tbody></table></div>"


def safe(text: str, limit: int | None = None) -> str:
    """Return text that is text wherever it stands, inside an attribute too."""
    return html.escape(printable(text, limit))


def class_of(verdict: Verdict | Outcome) -> str:
    """Return the class a verdict goes by."""
    return str(verdict.value).replace(" ", "-")


def capital(text: str) -> str:
    """Return text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def table_start(
    texts: Sequence[str], numbers: Sequence[str] = (), after: Sequence[str] = (), name: str = ""
) -> Iterator[str]:
    """Yield the head of a table; one with a name can be sorted."""
    marked = f' id="{name}"' if name else ""
    heads = [f'<th scope="col">{title}</th>' for title in texts]
    heads += [f'<th scope="col" class="number">{title}</th>' for title in numbers]
    heads += [f'<th scope="col">{title}</th>' for title in after]
    yield f'<div class="scroll"><table{marked}><thead><tr>{"".join(heads)}</tr></thead><tbody>'


def number_cell(value: float | None) -> str:
    """Return the cell of a measured number, with its full value to sort by."""
    key = "" if value is None else repr(value).replace("inf", "Infinity")  # as parseFloat reads it
    return f'<td class="number" data-key="{key}">{wording.number(value)}</td>'
