"""safetensors files: an eight-byte length, a JSON header, then the bytes."""

from __future__ import annotations

import math
from typing import Any

from nndiff.dtypes import DTYPES, DType, opaque
from nndiff.errors import SourceError
from nndiff.files import RegularFile, Window
from nndiff.sources.json_text import read_json
from nndiff.sources.source import Source, index_by_name, quote_name
from nndiff.tensors import MOST_AXES, FileData, TensorRef
from nndiff.text import plural

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
    "C128": "complex128",
}
DTYPE_CODES = {name: code for code, name in _DTYPES.items()}
_PACKED_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}  # several elements a byte: compared as bytes


def looks_like_safetensors(head: bytes, size: int) -> bool:
    """Return True if a file begins as safetensors files do."""
    return size >= 10 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size - 8


def open_safetensors(path: str) -> Source:
    """Open one safetensors file."""
    window = Window(RegularFile(path))
    tensors, metadata = read_header(window)
    unused = _locate_data(window).size - sum(tensor.nbytes for tensor in tensors)
    notes: tuple[str, ...] = ()
    if unused:  # the safetensors library refuses such a file
        notes = (f"{plural(unused, 'byte')} in the file belong to no tensor and were not compared: is it damaged?",)
    return Source(path, "safetensors", index_by_name(path, tensors), meta=metadata, notes=notes)


def read_header(window: Window) -> tuple[list[TensorRef], dict[str, str]]:
    """Return the tensors of a safetensors file and its metadata, every claim checked."""
    path = window.path
    data = _locate_data(window)
    header = read_json(window.sub(8, window.size - 8 - data.size), "a safetensors header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise SourceError(path, "the metadata of its header is not an object")
    tensors = [_read_tensor(path, name, entry, data) for name, entry in header.items()]
    # the format forbids tensors that share bytes
    end = 0
    for tensor in sorted(tensors, key=_first_byte):
        if tensor.nbytes and _first_byte(tensor) < end:
            raise SourceError(path, f"tensor {quote_name(tensor.name)} overlaps the one before it")
        end = max(end, _first_byte(tensor) + tensor.nbytes)
    return tensors, {str(key): str(value) for key, value in metadata.items()}


def _locate_data(window: Window) -> Window:
    """Return the bytes after the header."""
    if window.size < 8:
        raise SourceError(window.path, "too short to be a safetensors file")
    length = int.from_bytes(window.read(0, 8), "little")
    if length > window.size - 8:
        claim = f"claims a header of {length} bytes in a file of {window.size}"
        raise SourceError(window.path, f"{claim}: truncated or damaged")
    return window.sub(8 + length, window.size - 8 - length)


def _first_byte(tensor: TensorRef) -> int:
    assert isinstance(tensor.data, FileData)
    return tensor.data.window.start


def _read_tensor(path: str, name: str, entry: Any, data: Window) -> TensorRef:
    try:
        code, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise SourceError(path, f"the header entry of {quote_name(name)} is not a tensor") from None
    if len(shape) > MOST_AXES:
        raise SourceError(path, f"tensor {quote_name(name)} has {len(shape)} axes; more than {MOST_AXES} are not read")
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in (*shape, start, stop)):
        raise SourceError(path, f"tensor {quote_name(name)} has sizes that are not whole numbers of zero or more")
    dtype, shape, nbytes = _read_layout(path, name, code, shape)
    if stop - start != nbytes:
        raise SourceError(path, f"tensor {quote_name(name)} needs {nbytes} bytes and claims {stop - start}")
    if stop > data.size:
        raise SourceError(path, f"tensor {quote_name(name)} ends at byte {stop} of {data.size}: the file is truncated")
    window = data.sub(start, nbytes)
    return TensorRef(name, shape, dtype, FileData(window, dtype.storage), storage_id=(path, window.start))


def _read_layout(path: str, name: str, code: Any, shape: tuple[int, ...]) -> tuple[DType, tuple[int, ...], int]:
    """Return dtype, shape and number of bytes; packed types become flat bytes."""
    count = math.prod(shape)
    if isinstance(code, str) and code in _PACKED_BITS:
        bits = count * _PACKED_BITS[code]
        if bits % 8:
            raise SourceError(path, f"tensor {quote_name(name)} of {code} does not fill whole bytes")
        return opaque(code.lower()), (bits // 8,), bits // 8
    if not isinstance(code, str) or code not in _DTYPES:
        raise SourceError(path, f"tensor {quote_name(name)} has the unknown dtype {quote_name(code)}")
    dtype = DTYPES[_DTYPES[code]]
    return dtype, shape, count * dtype.itemsize
