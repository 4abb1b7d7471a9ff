"""Shards of a recording: safetensors files written tensor by tensor, complete or absent."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

from nndiff.recording.format.digests import RawTensor

# The header comes before the data but is known last: room is reserved for it and filled with spaces,
# which the format allows. So tensors go to disk as they come and none stays in memory.
HEADER_ROOM = 1 << 16
_DATA_START = 8 + HEADER_ROOM
PART_SUFFIX = ".part"
_DISK_ERRORS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full",
    errno.EFBIG: "a file grew beyond the size limit (ulimit -f, or that of the file system)",
}

_SAFETENSORS_CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}


def make_header_entry(dtype: str, shape: tuple[int, ...], nbytes: int) -> tuple[str, list[int]]:
    """Return the code and shape of a tensor in a shard; types that some safetensors libraries lack are raw bytes."""
    code = _SAFETENSORS_CODES.get(dtype)
    return (code, list(shape)) if code else ("U8", [nbytes])


def get_stored_dtype(dtype: str) -> str:
    """Return the dtype that a shard states for a tensor."""
    return dtype if dtype in _SAFETENSORS_CODES else "uint8"


class Shard:
    """Write one shard: the tensors as they come, then the header, then rename the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._part = path.with_name(path.name + PART_SUFFIX)
        self._header: list[str] = []
        self._header_size = 2
        self.size = 0
        self._fd = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            _write_all(self._fd, b" " * _DATA_START)  # not a hole: a disk that fills up later would have no room for it
        except OSError:
            self.drop()
            raise

    def has_room(self, key: str, raw: RawTensor) -> bool:
        """Return True if the header has room for one more tensor."""
        return self._header_size + len(self._make_header_line(key, raw)) + 1 <= HEADER_ROOM

    def add_tensor(self, key: str, raw: RawTensor) -> None:
        """Write a tensor's bytes."""
        line = self._make_header_line(key, raw)
        try:
            _write_all(self._fd, raw.bytes)
        except OSError:  # the tensors before it stay readable, and the disk gets its room back
            os.ftruncate(self._fd, _DATA_START + self.size)
            os.lseek(self._fd, _DATA_START + self.size, os.SEEK_SET)
            raise
        self._header.append(line)
        self._header_size += len(line) + 1
        self.size += raw.bytes.nbytes

    def _make_header_line(self, key: str, raw: RawTensor) -> str:
        nbytes = raw.bytes.nbytes
        code, shape = make_header_entry(raw.dtype.name, raw.shape, nbytes)
        body = {"dtype": code, "shape": shape, "data_offsets": [self.size, self.size + nbytes]}
        return f"{json.dumps(key)}:{json.dumps(body, separators=(',', ':'))}"

    def finish(self) -> None:
        """Write the header, sync to disk, rename to the final name."""
        text = ("{" + ",".join(self._header) + "}").encode().ljust(HEADER_ROOM)
        os.pwrite(self._fd, HEADER_ROOM.to_bytes(8, "little") + text, 0)
        os.fsync(self._fd)
        self._close()
        os.replace(self._part, self.path)
        sync_folder(self.path.parent)

    def drop(self) -> None:
        """Delete the unfinished file."""
        self._close()
        self._part.unlink(missing_ok=True)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _write_all(fd: int, data: bytes | bytearray | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def append_atomically(path: Path, data: bytes | bytearray) -> None:
    """Append to a file and sync it; where that fails the file is as it was."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        try:
            _write_all(fd, data)
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, size)
            raise
    finally:
        os.close(fd)


def write_atomically(path: Path, text: str) -> None:
    """Write a small file and sync it; where that fails the file is as it was."""
    part_path = path.with_name(path.name + PART_SUFFIX)
    try:
        with open(part_path, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part_path, path)
    except OSError:
        part_path.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where the file system can."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError:
        pass  # some file systems cannot; the rename itself was done
    finally:
        os.close(fd)


def describe_disk_error(error: OSError) -> str:
    """Return in words why something cannot be written."""
    return _DISK_ERRORS.get(error.errno or 0) or (error.strerror or str(error)).lower()
