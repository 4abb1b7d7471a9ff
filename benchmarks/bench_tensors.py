"""Tensors in memory: one of 64M elements, 10,000 of 6K; against NumPy, torch.allclose and mere sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch

from nndiff.dtypes import DTYPES
from nndiff.stats import Job
from nndiff.stats.engine import get_engine
from nndiff.tensors import MemoryData, TensorRef
from numpy_way import compare
from timing import Row, in_turns

SIZE = 1 << 26
SMALL, SMALL_COUNT = 6144, 10_000


def pair(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    reference = torch.randn(SIZE)
    return reference.to(dtype), (reference + 1e-3 * torch.randn(SIZE)).to(dtype)


def ref(tensor: torch.Tensor) -> TensorRef:
    name = str(tensor.dtype).removeprefix("torch.")
    raw = tensor.view(torch.uint16).numpy() if name == "bfloat16" else tensor.numpy()
    return TensorRef("t", tuple(tensor.shape), DTYPES[name], MemoryData(raw))


def ours(*pairs: tuple[TensorRef, TensorRef]) -> Callable[[], object]:
    engine = get_engine()
    return lambda: list(engine.measure(Job(one, other, 1e-5, 1e-5) for one, other in pairs))


def sums(one: torch.Tensor, other: torch.Tensor) -> list[Callable[[], object]]:
    """Return the ways to sum both arrays on all cores; the fastest is the limit."""
    pool = ThreadPoolExecutor(2)
    ways: list[Callable[[], object]] = [
        lambda: (one.sum(), other.sum()),
        lambda: list(pool.map(torch.sum, (one, other))),
    ]
    if one.dtype == torch.float32:
        ways.append(lambda: list(pool.map(np.sum, (one.numpy(), other.numpy()))))
    return ways


def rows() -> Iterator[Row]:
    for dtype, limit in ((torch.float32, "<= 2x"), (torch.bfloat16, "<= 3x"), (torch.float16, ""), (torch.float64, "")):
        one, other = pair(dtype)
        name = f"64M {str(dtype).removeprefix('torch.')}"
        mine, *theirs = in_turns(ours((ref(one), ref(other))), *sums(one, other), rounds=40)
        yield Row(name, mine, "the sums of both", min(theirs), limit)
        if dtype == torch.float32:
            plain = partial(lambda a, b: (a.sum(), b.sum()), one.numpy(), other.numpy())
            yield Row(name, mine, "numpy.sum of one, then the other", in_turns(plain, rounds=10)[0])
        if dtype in (torch.float32, torch.bfloat16):
            yield Row(name, mine, "torch.allclose", in_turns(partial(torch.allclose, one, other), rounds=2)[0], ">= 1x")
            yield Row(name, mine, "the NumPy calls", in_turns(partial(numpy_way, one, other), rounds=1)[0], ">= 50x")
        copy = one.clone()
        same, *theirs = in_turns(ours((ref(one), ref(copy))), *sums(one, copy), rounds=20)
        yield Row(f"{name}, identical", same, "the sums of both", min(theirs))
    yield from small()


def numpy_way(one: torch.Tensor, other: torch.Tensor) -> None:
    compare(one.float().numpy(), other.float().numpy())


def small() -> Iterator[Row]:
    for dtype in (torch.float32, torch.bfloat16):
        one, other = (side[: SMALL * SMALL_COUNT] for side in pair(dtype))
        many = [(ref(a), ref(b)) for a, b in zip(one.split(SMALL), other.split(SMALL), strict=True)]
        name = f"10,000 x 6K {str(dtype).removeprefix('torch.')}"
        apart, whole = in_turns(ours(*many), ours((ref(one), ref(other))), rounds=20)
        yield Row(name, apart, "one tensor of that size", whole, "<= 3x")
    some = list(zip(one.split(SMALL), other.split(SMALL), strict=True))[:500]
    took = in_turns(lambda: [numpy_way(a, b) for a, b in some], rounds=1)[0] * SMALL_COUNT / len(some)
    yield Row(name, apart, "the NumPy calls", took, ">= 1x")
