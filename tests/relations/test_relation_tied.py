"""Tied: the same bits under two names of one side; constants only where both share a storage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from relation_tensors import describe, tensor

from nndiff.relations import prove_tied, tied
from nndiff.tensors import NoData
from nndiff.verdict import RelationKind

ONE = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)


def test_equal_elements_are_tied():
    assert prove_tied(tensor(ONE, "head"), tensor(ONE.copy(), "embedding")).kind is RelationKind.TIED


def test_one_bit_off_is_not_tied():
    other = ONE.copy()
    other.view(np.uint32)[4, 3] ^= 1
    assert prove_tied(tensor(ONE), tensor(other)) is None
    assert prove_tied(tensor(ONE), tensor(np.ascontiguousarray(ONE[::-1]))) is None


@pytest.mark.parametrize("other", [ONE.T.copy(), ONE.astype(np.float64), ONE[:4]])
def test_other_shapes_and_types_are_not_tied(other):
    assert prove_tied(tensor(ONE), tensor(other)) is None


def test_nan_is_the_same_as_itself():
    one = ONE.copy()
    one[1, 1] = np.nan
    assert prove_tied(tensor(one), tensor(one.copy())) is not None


@pytest.mark.parametrize("constant", [np.zeros(6), np.full((2, 2), np.nan), np.float32(3), np.zeros((0, 3))])
def test_constants_are_tied_only_in_one_storage(constant):
    assert prove_tied(tensor(constant), tensor(np.array(constant))) is None
    shared = prove_tied(tensor(constant, storage_id="a"), tensor(constant, storage_id="a"))
    assert (shared is not None) is (np.size(constant) > 0)
    assert prove_tied(tensor(constant, storage_id="a"), tensor(np.array(constant), storage_id="b")) is None


def test_views_of_one_storage_that_hold_other_elements_are_not_tied():
    pair = np.arange(8.0)
    assert prove_tied(tensor(pair[:4], storage_id="a"), tensor(pair[4:], storage_id="a")) is None


def test_digests_stand_for_elements_that_were_not_kept():
    def kept(digest, array=ONE):
        known = tensor(array)
        trace = replace(known.trace, digest=digest, stats=describe(array))
        return replace(known, data=NoData("digest only"), trace=trace)

    assert prove_tied(kept("a"), kept("a")) is not None
    assert prove_tied(kept("a"), kept("b")) is None
    assert prove_tied(kept("a", np.zeros(4)), kept("a", np.zeros(4))) is None
    assert prove_tied(kept(None), kept(None)) is None


@pytest.mark.parametrize("place", [0, 63, 64, 150, 299])
def test_one_element_anywhere_in_a_large_tensor_is_enough(place, monkeypatch):
    monkeypatch.setattr(tied, "BLOCK", 100)
    one = np.arange(300.0)
    other = one.copy()
    assert prove_tied(tensor(one), tensor(other)) is not None
    other[place] += 1
    assert prove_tied(tensor(one), tensor(other)) is None
