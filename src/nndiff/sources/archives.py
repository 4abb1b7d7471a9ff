"""zip archives and compressed bytes as windows of their file: nothing is extracted, no path inside is trusted."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from nndiff.errors import SourceError, UnsafeFileError
from nndiff.files import TemporaryFile, Window
from nndiff.sources.source import quote_name

_DIRECTORY_LIMIT = 8 << 20  # bytes of a zip's directory: some 90,000 entries
# Weights hardly compress. What grows more than this and beyond that size is a bomb.
_HIGHEST_RATIO = 50
_FREELY_UNPACKED = 256 << 20
_FREELY_UNPACKED_IN_ALL = 1 << 30
_ENTRY_HEADER = 30  # bytes before the name of an entry


class Zip:
    """Know the entries of a zip archive by name, each as a window or to be unpacked."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.path = window.path
        try:
            with zipfile.ZipFile(_DirectoryReader(window)) as archive:
                infos = archive.infolist()
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, LookupError, OverflowError):
            raise SourceError(self.path, "a zip archive that is damaged or truncated") from None
        self._entries: dict[str, zipfile.ZipInfo] = {}
        claimed = 0
        for info in infos:
            if info.filename in self._entries:
                raise SourceError(self.path, f"holds two entries named {quote_name(info.filename)}")
            self._entries[info.filename] = info
            if info.compress_type != zipfile.ZIP_STORED:
                claimed += info.file_size
        # entries that share bytes let a small file claim any amount
        end = 0
        for info in sorted(infos, key=lambda info: info.header_offset):
            if info.header_offset < end:
                raise UnsafeFileError(
                    self.path, f"entry {quote_name(info.filename)} overlaps the one before it; not read"
                )
            end = info.header_offset + _ENTRY_HEADER + info.compress_size
        if claimed > max(_FREELY_UNPACKED_IN_ALL, window.size * _HIGHEST_RATIO):
            raise UnsafeFileError(self.path, f"claims to unpack {window.size} bytes to {claimed}: a bomb; not unpacked")

    @property
    def names(self) -> list[str]:
        """Return the names of all entries."""
        return list(self._entries)

    def size(self, name: str) -> int:
        """Return the unpacked size an entry claims."""
        return self._entries[name].file_size

    def is_stored(self, name: str) -> bool:
        """Return True if an entry is not compressed."""
        return self._entries[name].compress_type == zipfile.ZIP_STORED

    def entry(self, name: str) -> Window:
        """Return an entry's bytes, unpacked to a temporary file if they are compressed."""
        info = self._entries[name]
        packed = self._locate_packed(info)
        if self.is_stored(name):
            return packed
        return unpack(packed, -zlib.MAX_WBITS, info.file_size, info.CRC)

    def head(self, name: str, size: int) -> bytes:
        """Return up to this many first bytes of an entry, unpacking no more than those."""
        packed = self._locate_packed(self._entries[name])
        if self.is_stored(name):
            return packed.head(size)
        head = b""
        for chunk in _inflate_chunks(packed, -zlib.MAX_WBITS, size):
            head += chunk
            if len(head) >= size:
                break
        return head[:size]

    def _locate_packed(self, info: zipfile.ZipInfo) -> Window:
        """Return the bytes of an entry as they are in the file, after checking what the directory says."""
        name = quote_name(info.filename)
        if info.flag_bits & 0x1:
            raise SourceError(self.path, f"entry {name} is encrypted")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise SourceError(self.path, f"entry {name} is compressed in a way that is not supported")
        if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
            raise SourceError(self.path, f"entry {name} claims two sizes")
        header = self.window.sub(info.header_offset, _ENTRY_HEADER).read(0, _ENTRY_HEADER)
        if header[:4] != b"PK\x03\x04":
            raise SourceError(self.path, f"entry {name} does not begin where the directory says")
        name_size, extra_size = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
        start = info.header_offset + _ENTRY_HEADER + name_size + extra_size
        return self.window.sub(start, info.compress_size)


class _DirectoryReader(io.RawIOBase):
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
    unpacked = TemporaryFile(packed.path)
    limit = max(_FREELY_UNPACKED, packed.size * _HIGHEST_RATIO)
    if claimed is not None:
        if claimed > limit:
            raise UnsafeFileError(
                packed.path, f"claims to unpack {packed.size} bytes to {claimed}: a bomb; not unpacked"
            )
        limit = claimed
    computed = 0
    for chunk in _inflate_chunks(packed, wbits):
        if unpacked.size + len(chunk) > limit:
            raise UnsafeFileError(packed.path, f"unpacks to more than {limit} bytes; not unpacked")
        unpacked.append(chunk)
        computed = zlib.crc32(chunk, computed)
    if claimed is not None and unpacked.size != claimed:
        raise SourceError(packed.path, f"unpacks to {unpacked.size} bytes where {claimed} are claimed")
    if checksum is not None and checksum != computed:
        raise SourceError(packed.path, "compressed data that does not match its checksum: damaged")
    return Window(unpacked)


def _inflate_chunks(packed: Window, wbits: int, piece: int = 1 << 20) -> Iterator[bytes]:
    """Yield the unpacked bytes, at most `piece` of them at once."""
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
