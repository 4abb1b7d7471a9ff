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
from nndiff.files import OPEN_AT_ONCE, OpenFile, RegularFile, describe_read_error
from nndiff.metrics import Metrics
from nndiff.stats import _native
from nndiff.stats.interface import Job, Progress
from nndiff.stats.numpy_engine import NumpyEngine
from nndiff.tensors import FileData, MemoryData, TensorRef, settled

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
_FED_STEP = (
    1 << 22
)  # elements held at once of tensors that cannot be read in place; the more, the longer the runs of a view
_BATCH_ELEMENTS = 1 << 24
_BATCH_PAIRS = 1 << 9
_BATCH_FILES = OPEN_AT_ONCE // 2
_SUMMED_BY_ONE = 1 << 20  # bytes that one thread sums before others would have started
_THREAD_PAIRS = 32  # pairs in a batch that are worth a thread of their own


class NativeEngine:
    """Measure pairs with the C extension."""

    name = "native"

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or _count_threads()
        self._twin = NumpyEngine()

    def measure(self, jobs: Iterable[Job], progress: Progress | None = None) -> Iterator[Metrics]:
        """Yield the metrics of each job."""
        under_way: list[_RunningBatch] = []
        pairs: _Pairs | None = None
        try:
            for pairs in _gather_batches(jobs):
                if pairs.failure:  # of the iterator of jobs: those before it are finished first
                    break
                batch = _RunningBatch(pairs, _native.Batch(pairs.packed, self._threads, pairs.fed))
                if len(pairs.jobs) >= _THREAD_PAIRS:  # C measures while Python gathers the next batch
                    batch.start_thread(under_way[-1] if under_way else None)
                under_way.append(batch)
                while len(under_way) > 1 or (under_way and not under_way[-1].in_thread):
                    yield from self._finish_batch(under_way[0], progress)
                    del under_way[0]
            for batch in under_way:
                yield from self._finish_batch(batch, progress)
            if pairs and pairs.failure:
                raise pairs.failure
        finally:
            for batch in under_way:  # C reads on until it is done: what it reads must stay
                with contextlib.suppress(ChildProcessError):  # in a fork it reads nothing
                    batch.wait_for_thread()

    def _finish_batch(self, running: _RunningBatch, progress: Progress | None) -> Iterator[Metrics]:
        pairs = running.pairs
        if pairs.by_twin:
            yield from self._twin.measure(pairs.jobs, progress)
            return
        for count in running.run_steps():
            if progress and count:
                progress(count)
        results = running.batch.results(Metrics, [job.reference.shape for job in pairs.jobs])
        for job, result in zip(pairs.jobs, results, strict=True):
            if isinstance(result, Metrics):
                yield result
            elif result is None:  # squares beyond float64: rare enough to leave their meaning to one place
                yield from self._twin.measure([job])
            else:
                code, side = result
                tensor = job.candidate if side else job.reference
                data = settled(tensor.data)
                path = data.window.path if isinstance(data, FileData) else tensor.name
                raise SourceError(path, describe_read_error(code))


class _RunningBatch:
    """Drive a batch through its steps, in this thread or in one of its own."""

    def __init__(self, pairs: _Pairs, batch: _native.Batch) -> None:
        self.pairs = pairs
        self.batch = batch
        self.in_thread = False

    def start_thread(self, previous: _RunningBatch | None) -> None:
        """Let C go on in a thread, after the previous batch; a thread of Python would wait for the lock."""
        self.in_thread = self.batch.begin(previous.batch if previous and previous.in_thread else None)

    def wait_for_thread(self) -> int:
        """Wait for the thread, if there is one; return the number of elements it measured."""
        if not self.in_thread:
            return 0
        self.in_thread = False
        return self.batch.wait()

    def run_steps(self) -> Iterator[int]:
        """Yield the number of new elements, step by step."""
        if self.in_thread:
            yield self.wait_for_thread()
        elif self.pairs.fed:
            yield from self._feed_pieces()
        else:
            while (count := self.batch.step(_STEP)) is not None:
                yield count

    def _feed_pieces(self) -> Iterator[int]:
        """Read a pair piece by piece, where C cannot."""
        job = self.pairs.jobs[0]
        reference = job.reference if _locate_side(job.reference).fed else None
        candidate = job.candidate if _locate_side(job.candidate).fed else None
        while (span := self.batch.pending(_FED_STEP)) is not None:
            ref_piece = _read_piece(reference, *span) if reference else None
            cand_piece = _read_piece(candidate, *span) if candidate else None
            yield self.batch.feed(_FED_STEP, ref_piece, cand_piece)


def sum_content(elements: NDArray[Any], dtype: str, rounding: int, at: int) -> tuple[int, int]:
    """Return the two sums of content_hashes over elements, of which the first is at a place in its tensor."""
    threads = _count_threads() if elements.nbytes > _SUMMED_BY_ONE else 1
    return _native.content(elements, _CODES[dtype], rounding, at, threads)


def describe_native() -> str:
    """Return which vector width is in use and how many threads."""
    return f"native ({_native.level()}, {_count_threads()} threads)"


