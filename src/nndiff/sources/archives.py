"""zip archives and compressed bytes as windows of their file: nothing is extracted, no path inside is trusted."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from nndiff.errors import SourceError, UnsafeFileError
from nndiff.files import TemporaryFile, Window
from nndiff.sources.source import shown

_DIRECTORY_LIMIT = 8 << 20  # bytes of a zip's directory: some 90,000 entries
# Weights hardly compress. What grows more than this and beyond that size is a bomb.
_HIGHEST_RATIO = 50
_FREELY_UNPACKED = 256 << 20
_FREELY_UNPACKED_IN_ALL = 1 << 30


class Zip:
    """Know the entries of a zip archive by name, each as a window or to be unpacked."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.path = window.path
        try:
            with zipfile.ZipFile(_Guarded(window)) as archive:
                entries = archive.infolist()
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, LookupError, OverflowError):
            raise SourceError(self.path, "a zip archive that is damaged or truncated") from None
        self._entries = self._index(entries)
        self._check_places(entries)
        self._check_growth(entries)

    def _index(self, infos: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
        entries: dict[str, zipfile.ZipInfo] = {}
        for info in infos:
            if info.filename in entries:
                raise SourceError(self.path, f"holds two entries of the name {shown(info.filename)}")
            entries[info.filename] = info
        return entries

    def _check_places(self, infos: list[zipfile.ZipInfo]) -> None:
        """Refuse entries that share bytes: a small file could claim any amount."""
        end = 0
        for info in sorted(infos, key=lambda info: info.header_offset):
            if info.header_offset < end:
                raise UnsafeFileError(self.path, f"entry {shown(info.filename)} overlaps the one before it; not read")
            end = info.header_offset + 30 + info.compress_size

    def _check_growth(self, infos: list[zipfile.ZipInfo]) -> None:
        claimed = sum(info.file_size for info in infos if info.compress_type != zipfile.ZIP_STORED)
        if claimed > max(_FREELY_UNPACKED_IN_ALL, self.window.size * _HIGHEST_RATIO):
            raise UnsafeFileError(
                self.path, f"claims to unpack {self.window.size} bytes to {claimed}: a bomb; not unpacked"
            )

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
        packed = self._packed(info)
        if self.is_stored(name):
            return packed
        return unpack(packed, -zlib.MAX_WBITS, info.file_size, info.CRC)

    def head(self, name: str, size: int) -> bytes:
        """Return up to this many first bytes of an entry, unpacking no more than those."""
        packed = self._packed(self._entries[name])
        if self.is_stored(name):
            return packed.head(size)
        found = b""
        for chunk in _inflated(packed, -zlib.MAX_WBITS, size):
            found += chunk
            if len(found) >= size:
                break
        return found[:size]

    def _packed(self, info: zipfile.ZipInfo) -> Window:
        """Return the bytes of an entry as they are in the file, what the directory says checked."""
        name = shown(info.filename)
        if info.flag_bits & 0x1:
            raise SourceError(self.path, f"entry {name} is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise SourceError(self.path, f"entry {name} is compressed in a way that is not supported")
        if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
            raise SourceError(self.path, f"entry {name} claims two sizes")
        header = self.window.sub(info.header_offset, 30).read(0, 30)
        if header[:4] != b"PK\x03\x04":
            raise SourceError(self.path, f"entry {name} does not begin where the directory says")
        skip = 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        return self.window.sub(info.header_offset + skip, info.compress_size)


class _Guarded(io.RawIOBase):
    """Let zipfile read a directory of reasonable size and nothing larger: the archive itself says how much."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._stream: BinaryIO = window.stream()

    def read(self, size: int = -1) -> bytes:
        size = self._window.size - self.tell() if size < 0 else size
        if size > _DIRECTORY_LIMIT:
            raise UnsafeFileError(self._window.path, f"claims a zip directory of {size} bytes; not read")
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()


def unpack(packed: Window, wbits: int, claimed: int | None = None, checksum: int | None = None) -> Window:
    """Return compressed bytes as a window of a temporary file, bounded in size and growth."""
    out = TemporaryFile(packed.path)
    limit = max(_FREELY_UNPACKED, packed.size * _HIGHEST_RATIO)
    if claimed is not None:
        if claimed > limit:
            raise UnsafeFileError(
                packed.path, f"claims to unpack {packed.size} bytes to {claimed}: a bomb; not unpacked"
            )
        limit = claimed
    found = 0
    for chunk in _inflated(packed, wbits):
        if out.size + len(chunk) > limit:
            raise UnsafeFileError(packed.path, f"unpacks to more than {limit} bytes; not unpacked")
        out.append(chunk)
        found = zlib.crc32(chunk, found)
    if claimed is not None and out.size != claimed:
        raise SourceError(packed.path, f"unpacks to {out.size} bytes where {claimed} are claimed")
    if checksum is not None and checksum != found:
        raise SourceError(packed.path, "compressed data that does not fit its checksum: damaged")
    return Window(out)


def _inflated(packed: Window, wbits: int, piece: int = 1 << 20) -> Iterator[bytes]:
    engine = zlib.decompressobj(wbits)
    try:
        for chunk in packed.chunks(min(1 << 20, 4 * piece)):
            while chunk:
                yield engine.decompress(chunk, piece)
                if engine.eof and wbits < 0:
                    return
                if engine.eof:  # gzip files may be several streams one after another
                    chunk, engine = engine.unused_data.lstrip(b"\0"), zlib.decompressobj(wbits)
                else:
                    chunk = engine.unconsumed_tail
        yield engine.flush()
    except zlib.error:
        raise SourceError(packed.path, "compressed data that is damaged or truncated") from None


def gunzip(window: Window) -> Window:
    """Return the bytes of a gzip file as a window of a temporary file."""
    return unpack(window, zlib.MAX_WBITS | 16)
