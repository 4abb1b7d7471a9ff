"""Which engine measures pairs: the C extension where it was built, else NumPy."""

from __future__ import annotations

import os

from nndiff.errors import UsageError
from nndiff.stats.interface import Engine


def get_engine() -> Engine:
    """Return the fastest engine this installation has, or the one NNDIFF_ENGINE names (native, numpy)."""
    wanted = os.environ.get("NNDIFF_ENGINE", "")
    if wanted not in ("", "native", "numpy"):
        raise UsageError(f"NNDIFF_ENGINE is {wanted!r}, expected native or numpy")
    if wanted != "numpy":
        try:
            from nndiff.stats.native_engine import NativeEngine

            return NativeEngine()
        except ImportError:
            if wanted == "native":
                raise UsageError("NNDIFF_ENGINE asks for the native engine, which was not built here") from None
    from nndiff.stats.numpy_engine import NumpyEngine

    return NumpyEngine()


def describe_engine() -> str:
    """Return which engine is in use, with its vector width and threads."""
    if get_engine().name == "numpy":
        return "numpy"
    from nndiff.stats.native_engine import describe_native

    return describe_native()
