"""Masks that glue code hands on: the open places tell what is wrong with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from attention_trials import build_trial
from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.masks import MASKS


def make_open(
    batch: int, queries: int, keys: int, ahead: int | None = 0, window: int | None = None, padded: int = 0, invert=False
) -> torch.Tensor:
    opened = torch.ones(batch, 1, queries, keys, dtype=torch.bool)
    if ahead is not None:
        opened &= torch.ones(queries, keys).tril(keys - queries + ahead).bool()
    if window is not None:
        opened &= torch.ones(queries, keys).triu(keys - queries - window + 1).bool()
    kept = torch.ones(batch, keys, dtype=torch.bool)
    kept[0, :padded] = False
    return opened & (kept ^ invert)[:, None, None]


def write(opened: torch.Tensor, form: str) -> torch.Tensor:
    if form == "additive":
        return torch.zeros(opened.shape).masked_fill(~opened, torch.finfo(torch.float32).min)
    if form == "infinite":
        return torch.zeros(opened.shape).masked_fill(~opened, -torch.inf)
    if form == "numbers":
        return opened.float()
    return opened if form == "open" else ~opened


def explain(reference: torch.Tensor, candidate: torch.Tensor, inputs: dict[str, torch.Tensor] | None = None):
    gap = (reference.double() - candidate.double()).nan_to_num(0.0).abs().max().item()
    trial = build_trial(nn.Identity(), nn.Identity(), reference, candidate, [], 0.0, gap, model_inputs=inputs)
    return MASKS.prove(trial) if MASKS.applies(trial) else None


RIGHT = {"padded": 3}


@pytest.mark.parametrize("form", ["additive", "infinite", "numbers", "open", "closed"])
@pytest.mark.parametrize("sizes", [(2, 9, 9), (3, 5, 12)])
@pytest.mark.parametrize(
    ("right", "wrong", "cause", "words"),
    [
        ({}, {"ahead": None}, Cause.CAUSAL_MASK, "no causal mask"),
        ({}, {"ahead": 1}, Cause.CAUSAL_MASK, "shifted by 1 ahead"),
        ({}, {"ahead": -1}, Cause.CAUSAL_MASK, "shifted by 1 back"),
        ({"padded": 3, "ahead": None}, {"ahead": None}, Cause.PADDING_MASK, "ignores the padding"),
        ({"padded": 2}, {}, Cause.PADDING_MASK, "ignores the padding"),
        ({"padded": 3, "ahead": None}, {"padded": 3, "ahead": None, "invert": True}, Cause.PADDING_MASK, "inverts"),
        ({"window": 4}, {"window": 3}, Cause.SLIDING_WINDOW, "sees 3 positions, its own included in the candidate, 4"),
        ({}, {"window": 4}, Cause.SLIDING_WINDOW, "sees 4 positions"),
    ],
)
def test_open_places_tell_the_cause(form, sizes, right, wrong, cause, words):
    proof = explain(write(make_open(*sizes, **right), form), write(make_open(*sizes, **wrong), form))
    assert proof is not None
    assert (proof.cause, words in proof.evidence) == (cause, True), proof


@pytest.mark.parametrize("form", ["additive", "numbers", "open", "closed"])
@pytest.mark.parametrize("ahead", [None, 0])
@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ("both", "none", "ignores the padding"),
        ("both", "keys", "the candidate masks padded keys alone"),
        ("keys", "both", "the candidate masks padded queries too"),
    ],
)
def test_masks_of_padded_queries_too(form, ahead, right, wrong, words):
    kept = torch.ones(2, 1, 9, dtype=torch.bool)
    kept[0, :, 6:] = False
    closed = {"both": ~kept[:, :, None] | ~kept[..., None], "keys": ~kept[:, :, None], "none": torch.tensor(False)}
    sides = [write(make_open(2, 9, 9, ahead) & ~closed[side], form) for side in (right, wrong)]
    proof = explain(*sides)
    assert proof is not None
    assert (proof.cause, words in proof.evidence) == (Cause.PADDING_MASK, True), proof


def test_a_mask_over_keys():
    kept = torch.ones(2, 7)
    kept[0, 5:] = 0
    assert explain(kept, 1 - kept).cause == Cause.PADDING_MASK
    assert explain(kept, torch.ones(2, 7)).cause == Cause.PADDING_MASK
    other = kept.clone()
    other[1, 3] = 0
    assert explain(kept, other) is None


@pytest.mark.parametrize("seed", range(5))
def test_places_at_random_have_no_cause(seed):
    random = np.random.default_rng(seed)
    reference = make_open(2, 9, 9)
    candidate = torch.from_numpy(random.random((2, 1, 9, 9)) < 0.5)
    assert explain(reference, candidate) is None
    assert explain(torch.randn(2, 1, 9, 9), torch.randn(2, 1, 9, 9)) is None


def test_a_square_mask_beside_an_input_of_its_shape_may_be_either():
    kept = torch.arange(5)[None] <= torch.arange(5)[:, None]  # samples of 1 to 5 positions, or causality
    inputs = {"input_ids": torch.zeros(5, 5, dtype=torch.int64)}
    assert explain(kept, torch.ones(5, 5, dtype=torch.bool)).cause == Cause.CAUSAL_MASK
    assert explain(kept, torch.ones(5, 5, dtype=torch.bool), inputs) is None
