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
from nndiff.sources.source import shown
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

# one byte an element, whose bits nndiff compares and does not interpret
_ONE_BYTE = frozenset(("float4_e2m1fn_x2", "bits8", "bits4x2", "bits2x4", "bits1x8"))
# several bytes an element, which nndiff takes apart along one more axis
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
class _Flipped:
    """Hold elements that were saved as a lazy conjugate or negative of what the file holds."""

    data: Data
    conjugated: bool
    negated: bool

    def read(self, start: int, stop: int) -> NDArray[Any]:
        raw = self.data.read(start, stop)
        raw = np.conjugate(raw) if self.conjugated else raw
        return np.negative(raw) if self.negated else raw


def storage_dtype(kind: Any) -> DType:
    """Return the element type a storage class stands for."""
    if isinstance(kind, Global) and kind.module in ("torch", "torch.cuda", "torch.storage"):
        name = _STORAGE_DTYPES.get(kind.name)
        if name:
            return DTYPES[name]
        raise NotKnownError(f"holds a storage of {kind}, which nndiff does not read")
    raise TypeError("storage class")


def dtype_of(value: Any) -> DType:
    """Return the element type a `torch.float32` in a pickle stands for."""
    if isinstance(value, Global) and value.module == "torch":
        name = _DTYPE_ALIASES.get(value.name, value.name)
        if name in DTYPES:
            return DTYPES[name]
        if name in _ONE_BYTE:
            return opaque(name)
        raise NotKnownError(f"holds elements of {value}, which nndiff does not read")
    raise TypeError("dtype")


def tensor_ref(path: str, name: str, tensor: Tensor) -> TensorRef:
    """Return a tensor of a pickle as a TensorRef, its every claim checked against its storage."""
    storage = tensor.storage
    _check_numbers(path, name, tensor)
    if storage is None:
        why = "saved from the meta device: it has no elements"
        return TensorRef(name, tensor.shape, tensor.dtype, NoData(why))
    _check(path, name, tensor, storage)
    data = _data(tensor, storage)
    if tensor.conjugated or tensor.negated:
        data = _Flipped(data, tensor.conjugated, tensor.negated)
    place = storage.window.start if storage.window else 0
    return TensorRef(name, tensor.shape, tensor.dtype, data, storage_id=(path, storage.key, place))


def _check_numbers(path: str, name: str, tensor: Tensor) -> None:
    if len(tensor.shape) > MOST_AXES:
        raise SourceError(
            path, f"tensor {shown(name)} has {len(tensor.shape)} axes; more than {MOST_AXES} are not read"
        )
    if len(tensor.shape) != len(tensor.strides):
        raise SourceError(path, f"tensor {shown(name)} has {len(tensor.shape)} axes and {len(tensor.strides)} strides")
    numbers = (tensor.offset, *tensor.shape, *tensor.strides)
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers):
        raise SourceError(path, f"tensor {shown(name)} has a negative or senseless shape, stride or offset")


def _check(path: str, name: str, tensor: Tensor, storage: Storage) -> None:
    count = math.prod(tensor.shape)
    if count == 0:
        return
    last = tensor.offset + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True))
    held = storage.count * storage.dtype.itemsize
    if (last + 1) * tensor.dtype.itemsize > held:
        raise SourceError(path, f"tensor {shown(name)} reaches beyond its storage of {held} bytes")
    if count * tensor.dtype.itemsize > max(16 * held, _MOST_REPEATED):
        raise UnsafeFileError(
            path, f"tensor {shown(name)} claims {count} elements by repeating a storage of {storage.count}; not read"
        )


def _data(tensor: Tensor, storage: Storage) -> Data:
    if storage.late is not None:
        late = storage.late
        return LateData(lambda: _view(tensor, _window_of(late), storage.swapped))
    if storage.window is None:
        return NoData("its storage is not in the file")
    return _view(tensor, storage.window, storage.swapped)


def _window_of(late: LateData) -> Window:
    data = late.settle()
    assert isinstance(data, FileData)
    return data.window


def _view(tensor: Tensor, window: Window, swapped: bool) -> Data:
    kind = tensor.dtype.storage
    swapped = swapped and kind.itemsize > 1
    if math.prod(tensor.shape) == 0:
        return FileData(window.sub(0, 0), kind)
    if is_contiguous(tensor.shape, tensor.strides):
        part = window.sub(tensor.offset * kind.itemsize, math.prod(tensor.shape) * kind.itemsize)
        return FileData(part, kind, swapped)
    return StridedFileData(window, kind, tensor.offset, tensor.shape, tensor.strides, swapped)


def _shape(value: Any) -> Shape:
    if not isinstance(value, (tuple, list)) or len(value) > 1000 or not all(type(size) is int for size in value):
        raise TypeError("shape")
    return tuple(value)


