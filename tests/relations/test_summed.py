"""Summed: two biases added up are found, bit by bit, and no other sum is called one."""

from __future__ import annotations

import numpy as np
import pytest
from relation_tensors import check, tensor

from nndiff.relations import prove, summed
from nndiff.verdict import RelationKind

RANDOM = np.random.default_rng(0)
BIASES = [RANDOM.standard_normal(32).astype(np.float32) for _ in range(2)]


def found(parts, total, flipped=False, find=summed.prove):
    sides = [tensor(part) for part in parts], [tensor(total)]
    return find(*(sides[::-1] if flipped else sides), 1e-5, 1e-5)


@pytest.mark.parametrize("flipped", [False, True])
def test_both_biases_of_a_recurrent_layer_are_found_in_their_sum(flipped):
    total = BIASES[0] + BIASES[1]
    relation = found(BIASES, total, flipped, prove)
    assert relation.kind is RelationKind.FOLD
    one, other = check(relation, *(([total], BIASES) if flipped else (BIASES, [total])), 0.0, 0.0)
    assert np.array_equal(one, other)
    assert one.dtype == np.float32


def test_other_sums_are_none():
    total = BIASES[0] + BIASES[1]
    changed = total.copy()
    changed[3] = np.nextafter(changed[3], np.float32(9))
    assert found(BIASES, changed) is None
    assert found(BIASES, BIASES[0] - BIASES[1]) is None
    assert found(BIASES, total[:16]) is None
    assert found([*BIASES, BIASES[0]], total) is None
    assert found([np.ones(4), np.ones(4)], np.full(4, 2.0)) is None  # constants are the sum of many
    assert found([np.arange(4), np.arange(4)], 2 * np.arange(4)) is None
