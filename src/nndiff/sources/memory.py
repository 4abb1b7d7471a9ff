"""Objects in memory: mappings of arrays or tensors, and modules. Torch is used only if it is there already."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import DTYPES, opaque
from nndiff.dtypes import from_numpy as dtype_from_numpy
from nndiff.errors import SourceError
from nndiff.sources.source import Source, by_name
from nndiff.tensors import MemoryData, NoData, TensorRef

_DEEPEST = 100


def open_memory(value: Any, label: str = "") -> Source:
    """Open a module, a mapping, a sequence or a single array."""
    label = label or f"<{type(value).__name__}>"
    if _is_module(value):
        return Source(label, "module", by_name(label, _named(label, value.state_dict(), "", 0)))
    if not _is_container(value):
        return Source(label, "array", by_name(label, _named(label, {"tensor": value}, "", 0)))
    tensors = by_name(label, _named(label, value, "", 0))
    return Source(label, "mapping" if isinstance(value, Mapping) else "sequence", tensors)


def tensor_from(name: str, value: Any) -> TensorRef | None:
    """Return an array, a torch tensor or a number as a TensorRef, or None for anything else."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _from_torch(name, value, torch)
    if isinstance(value, (bool, int, float, complex, np.ndarray, np.generic)) or hasattr(value, "__array__"):
        return _from_numpy(name, np.asarray(value))
    return None


def _from_numpy(name: str, array: NDArray[Any]) -> TensorRef | None:
    dtype = dtype_from_numpy(array.dtype)
    if dtype is None:
        return None
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    raw = array if array.dtype == dtype.storage else array.view(dtype.storage)
    return TensorRef(name, array.shape, dtype, MemoryData(raw), storage_id=id(array))


def _from_torch(name: str, tensor: Any, torch: Any) -> TensorRef:
    type_name = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_quantized:
        tensor, type_name = tensor.int_repr(), str(tensor.int_repr().dtype).removeprefix("torch.")
    dtype = DTYPES.get(type_name) or opaque(type_name)
    shape = tuple(tensor.shape)
    if tensor.device.type == "meta":
        return TensorRef(name, shape, dtype, NoData("on the meta device: it has no elements"))
    plain = tensor.detach()
    plain = plain.to_dense() if plain.layout != torch.strided else plain
    plain = plain.cpu().resolve_conj().resolve_neg()
    if dtype.storage != np.dtype(dtype.name if dtype.name in np.sctypeDict else "V1"):
        plain = plain.contiguous().view(torch.uint8 if dtype.itemsize == 1 else torch.int16)
    raw = plain.numpy().view(dtype.storage)
    return TensorRef(name, shape, dtype, MemoryData(raw.reshape(shape)), storage_id=_storage_id(tensor))


def _storage_id(tensor: Any) -> object:
    try:
        return ("torch", tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return None


def _is_module(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and not isinstance(value, Mapping)


def _is_container(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, Sequence) and not isinstance(value, (str, bytes)))


def _named(label: str, value: Any, prefix: str, depth: int) -> Iterator[TensorRef]:
    """Yield the tensors of nested containers under dotted names; what is none is named in an error."""
    if depth > _DEEPEST:
        raise SourceError(label, f"is nested deeper than {_DEEPEST} levels")
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, each in pairs:
        name = f"{prefix}{key}"
        if _is_container(each):
            yield from _named(label, each, f"{name}.", depth + 1)
            continue
        if each is None:
            continue
        tensor = tensor_from(name, each)
        if tensor is None:
            raise SourceError(label, f"{name!r} is a {type(each).__name__}, not a tensor, an array or a number")
        yield tensor
