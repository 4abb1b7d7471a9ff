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
from nndiff.sources.source import Source, by_name, shown
from nndiff.sources.torch_objects import SPARSE_PARTS
from nndiff.tensors import MemoryData, NoData, TensorRef

_DEEPEST = 100


def open_memory(value: Any, label: str = "") -> Source:
    """Open a module, a mapping, a sequence or a single array."""
    label = label or f"<{type(value).__name__}>"
    if value is None:
        raise SourceError(label, "None is no source: give a path, a mapping of arrays or tensors, or a module")
    if _is_module(value):
        return Source(label, "module", by_name(label, _named(label, value.state_dict(), "", 0)))
    if not _is_container(value):
        return Source(label, "array", by_name(label, _named(label, {"tensor": value}, "", 0)))
    tensors = by_name(label, _named(label, value, "", 0))
    return Source(label, "mapping" if isinstance(value, Mapping) else "sequence", tensors)


def tensors_from(name: str, value: Any) -> Iterator[TensorRef]:
    """Yield an array, a torch tensor or a number as a TensorRef, a sparse or quantised one as several."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        yield from _from_torch(name, value.detach(), torch)
    elif isinstance(value, (bool, int, float, complex, np.ndarray, np.generic)) or hasattr(value, "__array__"):
        found = _from_numpy(name, np.asarray(value))
        if found is not None:
            yield found


def _from_numpy(name: str, array: NDArray[Any]) -> TensorRef | None:
    dtype = dtype_from_numpy(array.dtype)
    if dtype is None:
        return None
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    raw = array if array.dtype == dtype.storage else array.view(dtype.storage)
    return TensorRef(name, array.shape, dtype, MemoryData(raw), storage_id=id(array))


def _from_torch(name: str, tensor: Any, torch: Any) -> Iterator[TensorRef]:
    """Yield a tensor under the names its file would give it."""
    if tensor.layout != torch.strided:
        for part in SPARSE_PARTS.get(str(tensor.layout), ()):
            read = getattr(tensor, f"_{part}" if tensor.layout == torch.sparse_coo else part)
            yield from _from_torch(f"{name}.{part}", read(), torch)
    elif tensor.is_quantized:
        yield from _from_torch(name, tensor.int_repr(), torch)
        for part, value in _scheme(tensor, torch).items():
            yield from tensors_from(f"{name}.{part}", value)
    else:
        yield _strided(name, tensor, torch)


def _scheme(tensor: Any, torch: Any) -> dict[str, Any]:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return {"scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
    return {
        "scales": tensor.q_per_channel_scales(),
        "zero_points": tensor.q_per_channel_zero_points(),
        "axis": tensor.q_per_channel_axis(),
    }


def _strided(name: str, tensor: Any, torch: Any) -> TensorRef:
    if tensor.dtype == torch.complex32:  # a type NumPy does not have; two halves, as its file is read
        tensor = torch.view_as_real(tensor.resolve_conj())
    type_name = str(tensor.dtype).removeprefix("torch.")
    dtype = DTYPES.get(type_name) or opaque(type_name)
    shape = tuple(tensor.shape)
    if tensor.device.type == "meta":
        return TensorRef(name, shape, dtype, NoData("on the meta device: it has no elements"))
    plain = tensor.cpu().resolve_conj().resolve_neg()
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
        found = list(_read(label, name, each))
        if not found:
            kind = f"an array of {each.dtype}" if isinstance(each, np.ndarray) else f"a {type(each).__name__}"
            raise SourceError(label, f"{shown(name)} is {kind}; tensors, arrays of numbers and numbers are compared")
        yield from found


def _read(label: str, name: str, value: Any) -> Iterator[TensorRef]:
    try:
        yield from tensors_from(name, value)
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise SourceError(label, f"{shown(name)} cannot be read as an array: {reason}") from None
