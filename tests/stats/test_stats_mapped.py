"""Files that are mapped instead of read: the same numbers, and nothing lost when one is cut meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from stats_pairs import LEVELS, job, measure, native, tensor

from nndiff.files import RegularFile, Window
from nndiff.stats import Job
from nndiff.tensors import FileData, TensorRef

pytestmark = [
    pytest.mark.skipif(not LEVELS, reason="built without the native engine"),
    pytest.mark.skipif(sys.platform != "linux", reason="files are only mapped on Linux"),
]

# What is run apart: if the handler does not do its work, the process ends.
PRELUDE = """
import conftest, os, signal, sys, threading, time
import numpy as np
from pathlib import Path
from stats_pairs import job, measure, native, tensor
from nndiff.errors import SourceError
from nndiff.files import RegularFile, Window
from nndiff.tensors import FileData

def in_file(path, array):
    path.write_bytes(array.tobytes())
    return tensor(array, data=FileData(Window(RegularFile(str(path)), 0, array.nbytes), array.dtype))

array = np.arange(1 << 20, dtype=np.float32)
folder = Path(sys.argv[1])
"""

CUT = """
array = np.arange(1 << 24, dtype=np.float32)
apart = array + np.linspace(-1, 1, array.size, dtype=np.float32)
one, other = in_file(folder / "r", array), in_file(folder / "c", apart)
kept, lost = array.nbytes - int(sys.argv[2]), apart.tobytes()[-int(sys.argv[2]):]

def cut(after):
    time.sleep(after)
    os.truncate(folder / "c", kept)

def seconds():
    began = time.perf_counter()
    measure(native(), job(one, other))
    return time.perf_counter() - began

whole = min(seconds() for _ in range(5))
outcomes = []
for number in range(60):
    thread = threading.Thread(target=cut, args=[whole * (number % 20) / 18])
    thread.start()
    try:
        (got,) = measure(native(), job(one, other))
        outcomes.append(got.max_abs)
    except SourceError as error:
        assert "became shorter while it was being read" in str(error), error
        outcomes.append("shorter")
    thread.join()
    with open(folder / "c", "r+b") as file:
        file.seek(kept)
        file.write(lost)
