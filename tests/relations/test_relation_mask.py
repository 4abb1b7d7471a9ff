"""Masks: boolean, whole-number and additive masks of the same places, in either convention; nothing else is a mask."""

from __future__ import annotations

import numpy as np
import pytest
from relation_tensors import check, tensor

from nndiff.relations import mask, prove
from nndiff.relations.operations import AsMask, MaskForm
from nndiff.verdict import RelationKind

KEPT = np.random.default_rng(0).random((3, 7)) > 0.4
LOWEST = {"minus infinity": -np.inf, "float32": np.finfo(np.float32).min, "BERT": -10000.0, "float16": -65504.0}


def additive(kept, lowest=-np.inf):
    return np.where(kept, 0.0, lowest).astype(np.float32)


def found(one, other, hints=()):
    return mask.prove([tensor(one)], [tensor(other)], 0.0, 0.0, hints)


@pytest.mark.parametrize("lowest", LOWEST)
@pytest.mark.parametrize("kind", [bool, np.int64, np.uint8])
@pytest.mark.parametrize("inverted", [False, True])
@pytest.mark.parametrize("flipped", [False, True])
def test_both_conventions_are_told(lowest, kind, inverted, flipped):
    plain = (~KEPT if inverted else KEPT).astype(kind)
    sides = plain, additive(KEPT, LOWEST[lowest])[:, None, None, :]
    sides = sides[::-1] if flipped else sides
    relation = found(*sides)
    assert relation.kind is RelationKind.MASK
    one, _ = check(relation, [sides[0]], [sides[1]])
    assert np.array_equal(one.reshape(3, 7), KEPT)
    forms = {operation.form for operation in (*relation.reference, *relation.candidate) if hasattr(operation, "form")}
    assert forms == {MaskForm.TRUE_MASKS if inverted else MaskForm.TRUE_KEEPS, MaskForm.ADDITIVE}
    assert prove(tensor(sides[0]), tensor(sides[1]), 1e-5, 1e-5) == relation


@pytest.mark.parametrize("shape", [(3, 7), (3, 1, 1, 7), (3, 1, 5, 7), (3, 4, 5, 7), (2, 3, 7), (3, 7, 2), (1, 3, 7)])
def test_a_mask_may_be_repeated_along_any_axes(shape):
    axes = {3: shape.index(3), 7: shape.index(7)}
    spread = tuple(size if axis in axes.values() else 1 for axis, size in enumerate(shape))
    wide = np.broadcast_to(additive(KEPT).reshape(spread), shape).copy()
    check(found(KEPT, wide), [KEPT], [wide])
    check(found(wide, KEPT), [wide], [KEPT])
    wide.reshape(-1)[-1] = 0.0 if wide.reshape(-1)[-1] else -np.inf
    assert found(KEPT, wide) is None


def test_of_two_axes_of_one_size_the_elements_tell():
    causal = np.tril(np.ones((7, 7), bool))
    for form in (causal, causal.T):
        wide = np.broadcast_to(additive(form), (2, 1, 7, 7)).copy()
        check(found(form, wide), [form], [wide])
    padding = np.random.default_rng(1).random((7, 7)) > 0.5  # [batch, keys] among as many queries
    wide = np.broadcast_to(additive(padding)[:, None, None, :], (7, 1, 7, 7)).copy()
    check(found(padding, wide), [padding], [wide])


@pytest.mark.parametrize("place", [0, 10, 20])
def test_one_wrong_place_is_no_agreement(place):
    wrong = KEPT.copy()
    wrong.reshape(-1)[place] ^= True
    assert found(wrong, additive(KEPT)) is None


def test_masks_of_other_values_and_conventions_are_masks_too():
    check(found(additive(KEPT, -1e4), additive(KEPT)), [additive(KEPT, -1e4)], [additive(KEPT)])
    relation = found(~KEPT, additive(KEPT))
    assert relation.reference == (AsMask(MaskForm.TRUE_MASKS),)


def test_zeros_and_ones_against_their_inverse_may_be_anything():
    assert found(KEPT, ~KEPT) is None
    assert found(KEPT.astype(np.int64), ~KEPT) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (KEPT, KEPT),
        (KEPT, KEPT.astype(np.int32)),
        (additive(KEPT), additive(KEPT)),
        (KEPT, KEPT.astype(np.float32)),
        (2 * KEPT.astype(int), additive(KEPT)),
        (KEPT, additive(KEPT) + 1e-3),
        (KEPT, additive(KEPT).astype(np.complex64)),
        (KEPT, np.where(KEPT, 0.0, np.nan)),
        (KEPT, additive(KEPT)[:, :-1]),
        (np.zeros((0, 2), bool), np.zeros((0, 2))),
        (np.bool_(True), np.float32(0)),
        (np.ones(4, bool), np.zeros(4)),
        (np.zeros(4, bool), np.zeros(4)),
        (np.zeros(4, bool), np.full(4, -np.inf)),
    ],
)
def test_equal_tensors_and_what_shows_nothing_are_no_masks(one, other):
    assert found(one, other) is None


def test_a_mask_that_keeps_all_places_confirms_a_hint():
    hint = found(KEPT, additive(KEPT))
    assert found(np.ones((3, 7), bool), np.zeros((3, 7)), [hint]) is hint
    assert found(np.zeros((3, 7), bool), np.zeros((3, 7)), [hint]) is None


def test_the_weakest_mask_in_use_is_one_and_nothing_weaker():
    assert found(KEPT, additive(KEPT, -1e4)) is not None
    assert found(KEPT, additive(KEPT, -4e3)) is None


def test_shapes_of_very_many_axes_are_not_tried():
    flat = np.random.default_rng(0).random(2) > 0.5
    flat[:] = True, False
    for axes, tried in ((8, True), (9, False)):
        wide = np.broadcast_to(additive(flat), (2,) * axes).copy()
        assert (found(flat, wide) is not None) is tried


def test_most_tensors_are_not_read_to_see_that_they_are_no_mask(monkeypatch):
    read = []
    monkeypatch.setattr(mask, "read_array", lambda each: read.append(each) or np.zeros(each.shape))
    one = np.zeros(1000, np.float32)
    one[200] = 0.5
    assert found(one, np.zeros(1000, bool)) is None
    assert not read
    one[200], one[600] = 0, 0.5
    found(one, np.zeros(1000, bool))
    assert read
