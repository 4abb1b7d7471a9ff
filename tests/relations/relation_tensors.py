"""Tensors for the tests of relations, and the one thing every relation must keep: what it says can be checked."""

from __future__ import annotations

import json

import numpy as np

from nndiff.dtypes import from_numpy
from nndiff.relations import load_relation
from nndiff.tensors import MemoryData, Site, Slot, Stats, TensorRef, Trace

ATOL = RTOL = 1e-5


def tensor(array, name="weight", slot=Slot.STORED, module="", with_stats=False, storage_id=None):
    array = np.asarray(array)
    dtype = from_numpy(array.dtype)
    raw = array.view(dtype.storage) if array.dtype == bool else array
    trace = Trace(stats=describe(array)) if with_stats else Trace()
    site = Site(module, slot, tensor=name)
    name = site.name if slot is not Slot.STORED else name
    return TensorRef(name, array.shape, dtype, MemoryData(raw), storage_id, site, trace)


def describe(array):
    numbers = np.abs(array) if np.iscomplexobj(array) else np.asarray(array, np.float64)
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return Stats(numbers.size, numbers.size, *[float("nan")] * 6)
    largest = np.abs(finite).max()
    length = largest * np.sqrt(np.sum((finite / (largest or 1.0)) ** 2))
    with np.errstate(all="ignore"):
        moments = finite.mean(), finite.std(), finite.min(), finite.max()
    return Stats(numbers.size, int(numbers.size - finite.size), *map(float, (*moments, largest, length)))


def check(relation, reference, candidate, atol=ATOL, rtol=RTOL):
    """Assert that a relation, and the same stored and loaded, makes every element agree; return both sides."""
    assert relation is not None
    assert relation.text
    loaded = load_relation(json.loads(json.dumps(relation.to_dict())))
    assert loaded == relation
    one, other = loaded.apply([np.asarray(each) for each in reference], [np.asarray(each) for each in candidate])
    assert one.shape == other.shape
    with np.errstate(all="ignore"):
        wide = np.complex128 if np.iscomplexobj(one) or np.iscomplexobj(other) else np.float64
        assert np.allclose(other.astype(wide), one.astype(wide), atol=atol, rtol=rtol, equal_nan=True)
    return one, other
