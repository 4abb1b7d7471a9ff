"""tar archives as windows of their file: headers are read, nothing is extracted, no link is followed.

The standard library's reader is not used: it takes time that grows with the square of what an
extended header claims, and reads sparse maps and links that no checkpoint needs.
"""

from __future__ import annotations

from nndiff.errors import SourceError, UnsafeFileError
from nndiff.files import Window
from nndiff.sources.archives import gunzip
from nndiff.sources.source import shown

_BLOCK = 512
_MOST_MEMBERS = 100_000
_LONGEST_HEADER = 1 << 16  # an extended header holds a name, sometimes a few attributes
_REGULAR = (b"0", b"\0", b"7")


def tar_members(window: Window) -> dict[str, Window]:
    """Return the regular files of a tar archive, plain or gzip, by their name."""
    if window.head(2) == b"\x1f\x8b":
        window = gunzip(window)
    members: dict[str, Window] = {}
    position = count = 0
    extended: dict[str, bytes] = {}
    while position + _BLOCK <= window.size:
        block = window.read(position, _BLOCK)
        if not any(block):
            return members
        count += 1
        if count > _MOST_MEMBERS:
            raise UnsafeFileError(window.path, f"holds more than {_MOST_MEMBERS} members; not read")
        _check_sum(window, block)
        size = _size(window, block, extended)
        body = _body(window, position + _BLOCK, size)
        position += _BLOCK + -(-size // _BLOCK) * _BLOCK
        kind = block[156:157]
        if kind in (b"x", b"L", b"K", b"g"):
            extended = {**extended, **_extension(kind, body)} if kind != b"g" else extended
            continue
        if kind in _REGULAR and not any(key.startswith("GNU.sparse") for key in extended):
            _add(window, members, _name(block, extended), body)
        extended = {}
    if not count:
        raise SourceError(window.path, "not a tar archive, or a truncated one")
    return members  # some writers leave out the blocks of zeros at the end


def _check_sum(window: Window, block: bytes) -> None:
    found = sum(block) - sum(block[148:156]) + 8 * 0x20
    if found != _octal(block[148:156]):
        raise SourceError(window.path, "a tar archive that is damaged or truncated")


def _octal(field: bytes) -> int | None:
    text = field.strip(b" \0")
    try:
        return int(text, 8) if text else 0
    except ValueError:
        return None


def _size(window: Window, block: bytes, extended: dict[str, bytes]) -> int:
    field = block[124:136]
    size = int.from_bytes(field[1:], "big") if field[:1] == b"\x80" else _octal(field)
    if "size" in extended and extended["size"].isdigit() and len(extended["size"]) < 20:
        size = int(extended["size"])
    if size is None or size < 0:
        raise SourceError(window.path, "a tar archive that is damaged or truncated")
    return size


def _body(window: Window, start: int, size: int) -> Window:
    if start + size > window.size:
        raise SourceError(
            window.path, f"a tar archive whose member ends at byte {start + size} of {window.size}: truncated"
        )
    return window.sub(start, size)


def _extension(kind: bytes, body: Window) -> dict[str, bytes]:
    """Return what a header before a header says of the next member."""
    if body.size > _LONGEST_HEADER:
        raise UnsafeFileError(body.path, f"has a tar header of {body.size} bytes; not read")
    text = body.read(0, body.size)
    if kind == b"K":  # the target of a link
        return {}
    return {"path": text.rstrip(b"\0")} if kind == b"L" else _records(body, text)


def _records(body: Window, text: bytes) -> dict[str, bytes]:
    """Return the records of a pax header: `LENGTH KEY=VALUE` and a line end, LENGTH counting all of it."""
    found: dict[str, bytes] = {}
    while text.rstrip(b"\0"):
        digits, _, _ = text[:8].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        if not len(digits) + 3 < length <= len(text):
            raise SourceError(body.path, "a tar archive that is damaged or truncated")
        key, _, value = text[len(digits) + 1 : length - 1].partition(b"=")
        found[str(key, "utf-8", "replace")] = value
        text = text[length:]
    return found


def _name(block: bytes, extended: dict[str, bytes]) -> str:
    raw = extended.get("path")
    if raw is None:
        name, prefix = (field.partition(b"\0")[0] for field in (block[:100], block[345:500]))
        # GNU tar keeps other things where POSIX keeps the front of a long name
        raw = prefix + b"/" + name if prefix and block[257:263] == b"ustar\0" else name
    name_text = str(raw, "utf-8", "surrogateescape")
    return name_text[2:] if name_text.startswith("./") else name_text


def _add(window: Window, members: dict[str, Window], name: str, body: Window) -> None:
    if name in members:
        raise SourceError(window.path, f"holds two members of the name {shown(name)}")
    members[name] = body
