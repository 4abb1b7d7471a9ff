"""The engine in C: one fused pass on every core, straight from memory or from the file."""

from __future__ import annotations

import contextlib
import math
import os
import struct
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import DTYPES
from nndiff.errors import SourceError, UsageError
from nndiff.files import OPEN_AT_ONCE, OpenFile, RegularFile, why_unread
from nndiff.stats import _native
from nndiff.stats.interface import Job, Progress
from nndiff.metrics import Metrics
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

_PAIR = struct.Struct("=4i3q2d")  # Packed in native/gather.h
_native.know(MemoryData, FileData, _CODES)

_STEP = 1 << 24  # elements between two looks at the keyboard
_FED_STEP = 1 << 20  # elements held at once of tensors that cannot be read in place
_BATCH_ELEMENTS = 1 << 24
_BATCH_PAIRS = 1 << 9
_BATCH_FILES = OPEN_AT_ONCE // 2
_MANY = 32  # pairs that are worth a thread of their own


class NativeEngine:
    """Measure pairs with the C extension."""

    name = "native"

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or _cores()
        self._twin = NumpyEngine()

    def measure(self, jobs: Iterable[Job], progress: Progress | None = None) -> Iterator[Metrics]:
        """Yield the metrics of each job."""
        under_way: list[_Running] = []
        pairs: _Pairs | None = None
        try:
            for pairs in _batches(jobs):
                if pairs.failure:  # of who gives the jobs: those before it are done first
                    break
                under_way.append(self._start(pairs, under_way[-1] if under_way else None))
                while len(under_way) > 1 or (under_way and not under_way[-1].in_thread):
                    yield from self._finish(under_way[0], progress)
                    del under_way[0]
            for running in under_way:
                yield from self._finish(running, progress)
            if pairs and pairs.failure:
                raise pairs.failure
        finally:
            for running in under_way:  # C reads on until it is done: what it reads must stay
                with contextlib.suppress(ChildProcessError):  # in a fork it reads nothing
                    running.wait()

    def _start(self, pairs: _Pairs, before: _Running | None) -> _Running:
        """Begin with a batch; many small pairs are measured while Python gets the next ones together."""
        running = _Running(pairs, _native.Batch(pairs.packed, self._threads, pairs.fed))
        if len(pairs.jobs) >= _MANY:
            running.start(before)
        return running

    def _finish(self, running: _Running, progress: Progress | None) -> Iterator[Metrics]:
        pairs = running.pairs
        if pairs.by_twin:
            yield from self._twin.measure(pairs.jobs, progress)
            return
        for seen in running.steps():
            if progress and seen:
                progress(seen)
        results = running.batch.results(Metrics, [job.reference.shape for job in pairs.jobs])
        if set(map(type, results)) == {Metrics}:
            yield from results  # type: ignore[misc]  # mypy does not know what the set tells
            return
        for job, made in zip(pairs.jobs, results, strict=True):
            if isinstance(made, Metrics):
                yield made
            elif made is None:  # squares beyond float64: rare enough to leave their meaning to one place
                yield from self._twin.measure([job])
            else:
                raise _read_error(job, *made)


class _Running:
    """Drive a batch through its steps, here or in a thread of its own."""

    def __init__(self, pairs: _Pairs, batch: _native.Batch) -> None:
        self.pairs = pairs
        self.batch = batch
        self.in_thread = False

    def start(self, before: _Running | None) -> None:
        """Let C go on alone, after what was begun before; a thread of Python's would wait for others of them."""
        self.in_thread = self.batch.begin(before.batch if before and before.in_thread else None)

    def wait(self) -> int:
        """Wait for what was begun; return the number of elements."""
        if not self.in_thread:
            return 0
        self.in_thread = False
        return self.batch.wait()

    def steps(self) -> Iterator[int]:
        """Yield the number of new elements, step by step."""
        if self.in_thread:
            yield self.wait()
        else:
            yield from self._feed() if self.pairs.fed else self._step()

    def _step(self) -> Iterator[int]:
        while (seen := self.batch.step(_STEP)) is not None:
            yield seen

    def _feed(self) -> Iterator[int]:
        """Read a pair piece by piece, where C cannot."""
        job = self.pairs.jobs[0]
        fed = [ref if _side(ref).fed else None for ref in (job.reference, job.candidate)]
        while (span := self.batch.pending(_FED_STEP)) is not None:
            pieces = [_piece(ref, *span) if ref else None for ref in fed]
            yield self.batch.feed(_FED_STEP, pieces[0], pieces[1])


def describe() -> str:
    """Say which vector width is in use and how many cores."""
    return f"native ({_native.level()}, {_cores()} threads)"


def _cores() -> int:
    asked = os.environ.get("NNDIFF_THREADS", "")
    if asked:
        if not (asked.isascii() and asked.isdigit() and int(asked) > 0):
            raise UsageError(f"NNDIFF_THREADS is {asked!r}, expected a whole number of one or more")
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Side(NamedTuple):
    """Know where C finds the elements of one side."""

    code: int  # -1: a type C does not take
    fd: int = -1
    place: int = 0
    fed: bool = False  # to be read by Python, piece by piece
    holds: OpenFile | NDArray[Any] | None = None  # alive while C reads
    file: RegularFile | None = None


