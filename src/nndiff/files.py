"""Files as windows: bounded, checked byte ranges that are read without loading the file.

Nothing here maps a file that others may cut: reading behind its new end would end the process.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import stat
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from nndiff.errors import SourceError

_SHORTER = "became shorter while it was being read"


def _choose_open_limit() -> int:
    """Return how many files stay open: a folder may hold ten thousand, a process may open a thousand, or a few."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 128
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 128 if limit < 0 else max(4, min(128, limit // 4))


OPEN_AT_ONCE = _choose_open_limit()


class OpenFile:
    """Hold one file descriptor and close it with the last user."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


_cache: OrderedDict[int, OpenFile] = OrderedDict()
_watches: list[dict[int, RegularFile]] = []  # the files opened inside each `unchanged()`
_lock = threading.RLock()  # reentrant: a garbage collection inside it may delete a RegularFile


class RegularFile:
    """Name a regular file; open it when first needed, and again if it was closed meanwhile."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            info = os.stat(path)
        except OSError as error:
            raise SourceError(path, _describe_os_error(error)) from None
        except ValueError:
            raise SourceError(path.replace("\0", "\\0"), "not a file name") from None
        if not stat.S_ISREG(info.st_mode):
            raise SourceError(path, f"not a regular file but {_describe_file_kind(info.st_mode)}")
        self.size = info.st_size
        self._identity = (info.st_dev, info.st_ino)
        self._changed = info.st_mtime_ns

    def open(self) -> OpenFile:
        """Return the open file; keep it while you read."""
        with _lock:
            for watch in _watches:
                watch[id(self)] = self
            opened = _cache.get(id(self)) or self._open_again()
            _cache[id(self)] = opened
            _cache.move_to_end(id(self))
            while len(_cache) > OPEN_AT_ONCE:
                _cache.popitem(last=False)
        return opened

    def _open_again(self) -> OpenFile:
        try:
            opened = OpenFile(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as error:
            raise SourceError(self.path, _describe_os_error(error)) from None
        info = os.fstat(opened.fd)
        if (info.st_dev, info.st_ino) != self._identity:
            raise SourceError(self.path, "the file was replaced while it was being read")
        return opened

    def check_unchanged(self) -> None:
        """Refuse a file that was written to since it was first looked at: what was read may mix two states."""
        try:
            info = os.stat(self.path)
        except OSError:
            return  # deleted or renamed: what is open has not changed
        is_same = (info.st_dev, info.st_ino) == self._identity
        if is_same and (info.st_size, info.st_mtime_ns) != (self.size, self._changed):
            raise SourceError(self.path, "was changed while it was being read; compare it when nothing writes to it")

    def __del__(self) -> None:
        if _cache is not None:  # None while the interpreter shuts down
            _cache.pop(id(self), None)


@contextmanager
def unchanged() -> Iterator[None]:
    """Check, after the block, that no file read inside it was written to meanwhile."""
    opened: dict[int, RegularFile] = {}
    with _lock:
        _watches.append(opened)
    try:
        yield
    finally:
        with _lock:
            _watches[:] = [watch for watch in _watches if watch is not opened]
    for file in opened.values():
        file.check_unchanged()


class TemporaryFile(RegularFile):
    """Hold decompressed bytes on disk, deleted with the last user."""

    def __init__(self, origin: str) -> None:
        self.path = origin
        self.size = 0
        try:
            fd, name = tempfile.mkstemp(prefix="nndiff-")
            os.unlink(name)
        except OSError as error:
            raise SourceError(origin, f"cannot be unpacked: {_describe_os_error(error)}") from None
        self._opened = OpenFile(fd)

    def open(self) -> OpenFile:
        """Return the open file."""
        return self._opened

    def append(self, chunk: bytes) -> None:
        """Write more bytes to the end."""
        try:
            while chunk:
                chunk = chunk[os.pwrite(self._opened.fd, chunk, self.size) :]
                self.size = os.fstat(self._opened.fd).st_size
        except OSError as error:
            raise SourceError(self.path, f"cannot be unpacked: {_describe_os_error(error)}") from None

    def reserve(self, size: int) -> None:
        """Grow to a size, so that the bytes can be written in any order."""
        try:
            os.ftruncate(self._opened.fd, size)
            if size and hasattr(os, "posix_fallocate"):  # a full disk is better met here than while writing
                os.posix_fallocate(self._opened.fd, 0, size)
        except OSError as error:
            raise SourceError(self.path, f"cannot be unpacked: {_describe_os_error(error)}") from None
        self.size = size

    def mapped(self) -> mmap.mmap:
        """Return the bytes for writing."""
        return mmap.mmap(self._opened.fd, self.size)

    def __del__(self) -> None:
        """Leave closing to the OpenFile."""


class Window:
    """Name a byte range of a file, checked against the file's size."""

    __slots__ = ("file", "size", "start")

    def __init__(self, file: RegularFile, start: int = 0, size: int | None = None) -> None:
        size = file.size - start if size is None else size
        if start < 0 or size < 0 or start + size > file.size:
            raise SourceError(
                file.path, f"is truncated or damaged: it claims bytes {start} to {start + size} of {file.size}"
            )
        self.file = file
        self.start = start
        self.size = size

    @property
    def path(self) -> str:
        """Return the path for messages."""
        return self.file.path

    def sub(self, start: int, size: int) -> Window:
        """Return a window inside this one."""
        if start < 0 or size < 0 or start + size > self.size:
            raise SourceError(
                self.path, f"is truncated or damaged: it claims bytes {start} to {start + size} of {self.size}"
            )
        return Window(self.file, self.start + start, size)

    def read(self, start: int, size: int) -> bytes:
        """Return exactly these bytes."""
        self._check_range(start, size)  # before memory is taken for a size that a file only claims
        buffer = bytearray(size)
        self.read_into(start, memoryview(buffer))
        return bytes(buffer)

    def head(self, size: int) -> bytes:
        """Return up to this many first bytes."""
        return self.read(0, min(size, self.size))

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill a buffer from here, or say that the file ended."""
        self.read_runs([start], [buffer])

    def read_runs(self, starts: Iterable[int], buffers: Iterable[memoryview]) -> None:
        """Fill buffers, each from its own start, or say that the file ended."""
        opened = self.file.open()
        for start, buffer in zip(starts, buffers, strict=True):
            self._check_range(start, len(buffer))
            position = self.start + start
            while buffer:
                try:
                    count = os.preadv(opened.fd, [buffer], position)
                except OSError as error:
                    raise SourceError(self.path, _describe_os_error(error)) from None
                if count == 0:
                    raise SourceError(self.path, _SHORTER)
                buffer = buffer[count:]
                position += count

    def _check_range(self, start: int, size: int) -> None:
        if start < 0 or size < 0 or start + size > self.size:
            raise SourceError(self.path, f"ends after {self.size} bytes, {start + size} are claimed")

    def chunks(self, size: int = 1 << 20) -> Iterator[bytes]:
        """Yield the bytes piece by piece."""
        for start in range(0, self.size, size):
            yield self.read(start, min(size, self.size - start))

    def stream(self) -> BinaryIO:
        """Return a seekable file object over the window, for the standard library's readers."""
        return io.BufferedReader(_WindowIO(self), 1 << 16)


class _WindowIO(io.RawIOBase):
    def __init__(self, window: Window) -> None:
        self._window = window
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._window.size}[whence]
        if base + offset < 0:
            raise OSError("seek before the start")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typeshed wants any buffer
        count = max(0, min(len(buffer), self._window.size - self._position))
        self._window.read_into(self._position, memoryview(buffer)[:count])
        self._position += count
        return count


def describe_read_error(code: int) -> str:
    """Return what the number of a failed read means: -1 for a file that ended, else an errno."""
    if code == errno.EIO:
        return "could not be read: it was cut and written again meanwhile, or the disk fails"
    return _SHORTER if code < 0 else os.strerror(code).lower()


def _describe_os_error(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _describe_file_kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")
