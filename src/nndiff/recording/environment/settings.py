"""Settings of torch and versions of packages that decide how numbers come out."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

import nndiff


@contextmanager
def deterministic_algorithms(enabled: bool) -> Iterator[None]:
    """Make torch use deterministic algorithms inside the block, if enabled."""
    if not enabled:
        yield
        return
    was_enabled = torch.are_deterministic_algorithms_enabled()
    was_warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    had_benchmark = torch.backends.cudnn.benchmark
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_enabled, warn_only=was_warn_only)
        torch.backends.cudnn.benchmark = had_benchmark


def read_flags() -> dict[str, Any]:
    """Return every switch of torch that decides how numbers are rounded."""
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        "autocast": _is_autocast_enabled(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "num_threads": torch.get_num_threads(),
        "mkldnn": torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
    }


def _is_autocast_enabled() -> bool:
    try:
        return bool(torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"))
    except TypeError:  # before torch 2.4 the function took no device
        return bool(torch.is_autocast_enabled() or torch.is_autocast_cpu_enabled())


def read_environment() -> dict[str, Any]:
    """Return versions and hardware; no paths, no host names."""
    versions = {"nndiff": nndiff.__version__, "python": platform.python_version()}
    versions |= {"torch": torch.__version__, "numpy": np.__version__}
    for package in ("transformers", "lightning", "nemo"):
        version = getattr(sys.modules.get(package), "__version__", None)
        if isinstance(version, str):
            versions[package] = version
    return {
        "versions": versions,
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": torch.backends.cpu.get_cpu_capability() if hasattr(torch.backends, "cpu") else "",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
    }