class _Pairs:
    """Gather pairs that go to C in one call."""

    def __init__(self, fed: bool = False, by_twin: bool = False) -> None:
        self.jobs: list[Job] = []
        self.packed = bytearray()
        self.fed = fed
        self.by_twin = by_twin
        self.failure: Exception | None = None  # of the iterator, in place of any pair
        self._holds: list[object] = []  # alive while C reads
        self._files: dict[RegularFile, OpenFile] = {}
        self._room = _BATCH_ELEMENTS

    @property
    def full(self) -> bool:
        return self._room <= 0 or len(self.jobs) >= _BATCH_PAIRS or len(self._files) >= _BATCH_FILES

    def gather(self, jobs: Iterator[Job]) -> Job | None:
        """Take what C can take; return the next job, if that takes a closer look."""
        left, self._room = _native.gather(
            jobs, self.packed, self.jobs, self._holds, self._files, _BATCH_PAIRS, self._room
        )
        return left

    @classmethod
    def failed(cls, failure: Exception) -> _Pairs:
        """Return what stands at the end where the jobs came to no good end."""
        pairs = cls()
        pairs.failure = failure
        return pairs

    def add(self, job: Job, ref: _Side, cand: _Side) -> None:
        """Take a pair in whose sides were looked at."""
        self.jobs.append(job)
        count = job.reference.count
        self.packed += _PAIR.pack(
            ref.code, cand.code, ref.fd, cand.fd, ref.place, cand.place, count, job.atol, job.rtol
        )
        for side in (ref, cand):
            self._holds.append(side.holds)
            if side.file and isinstance(side.holds, OpenFile):
                self._files[side.file] = side.holds
        self._room -= count


def _batches(jobs: Iterable[Job]) -> Iterator[_Pairs]:
    """Yield the jobs in order: many at once where C can read them in place, else one by one."""
    source = iter(jobs)
    pairs = _Pairs()
    while True:
        try:
            job = pairs.gather(source)
            alone = _alone(job, pairs) if job else None
        except Exception as failure:
            yield from ([pairs] if pairs.jobs else [])
            yield _Pairs.failed(failure)
            return
        ended = job is None and not pairs.full
        if pairs.jobs and (pairs.full or alone or ended):
            yield pairs
            pairs = _Pairs()
        if alone:
            yield alone
        if ended:
            return


def _alone(job: Job, pairs: _Pairs) -> _Pairs | None:
    """Take a job into the batch, or make it one of its own where Python has to read it."""
    ref, cand = _side(job.reference), _side(job.candidate)
    alike = job.reference.count == job.candidate.count
    able = alike and min(ref.code, cand.code) >= 0 and 0 <= job.atol < math.inf and 0 <= job.rtol < math.inf
    if able and not ref.fed and not cand.fed:
        pairs.add(job, ref, cand)
        return None
    alone = _Pairs(fed=able, by_twin=not able)
    if able:
        alone.add(job, ref, cand)
    else:
        alone.jobs.append(job)
    return alone


def _side(ref: TensorRef) -> _Side:
    data, dtype = ref.data, ref.dtype
    if type(data) is LateData:
        data = _settled(data)
    code = _CODES.get(dtype.name, _BYTE if dtype.kind in ("bool", "opaque") else -1)
    if type(data) is MemoryData:
        array = data.array
        if array.size != ref.count or not _same_storage(array.dtype, dtype.storage):
            return _Side(-1)
        place = _native.address(array, array.nbytes)
        return _Side(code, -1, place, False, array) if place >= 0 else _Side(code, fed=True)
    if type(data) is FileData:
        if data.storage.itemsize != dtype.itemsize or data.window.size < ref.nbytes:
            return _Side(-1)
        if data.swapped:
            return _Side(code, fed=True)
        opened = data.window.file.open()
        return _Side(code, opened.fd, data.window.start, False, opened, data.window.file)
    return _Side(code, fed=True)


def _settled(data: Data) -> Data:
    while isinstance(data, LateData):
        data = data.settle()
    return data


def _same_storage(have: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    return have is wanted or have == wanted or (have == np.bool_ and wanted.itemsize == 1)


def _piece(ref: TensorRef, start: int, stop: int) -> NDArray[Any]:
    """Return elements as C takes them; other arrays than promised are made so."""
    return np.ascontiguousarray(ref.read(start, stop), ref.dtype.storage).view(np.uint8)


def _read_error(job: Job, code: int, side: int) -> SourceError:
    ref = job.candidate if side else job.reference
    data = _settled(ref.data)
    path = data.window.path if isinstance(data, FileData) else ref.name
    return SourceError(path, why_unread(code))


def _use(level: str) -> None:
    """Take the vector width that NNDIFF_SIMD names."""
    if level not in _native.levels():
        raise UsageError(f"NNDIFF_SIMD is {level!r}, expected one of this machine's: {', '.join(_native.levels())}")
    _native.use(level)


if os.environ.get("NNDIFF_SIMD"):
    _use(os.environ["NNDIFF_SIMD"])
