"""Pairs of tensors, both engines, and how far two results may be apart."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import DTYPES, from_numpy
from nndiff.stats import Engine, Job, Metrics
from nndiff.stats.numpy_engine import NumpyEngine
from nndiff.tensors import Data, MemoryData, TensorRef

try:
    from nndiff.stats import _native
    from nndiff.stats.native_engine import NativeEngine
except ImportError:
    LEVELS: tuple[str, ...] = ()
else:
    LEVELS = _native.levels()

EXACT = [
    *("count", "unequal", "mismatched", "nonfinite_ref", "nonfinite_cand", "nonfinite_unequal"),
    *("max_abs", "max_abs_index", "max_rel", "needed_tolerance", "envelope"),
    *("p50", "p90", "p95", "p99", "ref_min", "ref_max", "cand_min", "cand_max"),
]
CLOSE = ["mean_abs", "mse", "rmse", "rel_mse", "rel_mae", "l2", "rel_l2"]
ANGLES = ["cosine", "correlation"]


def tensor(array: NDArray[Any], dtype: str | None = None, data: Data | None = None) -> TensorRef:
    found = DTYPES[dtype] if dtype else from_numpy(array.dtype)
    assert found is not None
    return TensorRef("t", array.shape, found, data or MemoryData(array))


def job(ref: TensorRef, cand: TensorRef, atol: float = 1e-5, rtol: float = 1e-5) -> Job:
    return Job(ref, cand, atol, rtol)


def measure(engine: Engine, *jobs: Job) -> list[Metrics]:
    return list(engine.measure(jobs))


def native(level: str | None = None, threads: int | None = None) -> Engine:
    """Return the native engine; the width is that of the process until the next call."""
    _native.use(level or LEVELS[-1])
    return NativeEngine(threads)


def both(one: Job, level: str | None = None) -> tuple[Metrics, Metrics]:
    (ours,), (twin,) = measure(native(level), one), measure(NumpyEngine(), one)
    return ours, twin


def same(a: Any, b: Any, slack: float = 0.0) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(same(x, y, slack) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float) and (math.isnan(a) or math.isnan(b)):
        return math.isnan(a) and math.isnan(b)
    return bool(a == b) or (slack > 0 and abs(a - b) <= slack)


def apart(a: Metrics, b: Metrics) -> dict[str, tuple[Any, Any]]:
    """Return the fields in which two results differ by more than the order of a sum explains."""
    slack: dict[str, float] = dict.fromkeys(EXACT, 0.0)
    slack |= {name: 1e-12 * abs(getattr(b, name)) for name in CLOSE}
    slack |= dict.fromkeys(ANGLES, 1e-09) | {"sqnr_db": 1e-9}
    for side in ("ref", "cand"):
        size = max(abs(getattr(b, f"{side}_min")), abs(getattr(b, f"{side}_max")))
        slack |= {f"{side}_mean": 1e-13 * size, f"{side}_std": 1e-11 * getattr(b, f"{side}_std")}
    slack |= {"diff_mean": 1e-13 * b.max_abs, "diff_std": 1e-14 * b.max_abs}  # a constant one has a trace of noise
    assert set(slack) == set(Metrics.__slots__)
    pairs = {name: (getattr(a, name), getattr(b, name)) for name in slack}
    return {name: (x, y) for name, (x, y) in pairs.items() if not same(x, y, slack[name] if slack[name] > 0 else 0.0)}


def raw(dtype: str, size: int, seed: int = 0) -> NDArray[Any]:
    """Return raw elements of any type, among them the special ones."""
    random = np.random.default_rng(seed)
    storage = DTYPES[dtype].storage
    if dtype in ("bfloat16", "bool") or dtype.startswith("float8"):
        codes = random.integers(0, 2 ** (8 * storage.itemsize), size).astype(storage)
        return (codes & 1).astype(storage) if dtype == "bool" else codes
    if storage.kind in "iu":
        limits = np.iinfo(storage)
        return random.integers(limits.min, limits.max, size, storage, endpoint=True)
    values = random.normal(size=size) * 10.0 ** random.integers(-3, 4, size)
    if storage.kind == "c":
        return (values + 1j * random.normal(size=size)).astype(storage)
    with np.errstate(over="ignore"):
        return values.astype(storage)