assert set(outcomes) <= {"shorter", 1.0}, outcomes  # never a number made of zeros that are not in the file
assert "shorter" in outcomes, outcomes
"""


def run_apart(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    command = [sys.executable, "-c", PRELUDE + script, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def place(path: Path, start: int, array: np.ndarray) -> TensorRef:
    return tensor(array, data=FileData(Window(RegularFile(str(path)), start, array.nbytes), array.dtype))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int8])
@pytest.mark.parametrize("size", [300_000, 5_000_000, 20_000_000])
def test_the_same_as_from_memory(tmp_path: Path, dtype: type, size: int) -> None:
    random = np.random.default_rng(size)
    ref = (10 * random.standard_normal(size)).astype(dtype)
    cand = (ref + random.standard_normal(size)).astype(dtype)
    (tmp_path / "r").write_bytes(b"#" * 8 + ref.tobytes())
    (tmp_path / "c").write_bytes(b"#" * 4096 + cand.tobytes())
    files = job(place(tmp_path / "r", 8, ref), place(tmp_path / "c", 4096, cand))
    (file,), (memory,) = measure(native(), files), measure(native(), job(tensor(ref), tensor(cand)))
    assert repr(file) == repr(memory)


def test_many_tensors_of_two_files_in_any_order(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(size).astype(np.float32) for size in (5, 0, 900_000, 1, 40_000, 20_000, 3) * 8]
    starts = np.cumsum([0, *(array.nbytes for array in arrays)])
    (tmp_path / "r").write_bytes(b"".join(array.tobytes() for array in arrays))
    (tmp_path / "c").write_bytes(b"".join((array + np.float32(1)).tobytes() for array in arrays))

    def one(number: int) -> tuple[Job, Job]:
        array, start = arrays[number], int(starts[number])
        files = job(place(tmp_path / "r", start, array), place(tmp_path / "c", start, array))
        return files, job(tensor(array), tensor(array + np.float32(1)))

    jobs = [one(int(number)) for number in random.permutation(len(arrays))]
    got = [repr(made) for made in measure(native(), *(files for files, _ in jobs))]
    assert got == [repr(made) for made in measure(native(), *(memory for _, memory in jobs))]


@pytest.mark.parametrize("lost", [1, 4096, 5_000_000])
def test_a_file_that_is_cut_meanwhile(tmp_path: Path, lost: int) -> None:
    done = run_apart(CUT, tmp_path, lost)
    assert done.returncode == 0, done.stderr[-3000:]


CUT_STRIDED = """
from nndiff.tensors import StridedFileData
from nndiff.stats.numpy_engine import NumpyEngine
array = np.arange(1 << 22, dtype=np.float32).reshape(1 << 11, 1 << 11)
path = folder / "f"
for number in range(24):
    path.write_bytes(array.tobytes())
    window = Window(RegularFile(str(path)), 0, array.nbytes)
    turned = tensor(array.T, data=StridedFileData(window, array.dtype, 0, array.shape, (1, 1 << 11)))
    def cut(after=number * 1e-3):
        time.sleep(after)
        os.truncate(path, 5000)
    thread = threading.Thread(target=cut)
    thread.start()
    try:
        (got,) = measure(native() if number % 2 else NumpyEngine(), job(turned, tensor(array.T.copy())))
        assert got.unequal == 0
    except SourceError as error:
        assert "became shorter while it was being read" in str(error), error
    thread.join()
    path.unlink()
"""


def test_a_file_of_a_view_that_is_cut_meanwhile(tmp_path: Path) -> None:
    done = run_apart(CUT_STRIDED, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.skipif("NNDIFF_SANITIZED" in os.environ, reason="the sanitizer has a handler of its own")
@pytest.mark.parametrize("times", [1, 2])
def test_a_handler_that_gives_way_to_ours_is_no_circle(tmp_path: Path, times: int) -> None:
    script = """
import faulthandler
one = in_file(folder / "r", array)
measure(native(), job(one, one))
for _ in range(int(sys.argv[2])):
    faulthandler.enable()
    measure(native(), job(one, one))
    faulthandler.disable()
    faulthandler.enable()
os.kill(os.getpid(), signal.SIGBUS)
"""
    done = run_apart(script, tmp_path, times)
    assert done.returncode == -signal.SIGBUS, done.stderr[-3000:]
    assert done.stderr.count("Fatal Python error: Bus error") == 1


def test_a_thread_that_takes_no_signals_may_measure(tmp_path: Path) -> None:
    blocked = CUT.replace(
        "outcomes = []", "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); outcomes = []"
    )
    done = run_apart(blocked, tmp_path, 5_000_000)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_handler_of_others_is_still_called(tmp_path: Path) -> None:
    script = """
told = []
signal.signal(signal.SIGBUS, lambda *_: told.append(1))
one = in_file(folder / "r", array)
measure(native(), job(one, one))
os.kill(os.getpid(), signal.SIGBUS)
assert told == [1]
"""
    done = run_apart(script, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.skipif("NNDIFF_SANITIZED" in os.environ, reason="the sanitizer has a handler of its own")
def test_other_bus_errors_still_end_the_process(tmp_path: Path) -> None:
    script = """
import mmap
one = in_file(folder / "r", array)
measure(native(), job(one, one))
with open(folder / "r", "r+b") as file:
    other = mmap.mmap(file.fileno(), 0)
os.truncate(folder / "r", 0)
other[10]
"""
    done = run_apart(script, tmp_path)
    assert done.returncode == -signal.SIGBUS, done.stderr[-3000:]
