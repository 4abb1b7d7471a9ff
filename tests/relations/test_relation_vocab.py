"""Vocabulary: rows that only one side has are cut, the others are the very same; what the rest is, is told."""

from __future__ import annotations

import pytest
import torch
from stored_tensors import assert_gives_bits, draw, store

from nndiff.relations import along, vocab
from nndiff.relations.vocab import AddedRows, RowsKind, describe_added_rows
from nndiff.verdict import RelationKind

ROWS = draw(100, 16)


def prove(reference, candidate):
    return vocab.prove([store(reference)], [store(candidate)], 1e-5, 1e-5)


def describe(reference, candidate):
    return describe_added_rows(store(reference), store(candidate))


@pytest.mark.parametrize("block", [None, 64])
def test_rows_are_cut_on_the_longer_side(monkeypatch, block):
    if block:
        monkeypatch.setattr(vocab, "BLOCK", block)
    longer = torch.cat([ROWS, draw(28, 16, seed=1)])
    for one, other in ((ROWS, longer), (longer, ROWS), (ROWS.T, longer.T), (ROWS[:, 0], longer[:, 0])):
        relation = assert_gives_bits(prove(one, other), [one], [other])
        assert relation.kind is RelationKind.VOCAB
    assert prove(ROWS, longer).text == "[0:100] along axis 0"
    short = longer.to(torch.bfloat16)
    assert_gives_bits(prove(ROWS, short), [ROWS], [short])
    assert_gives_bits(prove(short, ROWS), [short], [ROWS])


def test_what_the_rows_are():
    one = ROWS[:90]
    assert describe(one, ROWS) == AddedRows(90, 10, False, RowsKind.DISTINCT)
    assert describe(ROWS, one) == AddedRows(90, 10, True, RowsKind.DISTINCT)
    assert describe(one, torch.cat([one, torch.zeros(8, 16)])).kind is RowsKind.ZEROS
    assert describe(one, torch.cat([one, one[-1:]])).kind is RowsKind.REPEATED
    assert describe(one, torch.cat([one, one.mean(0, keepdim=True).expand(6, 16)])).kind is RowsKind.REPEATED
    assert describe(one, torch.cat([one, one[:1]])).kind is RowsKind.DISTINCT
    assert describe(one, one) is None
    assert describe(one.T, ROWS.T) is None


@pytest.mark.parametrize(
    "candidate",
    [
        torch.cat([ROWS, ROWS]).roll(1, 0),
        torch.cat([draw(1, 16), ROWS]),
        torch.cat([ROWS[:99], draw(9, 16, seed=2)]),
        torch.cat([ROWS * 1.0001, ROWS[:3]]),
        torch.cat([ROWS, ROWS], dim=1)[:90],
        draw(120, 16, seed=3),
        ROWS,
        torch.cat([ROWS, ROWS[:5]])[..., None],
        torch.cat([ROWS, ROWS[:5]]).long(),
    ],
)
def test_other_rows_are_no_longer_vocabulary(candidate):
    assert prove(ROWS, candidate) is None
    assert prove(candidate, ROWS) is None


def test_one_element_is_enough_to_refuse():
    for place in (0, 800, 1599):
        other = torch.cat([ROWS, ROWS[:4]])
        other.reshape(-1)[place] += 1e-6
        assert prove(ROWS, other) is None


def test_constants_have_no_length():
    assert prove(torch.zeros(10, 4), torch.zeros(12, 4)) is None
    assert along.BLOCK == vocab.BLOCK
