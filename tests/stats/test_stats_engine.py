"""Which engine is taken, what it says of itself, and the laws its numbers obey."""

from __future__ import annotations

import builtins
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stats_pairs import LEVELS, apart, job, measure, native, raw, tensor

from nndiff.dtypes import DTYPES
from nndiff.errors import UsageError
from nndiff.stats import Job
from nndiff.stats.engine import describe_engine, get_engine
from nndiff.stats.numpy_engine import NumpyEngine

needs_native = pytest.mark.skipif(not LEVELS, reason="built without the native engine")


def in_new_process(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_engine_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNDIFF_ENGINE", "numpy")
    assert (get_engine().name, describe_engine()) == ("numpy", "numpy")
    monkeypatch.setenv("NNDIFF_ENGINE", "cuda")
    with pytest.raises(UsageError, match="expected native or numpy"):
        get_engine()


@needs_native
@pytest.mark.parametrize(
    ("name", "value"), [("NNDIFF_SIMD", "avx1024"), ("NNDIFF_THREADS", "0"), ("NNDIFF_ENGINE", "cuda")]
)
def test_a_variable_that_says_nothing_known_is_trouble_and_no_difference(name: str, value: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(3))
    command = [sys.executable, "-m", "nndiff", "diff", "a.npy", "a.npy"]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, name: value}, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"nndiff: {name} is {value!r}, expected ")


@needs_native
def test_sides_of_different_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape|broadcast|operands"):
        list(get_engine().measure([job(tensor(np.ones(5000)), tensor(np.ones(4)))]))


@needs_native
def test_the_native_engine_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NNDIFF_ENGINE", raising=False)
    assert get_engine().name == "native"
    assert describe_engine().startswith("native (")


def test_without_the_extension_numpy_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "nndiff.stats.native_engine":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.delenv("NNDIFF_ENGINE", raising=False)
    assert get_engine().name == "numpy"
    monkeypatch.setenv("NNDIFF_ENGINE", "native")
    with pytest.raises(UsageError, match="not built"):
        get_engine()


@pytest.mark.parametrize("level", LEVELS)
def test_the_vector_width_can_be_forced(level: str) -> None:
    code = "import nndiff.stats.engine as e; print(e.describe_engine())"
    assert f"({level}," in in_new_process(code, NNDIFF_SIMD=level, NNDIFF_ENGINE="native")


@needs_native
def test_a_width_the_machine_has_not_is_refused() -> None:
    from nndiff.stats import _native

    with pytest.raises(ValueError, match="no vector width"):
        _native.use("avx1024")


@needs_native
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("size", [5000, 100_000, 4_500_000])
def test_the_number_of_threads_changes_nothing(dtype: str, size: int) -> None:
    ref, cand = raw(dtype, size), raw(dtype, size, seed=1)
    one = job(tensor(ref, dtype), tensor(cand, dtype))
    single, *others = (measure(native(threads=threads), one)[0] for threads in (1, 2, 3, 7, 2))
    for other in others:
        assert repr(other) == repr(single)


@needs_native
def test_flushing_subnormals_elsewhere_changes_nothing() -> None:
    torch = pytest.importorskip("torch")
    one = job(tensor(np.full(1000, 1e-40, np.float32)), tensor(np.full(1000, 2e-40, np.float32)))
    expected = measure(native(), one)[0]
    try:
        torch.set_flush_denormal(True)
        got = measure(native(), one)[0]
    finally:
        torch.set_flush_denormal(False)
    assert repr(got) == repr(expected)
    assert got.unequal == 1000


@needs_native
def test_many_small_ones_in_order() -> None:
    sizes = np.random.default_rng(0).integers(0, 400, 3000)
    jobs = [job(tensor(np.zeros(n, np.float32)), tensor(np.full(n, k, np.float32))) for k, n in enumerate(sizes)]
    got = measure(native(), *jobs)
    assert [one.count for one in got] == sizes.tolist()
    assert all(one.max_abs == k for k, one in enumerate(got) if one.count)


@needs_native
def test_a_batch_that_is_no_batch_is_refused() -> None:
    from nndiff.stats import _native

    with pytest.raises(ValueError, match="no such pair"):
        _native.Batch(b"\xff" * 56, 1, False)
    with pytest.raises(ValueError, match="pending"):
        _native.Batch(b"", 1, True).feed(1, None, None)
    with pytest.raises(ValueError, match="256 floats"):
        _native.set_float8(7, b"")


