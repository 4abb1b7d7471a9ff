"""State files of a training run: the tensors of one recorded step as a few arrays, and whole tensors if asked for."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.errors import DamagedError, SourceError
from nndiff.files import RegularFile, Window
from nndiff.recording.format.shards import get_stored_dtype, make_header_entry
from nndiff.runs.files import PART_SUFFIX
from nndiff.runs.lines import Layout
from nndiff.sources.safetensors_file import read_header
from nndiff.tensors import TensorRef

STATISTICS, DIGESTS, SKETCHES, HOMES = "statistics", "digests", "sketches", "homes"
STATISTICS_COLUMNS = 6
DIGEST_BYTES = 16
_CODES = {"float64": "F64", "uint8": "U8", "float32": "F32", "int64": "I64"}
_COPY_ELEMENTS = 1 << 22  # of a whole tensor that is written at once


@dataclass(frozen=True)
class State:
    """Hold the arrays of one state file."""

    statistics: NDArray[np.float64]
    digests: NDArray[np.uint8]
    sketches: NDArray[np.float32]
    homes: NDArray[np.int64] | None  # number of the state file that has the whole tensor of each row; None: no file has

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name, in the order of the file."""
        arrays: dict[str, NDArray[Any]] = {STATISTICS: self.statistics, DIGESTS: self.digests, SKETCHES: self.sketches}
        return arrays if self.homes is None else {**arrays, HOMES: self.homes}

    def compute_crc(self) -> int:
        """Return the CRC-32 of the bytes of all arrays, one after the other."""
        crc = 0
        for array in self.arrays.values():
            crc = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, crc)
        return crc


def write_state(path: Path, state: State, tensors: Mapping[str, TensorRef]) -> None:
    """Write a state file, complete or not at all: the arrays first, then the whole tensors by name."""
    arrays = state.arrays
    header: dict[str, Any] = {}
    start = 0
    for name, array in arrays.items():
        start = _add_entry(header, name, _CODES[array.dtype.name], list(array.shape), start, array.nbytes)
    for name, tensor in tensors.items():
        code, shape = make_header_entry(tensor.dtype.name, tensor.shape, tensor.nbytes)
        start = _add_entry(header, name, code, shape, start, tensor.nbytes)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # arrays begin at multiples of eight
    part_path = path.with_name(path.name + PART_SUFFIX)
    try:
        with open(part_path, "wb", buffering=0) as file:
            blocks: list[bytes | NDArray[Any]] = [len(text).to_bytes(8, "little") + text]
            blocks += [np.ascontiguousarray(array) for array in arrays.values()]
            _write_blocks(file.fileno(), blocks)
            for tensor in tensors.values():
                for elements in tensor.blocks(_COPY_ELEMENTS):
                    _write_blocks(file.fileno(), [np.ascontiguousarray(elements)])
        os.replace(part_path, path)
    except BaseException:
        part_path.unlink(missing_ok=True)
        raise


def _add_entry(header: dict[str, Any], name: str, code: str, shape: list[int], start: int, nbytes: int) -> int:
    header[name] = {"dtype": code, "shape": shape, "data_offsets": [start, start + nbytes]}
    return start + nbytes


def _write_blocks(fd: int, blocks: Sequence[bytes | NDArray[Any]]) -> None:
    for block in blocks:
        view = memoryview(block) if isinstance(block, bytes) else block.reshape(-1).view(np.uint8).data
        while view:
            view = view[os.write(fd, view) :]


def read_state(path: str, layout: Layout, crc: int | None) -> State:
    """Return the arrays of a state file; raise SourceError if they are not those of the layout or have another CRC."""
    window = Window(RegularFile(path))
    entries = {tensor.name: tensor for tensor in read_header(window)[0]}
    count = len(layout.keys)

    def read_array(name: str, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        tensor = entries.get(name)
        if tensor is None or tensor.dtype.name != dtype or tensor.shape != shape:
            raise SourceError(path, f"{name!r} is not an array of {dtype} {list(shape)}, which the layout asks for")
        return tensor.read(0, tensor.count).reshape(shape)

    state = State(
        statistics=read_array(STATISTICS, "float64", (count, STATISTICS_COLUMNS)),
        digests=read_array(DIGESTS, "uint8", (count, DIGEST_BYTES)),
        sketches=read_array(SKETCHES, "float32", (int(layout.offsets[-1]),)),
        homes=read_array(HOMES, "int64", (count,)) if HOMES in entries else None,
    )
    if crc is not None and state.compute_crc() != crc:
        raise DamagedError(path, "is damaged: its checksum is not the recorded one; copy or record the run again")
    return state


def split_digests(digests: NDArray[np.uint8]) -> list[str]:
    """Return the digest of each row in hex; it is also the name of the whole tensor."""
    text, size = digests.tobytes().hex(), 2 * DIGEST_BYTES
    return [text[start : start + size] for start in range(0, len(text), size)]


def read_whole_tensors(path: str) -> dict[str, TensorRef]:
    """Return the whole tensors in a state file by name, which is their digest in hex."""
    tensors, _ = read_header(Window(RegularFile(path)))
    return {tensor.name: tensor for tensor in tensors}


def fits_stored_tensor(stored: TensorRef, dtype: str, nbytes: int) -> bool:
    """Return True if a stored tensor has the dtype and the size that the layout gives it."""
    return stored.dtype.name == get_stored_dtype(dtype) and stored.nbytes == nbytes
