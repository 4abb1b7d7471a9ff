"""Where the outputs of a running mode go: a recording, or .npy files. Either is written as the samples come."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from nndiff.errors import SourceError
from nndiff.recording.format.digests import RawTensor, measure_tensor
from nndiff.recording.format.folder import is_recording
from nndiff.recording.format.shards import write_atomically
from nndiff.recording.writer import Writer
from nndiff.result_json import plain
from nndiff.sources.mode_files import PREFIX, STATS_SUFFIX, find_mode_files
from nndiff.tensors import Shape, Site, Slot, Stats

STATS_FORMAT = "nndiff.mode"
STATS_VERSION = 1
OUTPUT = "output"
_HEADER_SIZE = 2048  # bytes of a .npy header: the shape is known last, and may have 64 axes
_PART_SUFFIX = ".part"


class Layout(str, Enum):
    """Say how the outputs of a mode are stored."""

    RECORDING = "recording"
    NPY = "npy"


@dataclass
class PooledStats:
    """Gather the statistics of a layer over all samples."""

    module: str
    cls: str
    shapes: list[Shape] = field(default_factory=list)
    dtype: str = ""
    parts: list[Stats] = field(default_factory=list)

    def add(self, shape: Shape, dtype: str, stats: Stats) -> None:
        """Add one output."""
        self.shapes.append(shape)
        self.dtype = dtype
        self.parts.append(stats)

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics over all samples, as JSON can hold them."""
        finite = sum(part.count - part.nonfinite for part in self.parts)
        known = [part for part in self.parts if part.count > part.nonfinite]
        data: dict[str, Any] = {
            "module": self.module,
            "class": self.cls,
            "shape": list(pool_shapes(self.shapes)),
            "dtype": self.dtype,
            "nonfinite": sum(part.nonfinite for part in self.parts),
        }
        if finite:
            mean = math.fsum(part.mean * ((part.count - part.nonfinite) / finite) for part in known)
            squares = [part.std**2 + (part.mean - mean) ** 2 for part in known]
            weights = [(part.count - part.nonfinite) / finite for part in known]
            variance = math.fsum(square * weight for square, weight in zip(squares, weights, strict=True))
            data |= {"mean": mean, "std": math.sqrt(variance)}
            data |= {"min": min(part.min for part in known), "max": max(part.max for part in known)}
        return data


class OutputSink(Protocol):
    """Take the outputs of one mode as they come."""

    stats: dict[str, PooledStats]  # by name of the layer

    def name_layer(self, module: str, path: str, is_main: bool) -> str:
        """Return what a layer's output goes by; `path` is its place in a tuple or dict."""

    def add_output(self, module: str, cls: str, path: str, is_main: bool, raw: RawTensor) -> None:
        """Write one output."""

    def finish(self) -> None:
        """Make what was written final."""

    def discard(self) -> None:
        """Delete what was written."""


class RecordingSink:
    """Write a recording: the second sample is the second call of every module."""

    def __init__(self, folder: str, mode: str, meta: Mapping[str, Any]) -> None:
        self.stats: dict[str, PooledStats] = {}
        self._folder = folder
        self._mode = mode
        self._calls = Counter[str]()
        path = get_recording_path(folder, mode)
        if os.path.isdir(path) and not is_recording(Path(path)):
            raise SourceError(path, "is a folder that is no recording; move it away, or give another -o DIR")
        self._writer = Writer(path, meta, overwrite=True)

    def name_layer(self, module: str, path: str, is_main: bool) -> str:
        """Return the name of its site."""
        return Site(module, Slot.OUTPUT, 0, path).name

    def add_output(self, module: str, cls: str, path: str, is_main: bool, raw: RawTensor) -> None:
        """Write one output."""
        name = self.name_layer(module, path, is_main)
        site = Site(module, Slot.OUTPUT, self._calls[name], path, "", cls)
        self._calls[name] += 1
        event = self._writer.add_tensor(site, lambda: raw)
        if event.stats is not None:
            self.stats.setdefault(name, PooledStats(module, cls)).add(raw.shape, raw.dtype.name, event.stats)

    def finish(self) -> None:
        """Complete the recording; files of an earlier run are removed."""
        self._writer.finish()
        remove_files(self._folder, self._mode)

    def discard(self) -> None:
        """Delete the recording."""
        self._writer.discard()


