"""NumPy arrays: in .npy files, in .npz archives and inside pickles."""

from __future__ import annotations

import ast
import math
import re
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import DTYPES, DType, from_numpy, opaque
from nndiff.errors import SourceError
from nndiff.files import RegularFile, Window
from nndiff.sources.archives import Zip
from nndiff.sources.pickle_nodes import Global, Handler, Object, Span
from nndiff.sources.source import Source, by_name, shown
from nndiff.tensors import (
    MOST_AXES,
    Data,
    FileData,
    LateData,
    MemoryData,
    StridedFileData,
    TensorRef,
    contiguous_strides,
    is_contiguous,
)

MAGIC = b"\x93NUMPY"
_HEADER_LIMIT = 10_000  # NumPy's own
_NPY_VERSIONS = ((1, 0), (2, 0), (3, 0))
_CODE = re.compile(r"[<>=|]?([a-zA-Z?])(\d{0,4})")


def open_npy(path: str) -> Source:
    """Open one .npy file; its tensor goes by the file's stem."""
    tensor = read_npy(Window(RegularFile(path)), stem(path))
    return Source(path, "npy", {tensor.name: tensor})


def open_npz(path: str, archive: Zip) -> Source:
    """Open an .npz archive."""
    tensors, others = [], {}
    for entry in archive.names:
        if not entry.endswith(".npy"):
            others[entry] = f"{archive.size(entry)} bytes"
            continue
        tensor = _member(archive, entry)
        if tensor is None:
            others[entry[:-4]] = "an array of objects or text"
        else:
            tensors.append(tensor)
    return Source(path, "npz", by_name(path, tensors), others=others)


def stem(path: str) -> str:
    """Return the file's name without folder and suffix."""
    return path.rstrip("/").rsplit("/", 1)[-1].rsplit(".", 1)[0]


def _member(archive: Zip, entry: str) -> TensorRef | None:
    name = entry[:-4]
    if archive.is_stored(entry):
        window = archive.entry(entry)
        header = _header(window.path, window.head(_HEADER_LIMIT + 12))
        return None if header.dtype is None else _tensor(window, name, header, header.dtype)
    header = _header(archive.path, archive.head(entry, _HEADER_LIMIT + 12))
    if header.dtype is None:
        return None
    _check_size(archive.path, name, header, header.dtype, archive.size(entry))
    late = LateData(lambda: read_npy(archive.entry(entry), name).data)
    return TensorRef(name, header.shape, header.dtype, late, storage_id=(archive.path, entry))


def read_npy(window: Window, name: str) -> TensorRef:
    """Return the array of a .npy file, its header checked against the bytes there are."""
    header = _header(window.path, window.head(_HEADER_LIMIT + 12))
    if header.dtype is None:
        raise SourceError(
            window.path, f"array {shown(name)} is of {header.code}, not of numbers; pickled objects are not read"
        )
    return _tensor(window, name, header, header.dtype)


@dataclass(frozen=True)
class _Header:
    dtype: DType | None  # None: no numbers
    swapped: bool
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    size: int = 0  # bytes before the data
    code: str = ""


def _header(path: str, head: bytes) -> _Header:
    if head[:6] != MAGIC or len(head) < 12:
        raise SourceError(path, "not a .npy file, or a truncated one")
    version = (head[6], head[7])
    if version not in _NPY_VERSIONS:
        raise SourceError(
            path, f"is an .npy file of version {head[6]}.{head[7]}; nndiff reads versions 1.0, 2.0 and 3.0"
        )
    start = 10 if version == (1, 0) else 12
    length = int.from_bytes(head[8:start], "little")
    if length > _HEADER_LIMIT or start + length > len(head):
        raise SourceError(path, f"claims a .npy header of {length} bytes: truncated or damaged")
    try:
        found = _literal(str(head[start : start + length], "latin-1" if head[6] < 3 else "utf-8"))
        code, fortran, shape = found["descr"], found["fortran_order"], found["shape"]
    except (ValueError, SyntaxError, TypeError, LookupError, RecursionError, MemoryError):
        raise SourceError(path, "the header of the .npy file is damaged") from None
    if not isinstance(shape, tuple) or not _is_shape(shape) or type(fortran) is not bool:
        raise SourceError(path, "the header of the .npy file gives a senseless shape or order")
    text = code if isinstance(code, str) else "records"
    strides = fortran_strides(shape) if fortran else contiguous_strides(shape)
    return _Header(element_type(text), text[:1] == ">", shape, strides, start + length, shown(text))


