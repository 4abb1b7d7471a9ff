"""What the tests of the sources share: torch's own word on a tensor, held against ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from nndiff.sources import Source, open_source
from nndiff.tensors import TensorRef

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
FLOAT8 = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
WHOLE = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8]
EVERY = [*FLOATS, *FLOAT8, *WHOLE, torch.bool, torch.complex64, torch.complex128]


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...] = (3, 5)) -> torch.Tensor:
    """Return a tensor of any dtype whose bytes take many values."""
    generator = torch.Generator().manual_seed(7)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if dtype.is_complex:
        return torch.randn(shape, dtype=dtype, generator=generator)
    if dtype.is_floating_point:
        return (torch.randn(shape, generator=generator) * 8).to(dtype)
    size = torch.empty((), dtype=dtype).element_size()
    count = int(np.prod(shape)) * size
    return torch.randint(0, 256, (count,), generator=generator, dtype=torch.uint8).view(dtype).reshape(shape)


def one_of_each(shape: tuple[int, ...] = (3, 5)) -> dict[str, torch.Tensor]:
    return {str(dtype).removeprefix("torch."): tensor_of(dtype, shape) for dtype in EVERY}


def raw_bytes(truth: torch.Tensor) -> bytes:
    plain = torch.empty(truth.shape, dtype=truth.dtype).copy_(truth.detach())
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def numbers(truth: torch.Tensor) -> np.ndarray[Any, Any]:
    plain = truth.detach().resolve_conj().resolve_neg()
    if plain.dtype is torch.bfloat16 or plain.dtype in FLOAT8:
        plain = plain.float()
    return plain.numpy()


def assert_same(ref: TensorRef, truth: torch.Tensor) -> None:
    """Hold everything a TensorRef says against the tensor it stands for."""
    assert ref.shape == tuple(truth.shape)
    assert ref.dtype.name == str(truth.dtype).removeprefix("torch.")
    assert ref.count == truth.numel()
    wanted = raw_bytes(truth)
    assert ref.read(0, ref.count).tobytes() == wanted
    item = ref.dtype.itemsize
    for start in range(0, ref.count, 4):  # the pieces are the whole
        stop = min(start + 4, ref.count)
        assert ref.read(start, stop).tobytes() == wanted[start * item : stop * item]
    assert b"".join(block.tobytes() for block in ref.blocks(7)) == wanted
    found = ref.numpy()
    np.testing.assert_array_equal(found, numbers(truth))
    assert found.shape == tuple(truth.shape)


def assert_holds(source: Source | Any, wanted: Mapping[str, torch.Tensor], ordered: bool = True) -> Source:
    """Hold a source against the tensors it must have, all of them and no others."""
    opened = source if isinstance(source, Source) else open_source(source)
    names = list(opened.tensors)
    assert names == list(wanted) if ordered else sorted(names) == sorted(wanted)
    for name, truth in wanted.items():
        assert opened.tensors[name].name == name
        assert_same(opened.tensors[name], truth)
    return opened
