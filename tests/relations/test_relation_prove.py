"""Whatever two tensors hold, a relation is proven on every element or there is none, and nothing raises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from relation_tensors import ATOL, RTOL, check, describe, tensor

from nndiff.dtypes import DTYPES, opaque
from nndiff.relations import FAMILIES, measure_related, prove
from nndiff.relations.relation import Relation
from nndiff.tensors import MemoryData, Site, Slot, TensorRef, Trace
from nndiff.verdict import RelationKind

_SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@st.composite
def tensors(draw, shapes=_SHAPES):
    dtype = DTYPES[draw(st.sampled_from(sorted(DTYPES)))]
    shape = draw(shapes)
    few = draw(st.booleans())
    elements = st.integers(0, 1) if dtype.kind == "bool" or few else None
    raw = draw(hnp.arrays(dtype.storage, shape, elements=elements))
    site = Site("m", draw(st.sampled_from([Slot.OUTPUT, Slot.PARAM_GRAD])))
    known = TensorRef("x", shape, dtype, MemoryData(raw), site=site)
    if draw(st.booleans()):
        with np.errstate(all="ignore"):
            known = replace(known, trace=Trace(stats=describe(known.numpy())))
    return known


@given(tensors(), tensors(), st.sampled_from([0.0, 1e-5, 1e-2, 1e30]))
def test_any_two_tensors_are_related_by_proof_or_not_at_all(reference, candidate, tolerance):
    relation = prove(reference, candidate, tolerance, tolerance)
    if relation is not None:
        assert measure_related(relation, [reference], [candidate], tolerance, tolerance).mismatched == 0


@given(st.lists(tensors(), min_size=1, max_size=3), st.lists(tensors(), min_size=1, max_size=3))
def test_any_groups_are_related_by_proof_or_not_at_all(reference, candidate):
    relation = prove(reference, candidate, ATOL, RTOL)
    if relation is not None:
        assert measure_related(relation, reference, candidate, ATOL, RTOL).mismatched == 0


@given(tensors(), st.data())
def test_axes_of_any_dtype_are_put_right_bit_by_bit(reference, data):
    axes = data.draw(st.permutations(range(len(reference.shape))))
    raw = reference.data.array.transpose(axes)
    candidate = replace(reference, shape=raw.shape, data=MemoryData(raw), trace=Trace())
    relation = prove(reference, candidate, 0.0, 0.0)
    if relation is not None and relation.kind is RelationKind.LAYOUT:
        sides = relation.apply([reference.numpy()], [candidate.numpy()])
        assert np.array_equal(*sides, equal_nan=reference.dtype.kind in ("float", "complex"))


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_short_floats_are_numbers(name):
    dtype = DTYPES[name]
    raw = np.random.default_rng(0).integers(0, 100, (4, 6)).astype(dtype.storage)
    one = TensorRef("x", (4, 6), dtype, MemoryData(raw))
    other = TensorRef("x", (6, 4), dtype, MemoryData(raw.T))
    assert prove(one, other, 0.0, 0.0).text == "permute(1, 0)"
    assert np.array_equal(*check(prove(one, other, 0.0, 0.0), [one.numpy()], [other.numpy()]))


def test_whole_numbers_keep_every_digit():
    one = np.array([[2**60, 2**60 + 1, 3], [5, 2**60 + 7, 11]])
    other = np.ascontiguousarray(one.T)
    check(prove(tensor(one), tensor(other), ATOL, RTOL), [one], [other])
    other[1, 0] -= 1
    assert prove(tensor(one), tensor(other), ATOL, RTOL) is None  # rtol is for numbers that are rounded


def test_bytes_that_are_no_numbers_have_no_relation():
    raw = np.arange(6, dtype=np.uint8)
    one = TensorRef("x", (2, 3), opaque("int4"), MemoryData(raw.reshape(2, 3)))
    assert prove(one, replace(one, shape=(6,), data=MemoryData(raw)), ATOL, RTOL) is None


def test_equal_tensors_need_no_relation():
    for array in (np.arange(9.0).reshape(3, 3), np.eye(3, dtype=bool), np.float64(2), np.zeros((0,))):
        assert prove(tensor(array), tensor(array.copy()), ATOL, RTOL) is None


def test_a_family_is_one_function_in_one_list():
    for family in FAMILIES:
        assert family([], [], ATOL, RTOL) is None
        assert family([], [], ATOL, RTOL, [Relation(RelationKind.TIED)]) is None


def test_the_numbers_after_a_relation_are_those_of_the_engine():
    one = np.random.default_rng(0).standard_normal((4, 6))
    other = one.T + 1e-7
    metrics = measure_related(prove(tensor(one), tensor(other), ATOL, RTOL), [tensor(one)], [tensor(other)], ATOL, RTOL)
    assert (metrics.count, metrics.mismatched, metrics.unequal) == (24, 0, 24)
    assert metrics.max_abs == pytest.approx(1e-7)
    exact = np.arange(6).reshape(2, 3)
    turned = measure_related(prove(tensor(exact), tensor(exact.T), 0, 0), [tensor(exact)], [tensor(exact.T)], 0.0, 0.0)
    assert turned.unequal == 0
