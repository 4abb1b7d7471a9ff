"""Writing safetensors files: the header first, then tensor after tensor; every file is complete or absent."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from nndiff.errors import ConversionError
from nndiff.files import unchanged
from nndiff.sources.safetensors_file import DTYPE_CODES
from nndiff.sources.source import quote_name
from nndiff.tensors import TensorRef

BLOCK = 1 << 22  # elements written at once
_METADATA = {"format": "pt"}  # transformers refuses files without it
Progress = Callable[[int, int], None]  # elements done, elements in all


@dataclass(frozen=True)
class WrittenFile:
    """Name a file that was written."""

    path: str
    tensors: int
    nbytes: int


def plan_shards(path: str, tensors: Sequence[TensorRef], most_bytes: int | None) -> dict[str, list[TensorRef]]:
    """Return which tensors go to which file, in order; one file unless it would be larger than `most_bytes`."""
    shards: list[list[TensorRef]] = [[]]
    size = 0
    for tensor in sorted(tensors, key=_order_in_file):
        if most_bytes is not None and shards[-1] and size + tensor.nbytes > most_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.nbytes
    if len(shards) == 1:
        return {path: shards[0]}
    stem = path.removesuffix(".safetensors")
    return {f"{stem}-{n:05}-of-{len(shards):05}.safetensors": shard for n, shard in enumerate(shards, 1)}


def get_index_path(path: str) -> str:
    """Return where the index of several shards goes."""
    return path.removesuffix(".safetensors") + ".safetensors.index.json"


def write_checkpoint(
    path: str, tensors: Sequence[TensorRef], most_bytes: int | None = None, progress: Progress | None = None
) -> list[WrittenFile]:
    """Write tensors to one safetensors file, or to shards and their index; all files appear at the end, or none."""
    total, done = 0, 0
    for tensor in tensors:
        _check_writable(path, tensor)
        total += tensor.count
    shards = plan_shards(path, tensors, most_bytes)
    written = []
    with ExitStack() as stack:
        files = []
        with unchanged():
            for shard_path, shard in shards.items():
                file = stack.enter_context(NewFile(shard_path))
                files.append(file)
                file.write(make_header(shard))
                for tensor in shard:
                    for start in range(0, tensor.count, BLOCK):
                        stop = min(start + BLOCK, tensor.count)
                        file.write(np.ascontiguousarray(tensor.read(start, stop), tensor.dtype.storage).tobytes())
                        done += stop - start
                        if progress is not None:
                            progress(done, total)
                written.append(WrittenFile(shard_path, len(shard), file.size))
        if len(shards) > 1:
            index = stack.enter_context(NewFile(get_index_path(path)))
            index.write(make_index(shards))
            files.append(index)  # last: without it the shards are no checkpoint
        for file in files:
            file.finish()
    return written


def _order_in_file(tensor: TensorRef) -> tuple[int, str]:
    """Return the order of the safetensors library: large elements first, so that all are aligned."""
    return -tensor.dtype.itemsize, tensor.name


def _check_writable(path: str, tensor: TensorRef) -> None:
    name = quote_name(tensor.name)
    if tensor.dtype.name not in DTYPE_CODES:
        raise ConversionError(f"{path}: {name} has dtype {tensor.dtype.name}, which safetensors files cannot hold")
    if tensor.missing:
        raise ConversionError(f"{path}: {name} cannot be written: {tensor.missing}")
    if tensor.name == "__metadata__":
        raise ConversionError(f"{path}: a tensor cannot be called {name} in a safetensors file")


def make_header(tensors: Sequence[TensorRef]) -> bytes:
    """Return the first bytes of a safetensors file of these tensors, one behind the other."""
    header: dict[str, object] = {"__metadata__": _METADATA}
    offset = 0
    for tensor in tensors:
        offsets = [offset, offset + tensor.nbytes]
        header[tensor.name] = {
            "dtype": DTYPE_CODES[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": offsets,
        }
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def make_index(shards: dict[str, list[TensorRef]]) -> bytes:
    """Return the index that says which shard holds which tensor."""
    weight_map: dict[str, str] = {}
    total = 0
    for path, shard in shards.items():
        for tensor in shard:
            weight_map[tensor.name] = os.path.basename(path)
            total += tensor.nbytes
    return json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=2).encode() + b"\n"


class NewFile:
    """Write a file beside its place, and move it there when it is complete."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = 0
        self._target = os.path.realpath(path)
        self._temporary = os.path.join(os.path.dirname(self._target), f".nndiff-{os.urandom(8).hex()}.tmp")
        self._fd = -1

    def __enter__(self) -> NewFile:
        try:
            # not mkstemp: a new file gets the permissions the umask gives, not 0600
            self._fd = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise self._explain(error) from None
        return self

    def write(self, data: bytes) -> None:
        """Write more bytes to the end."""
        view = memoryview(data)
        try:
            while view:
                count = os.write(self._fd, view)
                self.size += count
                view = view[count:]
        except OSError as error:
            raise self._explain(error) from None

    def finish(self) -> None:
        """Sync to disk and rename to the final name."""
        try:
            os.fsync(self._fd)
            os.replace(self._temporary, self._target)
        except OSError as error:
            raise self._explain(error) from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
        with suppress(OSError):  # it was moved to its place
            os.unlink(self._temporary)

    def _explain(self, error: OSError) -> ConversionError:
        return ConversionError(f"{self.path}: cannot be written: {(error.strerror or str(error)).lower()}")