class NpySink:
    """Write one .npy file per layer, all samples one after the other."""

    def __init__(self, folder: str, mode: str, numbers: Mapping[str, int], blocks: str) -> None:
        self.stats: dict[str, PooledStats] = {}
        self._folder = folder
        self._mode = mode
        self._numbers = numbers  # of layers, by module
        self._blocks = blocks
        self._parts: dict[str, str] = {}  # unfinished file by layer
        self._types: dict[str, np.dtype[Any]] = {}

    def name_layer(self, module: str, path: str, is_main: bool) -> str:
        """Return `layer_N` for a block, `layer_N_MODULE` for what is inside or between blocks, else `output`."""
        suffix = "" if is_main else f":{path}"
        if not module:
            return OUTPUT + (f"_{path}" if suffix else "")
        number = self._numbers.get(module, max(self._numbers.values(), default=0))
        is_block = bool(self._blocks) and module.rpartition(".")[0] == self._blocks
        return f"layer_{number}" if is_block and is_main else f"layer_{number}_{module}{suffix}"

    def add_output(self, module: str, cls: str, path: str, is_main: bool, raw: RawTensor) -> None:
        """Append one output to the file of its layer; bfloat16 and float8 become float32, which NumPy has."""
        name = self.name_layer(module, path, is_main)
        values = np.ascontiguousarray(raw.dtype.decode(raw.flat))
        if name not in self._parts:
            self._types[name] = values.dtype
            self._parts[name] = self._locate(name) + _PART_SUFFIX
            with open(self._parts[name], "wb") as file:
                file.write(bytes(_HEADER_SIZE))
        with open(self._parts[name], "ab") as file:
            file.write(values.astype(self._types[name], copy=False).data)
        stats = measure_tensor(raw).stats
        assert stats is not None  # an opaque type is never an output of floats
        self.stats.setdefault(name, PooledStats(module, cls)).add(raw.shape, raw.dtype.name, stats)

    def finish(self) -> None:
        """Write the headers and give the files their names; those of an earlier run are removed."""
        remove_mode(self._folder, self._mode)
        for name, part in self._parts.items():
            shape = pool_shapes(self.stats[name].shapes)
            header = {"descr": self._types[name].str, "fortran_order": False, "shape": shape}
            text = f"{header!r}".encode("latin-1").ljust(_HEADER_SIZE - 11) + b"\n"
            with open(part, "r+b") as file:
                file.write(b"\x93NUMPY\x01\x00" + (_HEADER_SIZE - 10).to_bytes(2, "little") + text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, self._locate(name))
        self._parts = {}

    def discard(self) -> None:
        """Delete the unfinished files."""
        for part in self._parts.values():
            Path(part).unlink(missing_ok=True)

    def _locate(self, name: str) -> str:
        return os.path.join(self._folder, f"{PREFIX}{self._mode}_{name}.npy")


def pool_shapes(shapes: Sequence[Shape]) -> Shape:
    """Return the shape of outputs laid one after the other: along the first axis, else as rows, else flat."""
    if len(shapes) == 1 or not shapes:
        return shapes[0] if shapes else (0,)
    if all(shapes[0]) and all(shape and shape[1:] == shapes[0][1:] for shape in shapes):
        return (sum(shape[0] for shape in shapes), *shapes[0][1:])
    total = sum(math.prod(shape) for shape in shapes)
    width = shapes[0][-1] if shapes[0] else 0
    if width and all(shape and shape[-1] == width for shape in shapes):
        return (total // width, width)
    return (total,)


def get_recording_path(folder: str, mode: str) -> str:
    """Return the folder of a mode's recording."""
    return os.path.join(folder, f"{PREFIX}{mode}")


def get_stats_path(folder: str, mode: str) -> str:
    """Return the file of a mode's statistics; it is written last, so that one that is there is finished."""
    return os.path.join(folder, f"{PREFIX}{mode}{STATS_SUFFIX}")


def write_stats(folder: str, mode: str, data: Mapping[str, Any]) -> None:
    """Write the statistics of a mode, whole or not at all."""
    body = {"format": STATS_FORMAT, "version": STATS_VERSION, "mode": mode, **data}
    path = Path(get_stats_path(folder, mode))
    try:
        write_atomically(path, json.dumps(plain(body), indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise SourceError(path, f"cannot be written: {(error.strerror or str(error)).lower()}") from None


def remove_mode(folder: str, mode: str) -> None:
    """Delete what an earlier run of a mode left in a folder, in either layout."""
    recording = Path(get_recording_path(folder, mode))
    if is_recording(recording):
        shutil.rmtree(recording)
    remove_files(folder, mode)


def remove_files(folder: str, mode: str) -> None:
    """Delete the statistics and arrays of a mode."""
    files = find_mode_files(folder).get(mode)
    for path in (files.stats, *files.arrays.values()) if files else ():
        Path(path).unlink(missing_ok=True)
