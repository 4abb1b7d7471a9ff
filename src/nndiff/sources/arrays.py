"""NumPy arrays: in .npy files, in .npz archives and inside pickles."""

from __future__ import annotations

import ast
import math
import os
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
from nndiff.sources.source import OtherEntry, Source, index_by_name, quote_name
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
_HEADER_LIMIT = 10_000  # bytes, NumPy's own limit
_HEAD_SIZE = _HEADER_LIMIT + 12  # with magic, version and length before the header
_NPY_VERSIONS = ((1, 0), (2, 0), (3, 0))
_CODE = re.compile(r"[<>=|]?([a-zA-Z?])(\d{0,4})")
NOT_NUMBERS = OtherEntry.of_value("an array of objects or text")


def open_npy(path: str) -> Source:
    """Open one .npy file; its tensor is named after the file."""
    name = os.path.basename(path.rstrip("/")).rsplit(".", 1)[0]
    tensor = read_npy(Window(RegularFile(path)), name)
    return Source(path, "npy", {tensor.name: tensor})


def open_npz(path: str, archive: Zip) -> Source:
    """Open an .npz archive."""
    tensors, other_entries = [], {}
    for entry in archive.names:
        if not entry.endswith(".npy"):
            other_entries[entry] = OtherEntry.of_bytes(archive.size(entry))
            continue
        name = entry.removesuffix(".npy")
        tensor = _read_member(archive, entry, name)
        if tensor is None:
            other_entries[name] = NOT_NUMBERS
        else:
            tensors.append(tensor)
    return Source(path, "npz", index_by_name(path, tensors), others=other_entries)


def _read_member(archive: Zip, entry: str, name: str) -> TensorRef | None:
    """Return an array of an archive, or None where it holds no numbers; a compressed one is unpacked when read."""
    if archive.is_stored(entry):
        window = archive.entry(entry)
        header = _read_header(window.path, window.head(_HEAD_SIZE))
        return None if header.dtype is None else _build_tensor(window, name, header, header.dtype)
    header = _read_header(archive.path, archive.head(entry, _HEAD_SIZE))
    if header.dtype is None:
        return None
    _check_size(archive.path, name, header, header.dtype, archive.size(entry))
    late = LateData(lambda: read_npy(archive.entry(entry), name).data)
    return TensorRef(name, header.shape, header.dtype, late, storage_id=(archive.path, entry))


def read_npy(window: Window, name: str) -> TensorRef:
    """Return the array of a .npy file, its header checked against the size of the file."""
    header = _read_header(window.path, window.head(_HEAD_SIZE))
    if header.dtype is None:
        raise SourceError(
            window.path,
            f"array {quote_name(name)} has elements of {header.code}, not numbers; pickled objects are not read",
        )
    return _build_tensor(window, name, header, header.dtype)


@dataclass(frozen=True)
class _Header:
    dtype: DType | None  # None: no numbers
    swapped: bool
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    size: int = 0  # bytes before the data
    code: str = ""


def _read_header(path: str, head: bytes) -> _Header:
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
        text = str(head[start : start + length], "utf-8" if version == (3, 0) else "latin-1")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an escape that Python does not know
            fields = ast.literal_eval(text.strip())
        code, is_fortran, shape = fields["descr"], fields["fortran_order"], fields["shape"]
    except (ValueError, SyntaxError, TypeError, LookupError, RecursionError, MemoryError):
        raise SourceError(path, "the header of the .npy file is damaged") from None
    if not isinstance(shape, tuple) or not _is_shape(shape) or type(is_fortran) is not bool:
        raise SourceError(path, "the header of the .npy file gives an impossible shape or order")
    if not isinstance(code, str):
        code = "records"
    strides = fortran_strides(shape) if is_fortran else contiguous_strides(shape)
    return _Header(parse_dtype_code(code), code[:1] == ">", shape, strides, start + length, quote_name(code))


