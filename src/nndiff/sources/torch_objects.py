"""What torch's pickles are made of: storages, and tensors as checked views of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import DTYPES, DType, opaque
from nndiff.errors import SourceError, UnsafeFileError
from nndiff.files import Window
from nndiff.sources.arrays import Array
from nndiff.sources.pickle_nodes import Global, Handler, NotKnownError, Object
from nndiff.sources.source import quote_name
from nndiff.tensors import (
    MOST_AXES,
    Data,
    FileData,
    LateData,
    NoData,
    Shape,
    StridedFileData,
    TensorRef,
    is_contiguous,
)

# A view may repeat its storage (expand), so a small file can claim any number of elements.
_MOST_REPEATED = 256 << 20  # bytes

_STORAGE_DTYPES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "UntypedStorage": "uint8",
    "QInt8Storage": "int8",
    "QUInt8Storage": "uint8",
    "QInt32Storage": "int32",
}
_DTYPE_ALIASES = {"double": "float64", "float": "float32", "half": "float16", "long": "int64", "int": "int32"}
_DTYPE_ALIASES |= {"short": "int16", "cfloat": "complex64", "cdouble": "complex128", "qint8": "int8"}
_DTYPE_ALIASES |= {"quint8": "uint8", "qint32": "int32"}

# one byte per element, whose bits nndiff compares and does not interpret
_ONE_BYTE = frozenset(("float4_e2m1fn_x2", "bits8", "bits4x2", "bits2x4", "bits1x8"))
# several bytes per element, which nndiff splits along one more axis
_PAIRS = {"complex32": (DTYPES["float16"], 2), "bits16": (opaque("bits16"), 2)}


@dataclass(eq=False, repr=False)
class Storage:
    """Name the bytes of one or more tensors; where they are may be learnt later (legacy files)."""

    dtype: DType
    count: int
    key: str
    window: Window | None = None
    late: LateData | None = None  # compressed: must be unpacked first
    swapped: bool = False


@dataclass(eq=False, repr=False)
class Tensor:
    """Describe a tensor as its pickle does: a view of a storage."""

    storage: Storage | None
    offset: int
    shape: Shape
    strides: tuple[int, ...]
    dtype: DType
    conjugated: bool = False
    negated: bool = False
    parts: tuple[Mapping[Any, Any], ...] = ()  # scales of quantised tensors, state of subclasses


@dataclass(frozen=True, repr=False)
class Scale:
    """Hold a number without which a tensor means nothing, so that it is compared like one."""

    value: Any


@dataclass(frozen=True)
class _FlippedData:
    """Hold elements that were saved as a lazy conjugate or negative of what the file holds."""

    data: Data
    conjugated: bool
    negated: bool

    def read(self, start: int, stop: int) -> NDArray[Any]:
        raw = self.data.read(start, stop)
        if self.conjugated:
            raw = np.conjugate(raw)
        return np.negative(raw) if self.negated else raw


def parse_storage_class(kind: Any) -> DType:
    """Return the element type a storage class stands for."""
    if isinstance(kind, Global) and kind.module in ("torch", "torch.cuda", "torch.storage"):
        name = _STORAGE_DTYPES.get(kind.name)
        if name:
            return DTYPES[name]
        raise NotKnownError(f"holds a storage of {kind}, which nndiff does not read")
    raise TypeError("storage class")


def parse_dtype(value: Any) -> DType:
    """Return the element type a `torch.float32` in a pickle stands for."""
    if isinstance(value, Global) and value.module == "torch":
        name = _DTYPE_ALIASES.get(value.name, value.name)
        if name in DTYPES:
            return DTYPES[name]
        if name in _ONE_BYTE:
            return opaque(name)
        raise NotKnownError(f"holds elements of {value}, which nndiff does not read")
    raise TypeError("dtype")


# from the tensor of a pickle to one that can be read


def build_tensor_ref(path: str, name: str, tensor: Tensor) -> TensorRef:
    """Return a tensor of a pickle as a TensorRef, every claim checked against its storage."""
    shape, strides, storage = tensor.shape, tensor.strides, tensor.storage
    if len(shape) > MOST_AXES:
        raise SourceError(path, f"tensor {quote_name(name)} has {len(shape)} axes; more than {MOST_AXES} are not read")
    if len(shape) != len(strides):
        raise SourceError(path, f"tensor {quote_name(name)} has {len(shape)} axes and {len(strides)} strides")
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in (tensor.offset, *shape, *strides)):
        raise SourceError(path, f"tensor {quote_name(name)} has a negative or impossible shape, stride or offset")
    if storage is None:
        return TensorRef(name, shape, tensor.dtype, NoData("saved from the meta device: it has no elements"))
    _check_reach(path, name, tensor, storage)
    data = _locate_data(tensor, storage)
    if tensor.conjugated or tensor.negated:
        data = _FlippedData(data, tensor.conjugated, tensor.negated)
    first_byte = storage.window.start if storage.window else 0
    return TensorRef(name, shape, tensor.dtype, data, storage_id=(path, storage.key, first_byte))


def _check_reach(path: str, name: str, tensor: Tensor, storage: Storage) -> None:
    """Refuse a view that reaches beyond its storage, or repeats a small one without end."""
    count = math.prod(tensor.shape)
    if count == 0:
        return
    last = tensor.offset
    for size, stride in zip(tensor.shape, tensor.strides, strict=True):
        last += (size - 1) * stride
    available = storage.count * storage.dtype.itemsize
    if (last + 1) * tensor.dtype.itemsize > available:
        raise SourceError(path, f"tensor {quote_name(name)} reaches beyond its storage of {available} bytes")
    if count * tensor.dtype.itemsize > max(16 * available, _MOST_REPEATED):
        raise UnsafeFileError(
            path,
            f"tensor {quote_name(name)} claims {count} elements by repeating a storage of {storage.count}; not read",
        )


def _locate_data(tensor: Tensor, storage: Storage) -> Data:
    late = storage.late
    if late is not None:

        def unpack_and_view() -> Data:
            unpacked = late.settle()
            assert isinstance(unpacked, FileData)
            return _view_storage(tensor, unpacked.window, storage.swapped)

        return LateData(unpack_and_view)
    if storage.window is None:
        return NoData("its storage is not in the file")
    return _view_storage(tensor, storage.window, storage.swapped)


def _view_storage(tensor: Tensor, window: Window, swapped: bool) -> Data:
    kind, count = tensor.dtype.storage, math.prod(tensor.shape)
    swapped = swapped and kind.itemsize > 1
    if count == 0:
        return FileData(window.sub(0, 0), kind)
    if is_contiguous(tensor.shape, tensor.strides):
        return FileData(window.sub(tensor.offset * kind.itemsize, count * kind.itemsize), kind, swapped)
    return StridedFileData(window, kind, tensor.offset, tensor.shape, tensor.strides, swapped)


# what the calls in a pickle stand for


def _parse_shape(value: Any) -> Shape:
    if not isinstance(value, (tuple, list)) or len(value) > 1000 or not all(type(size) is int for size in value):
        raise TypeError("shape")
    return tuple(value)


def _rebuild_v2(args: tuple[Any, ...]) -> Tensor:
    storage, offset, shape, strides = args[:4]
    if not isinstance(storage, Storage):
        raise TypeError("storage")
    tensor = Tensor(storage, offset, _parse_shape(shape), _parse_shape(strides), storage.dtype)
    _set_lazy_bits(tensor, args[6:7])
    return tensor


def _rebuild_v3(args: tuple[Any, ...]) -> Tensor:
    """Rebuild a tensor of a dtype that has no storage class: the dtype comes as an argument."""
    tensor = _rebuild_v2(args[:6])
    dtype = args[6]
    if isinstance(dtype, Global) and dtype.module == "torch" and dtype.name in _PAIRS:
        tensor.dtype, parts = _PAIRS[dtype.name]
        tensor.offset *= parts
        tensor.shape = (*tensor.shape, parts)
        tensor.strides = (*(stride * parts for stride in tensor.strides), 1)
    else:
        tensor.dtype = parse_dtype(dtype)
    _set_lazy_bits(tensor, args[7:8])
    return tensor


def _set_lazy_bits(tensor: Tensor, metadata: tuple[Any, ...]) -> None:
    """Note that a tensor was saved as a lazy conjugate or negative of its storage."""
    if metadata and isinstance(metadata[0], dict):
        tensor.conjugated = bool(metadata[0].get("conj"))
        tensor.negated = bool(metadata[0].get("neg"))


def _rebuild_meta(args: tuple[Any, ...]) -> Tensor:
    dtype, shape, strides = args[:3]
    return Tensor(None, 0, _parse_shape(shape), _parse_shape(strides), parse_dtype(dtype))


def _rebuild_quantised(args: tuple[Any, ...]) -> Tensor:
    tensor = _rebuild_v2(args)
    scheme = args[4]
    if not isinstance(scheme, tuple):
        raise TypeError("quantiser")
    is_per_channel = isinstance(scheme[0], Global) and "per_channel" in scheme[0].name
    names = ("scales", "zero_points", "axis") if is_per_channel else ("scale", "zero_point", "axis")
    parts = {}
    for name, value in zip(names, scheme[1:4], strict=False):
        parts[name] = Scale(value) if isinstance(value, (int, float)) else value
    tensor.parts = (parts,)
    return tensor


SPARSE_PARTS = {
    "torch.sparse_coo": ("indices", "values"),
    "torch.sparse_csr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_csc": ("ccol_indices", "row_indices", "values"),
    "torch.sparse_bsr": ("crow_indices", "col_indices", "values"),
    "torch.sparse_bsc": ("ccol_indices", "row_indices", "values"),
}


def _rebuild_sparse(args: tuple[Any, ...]) -> dict[str, Any]:
    """Take a sparse tensor as the dense ones it is made of."""
    layout, data = args[:2]
    if not isinstance(data, tuple) or not (isinstance(layout, (Global, str)) and str(layout) in SPARSE_PARTS):
        raise TypeError("layout")
    return dict(zip(SPARSE_PARTS[str(layout)], data, strict=False))


def _unwrap_tensor(args: tuple[Any, ...]) -> Any:
    """Return the tensor that a parameter or a device tensor was made of."""
    inner = args[0]
    # a sparse tensor is a dict of dense ones here, and one of an unknown class an Object
    if not isinstance(inner, (Tensor, Array, dict, Object)):
        raise NotKnownError(f"rebuilds a tensor from a value of type {type(inner).__name__}: the file is damaged")
    return inner


def _rebuild_parameter_with_state(args: tuple[Any, ...]) -> Any:
    tensor = _unwrap_tensor(args)
    return _attach_state(tensor, args[3]) if isinstance(tensor, Tensor) and len(args) > 3 else tensor


def _rebuild_from_type(args: tuple[Any, ...]) -> Any:
    """Rebuild a tensor of a subclass by its function, with its extra state as parts."""
    function, _, inner_args, state = args[:4]
    handler = TORCH_HANDLERS.get(str(function)) if isinstance(function, Global) else None
    tensor = handler(inner_args) if handler and isinstance(inner_args, tuple) else None
    if isinstance(tensor, Tensor):
        return _attach_state(tensor, state)
    return {"args": inner_args, "state": state}


def _attach_state(tensor: Tensor, state: Any) -> Tensor:
    """Return the tensor with the attributes it was saved with, which may be tensors themselves."""
    states = state if isinstance(state, tuple) else (state,)  # a class with slots: (dict, slots)
    filled = tuple(attributes for attributes in states[:2] if isinstance(attributes, dict) and attributes)
    return replace(tensor, parts=(*tensor.parts[:4], *filled))


TORCH_HANDLERS: dict[str, Handler] = {
    "torch._utils._rebuild_tensor": _rebuild_v2,
    "torch._utils._rebuild_tensor_v2": _rebuild_v2,
    "torch._utils._rebuild_tensor_v3": _rebuild_v3,
    "torch._utils._rebuild_parameter": _unwrap_tensor,
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter_with_state,
    "torch._utils._rebuild_qtensor": _rebuild_quantised,
    "torch._utils._rebuild_sparse_tensor": _rebuild_sparse,
    "torch._utils._rebuild_sparse_csr_tensor": _rebuild_sparse,
    "torch._utils._rebuild_meta_tensor_no_storage": _rebuild_meta,
    "torch._utils._rebuild_device_tensor_from_numpy": _unwrap_tensor,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _unwrap_tensor,
    "torch._utils._rebuild_xla_tensor": _unwrap_tensor,
    "torch._tensor._rebuild_from_type": _rebuild_from_type,
    "torch._tensor._rebuild_from_type_v2": _rebuild_from_type,
    "torch.Size": lambda args: _parse_shape(args[0]) if args else (),
    "torch.serialization._get_layout": lambda args: args[0],
    "torch.nn.parameter.Parameter": _unwrap_tensor,
}
