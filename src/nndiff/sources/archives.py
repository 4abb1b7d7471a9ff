"""zip and tar archives as windows of their file: nothing is extracted, no path inside is trusted."""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from nndiff.errors import SourceError, UnsafeFileError
from nndiff.files import TemporaryFile, Window

_DIRECTORY_LIMIT = 32 << 20  # bytes of a zip's directory: some 300,000 entries
_TAR_HEADER_LIMIT = 1 << 20
_TAR_MEMBER_LIMIT = 100_000
# Weights hardly compress. What grows more than this and beyond that size is a bomb.
_HIGHEST_RATIO = 200
_FREELY_UNPACKED = 256 << 20


class Zip:
    """Know the entries of a zip archive by name, each as a window or to be unpacked."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.path = window.path
        _check_directory(window)
        try:
            with zipfile.ZipFile(window.stream()) as archive:
                self._entries = self._index(archive)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, IndexError, UnicodeError):
            raise SourceError(self.path, "a zip archive that is damaged or truncated") from None

    def _index(self, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
        entries: dict[str, zipfile.ZipInfo] = {}
        for info in archive.infolist():
            if info.filename in entries:
                raise SourceError(self.path, f"holds two entries of the name {info.filename!r}")
            entries[info.filename] = info
        return entries

    @property
    def names(self) -> list[str]:
        """Return the names of all entries."""
        return list(self._entries)

    def size(self, name: str) -> int:
        """Return the unpacked size an entry claims."""
        return self._entries[name].file_size

    def is_stored(self, name: str) -> bool:
        """Tell whether an entry is there byte for byte."""
        return self._entries[name].compress_type == zipfile.ZIP_STORED

    def entry(self, name: str) -> Window:
        """Return an entry's bytes, unpacked to a temporary file if they are compressed."""
        info = self._entries[name]
        if info.flag_bits & 0x1:
            raise SourceError(self.path, f"entry {name!r} is encrypted")
        packed = self._packed(info)
        if self.is_stored(name):
            if info.file_size != info.compress_size:
                raise SourceError(self.path, f"entry {name!r} claims two sizes")
            return packed
        if info.compress_type != zipfile.ZIP_DEFLATED:
            raise SourceError(self.path, f"entry {name!r} is compressed in a way that is not supported")
        return unpack(packed, -zlib.MAX_WBITS, info.file_size)

    def _packed(self, info: zipfile.ZipInfo) -> Window:
        header = self.window.sub(info.header_offset, 30).read(0, 30)
        if header[:4] != b"PK\x03\x04":
            raise SourceError(self.path, f"entry {info.filename!r} does not begin where the directory says")
        skip = 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        return self.window.sub(info.header_offset + skip, info.compress_size)


def _check_directory(window: Window) -> None:
    """Refuse a directory that would take more memory than it is worth, before it is read."""
    tail = window.read(max(0, window.size - 65_557), min(window.size, 65_557))
    end = tail.rfind(b"PK\x05\x06")
    if end < 0 or len(tail) - end < 22:
        raise SourceError(window.path, "a zip archive without its directory: truncated")
    size = int.from_bytes(tail[end + 12 : end + 16], "little")
    wide = tail.rfind(b"PK\x06\x06", 0, end)
    if size == 0xFFFFFFFF and wide >= 0:
        size = int.from_bytes(tail[wide + 40 : wide + 48], "little")
    if size > min(window.size, _DIRECTORY_LIMIT):
        raise UnsafeFileError(window.path, f"claims a zip directory of {size} bytes; not read")


def unpack(packed: Window, wbits: int, claimed: int | None = None) -> Window:
    """Return compressed bytes as a window of a temporary file, bounded in size and growth."""
    out = TemporaryFile(packed.path)
    limit = max(_FREELY_UNPACKED, packed.size * _HIGHEST_RATIO)
    if claimed is not None:
        if claimed > limit:
            raise UnsafeFileError(packed.path, f"claims to unpack {packed.size} bytes to {claimed}; not unpacked")
        limit = claimed
    for chunk in _inflated(packed, wbits):
        if out.size + len(chunk) > limit:
            raise UnsafeFileError(packed.path, f"unpacks to more than {limit} bytes; not unpacked")
        out.append(chunk)
    if claimed is not None and out.size != claimed:
        raise SourceError(packed.path, f"unpacks to {out.size} bytes where {claimed} are claimed")
    return Window(out)


def _inflated(packed: Window, wbits: int) -> Iterator[bytes]:
    engine = zlib.decompressobj(wbits)
    try:
        for chunk in packed.chunks():
            while chunk:
                yield engine.decompress(chunk, 1 << 20)
                if engine.eof:  # gzip files may be several streams one after another
                    chunk, engine = engine.unused_data.lstrip(b"\0"), zlib.decompressobj(wbits)
                    if chunk and wbits < 0:
                        return
                else:
                    chunk = engine.unconsumed_tail
        yield engine.flush()
    except zlib.error:
        raise SourceError(packed.path, "compressed data that is damaged or truncated") from None


def tar_members(window: Window) -> dict[str, Window]:
    """Return the regular files of a tar archive, plain or gzip, by their name; links are not followed."""
    if window.head(2) == b"\x1f\x8b":
        window = unpack(window, zlib.MAX_WBITS | 16)
    members: dict[str, Window] = {}
    try:
        with tarfile.open(fileobj=_Guarded(window), mode="r:") as archive:
            for member in archive:
                if member.isreg() and not member.issparse():
                    _add_member(window, members, member)
                if len(archive.getmembers()) > _TAR_MEMBER_LIMIT:
                    raise UnsafeFileError(window.path, f"holds more than {_TAR_MEMBER_LIMIT} members; not read")
    except (tarfile.TarError, OSError, ValueError, EOFError, OverflowError):
        raise SourceError(window.path, "a tar archive that is damaged or truncated") from None
    return members


def _add_member(window: Window, members: dict[str, Window], member: tarfile.TarInfo) -> None:
    name = member.name[2:] if member.name.startswith("./") else member.name
    if name in members:
        raise SourceError(window.path, f"holds two members of the name {name!r}")
    members[name] = window.sub(member.offset_data, member.size)


class _Guarded(io.RawIOBase):
    """Let tarfile read headers and nothing larger: long names and attributes claim their own size."""

    def __init__(self, window: Window) -> None:
        self._path = window.path
        self._stream: BinaryIO = window.stream()

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > _TAR_HEADER_LIMIT:
            raise UnsafeFileError(self._path, f"has a tar header of {size} bytes; not read")
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:  # tarfile skips the data of members
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()
