"""Objects in memory: mappings of arrays or tensors, and modules. Torch is used only if it is imported already."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.dtypes import find_dtype
from nndiff.dtypes import from_numpy as dtype_from_numpy
from nndiff.errors import SourceError
from nndiff.sources.source import Source, index_by_name, quote_name
from nndiff.sources.torch_objects import SPARSE_PARTS
from nndiff.tensors import MemoryData, NoData, TensorRef

_DEEPEST = 100


def open_memory(value: Any, label: str = "") -> Source:
    """Open a module, a mapping, a sequence or a single array."""
    label = label or f"<{type(value).__name__}>"
    if value is None:
        raise SourceError(label, "None is not a source: give a path, a mapping of arrays or tensors, or a module")
    if isinstance(value, Mapping):
        kind, container = "mapping", value
    elif callable(getattr(value, "state_dict", None)):
        kind, container = "module", value.state_dict()
    elif _is_container(value):
        kind, container = "sequence", value
    else:
        kind, container = "array", {"tensor": value}
    return Source(label, kind, index_by_name(label, _walk_container(label, container)))


def _is_container(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, Sequence) and not isinstance(value, (str, bytes)))


def _walk_container(label: str, container: Any, prefix: str = "", depth: int = 0) -> Iterator[TensorRef]:
    """Yield the tensors of nested containers under dotted names; anything else in them is an error."""
    if depth > _DEEPEST:
        raise SourceError(label, f"is nested deeper than {_DEEPEST} levels")
    for key, value in container.items() if isinstance(container, Mapping) else enumerate(container):
        name = f"{prefix}{key}"
        if _is_container(value):
            yield from _walk_container(label, value, f"{name}.", depth + 1)
            continue
        if value is None:
            continue
        try:
            tensors = list(read_tensors(name, value))
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            reason = str(error).partition("\n")[0]
            raise SourceError(label, f"{quote_name(name)} cannot be read as an array: {reason}") from None
        if not tensors:
            kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
            raise SourceError(
                label, f"{quote_name(name)} is {kind}; nndiff compares tensors, arrays of numbers and numbers"
            )
        yield from tensors


def read_tensors(name: str, value: Any) -> Iterator[TensorRef]:
    """Yield an array, a torch tensor or a number as a TensorRef, a sparse or quantised one as several."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        yield from _read_torch(name, value.detach(), torch)
    elif isinstance(value, (bool, int, float, complex, np.ndarray, np.generic)) or hasattr(value, "__array__"):
        array: NDArray[Any] = np.asarray(value)
        dtype = dtype_from_numpy(array.dtype)
        if dtype is None:
            return
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("<"))
        raw = array if array.dtype == dtype.storage else array.view(dtype.storage)
        yield TensorRef(name, array.shape, dtype, MemoryData(raw), storage_id=id(array))


def _read_torch(name: str, tensor: Any, torch: Any) -> Iterator[TensorRef]:
    """Yield a tensor under the names that a file of it would give."""
    if tensor.layout != torch.strided:
        for part_name in SPARSE_PARTS.get(str(tensor.layout), ()):
            read_part = getattr(tensor, f"_{part_name}" if tensor.layout == torch.sparse_coo else part_name)
            yield from _read_torch(f"{name}.{part_name}", read_part(), torch)
        return
    if not tensor.is_quantized:
        yield _read_strided(name, tensor, torch)
        return
    yield from _read_torch(name, tensor.int_repr(), torch)
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        scheme = {"scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
    else:
        scheme = {
            "scales": tensor.q_per_channel_scales(),
            "zero_points": tensor.q_per_channel_zero_points(),
            "axis": tensor.q_per_channel_axis(),
        }
    for part_name, value in scheme.items():
        yield from read_tensors(f"{name}.{part_name}", value)


def _read_strided(name: str, tensor: Any, torch: Any) -> TensorRef:
    if tensor.dtype == torch.complex32:  # a type NumPy does not have; two halves, as its file is read
        tensor = torch.view_as_real(tensor.resolve_conj())
    type_name = str(tensor.dtype).removeprefix("torch.")
    dtype = find_dtype(type_name)
    shape = tuple(tensor.shape)
    if tensor.device.type == "meta":
        return TensorRef(name, shape, dtype, NoData("on the meta device: it has no elements"))
    plain = tensor.cpu().resolve_conj().resolve_neg()
    if dtype.storage != np.dtype(dtype.name if dtype.name in np.sctypeDict else "V1"):
        plain = plain.contiguous().view(torch.uint8 if dtype.itemsize == 1 else torch.int16)
    raw = plain.numpy().view(dtype.storage)
    try:
        storage_id: object = ("torch", tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        storage_id = None
    return TensorRef(name, shape, dtype, MemoryData(raw.reshape(shape)), storage_id=storage_id)
