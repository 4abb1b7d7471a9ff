"""NumPy arrays: in .npy files, in .npz archives and inside pickles."""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nndiff.dtypes import DTYPES, DType, from_numpy
from nndiff.errors import SourceError
from nndiff.files import RegularFile, Window
from nndiff.sources.archives import Zip
from nndiff.sources.pickle_vm import Global, Handler, Object, Span
from nndiff.sources.source import Source, by_name
from nndiff.tensors import Data, FileData, LateData, MemoryData, StridedFileData, TensorRef

MAGIC = b"\x93NUMPY"
_HEADER_LIMIT = 1 << 16


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
    window = archive.entry(entry)
    header = _header(window)
    if _element_type(header.dtype) is None:
        return None
    if archive.is_stored(entry):
        return _tensor(window, name, header)
    # Unpacked once to learn the shape; let go, and unpacked again when it is compared, so that an
    # archive of any size needs the disk of one array.
    known = _tensor(window, name, header)
    return TensorRef(name, known.shape, known.dtype, LateData(lambda: read_npy(archive.entry(entry), name).data))


def read_npy(window: Window, name: str) -> TensorRef:
    """Return the array of a .npy file, its header checked against the bytes there are."""
    header = _header(window)
    if _element_type(header.dtype) is None:
        raise SourceError(
            window.path, f"array {name!r} holds {header.dtype}, not numbers; pickled objects are not read"
        )
    return _tensor(window, name, header)


@dataclass(frozen=True)
class _Header:
    dtype: np.dtype[Any]
    fortran: bool
    shape: tuple[int, ...]
    size: int  # bytes before the data


def _header(window: Window) -> _Header:
    head = window.head(12)
    if head[:6] != MAGIC or len(head) < 12:
        raise SourceError(window.path, "not a .npy file, or a truncated one")
    wide = head[6] >= 2
    length = int.from_bytes(head[8:12] if wide else head[8:10], "little")
    start = 12 if wide else 10
    if length > _HEADER_LIMIT or start + length > window.size:
        raise SourceError(window.path, f"claims a .npy header of {length} bytes: truncated or damaged")
    try:
        found = ast.literal_eval(str(window.read(start, length), "latin-1" if head[6] < 3 else "utf-8").strip())
        shape = tuple(found["shape"])
        if not all(type(axis) is int and 0 <= axis < 1 << 62 for axis in shape) or len(shape) > 64:
            raise ValueError("shape")
        return _Header(np.dtype(found["descr"]), found["fortran_order"] is True, shape, start + length)
    except (ValueError, SyntaxError, TypeError, LookupError, RecursionError, MemoryError, UnicodeError):
        raise SourceError(window.path, "the header of the .npy file is damaged") from None


def _element_type(dtype: np.dtype[Any]) -> DType | None:
    if dtype.hasobject or dtype.fields:
        return None
    if dtype == np.dtype("V2"):  # what numpy.save makes of ml_dtypes' bfloat16
        return DTYPES["bfloat16"]
    return from_numpy(dtype.newbyteorder("<"))


def _tensor(window: Window, name: str, header: _Header) -> TensorRef:
    dtype = _element_type(header.dtype)
    assert dtype is not None
    count = math.prod(header.shape)
    held = window.size - header.size
    if count * dtype.itemsize > held:
        raise SourceError(window.path, f"array {name!r} needs {count * dtype.itemsize} bytes, the file holds {held}")
    body = window.sub(header.size, count * dtype.itemsize)
    swapped = header.dtype.byteorder == ">"
    data: Data = FileData(body, dtype.storage, swapped)
    if header.fortran and len(header.shape) > 1 and count:
        strides = tuple(math.prod(header.shape[:axis]) for axis in range(len(header.shape)))
        data = StridedFileData(body, dtype.storage, 0, header.shape, strides, swapped)
    return TensorRef(name, header.shape, dtype, data, storage_id=(window.path, body.start))


# arrays inside pickles


@dataclass(eq=False)
class Array:
    """Describe an array as its pickle does; the state comes after the object."""

    shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] | None = None
    raw: Span | bytes | None = None
    fortran: bool = False


def array_ref(path: str, name: str, array: Array) -> TensorRef | None:
    """Return an array of a pickle as a TensorRef, or None where it holds no numbers."""
    dtype = _element_type(array.dtype) if array.dtype is not None else None
    if dtype is None or array.raw is None or array.dtype is None:
        return None
    needed = math.prod(array.shape) * dtype.itemsize
    held = array.raw.window.size if isinstance(array.raw, Span) else len(array.raw)
    if needed != held:
        raise SourceError(path, f"array {name!r} needs {needed} bytes, the pickle holds {held}")
    if isinstance(array.raw, Span):
        header = _Header(array.dtype, array.fortran, array.shape, 0)
        return _tensor(array.raw.window, name, header)
    flat = np.frombuffer(array.raw, dtype.storage)
    flat = flat.byteswap() if array.dtype.byteorder == ">" else flat
    view = flat.reshape(array.shape, order="F" if array.fortran else "C")
    return TensorRef(name, array.shape, dtype, MemoryData(view))


def _dtype(args: tuple[Any, ...]) -> Object:
    return Object("numpy.dtype", args)


def dtype_from(value: Any) -> np.dtype[Any] | None:
    """Return the NumPy dtype a pickled one stands for, or None for records and the like."""
    if not isinstance(value, Object) or value.made_by != "numpy.dtype":
        return None
    code = value.args[0] if value.args else None
    if not isinstance(code, str) or len(code) > 16:
        return None
    state = value.state[-1] if value.state else None
    order = state[1] if isinstance(state, tuple) and len(state) > 1 else "<"
    try:
        dtype: np.dtype[Any] = np.dtype(code).newbyteorder(">" if order == ">" else "<")
        return dtype
    except (TypeError, ValueError):
        return None


def set_state(array: Array, state: Any) -> None:
    """Fill an array from the state its pickle gives it: version, shape, dtype, order, bytes."""
    _, shape, dtype, fortran, raw = state
    if not all(type(axis) is int and 0 <= axis < 1 << 62 for axis in shape) or len(shape) > 64:
        raise ValueError("shape")
    array.shape, array.dtype, array.fortran = tuple(shape), dtype_from(dtype), bool(fortran)
    array.raw = raw if isinstance(raw, (Span, bytes)) else None


def _scalar(args: tuple[Any, ...]) -> Array:
    dtype, raw = args[:2]
    return Array((), dtype_from(dtype), raw if isinstance(raw, (Span, bytes)) else None)


def _from_buffer(args: tuple[Any, ...]) -> Array:
    raw, dtype, shape, order = args[:4]
    array = Array()
    set_state(array, (1, shape, dtype, order == "F", raw))
    return array


def _encoded(args: tuple[Any, ...]) -> Any:
    """Return the bytes an old protocol wrote as text."""
    text, encoding = args[:2]
    return text.encode("latin-1") if encoding in ("latin1", "latin-1") else Object(Global("_codecs", "encode"), args)


NUMPY_HANDLERS: dict[str, Handler] = {
    "_codecs.encode": _encoded,
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
