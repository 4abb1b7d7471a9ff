"""From whatever a NumPy program has to raw elements a recording can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import DTYPES, DType, from_numpy
from nndiff.errors import UsageError
from nndiff.recording.format.digests import Raw
from nndiff.recording.format.values import TEXT_LIMIT, WHOLE_BITS

_MOST_AXES = 32
_NUMPY_NAMES = frozenset(name for name in DTYPES if hasattr(np, name) or name == "bool")


def is_array(value: Any) -> bool:
    """Tell whether a value is an array: NumPy's, or one that turns into it (JAX, TensorFlow, torch on the CPU)."""
    return isinstance(value, (np.ndarray, np.generic)) or (
        hasattr(value, "__array__") and hasattr(value, "shape") and hasattr(value, "dtype")
    )


def is_array_or_numbers(value: Any) -> bool:
    """Tell whether a value is an array, or a list of numbers, which is meant as one."""
    return is_array(value) or (type(value) is list and bool(value) and _is_of_numbers(value, 1))


def _is_of_numbers(value: list[Any], axes: int) -> bool:
    return axes <= _MOST_AXES and all(
        isinstance(each, (bool, int, float, complex)) or (type(each) is list and _is_of_numbers(each, axes + 1))
        for each in value
    )


def raw_numbers(name: str, numbers: list[Any], dtype: str | None = None) -> Raw:
    """Return the raw elements of a list of numbers, which must be as long in every row."""
    try:
        array = np.asarray(numbers, DTYPES[dtype].storage if dtype in _NUMPY_NAMES else None)
    except (ValueError, TypeError, OverflowError):
        array = np.asarray(None)
    if array.dtype.kind not in "biufc":
        raise UsageError(
            f"{name!r}: a list of numbers is taken as an array, and this one is none: its rows are not of one length, "
            "or not all are numbers of a size NumPy has; give an array, or a tuple or dict of what it holds"
        )
    return raw_array(array, dtype)


def raw_array(value: Any, dtype: str | None = None) -> Raw:
    """Return an array's raw elements; `dtype` names the type of bytes NumPy has no name for (bfloat16 as uint16)."""
    array = np.asarray(value)
    kind = _kind(array, dtype)
    if array.dtype.itemsize != kind.itemsize:
        raise UsageError(f"an array of {array.dtype} cannot hold {kind.name}")
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and np.little_endian is False):
        array = array.astype(array.dtype.newbyteorder("<"))
    flat: NDArray[Any] = np.ascontiguousarray(array).reshape(-1)
    return Raw(flat.view(kind.storage), kind, tuple(int(size) for size in array.shape))


def raw_value(value: Any) -> Raw | None:
    """Return the raw elements of what is best held as an array: arrays, bytes, long texts, numbers too large for JSON.

    None for what is short and plain, and for arrays of what is no number.
    """
    if isinstance(value, np.ma.MaskedArray):  # its mask would be lost
        return None
    if isinstance(value, str):
        return _bytes(value.encode("utf-8", "surrogatepass")) if len(value) > TEXT_LIMIT else None
    if isinstance(value, (bytes, bytearray)):
        return _bytes(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return raw_array(value) if from_numpy(value.dtype) else None
    if isinstance(value, complex):
        return raw_array(np.complex128(value))
    if isinstance(value, int) and value.bit_length() > WHOLE_BITS:
        return _bytes(hex(value).encode())
    return None


def _bytes(value: bytes | bytearray) -> Raw:
    return raw_array(np.frombuffer(bytes(value), np.uint8))


def _kind(array: NDArray[Any], dtype: str | None) -> DType:
    kind = DTYPES.get(dtype) if dtype is not None else from_numpy(array.dtype)
    if kind is None:
        raise UsageError(f"arrays of {dtype or array.dtype} cannot be recorded; known are {', '.join(DTYPES)}")
    return kind
