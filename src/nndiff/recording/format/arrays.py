"""Raw elements of arrays and other values, without torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import DTYPES, from_numpy
from nndiff.errors import UsageError
from nndiff.recording.format.digests import RawTensor
from nndiff.recording.format.values import INTEGER_BITS, TEXT_LIMIT

_MOST_AXES = 32
_NUMPY_NAMES = frozenset(name for name in DTYPES if hasattr(np, name) or name == "bool")


def is_array(value: Any) -> bool:
    """Return True for an array of NumPy, or one that converts to it (JAX, TensorFlow, torch on the CPU)."""
    return isinstance(value, (np.ndarray, np.generic)) or (
        hasattr(value, "__array__") and hasattr(value, "shape") and hasattr(value, "dtype")
    )


def is_array_or_numbers(value: Any) -> bool:
    """Return True for an array, or a list of numbers, which stands for one."""
    return is_array(value) or (type(value) is list and bool(value) and _holds_numbers(value, 1))


def _holds_numbers(items: list[Any], axes: int) -> bool:
    if axes > _MOST_AXES:
        return False
    for item in items:
        if type(item) is list:
            if not _holds_numbers(item, axes + 1):
                return False
        elif not isinstance(item, (bool, int, float, complex)):
            return False
    return True


def raw_numbers(name: str, numbers: list[Any], dtype: str | None = None) -> RawTensor:
    """Return the raw elements of a list of numbers, whose rows must have one length."""
    try:
        array = np.asarray(numbers, DTYPES[dtype].storage if dtype in _NUMPY_NAMES else None)
    except (ValueError, TypeError, OverflowError):
        array = np.asarray(None)
    if array.dtype.kind not in "biufc":
        raise UsageError(
            f"{name!r}: this list of numbers cannot be turned into an array: its rows differ in length, or "
            "some numbers are too large for NumPy; give an array, or a tuple or dict of its items"
        )
    return raw_array(array, dtype)


def raw_array(value: Any, dtype: str | None = None) -> RawTensor:
    """Return the raw elements of an array; `dtype` names a type that NumPy lacks (bfloat16 in an array of uint16)."""
    array = np.asarray(value)
    element_type = DTYPES.get(dtype) if dtype is not None else from_numpy(array.dtype)
    if element_type is None:
        raise UsageError(f"arrays of {dtype or array.dtype} cannot be recorded; choose from {', '.join(DTYPES)}")
    if array.dtype.itemsize != element_type.itemsize:
        raise UsageError(f"an array of {array.dtype} cannot hold {element_type.name}")
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and np.little_endian is False):
        array = array.astype(array.dtype.newbyteorder("<"))
    flat: NDArray[Any] = np.ascontiguousarray(array).reshape(-1)
    return RawTensor(flat.view(element_type.storage), element_type, tuple(int(size) for size in array.shape))


def raw_value(value: Any) -> RawTensor | None:
    """Return the raw elements of what is best stored as an array: arrays, bytes, long texts, very large numbers.

    None for values that an event can hold, and for arrays of other things than numbers.
    """
    if isinstance(value, np.ma.MaskedArray):  # its mask would be lost
        return None
    if isinstance(value, str):
        return _raw_bytes(value.encode("utf-8", "surrogatepass")) if len(value) > TEXT_LIMIT else None
    if isinstance(value, (bytes, bytearray)):
        return _raw_bytes(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return raw_array(value) if from_numpy(value.dtype) else None
    if isinstance(value, complex):
        return raw_array(np.complex128(value))
    if isinstance(value, int) and value.bit_length() > INTEGER_BITS:
        return _raw_bytes(hex(value).encode())
    return None


def _raw_bytes(data: bytes | bytearray) -> RawTensor:
    return raw_array(np.frombuffer(bytes(data), np.uint8))
