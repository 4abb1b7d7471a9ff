"""Raw elements of torch tensors, taken without touching the model's graph, gradients or memory."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch

from nndiff.dtypes import DTYPES
from nndiff.recording.format.digests import RawTensor

_INTEGERS_BY_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter)


def is_tensor(value: Any) -> bool:
    """Return True for a torch tensor."""
    return isinstance(value, torch.Tensor)


def get_dtype_name(tensor: torch.Tensor) -> str:
    """Return a tensor's dtype by the name nndiff uses."""
    return str(tensor.dtype).removeprefix("torch.")


def raw_tensor(tensor: torch.Tensor) -> RawTensor:
    """Return the raw elements of a tensor: a view of its memory if it is contiguous on the CPU, else a copy."""
    with torch.no_grad():
        plain = _make_strided(tensor.detach())
        if get_dtype_name(plain) not in DTYPES:  # complex32 and the like: the next dtype that holds them exactly
            plain = plain.to(torch.complex64 if plain.is_complex() else torch.float32)
        dtype = DTYPES[get_dtype_name(plain)]
        plain = plain.resolve_conj().resolve_neg().cpu().contiguous()
        flat = plain.reshape(-1)
        if plain.is_complex():
            numbers = torch.view_as_real(flat).reshape(-1).numpy()
        else:
            numbers = flat.view(_INTEGERS_BY_SIZE[dtype.itemsize]).numpy()  # NumPy lacks bfloat16 and float8
        return RawTensor(numbers.view(dtype.storage), dtype, tuple(plain.shape))


def _make_strided(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_quantized:
        return tensor.dequantize()
    if tensor.is_nested:
        return cast(torch.Tensor, torch.nested.to_padded_tensor(tensor, 0.0))
    if tensor.layout is not torch.strided:
        return tensor.to_dense()
    return tensor


def find_memory(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Return address and size in bytes of a plain CPU tensor without gaps, or None."""
    if type(tensor) not in _PLAIN_CLASSES or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return None  # a subclass may have no memory of its own
    count, width = tensor.numel(), tensor.element_size()
    if not tensor.is_contiguous() and not _is_dense(tensor):
        return None
    end = (int(tensor.storage_offset()) + count) * width
    if count == 0 or tensor.untyped_storage().nbytes() < end:
        return None  # a storage may have been made smaller than its tensors
    address = tensor.data_ptr()
    return (address, count * width) if address else None


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return True if the elements lie without gaps or overlaps, in whatever order."""
    expected_stride = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected_stride:
            return False
        expected_stride *= size
    return True


def from_raw(array: np.ndarray[Any, Any], dtype_name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a torch tensor with a copy of raw elements."""
    elements = np.ascontiguousarray(array).reshape(-1)
    if elements.dtype.kind == "c":
        return torch.from_numpy(elements.copy()).reshape(shape)
    width = elements.dtype.itemsize
    integers = torch.from_numpy(elements.view(f"i{width}" if width > 1 else "u1").copy())
    tensor: torch.Tensor = integers.view(getattr(torch, dtype_name)).reshape(shape)
    return tensor