def _count_threads() -> int:
    wanted = os.environ.get("NNDIFF_THREADS", "")
    if wanted:
        if not (wanted.isascii() and wanted.isdigit() and int(wanted) > 0):
            raise UsageError(f"NNDIFF_THREADS is {wanted!r}, expected a whole number of one or more")
        return int(wanted)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Side(NamedTuple):
    """Know where C finds the elements of one side."""

    code: int  # -1: a type C does not know
    fd: int = -1
    place: int = 0
    fed: bool = False  # to be read by Python, piece by piece
    owner: OpenFile | NDArray[Any] | None = None  # must stay alive while C reads
    file: RegularFile | None = None


class _Pairs:
    """Gather pairs that go to C in one call."""

    def __init__(self, fed: bool = False, by_twin: bool = False) -> None:
        self.jobs: list[Job] = []
        self.packed = bytearray()
        self.fed = fed
        self.by_twin = by_twin
        self.failure: Exception | None = None  # of the iterator, in place of any pair
        self._owners: list[object] = []  # must stay alive while C reads
        self._files: dict[RegularFile, OpenFile] = {}
        self._room = _BATCH_ELEMENTS

    @property
    def is_full(self) -> bool:
        return self._room <= 0 or len(self.jobs) >= _BATCH_PAIRS or len(self._files) >= _BATCH_FILES

    def gather_jobs(self, jobs: Iterator[Job]) -> Job | None:
        """Take the jobs that C can pack itself; return the next one that needs a closer look, or None."""
        next_job, self._room = _native.gather(
            jobs, self.packed, self.jobs, self._owners, self._files, _BATCH_PAIRS, self._room
        )
        return next_job

    def add_job(self, job: Job, ref: _Side, cand: _Side) -> None:
        """Add a job whose sides were located."""
        self.jobs.append(job)
        count = job.reference.count
        self.packed += _PAIR.pack(
            ref.code, cand.code, ref.fd, cand.fd, ref.place, cand.place, count, job.atol, job.rtol
        )
        for side in (ref, cand):
            self._owners.append(side.owner)
            if side.file and isinstance(side.owner, OpenFile):
                self._files[side.file] = side.owner
        self._room -= count


def _gather_batches(jobs: Iterable[Job]) -> Iterator[_Pairs]:
    """Yield the jobs in order: many at once where C can read them in place, else one by one."""
    source = iter(jobs)
    pairs = _Pairs()
    while True:
        single = None
        try:
            job = pairs.gather_jobs(source)
            if job:
                single = _add_or_separate(job, pairs)
        except Exception as failure:
            if pairs.jobs:
                yield pairs
            failed = _Pairs()
            failed.failure = failure
            yield failed
            return
        has_ended = job is None and not pairs.is_full
        if pairs.jobs and (pairs.is_full or single or has_ended):
            yield pairs
            pairs = _Pairs()
        if single:
            yield single
        if has_ended:
            return


def _add_or_separate(job: Job, pairs: _Pairs) -> _Pairs | None:
    """Add a job to the batch, or return it as a batch of its own where Python has to read it."""
    ref, cand = _locate_side(job.reference), _locate_side(job.candidate)
    has_tolerances = 0 <= job.atol < math.inf and 0 <= job.rtol < math.inf
    is_known = job.reference.count == job.candidate.count and ref.code >= 0 and cand.code >= 0 and has_tolerances
    if not is_known:
        single = _Pairs(by_twin=True)
        single.jobs.append(job)
        return single
    if not ref.fed and not cand.fed:
        pairs.add_job(job, ref, cand)
        return None
    single = _Pairs(fed=True)
    single.add_job(job, ref, cand)
    return single


def _locate_side(tensor: TensorRef) -> _Side:
    """Return where C finds the elements of a tensor."""
    data, dtype = settled(tensor.data), tensor.dtype
    code = _CODES.get(dtype.name, _BYTE if dtype.kind in ("bool", "opaque") else -1)
    if type(data) is MemoryData:
        array = data.array
        is_bool_byte = array.dtype == np.bool_ and dtype.storage.itemsize == 1
        if array.size != tensor.count or not (array.dtype == dtype.storage or is_bool_byte):
            return _Side(-1)
        address = _native.address(array, array.nbytes)
        return _Side(code, -1, address, False, array) if address >= 0 else _Side(code, fed=True)
    if type(data) is FileData:
        if data.storage.itemsize != dtype.itemsize or data.window.size < tensor.nbytes:
            return _Side(-1)
        if data.swapped:
            return _Side(code, fed=True)
        opened = data.window.file.open()
        return _Side(code, opened.fd, data.window.start, False, opened, data.window.file)
    return _Side(code, fed=True)


def _read_piece(tensor: TensorRef, start: int, stop: int) -> NDArray[Any]:
    """Return elements as C takes them; arrays of another layout or type are converted."""
    return np.ascontiguousarray(tensor.read(start, stop), tensor.dtype.storage).view(np.uint8)


_simd = os.environ.get("NNDIFF_SIMD")
if _simd:
    if _simd not in _native.levels():
        raise UsageError(f"NNDIFF_SIMD is {_simd!r}, expected one of this machine's: {', '.join(_native.levels())}")
    _native.use(_simd)
