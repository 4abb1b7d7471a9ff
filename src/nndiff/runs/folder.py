"""The folder of a training run while it is written: the lock, and files to which whole lines are appended."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from nndiff.errors import SourceError
from nndiff.runs.files import LOCK

_open_folders: set[str] = set()  # of this process, whose own locks do not exclude each other


class FolderLock:
    """Keep other writers out of a run's folder while this process lives.

    A lock of POSIX, not of flock(2): workers of a DataLoader would inherit the latter and outlive a killed training.
    """

    def __init__(self, folder: Path) -> None:
        self._name = os.path.realpath(folder)
        if self._name in _open_folders:
            raise SourceError(folder, "is being written by another recorder of this process; close that one first")
        self._fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            import fcntl

            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass  # not on Windows
        except OSError as error:
            os.close(self._fd)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise SourceError(
                folder, "is being written by another process; give each process (each rank) a folder of its own"
            ) from None
        _open_folders.add(self._name)

    def release(self) -> None:
        """Let others in."""
        os.close(self._fd)
        _open_folders.discard(self._name)


class LineFile:
    """Append lines to a file, each by one write, so that a reader sees it whole or torn at the very end."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._size = os.fstat(self._fd).st_size
        self._cut_torn_line()

    def _cut_torn_line(self) -> None:
        """Remove what a killed writer left behind the last end of a line."""
        end = self._size
        while end > 0:
            start = max(0, end - (1 << 16))
            position = os.pread(self._fd, end - start, start).rfind(b"\n")
            if position >= 0:
                end = start + position + 1
                break
            end = start
        if end < self._size:
            os.ftruncate(self._fd, end)
            self._size = end

    def append(self, line: bytes) -> None:
        """Append one line; if the disk is full the file is as it was."""
        try:
            written = os.write(self._fd, line)
            if written < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(line)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