def _rebuild_v2(args: tuple[Any, ...]) -> Tensor:
    storage, offset, shape, strides = args[:4]
    if not isinstance(storage, Storage):
        raise TypeError("storage")
    tensor = Tensor(storage, offset, _shape(shape), _shape(strides), storage.dtype)
    return _with_bits(tensor, args[6:7])


def _rebuild_v3(args: tuple[Any, ...]) -> Tensor:
    """Rebuild a tensor of a dtype that has no storage class: the dtype comes as an argument."""
    tensor = _rebuild_v2(args[:6])
    if isinstance(args[6], Global) and args[6].module == "torch" and args[6].name in _PAIRS:
        tensor.dtype, parts = _PAIRS[args[6].name]
        tensor.offset *= parts
        tensor.shape, tensor.strides = (*tensor.shape, parts), (*(each * parts for each in tensor.strides), 1)
    else:
        tensor.dtype = dtype_of(args[6])
    return _with_bits(tensor, args[7:8])


def _with_bits(tensor: Tensor, metadata: tuple[Any, ...]) -> Tensor:
    """Note that a tensor was saved as a lazy conjugate or negative of its storage."""
    if metadata and isinstance(metadata[0], dict):
        tensor.conjugated = bool(metadata[0].get("conj"))
        tensor.negated = bool(metadata[0].get("neg"))
    return tensor


def _rebuild_meta(args: tuple[Any, ...]) -> Tensor:
    dtype, shape, strides = args[:3]
    return Tensor(None, 0, _shape(shape), _shape(strides), dtype_of(dtype))


def _rebuild_quantised(args: tuple[Any, ...]) -> Tensor:
    tensor = _rebuild_v2(args)
    scheme = args[4]
    if not isinstance(scheme, tuple):
        raise TypeError("quantiser")
    kind = str(scheme[0]) if isinstance(scheme[0], Global) else ""
    scales = "scales" if "per_channel" in kind else "scale"
    held = (Scale(each) if isinstance(each, (int, float)) else each for each in scheme[1:4])
    tensor.parts = (dict(zip((scales, f"zero_point{scales[5:]}", "axis"), held, strict=False)),)
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


def _rebuild_layout(args: tuple[Any, ...]) -> Any:
    return args[0]


def _wrapped_tensor(args: tuple[Any, ...]) -> Any:
    """Return the tensor that a parameter or a device tensor was made of."""
    inner = args[0]
    # a sparse tensor is a dict of dense ones here, one of a class nobody knows an Object
    if not isinstance(inner, (Tensor, Array, dict, Object)):
        raise NotKnownError(f"rebuilds a tensor from a value of type {type(inner).__name__}: the file is damaged")
    return inner


def _rebuild_from_type(args: tuple[Any, ...]) -> Any:
    """Rebuild a tensor of a subclass: by its function, its extra state kept beside it."""
    function, _, inner, state = args[:4]
    handler = TORCH_HANDLERS.get(str(function)) if isinstance(function, Global) else None
    tensor = handler(inner) if handler and isinstance(inner, tuple) else None
    if isinstance(tensor, Tensor):
        return _with_state(tensor, state)
    return {"args": inner, "state": state}


def _rebuild_parameter_with_state(args: tuple[Any, ...]) -> Any:
    tensor = _wrapped_tensor(args)
    return _with_state(tensor, args[3]) if isinstance(tensor, Tensor) and len(args) > 3 else tensor


def _with_state(tensor: Tensor, state: Any) -> Tensor:
    """Return the tensor with the attributes it was saved with, which may be tensors themselves."""
    states = state if isinstance(state, tuple) else (state,)  # a class with slots: (dict, slots)
    found = tuple(each for each in states[:2] if isinstance(each, dict) and each)
    return replace(tensor, parts=(*tensor.parts[:4], *found))


def _size(args: tuple[Any, ...]) -> Shape:
    return _shape(args[0]) if args else ()


TORCH_HANDLERS: dict[str, Handler] = {
    "torch._utils._rebuild_tensor": _rebuild_v2,
    "torch._utils._rebuild_tensor_v2": _rebuild_v2,
    "torch._utils._rebuild_tensor_v3": _rebuild_v3,
    "torch._utils._rebuild_parameter": _wrapped_tensor,
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter_with_state,
    "torch._utils._rebuild_qtensor": _rebuild_quantised,
    "torch._utils._rebuild_sparse_tensor": _rebuild_sparse,
    "torch._utils._rebuild_sparse_csr_tensor": _rebuild_sparse,
    "torch._utils._rebuild_meta_tensor_no_storage": _rebuild_meta,
    "torch._utils._rebuild_device_tensor_from_numpy": _wrapped_tensor,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _wrapped_tensor,
    "torch._utils._rebuild_xla_tensor": _wrapped_tensor,
    "torch._tensor._rebuild_from_type": _rebuild_from_type,
    "torch._tensor._rebuild_from_type_v2": _rebuild_from_type,
    "torch.Size": _size,
    "torch.serialization._get_layout": _rebuild_layout,
    "torch.nn.parameter.Parameter": _wrapped_tensor,
}
