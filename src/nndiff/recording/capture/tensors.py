"""From a torch tensor to raw elements, without touching graph, gradient or memory of the model."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch

from nndiff.dtypes import DTYPES
from nndiff.recording.format.digests import Raw

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_tensor(value: Any) -> bool:
    """Tell whether a value is a torch tensor."""
    return isinstance(value, torch.Tensor)


def dtype_name(tensor: torch.Tensor) -> str:
    """Return the name of a tensor's element type as nndiff writes it."""
    return str(tensor.dtype).removeprefix("torch.")


def raw_tensor(tensor: torch.Tensor) -> Raw:
    """Return the raw elements of a tensor: views of its own memory where it lies in C order on the CPU."""
    with torch.no_grad():
        bare = _strided(tensor.detach())
        name = dtype_name(bare)
        if name not in DTYPES:  # complex32 and the like: the next type that holds them exactly
            bare = bare.to(torch.complex64 if bare.is_complex() else torch.float32)
            name = dtype_name(bare)
        bare = bare.resolve_conj().resolve_neg().cpu().contiguous()
        shape = tuple(bare.shape)
        kind = DTYPES[name]
        flat = bare.reshape(-1)
        if bare.is_complex():
            flat = torch.view_as_real(flat).reshape(-1)
            return Raw(flat.numpy().view(kind.storage), kind, shape)
        return Raw(flat.view(_BITS[kind.itemsize]).numpy().view(kind.storage), kind, shape)


def memory_of(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Return address and size in bytes of a tensor that is alone and without gaps in its memory on the CPU, or None."""
    if type(tensor) not in _PLAIN or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return None  # a subclass may have no memory of its own, or another
    count, width = tensor.numel(), tensor.element_size()
    if not tensor.is_contiguous() and not _dense(tensor):
        return None
    end = (int(tensor.storage_offset()) + count) * width
    if count == 0 or tensor.untyped_storage().nbytes() < end:
        return None  # a storage may have been made smaller than its tensors
    address = tensor.data_ptr()
    return (address, count * width) if address else None


def _dense(tensor: torch.Tensor) -> bool:
    """Tell whether the elements lie without gaps and none twice, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_quantized:
        return tensor.dequantize()
    if tensor.is_nested:
        return cast(torch.Tensor, torch.nested.to_padded_tensor(tensor, 0.0))
    if tensor.layout is not torch.strided:
        return tensor.to_dense()
    return tensor


def from_raw(array: np.ndarray[Any, Any], name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return raw elements as a torch tensor of the named type, in memory of its own."""
    dtype = getattr(torch, name)
    held = np.ascontiguousarray(array).reshape(-1)
    if held.dtype.kind == "c":
        return torch.from_numpy(held.copy()).reshape(shape)
    bits = torch.from_numpy(held.view(f"i{held.dtype.itemsize}" if held.dtype.itemsize > 1 else "u1").copy())
    tensor: torch.Tensor = bits.view(dtype).reshape(shape)
    return tensor
