"""Tensors that lie in files: the same numbers as from memory, read in place, and files that fail."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from stats_pairs import LEVELS, apart, job, measure, native, tensor

from nndiff.errors import SourceError
from nndiff.files import RegularFile, Window
from nndiff.stats import Engine
from nndiff.stats.numpy_engine import NumpyEngine
from nndiff.tensors import Data, FileData, LateData, StridedFileData, TensorRef

ENGINES = ["numpy", *(["native"] if LEVELS else [])]


def engine(name: str) -> Engine:
    return NumpyEngine() if name == "numpy" else native()


def in_file(path: Path, array: NDArray[Any], offset: int = 13) -> TensorRef:
    """Put an array into a file behind some bytes, so that nothing is aligned."""
    path.write_bytes(b"#" * offset + array.tobytes() + b"#" * 7)
    window = Window(RegularFile(str(path)), offset, array.nbytes)
    return tensor(array, data=FileData(window, array.dtype))


def pair(size: int, dtype: type = np.float32) -> tuple[NDArray[Any], NDArray[Any]]:
    random = np.random.default_rng(size)
    ref = random.normal(size=size).astype(dtype)
    return ref, (ref + 1e-3 * random.normal(size=size)).astype(dtype)


@pytest.mark.parametrize("size", [1, 100, 16384, 50_001, 5_000_000])
def test_the_same_as_from_memory(tmp_path: Path, size: int) -> None:
    ref, cand = pair(size)
    one = job(in_file(tmp_path / "r", ref), in_file(tmp_path / "c", cand))
    for name in ENGINES:
        (file,), (memory,) = measure(engine(name), one), measure(engine(name), job(tensor(ref), tensor(cand)))
        assert repr(file) == repr(memory)


def test_one_side_in_a_file_the_other_late(tmp_path: Path) -> None:
    ref, cand = pair(30_000)
    late = tensor(cand, data=LateData(lambda: LateData(lambda: in_file(tmp_path / "c", cand).data)))
    for name in ENGINES:
        got = measure(engine(name), job(tensor(ref), late), job(in_file(tmp_path / "r", ref), late))
        assert repr(got[0]) == repr(got[1])


@pytest.mark.parametrize("name", ENGINES)
def test_the_other_byte_order(tmp_path: Path, name: str) -> None:
    ref, cand = pair(5_000_000 if name == "native" else 50_000)
    path = tmp_path / "swapped"
    path.write_bytes(cand.byteswap().tobytes())
    swapped = tensor(cand, data=FileData(Window(RegularFile(str(path))), cand.dtype, swapped=True))
    (got,), (plain,) = (
        measure(engine(name), job(tensor(ref), swapped)),
        measure(engine(name), job(tensor(ref), tensor(cand))),
    )
    differing = set(apart(got, plain))
    assert differing <= ({"p50", "p90", "p95", "p99"} if name == "native" else set())
    assert got.p99 == pytest.approx(plain.p99, rel=1e-3)


@pytest.mark.parametrize("name", ENGINES)
def test_strided_in_the_file(tmp_path: Path, name: str) -> None:
    storage, cand = pair(300 * 200)
    path = tmp_path / "strided"
    path.write_bytes(storage.tobytes())
    turned = storage.reshape(300, 200).T
    data = StridedFileData(Window(RegularFile(str(path))), storage.dtype, 0, (200, 300), (1, 200))
    one = job(tensor(turned, data=data), tensor(cand.reshape(200, 300)))
    (got,), (memory,) = measure(engine(name), one), measure(engine(name), job(tensor(turned.copy()), one.candidate))
    assert apart(got, memory) == {}


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("size", [1000, 100_000])
def test_a_file_that_became_shorter(tmp_path: Path, name: str, size: int) -> None:
    ref, cand = pair(size)
    good, bad = in_file(tmp_path / "r", ref), in_file(tmp_path / "c", cand)
    os.truncate(tmp_path / "c", cand.nbytes // 2)
    results = engine(name).measure([job(good, good), job(good, bad)])
    assert next(iter(results)).unequal == 0
    with pytest.raises(SourceError, match=r"c: .*became shorter while it was being read"):
        next(iter(results))


@pytest.mark.parametrize("name", ENGINES)
def test_a_window_smaller_than_the_tensor(tmp_path: Path, name: str) -> None:
    ref, cand = pair(1000)
    (tmp_path / "c").write_bytes(cand.tobytes()[:-4])
    short = tensor(cand, data=FileData(Window(RegularFile(str(tmp_path / "c"))), cand.dtype))
    with pytest.raises(SourceError, match="claimed"):
        measure(engine(name), job(tensor(ref), short))


@pytest.mark.skipif(not LEVELS, reason="built without the native engine")
def test_more_files_than_a_process_may_open(tmp_path: Path) -> None:
    values = np.arange(10, dtype=np.float32)
    jobs = [job(in_file(tmp_path / f"r{n}", values), in_file(tmp_path / f"c{n}", values + n)) for n in range(700)]
    assert [got.max_abs for got in native().measure(jobs)] == list(range(700))


@pytest.mark.skipif(not LEVELS, reason="built without the native engine")
def test_a_failing_read_is_raised_as_it_is() -> None:
    class Failing:
        def read(self, start: int, stop: int) -> NDArray[Any]:
            raise SourceError("here", "cannot be read")

    data: Data = Failing()
    ref = np.zeros(100, np.float32)
    with pytest.raises(SourceError, match="cannot be read"):
        measure(native(), job(tensor(ref), tensor(ref, data=data)))


@pytest.mark.skipif(not LEVELS, reason="built without the native engine")
def test_jobs_are_taken_as_they_are_needed() -> None:
    """A huge source must not be opened whole before the first result."""
    taken = []

    def jobs() -> Any:
        for number in range(10):
            taken.append(number)
            values = np.zeros(1 << 23, np.float32) if number < 2 else np.zeros(4, np.float32)
            yield job(tensor(values), tensor(values))

    results = native().measure(jobs())
    next(iter(results))
    assert len(taken) <= 3


@pytest.mark.skipif(not LEVELS, reason="built without the native engine")
def test_progress_counts_every_element_once_and_in_this_thread() -> None:
    seen: list[tuple[int, int]] = []
    sizes = [0, 5, 20_000, 5_000_000]
    jobs = [job(tensor(np.zeros(size, np.float32)), tensor(np.ones(size, np.float32))) for size in sizes]
    turned = np.zeros((300, 200), np.float32).T
    jobs.append(job(tensor(turned), tensor(turned.copy())))
    list(native().measure(jobs, lambda done: seen.append((done, threading.get_ident()))))
    assert sum(done for done, _ in seen) == sum(sizes) + turned.size
    assert {thread for _, thread in seen} == {threading.get_ident()}