def fortran_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides in elements where the first axis runs fastest."""
    return tuple(reversed(contiguous_strides(shape[::-1])))


def _literal(text: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an escape that Python does not know
        return ast.literal_eval(text.strip())


def _is_shape(shape: tuple[Any, ...] | list[Any]) -> bool:
    return len(shape) <= MOST_AXES and all(type(axis) is int and 0 <= axis < 1 << 62 for axis in shape)


def element_type(code: str) -> DType | None:
    """Return the element type of a code such as '<f4', or None for objects, text, records and dates."""
    found = _CODE.fullmatch(code)
    if found is None:
        return None
    letter, size = found.groups()
    if letter == "V":  # what numpy.save makes of ml_dtypes: bfloat16, and the float8 kinds without their kind
        return {"2": DTYPES["bfloat16"], "1": opaque("void8")}.get(size)
    if letter not in "?bBhHiIlLqQefdFDuc":
        return None
    try:
        return from_numpy(np.dtype(letter + size))
    except TypeError:
        return None


def _check_size(path: str, name: str, header: _Header, dtype: DType, whole: int) -> None:
    needed, held = math.prod(header.shape) * dtype.itemsize, whole - header.size
    if needed > held:
        raise SourceError(path, f"array {shown(name)} needs {needed} bytes, the file holds {held}")


def _tensor(window: Window, name: str, header: _Header, dtype: DType) -> TensorRef:
    _check_size(window.path, name, header, dtype, window.size)
    count = math.prod(header.shape)
    body = window.sub(header.size, count * dtype.itemsize)
    swapped = header.swapped and dtype.itemsize > 1
    data: Data = FileData(body, dtype.storage, swapped)
    if not is_contiguous(header.shape, header.strides):
        data = StridedFileData(body, dtype.storage, 0, header.shape, header.strides, swapped)
    return TensorRef(name, header.shape, dtype, data, storage_id=(window.path, body.start))


# arrays inside pickles


@dataclass(eq=False, repr=False)
class Array:
    """Describe an array as its pickle does; the state comes after the object."""

    shape: tuple[int, ...] = ()
    dtype: DType | None = None  # None: no numbers
    swapped: bool = False
    strides: tuple[int, ...] = ()
    raw: Span | str | None = None
    scalar: bool = False  # a NumPy number: no more a tensor than a Python one


def array_ref(path: str, name: str, array: Array) -> TensorRef | None:
    """Return an array of a pickle as a TensorRef, or None where it holds no numbers."""
    if array.dtype is None or array.raw is None:
        return None
    needed = math.prod(array.shape) * array.dtype.itemsize
    held = array.raw.window.size if isinstance(array.raw, Span) else len(array.raw)
    if needed != held:
        raise SourceError(path, f"array {shown(name)} needs {needed} bytes, the pickle holds {held}")
    if isinstance(array.raw, Span):
        header = _Header(array.dtype, array.swapped, array.shape, array.strides)
        return _tensor(array.raw.window, name, header, array.dtype)
    return _from_text(path, name, array, array.dtype, array.raw)


def _from_text(path: str, name: str, array: Array, dtype: DType, text: str) -> TensorRef:
    """Return an array whose bytes Python 2 wrote as text."""
    try:
        flat = np.frombuffer(text.encode("latin-1"), dtype.storage)
    except UnicodeEncodeError:
        raise SourceError(path, f"array {shown(name)} is damaged") from None
    flat = flat.byteswap() if array.swapped else flat
    strides = tuple(stride * dtype.itemsize for stride in array.strides)
    view: NDArray[Any] = np.ndarray(array.shape, dtype.storage, flat.data, strides=strides) if flat.size else flat
    return TensorRef(name, array.shape, dtype, MemoryData(view))


def _dtype(args: tuple[Any, ...]) -> Object:
    return Object("numpy.dtype", args)


def _dtype_from(value: Any) -> tuple[DType | None, bool]:
    """Return the element type a pickled NumPy dtype stands for, and whether its bytes are swapped."""
    if not isinstance(value, Object) or value.made_by != "numpy.dtype":
        return None, False
    code = value.args[0] if isinstance(value.args, tuple) and value.args else None
    state = value.state[-1] if value.state else None
    state = state if isinstance(state, tuple) and len(state) > 4 else (3, "<", None, None, None)
    if isinstance(code, Global) and code.module in ("ml_dtypes", "ml_dtypes._ml_dtypes_ext", "bfloat16"):
        return DTYPES.get(code.name), False
    if not isinstance(code, str) or state[3] is not None or code[:1] == "V":  # records have names
        return None, False
    return element_type(code), state[1] == ">"


def set_state(array: Array, state: Any) -> None:
    """Fill an array from the state its pickle gives it: version, shape, dtype, order, bytes."""
    _, shape, dtype, fortran, raw = state
    if not isinstance(shape, (tuple, list)) or not _is_shape(shape):
        raise ValueError("shape")
    array.shape = tuple(shape)
    array.strides = fortran_strides(array.shape) if fortran else contiguous_strides(array.shape)
    array.dtype, array.swapped = _dtype_from(dtype)
    array.raw = raw if isinstance(raw, (Span, str)) else None


def _scalar(args: tuple[Any, ...]) -> Array:
    dtype, swapped = _dtype_from(args[0])
    raw = args[1] if len(args) > 1 and isinstance(args[1], (Span, str)) else None
    return Array((), dtype, swapped, raw=raw, scalar=True)


def _from_buffer(args: tuple[Any, ...]) -> Array:
    raw, dtype, shape, order = args[:4]
    array = Array()
    set_state(array, (1, shape, dtype, order == "F", raw))
    if order == "K" and len(args) > 4 and args[4] is not None:  # the shape in memory, then the order of its axes
        axes = args[4]
        if not isinstance(axes, (tuple, list)) or not _is_shape(axes) or sorted(axes) != list(range(len(array.shape))):
            raise ValueError("axes")
        array.shape, array.strides = (tuple(old[axis] for axis in axes) for old in (array.shape, array.strides))
    return array


NUMPY_HANDLERS: dict[str, Handler] = {
    **{
        f"numpy.{core}.{name}": handler
        for core in ("core", "_core")
        for name, handler in (
            ("multiarray._reconstruct", lambda args: Array()),
            ("multiarray.scalar", _scalar),
            ("numeric._frombuffer", _from_buffer),
        )
    },
    "numpy.dtype": _dtype,
}
