"""The engine in C: one fused pass on every core, straight from memory or from the file."""

from __future__ import annotations

import math
import os
import struct
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import DTYPES
from nndiff.errors import SourceError
from nndiff.files import OpenFile
from nndiff.stats import _native
from nndiff.stats.interface import Job, Progress
from nndiff.stats.metrics import Metrics
from nndiff.stats.numpy_engine import NumpyEngine
from nndiff.tensors import Data, FileData, LateData, MemoryData, TensorRef

if sys.byteorder != "little":
    raise ImportError("the native engine reads little-endian numbers")

# the order of the enum Type in native/native.h
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
_TYPES = (
    *("float64", "float32", "float16", "bfloat16"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
    *_FLOAT8,
)
_CODES = {name: code for code, name in enumerate(_TYPES)}
_BYTE = _CODES["uint8"]  # bool and opaque bytes are compared as they are stored
for _number, _name in enumerate(_FLOAT8):
    _native.set_float8(_number, DTYPES[_name].decode(np.arange(256, dtype=np.uint8)).tobytes())

_PAIR = struct.Struct("=4i3q2d")
_ROW = struct.Struct("=7q2iq12d4d4d4d3d9d")  # Row in native/state.h
_COUNTS = slice(0, 6)
_AT, _OVERFLOW, _ERROR, _ERROR_SIDE, _MAX_ABS = 6, 7, 8, 9, 10
_NUMBERS = slice(11, 37)
_ENVELOPE = slice(37, 46)

_STEP = 1 << 24  # elements between two looks at the keyboard
_FED_STEP = 1 << 20  # elements held at once of tensors that cannot be read in place
_BATCH_ELEMENTS = 1 << 24
_BATCH_PAIRS = 1 << 10
_BATCH_FILES = 64


class NativeEngine:
    """Measure pairs with the C extension."""

    name = "native"

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or _cores()
        self._twin = NumpyEngine()

    def measure(self, jobs: Iterable[Job], progress: Progress | None = None) -> Iterator[Metrics]:
        """Yield the metrics of each job."""
        batch = _Pairs()
        for job in jobs:
            sides = _side(job.reference), _side(job.candidate)
            if not _native_can(job, sides) or sides[0].fed or sides[1].fed:
                yield from self._run(batch, progress)
                batch = _Pairs()
                yield self._alone(job, sides, progress)
                continue
            batch.add(job, sides)
            if batch.full:
                yield from self._run(batch, progress)
                batch = _Pairs()
        yield from self._run(batch, progress)

    def _run(self, pairs: _Pairs, progress: Progress | None) -> Iterator[Metrics]:
        if not pairs.jobs:
            return
        batch = _native.Batch(pairs.packed, self._threads, False)
        while (seen := batch.step(_STEP)) is not None:
            if progress and seen:
                progress(seen)
        for job, row in zip(pairs.jobs, _ROW.iter_unpack(batch.rows()), strict=True):
            yield self._metrics(job, row)

    def _alone(self, job: Job, sides: tuple[_Side, _Side], progress: Progress | None) -> Metrics:
        """Measure a pair that is not simply there: piece by piece, or by the twin."""
        if not _native_can(job, sides):
            return next(iter(self._twin.measure([job], progress)))
        pairs = _Pairs()
        pairs.add(job, sides)
        batch = _native.Batch(pairs.packed, self._threads, True)
        while (span := batch.pending(_FED_STEP)) is not None:
            pieces = [
                _piece(ref, *span) if side.fed else None
                for ref, side in zip((job.reference, job.candidate), sides, strict=True)
            ]
            seen = batch.feed(_FED_STEP, *pieces)
            if progress and seen:
                progress(seen)
        return self._metrics(job, _ROW.unpack(batch.rows()))

    def _metrics(self, job: Job, row: tuple[Any, ...]) -> Metrics:
        if row[_ERROR]:
            raise _read_error(job.candidate if row[_ERROR_SIDE] else job.reference, row[_ERROR])
        if row[_OVERFLOW]:  # squares beyond float64: rare enough to leave their meaning to one place
            return next(iter(self._twin.measure([job])))
        index = _unravel(row[_AT], job.reference.shape)
        fields = (*row[_COUNTS], row[_MAX_ABS], index, *row[_NUMBERS], row[_ENVELOPE])
        return Metrics(*fields)


def describe() -> str:
    """Say which vector width is in use and how many cores."""
    return f"native ({_native.level()}, {_cores()} threads)"


def _cores() -> int:
    asked = os.environ.get("NNDIFF_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class _Side:
    """Know where C finds the elements of one side."""

    code: int  # -1: a type C does not take
    fd: int = -1
    place: int = 0
    fed: bool = False  # to be read by Python, piece by piece
    holds: OpenFile | NDArray[Any] | None = None  # alive while C reads


@dataclass(slots=True)
class _Pairs:
    """Gather pairs that go to C in one call."""

    jobs: list[Job] = field(default_factory=list)
    packed: bytearray = field(default_factory=bytearray)
    holds: list[object] = field(default_factory=list)
    files: set[int] = field(default_factory=set)
    elements: int = 0

    def add(self, job: Job, sides: tuple[_Side, _Side]) -> None:
        ref, cand = sides
        count = job.reference.count
        self.packed += _PAIR.pack(
            ref.code, cand.code, ref.fd, cand.fd, ref.place, cand.place, count, job.atol, job.rtol
        )
        self.jobs.append(job)
        self.holds += (ref.holds, cand.holds)
        self.files |= {ref.fd, cand.fd}
        self.elements += count

    @property
    def full(self) -> bool:
        return self.elements >= _BATCH_ELEMENTS or len(self.jobs) >= _BATCH_PAIRS or len(self.files) >= _BATCH_FILES


def _native_can(job: Job, sides: tuple[_Side, _Side]) -> bool:
    return (
        sides[0].code >= 0
        and sides[1].code >= 0
        and 0 <= job.atol < math.inf
        and 0 <= job.rtol < math.inf
        and job.reference.count == job.candidate.count
    )


def _side(ref: TensorRef) -> _Side:
    data = _settled(ref.data)
    code = _CODES.get(ref.dtype.name, _BYTE if ref.dtype.kind in ("bool", "opaque") else -1)
    if isinstance(data, FileData):
        if data.storage.itemsize != ref.dtype.itemsize or data.window.size < ref.nbytes:
            return _Side(-1)
        if data.swapped:
            return _Side(code, fed=True)
        opened = data.window.file.open()
        return _Side(code, opened.fd, data.window.start, holds=opened)
    if isinstance(data, MemoryData):
        array = data.array
        if array.size != ref.count or not _same_storage(array.dtype, ref.dtype.storage):
            return _Side(-1)
        if array.flags.c_contiguous:
            return _Side(code, -1, array.__array_interface__["data"][0], holds=array)
    return _Side(code, fed=True)


def _settled(data: Data) -> Data:
    while isinstance(data, LateData):
        data = data.settle()
    return data


def _same_storage(have: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    return have == wanted or (have == np.bool_ and wanted.itemsize == 1)


def _piece(ref: TensorRef, start: int, stop: int) -> NDArray[Any]:
    """Return elements as C takes them; other arrays than promised are made so."""
    return np.ascontiguousarray(ref.read(start, stop), ref.dtype.storage).view(np.uint8)


def _unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    if flat < 0:
        return None
    index = []
    for size in reversed(shape):
        flat, place = divmod(flat, size)
        index.append(place)
    return tuple(reversed(index))


def _read_error(ref: TensorRef, code: int) -> SourceError:
    data = _settled(ref.data)
    path = data.window.path if isinstance(data, FileData) else ref.name
    reason = "became shorter while it was being read" if code < 0 else os.strerror(code).lower()
    return SourceError(path, reason)


_forced = os.environ.get("NNDIFF_SIMD")
if _forced:
    _native.use(_forced)
