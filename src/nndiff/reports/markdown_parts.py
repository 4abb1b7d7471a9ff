"""What the sections of the markdown report share: names as code, escaped text, tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from nndiff.reports import wording
from nndiff.text import printable

_LONGEST = 120  # characters of a name
_PLAIN_CODE = re.compile(r"[A-Za-z0-9_.:/()\[\], +=×→-]+")
# all but what is plain in running text; `://` and `www.` would become links
_NOT_PLAIN = re.compile(r"[^\w .,;:?()/+=%×→–…-]|_|:(?=//)|(?<=www)\.")


def code(text: str) -> str:
    """Return a name as code that no markdown, HTML or mention in it can get out of."""
    safe = middle(wording.name(text))
    if _PLAIN_CODE.fullmatch(safe) and safe == safe.strip():
        return f"`{safe}`"
    return f"<code>{escaped(safe)}</code>"


def escaped(text: str) -> str:
    """Return text in which every character that could mean something is an HTML entity."""
    return _NOT_PLAIN.sub(lambda match: f"&#{ord(match[0])};", printable(text))


def middle(text: str) -> str:
    """Return text short enough for a table, cut in its middle."""
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[: half - 1]}…{text[-half:]}"


def table(titles: Sequence[str], rows: Iterable[list[str]]) -> Iterator[str]:
    """Yield a table without its empty columns; a title that ends in a colon is aligned right."""
    kept = list(rows)
    columns = [index for index in range(len(titles)) if any(row[index] for row in kept)]
    if columns:
        yield _cells(titles[index].rstrip(":") for index in columns)
        yield _cells("---:" if titles[index].endswith(":") else "---" for index in columns)
    yield from (_cells(row[index] for index in columns) for row in kept)


def _cells(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
