"""tar archives as windows of their file: headers are read, nothing is extracted, no link is followed.

The standard library's reader is not used: it takes time that grows with the square of what an
extended header claims, and reads sparse maps and links that no checkpoint needs.
"""

from __future__ import annotations

from nndiff.errors import SourceError, UnsafeFileError
from nndiff.files import Window
from nndiff.sources.archives import gunzip
from nndiff.sources.source import quote_name

_BLOCK = 512
_MOST_MEMBERS = 100_000
_LONGEST_HEADER = 1 << 16  # an extended header holds a name, sometimes a few attributes
_REGULAR = (b"0", b"\0", b"7")
_LONG_NAME, _LONG_LINK, _PAX, _PAX_FOR_ALL = b"L", b"K", b"x", b"g"  # kinds of headers that are about the next member
_DAMAGED = "a tar archive that is damaged or truncated"


def read_tar(window: Window) -> dict[str, Window]:
    """Return the regular files of a tar archive, plain or gzip, by their name."""
    if window.head(2) == b"\x1f\x8b":
        window = gunzip(window)
    members: dict[str, Window] = {}
    position = count = 0
    extended: dict[str, bytes] = {}
    while position + _BLOCK <= window.size:
        header = window.read(position, _BLOCK)
        if not any(header):
            return members
        count += 1
        if count > _MOST_MEMBERS:
            raise UnsafeFileError(window.path, f"holds more than {_MOST_MEMBERS} members; not read")
        checksum = sum(header) - sum(header[148:156]) + 8 * 0x20  # its own eight bytes count as spaces
        if checksum != _parse_octal(header[148:156]):
            raise SourceError(window.path, _DAMAGED)
        size = _read_size(window.path, header, extended)
        start = position + _BLOCK
        if start + size > window.size:
            raise SourceError(
                window.path, f"a tar archive whose member ends at byte {start + size} of {window.size}: truncated"
            )
        body = window.sub(start, size)
        position = start + -(-size // _BLOCK) * _BLOCK
        kind = header[156:157]
        if kind in (_LONG_NAME, _LONG_LINK, _PAX):
            extended = {**extended, **_read_extension(kind, body)}
            continue
        if kind == _PAX_FOR_ALL:
            continue
        is_sparse = any(key.startswith("GNU.sparse") for key in extended)
        if kind in _REGULAR and not is_sparse:
            name = _read_name(header, extended)
            if name in members:
                raise SourceError(window.path, f"holds two members named {quote_name(name)}")
            members[name] = body
        extended = {}
    if not count:
        raise SourceError(window.path, "not a tar archive, or a truncated one")
    return members  # some writers leave out the blocks of zeros at the end


def _parse_octal(digits: bytes) -> int | None:
    text = digits.strip(b" \0")
    try:
        return int(text, 8) if text else 0
    except ValueError:
        return None


def _read_size(path: str, header: bytes, extended: dict[str, bytes]) -> int:
    digits = header[124:136]
    size = int.from_bytes(digits[1:], "big") if digits[:1] == b"\x80" else _parse_octal(digits)
    if "size" in extended and extended["size"].isdigit() and len(extended["size"]) < 20:
        size = int(extended["size"])
    if size is None or size < 0:
        raise SourceError(path, _DAMAGED)
    return size


def _read_extension(kind: bytes, body: Window) -> dict[str, bytes]:
    """Return what an extended header says about the next member.

    The records of a pax header are `LENGTH KEY=VALUE` and a line end, LENGTH counting all of it.
    """
    if body.size > _LONGEST_HEADER:
        raise UnsafeFileError(body.path, f"has a tar header of {body.size} bytes; not read")
    text = body.read(0, body.size)
    if kind == _LONG_LINK:
        return {}
    if kind == _LONG_NAME:
        return {"path": text.rstrip(b"\0")}
    records: dict[str, bytes] = {}
    while text.rstrip(b"\0"):
        digits, _, _ = text[:8].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        if not len(digits) + 3 < length <= len(text):
            raise SourceError(body.path, _DAMAGED)
        key, _, value = text[len(digits) + 1 : length - 1].partition(b"=")
        records[str(key, "utf-8", "replace")] = value
        text = text[length:]
    return records


def _read_name(header: bytes, extended: dict[str, bytes]) -> str:
    raw = extended.get("path")
    if raw is None:
        raw = header[:100].partition(b"\0")[0]
        prefix = header[345:500].partition(b"\0")[0]
        # GNU tar keeps other things where POSIX keeps the front of a long name
        if prefix and header[257:263] == b"ustar\0":
            raw = prefix + b"/" + raw
    return str(raw, "utf-8", "surrogateescape").removeprefix("./")
