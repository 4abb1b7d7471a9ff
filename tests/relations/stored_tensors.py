"""Tensors of files for the tests of relations by value, made of torch tensors of any type."""

from __future__ import annotations

import json

import numpy as np
import torch

from nndiff.dtypes import find_dtype
from nndiff.relations import load_relation
from nndiff.tensors import MemoryData, TensorRef

RAW = {torch.bfloat16: torch.uint16, torch.float8_e4m3fn: torch.uint8, torch.float8_e5m2: torch.uint8}


def store(values, name="weight"):
    """Return a tensor of a file that holds these values, bit by bit."""
    values = torch.as_tensor(values).detach().contiguous()
    dtype = find_dtype(str(values.dtype).removeprefix("torch."))
    raw = values.view(RAW[values.dtype]) if values.dtype in RAW else values
    return TensorRef(name, tuple(values.shape), dtype, MemoryData(raw.numpy()))


def draw(*shape, seed=0, dtype=torch.float32, size=1.0):
    """Return normal numbers."""
    numbers = np.random.default_rng(seed).standard_normal(shape) * size
    return torch.from_numpy(numbers).to(dtype)


def assert_gives_bits(relation, reference, candidate):
    """Assert that a relation, stored and loaded, gives equal values on both sides; return it."""
    assert relation is not None
    assert load_relation(json.loads(json.dumps(relation.to_dict()))) == relation
    sides = relation.apply(
        [store(tensor).numpy() for tensor in reference], [store(tensor).numpy() for tensor in candidate]
    )
    assert sides[0].shape == sides[1].shape
    assert np.array_equal(*sides, equal_nan=True)
    return relation