def fortran_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return strides in elements where the first axis runs fastest."""
    return tuple(reversed(contiguous_strides(shape[::-1])))


def _is_shape(shape: tuple[Any, ...] | list[Any]) -> bool:
    return len(shape) <= MOST_AXES and all(type(axis) is int and 0 <= axis < 1 << 62 for axis in shape)


def parse_dtype_code(code: str) -> DType | None:
    """Return the dtype of a code such as '<f4', or None for objects, text, records and dates."""
    match = _CODE.fullmatch(code)
    if match is None:
        return None
    letter, size = match.groups()
    if letter == "V":  # what numpy.save makes of ml_dtypes: bfloat16, and the float8 kinds without their kind
        return {"2": DTYPES["bfloat16"], "1": opaque("void8")}.get(size)
    if letter not in "?bBhHiIlLqQefdFDuc":
        return None
    try:
        return from_numpy(np.dtype(letter + size))
    except TypeError:
        return None


def _check_size(path: str, name: str, header: _Header, dtype: DType, file_size: int) -> None:
    needed, available = math.prod(header.shape) * dtype.itemsize, file_size - header.size
    if needed > available:
        raise SourceError(path, f"array {quote_name(name)} needs {needed} bytes, the file holds {available}")


def _build_tensor(window: Window, name: str, header: _Header, dtype: DType) -> TensorRef:
    _check_size(window.path, name, header, dtype, window.size)
    body = window.sub(header.size, math.prod(header.shape) * dtype.itemsize)
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

    def set_state(self, state: Any) -> None:
        """Fill the array from the state its pickle gives it: version, shape, dtype, order, bytes."""
        _, shape, dtype, is_fortran, raw = state
        if not isinstance(shape, (tuple, list)) or not _is_shape(shape):
            raise ValueError("shape")
        self.shape = tuple(shape)
        self.strides = fortran_strides(self.shape) if is_fortran else contiguous_strides(self.shape)
        self.dtype, self.swapped = _read_pickled_dtype(dtype)
        self.raw = raw if isinstance(raw, (Span, str)) else None


def build_array_ref(path: str, name: str, array: Array) -> TensorRef | None:
    """Return an array of a pickle as a TensorRef, or None where it holds no numbers."""
    dtype, raw = array.dtype, array.raw
    if dtype is None or raw is None:
        return None
    needed = math.prod(array.shape) * dtype.itemsize
    available = raw.window.size if isinstance(raw, Span) else len(raw)
    if needed != available:
        raise SourceError(path, f"array {quote_name(name)} needs {needed} bytes, the pickle holds {available}")
    if isinstance(raw, Span):
        header = _Header(dtype, array.swapped, array.shape, array.strides)
        return _build_tensor(raw.window, name, header, dtype)
    try:  # Python 2 wrote bytes as text
        flat = np.frombuffer(raw.encode("latin-1"), dtype.storage)
    except UnicodeEncodeError:
        raise SourceError(path, f"array {quote_name(name)} is damaged") from None
    if array.swapped:
        flat = flat.byteswap()
    strides = tuple(stride * dtype.itemsize for stride in array.strides)
    view: NDArray[Any] = np.ndarray(array.shape, dtype.storage, flat.data, strides=strides) if flat.size else flat
    return TensorRef(name, array.shape, dtype, MemoryData(view))


def _read_pickled_dtype(node: Any) -> tuple[DType | None, bool]:
    """Return the element type a pickled NumPy dtype stands for, and whether its bytes are swapped."""
    if not isinstance(node, Object) or node.made_by != "numpy.dtype":
        return None, False
    code = node.args[0] if isinstance(node.args, tuple) and node.args else None
    if isinstance(code, Global) and code.module in ("ml_dtypes", "ml_dtypes._ml_dtypes_ext", "bfloat16"):
        return DTYPES.get(code.name), False
    byte_order, field_names = "<", None
    if node.state and isinstance(node.state[-1], tuple) and len(node.state[-1]) > 4:
        _, byte_order, _, field_names = node.state[-1][:4]
    if not isinstance(code, str) or code[:1] == "V" or field_names is not None:  # only records have field names
        return None, False
    return parse_dtype_code(code), byte_order == ">"


def _rebuild_scalar(args: tuple[Any, ...]) -> Array:
    dtype, swapped = _read_pickled_dtype(args[0])
    raw = args[1] if len(args) > 1 and isinstance(args[1], (Span, str)) else None
    return Array((), dtype, swapped, raw=raw, scalar=True)


def _rebuild_from_buffer(args: tuple[Any, ...]) -> Array:
    raw, dtype, shape, order = args[:4]
    array = Array()
    array.set_state((1, shape, dtype, order == "F", raw))
    if order == "K" and len(args) > 4 and args[4] is not None:  # the shape in memory, then the order of its axes
        axes = args[4]
        if not isinstance(axes, (tuple, list)) or not _is_shape(axes) or sorted(axes) != list(range(len(array.shape))):
            raise ValueError("axes")
        array.shape = tuple(array.shape[axis] for axis in axes)
        array.strides = tuple(array.strides[axis] for axis in axes)
    return array


NUMPY_HANDLERS: dict[str, Handler] = {"numpy.dtype": lambda args: Object("numpy.dtype", args)}
for _core in ("numpy.core", "numpy._core"):  # before and since NumPy 2
    NUMPY_HANDLERS[f"{_core}.multiarray._reconstruct"] = lambda args: Array()
    NUMPY_HANDLERS[f"{_core}.multiarray.scalar"] = _rebuild_scalar
    NUMPY_HANDLERS[f"{_core}.numeric._frombuffer"] = _rebuild_from_buffer