@pytest.mark.parametrize("name", ["numpy", *LEVELS])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 999, 20_000])
def test_a_tensor_is_itself(name: str, dtype: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = raw(dtype, size)
    if name == "numpy":
        monkeypatch.setenv("NNDIFF_ENGINE", "numpy")
    engine = get_engine() if name == "numpy" else native(name)
    got = measure(engine, job(tensor(values, dtype), tensor(values.copy(), dtype)))[0]
    assert (got.unequal, got.mismatched, got.nonfinite_unequal) == (0, 0, 0)
    assert got.nonfinite_ref == got.nonfinite_cand
    if got.nonfinite_ref < got.count:
        assert (got.max_abs, got.max_rel, got.l2, got.p99, got.needed_tolerance) == (0, 0, 0, 0, 0)
        assert (got.cosine, got.correlation, got.sqnr_db) == (1.0, 1.0, math.inf)
        assert (got.ref_mean, got.ref_std, got.ref_min) == (got.cand_mean, got.cand_std, got.cand_min)


@pytest.mark.parametrize("level", LEVELS)
def test_identical_bytes_and_equal_values_give_the_same(level: str) -> None:
    """-0.0 and 0.0 are equal but no identical bytes: the other path, the same numbers."""
    values = np.random.default_rng(1).normal(size=30_000).astype(np.float32)
    values[::50] = 0.0
    negative = values.copy()
    negative[::50] = -0.0
    plain, signed = (
        measure(native(level), job(tensor(values), tensor(other)))[0] for other in (values.copy(), negative)
    )
    assert apart(replace(signed, cand_mean=plain.cand_mean), plain) == {}


@needs_native
@given(st.integers(0, 2**32), st.integers(1, 3000), st.sampled_from(LEVELS))
def test_swapping_sides(seed: int, size: int, level: str) -> None:
    random = np.random.default_rng(seed)
    a = random.normal(size=size).astype(np.float32)
    b = (a + random.normal(size=size) * 1e-2).astype(np.float32)
    there, back = measure(native(level), job(tensor(a), tensor(b)), job(tensor(b), tensor(a)))
    for name in ("unequal", "max_abs", "max_abs_index", "p50", "p90", "p95", "p99"):
        assert getattr(there, name) == getattr(back, name)
    for name in ("mean_abs", "mse", "l2", "cosine", "correlation", "diff_std"):
        assert getattr(there, name) == pytest.approx(getattr(back, name), rel=1e-9, abs=1e-12, nan_ok=True)
    assert there.diff_mean == pytest.approx(-back.diff_mean, rel=1e-9, abs=1e-15)
    assert (there.ref_min, there.cand_max) == (back.cand_min, back.ref_max)


@needs_native
def test_a_batch_is_measured_once_by_one() -> None:
    from nndiff.stats import _native

    batch = _native.Batch(b"", 2, False)
    with pytest.raises(RuntimeError, match="nothing was begun"):
        batch.wait()
    assert batch.begin(None)
    with pytest.raises(RuntimeError, match="another thread"):
        batch.begin(None)
    with pytest.raises(RuntimeError, match="another thread"):
        batch.step(1)
    assert batch.wait() == 0
    del batch
    begun = _native.Batch(b"", 2, False)
    assert begun.begin(None)
    del begun  # waits for its thread


@needs_native
def test_batches_wait_for_each_other() -> None:
    from nndiff.stats import _native

    first, second, third = (_native.Batch(b"", 2, False) for _ in range(3))
    for not_begun in (second, "first"):
        with pytest.raises(ValueError, match="that was begun"):
            first.begin(not_begun)  # type: ignore[arg-type]
    assert first.begin(None)
    assert second.begin(first)
    assert third.begin(second)
    del first  # the second one keeps it
    assert third.wait() == second.wait() == 0
    with pytest.raises(ValueError, match="that was begun"):
        _native.Batch(b"", 2, False).begin(second)


FORKED = """
import os
import numpy as np
from stats_pairs import job, native, tensor
values = [np.full(16_000, number, np.float64) for number in range(3000)]
results = native().measure(job(tensor(each), tensor(each + 1)) for each in values)
assert next(results).max_abs == 1
if os.fork():
    _, status = os.wait()
    assert len(list(results)) == 2999
    raise SystemExit(os.waitstatus_to_exitcode(status))
try:
    for _ in results:
        pass
    print("all of them")
except ChildProcessError as error:
    print(error)
results.close()
print(next(native().measure([job(tensor(values[1]), tensor(values[2]))])).max_abs)
"""


@needs_native
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_in_between_does_not_wait_for_threads_it_has_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "1.0"
    assert done.stdout.splitlines()[0] in ("the process was forked while tensors were being measured", "all of them")


@needs_native
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_many_batches_at_any_number_of_threads(threads: int) -> None:
    random = np.random.default_rng(0)
    arrays = [random.normal(size=size).astype(np.float32) for size in [300] * 1500 + [40_000] * 3 + [5] * 700]
    jobs = [job(tensor(each), tensor(each + np.float32(number))) for number, each in enumerate(arrays)]
    for number, got in enumerate(native(threads=threads).measure(jobs)):
        assert got.count == arrays[number].size
        assert got.mean_abs == pytest.approx(number, rel=1e-3, abs=1e-3)


@needs_native
def test_who_wants_no_more_results_waits_for_those_under_way() -> None:
    values = [np.full(6000, number, np.float32) for number in range(3000)]
    results = native().measure(job(tensor(each), tensor(each + 1)) for each in values)
    assert next(iter(results)).max_abs == 1
    results.close()  # type: ignore[attr-defined]
    del values
    assert [
        each.max_abs
        for each in native().measure([job(tensor(np.zeros(3, np.float32)), tensor(np.ones(3, np.float32)))])
    ] == [1]


@pytest.mark.parametrize("name", ["numpy", *(["native"] if LEVELS else [])])
@pytest.mark.parametrize("good", [0, 5, 50, 1300])
def test_jobs_that_fail_midway_lose_nothing_of_what_came_before(name: str, good: int) -> None:
    values = np.arange(10, dtype=np.float32)

    def jobs() -> Iterator[Job]:
        for number in range(good):
            yield job(tensor(values), tensor(values + np.float32(number)))
        raise KeyError("no more")

    seen: list[float] = []
    results = (NumpyEngine() if name == "numpy" else native()).measure(jobs())
    with pytest.raises(KeyError, match="no more"):
        seen.extend(made.max_abs for made in results)
    assert seen == list(range(good))
