"""Weights that differ, are tied on one side only, or sit in each other's modules; advice only where it helps."""

from __future__ import annotations

import numpy as np
import pytest

from diagnosis_builders import explain, make_leftover, make_pair, make_tensor
from nndiff.findings.in_place import is_same_difference
from nndiff.findings.tied_weights import find_untied
from nndiff.result import REFERENCE, LeftoverReason, WeightsAtSite
from nndiff.tensors import Slot

VALUES = np.arange(6.0)
RANDOM = np.random.default_rng(0)


def held(**digests):
    return {
        name.replace("__", "."): {"dtype": "float32", "shape": [2, 3], "digest": value}
        for name, value in digests.items()
    }


def differing_layer(reference_meta, candidate_meta, **options):
    given = make_tensor(VALUES, "", Slot.MODEL_INPUT, 0, path="0")
    sides = [make_tensor(values, "fc", order=1, inputs=(0,), cls="Linear") for values in (VALUES, VALUES + 1)]
    return explain([make_pair(given, given), make_pair(*sides)], [], reference_meta, candidate_meta, **options)


def get_finding(explanation, cause):
    (finding,) = [finding for finding in explanation.findings if finding.cause == cause]
    return finding


def test_weights_of_the_first_module_are_compared():
    metas = {"held": held(fc__weight="a", fc__bias="b")}, {"held": held(fc__weight="x", fc__bias="b")}
    explanation = differing_layer(*metas)
    assert explanation.first.weights == WeightsAtSite(2, ("fc.weight",))
    finding = get_finding(explanation, "weights-differ")
    assert finding.evidence == "the first diverging module starts from different weights: fc.weight is not equal"
    assert finding.repair == "load the same weights into both"
    same = differing_layer(metas[0], metas[0])
    assert same.first.weights == WeightsAtSite(2)
    assert not any(finding.cause == "weights-differ" for finding in same.findings)


@pytest.mark.parametrize("checkpoints", [("a.pt", "b.pt"), ("a.pt", ""), ("", "")])
def test_a_comparison_of_checkpoints_is_advised_where_both_are_known(checkpoints):
    metas = [
        {"held": held(fc__weight=digest), **({"checkpoint": checkpoint} if checkpoint else {})}
        for digest, checkpoint in zip("ab", checkpoints, strict=True)
    ]
    repair = get_finding(differing_layer(*metas), "weights-differ").repair
    assert ("nndiff diff a.pt b.pt" in repair) is all(checkpoints)
    assert ("nndiff diff" in repair) is all(checkpoints)


def test_modules_that_hold_each_others_weights_are_named_where_the_verdict_is_different():
    swapped = [("a", "b"), ("b", "a")]
    finding = get_finding(differing_layer({}, {}, against_names=swapped), "weights-swapped")
    assert finding.where == ("a", "b")
    same = make_tensor(VALUES)
    assert not explain([make_pair(same, same)], against_names=swapped).findings


def tied_gradients(off=0.0):
    parts = RANDOM.normal(size=(2, 50))
    total = parts.sum(axis=0) + off
    site = make_pair(
        make_tensor(parts[0], "a", Slot.PARAM_GRAD, 5, tensor="weight"),
        make_tensor(total, "a", Slot.PARAM_GRAD, 5, tensor="weight"),
    )
    return site, make_tensor(parts[1], "b", Slot.PARAM_GRAD, 6, tensor="weight")


def test_gradients_that_add_up_show_weights_that_are_tied_on_one_side():
    site, alone = tied_gradients()
    final = make_tensor(VALUES)
    output = make_tensor(VALUES, "b", order=1)
    leftovers = [make_leftover(alone, REFERENCE, LeftoverReason.NO_PARTNER)]
    explanation = explain(
        [make_pair(output, output), make_pair(final, final), site], leftovers, extra_tensors=([alone], [])
    )
    finding = get_finding(explanation, "untied")
    assert finding.where == ("a.weight:param_grad", "b.weight:param_grad")
    assert "tied in the candidate only: the reference's gradients of a.weight and b.weight add up" in finding.evidence
    assert not any(finding.cause == "gradients-missing" for finding in explanation.findings)
    assert not list(find_untied([tied_gradients(off=0.1)[0]], ([alone], [])))


@pytest.mark.parametrize(("share", "may_add_up"), [(5e-4, True), (2e-3, False)])
def test_statistics_rule_out_sums_that_do_not_add_up(share, may_add_up):
    """SUMS_ADD_UP: elements are read only where the recorded means may add up."""
    from nndiff.findings.tied_weights import _may_add_up

    ones = make_tensor(np.ones(100), tensor="w")
    total = make_tensor(np.full(100, 2 + 4 * share / (1 - share)), tensor="w")
    assert _may_add_up([ones, ones], total) is may_add_up


@pytest.mark.parametrize(("noise", "is_same"), [(5e-4, True), (2e-3, False)])
def test_a_difference_is_the_same_but_for_rounding(noise, is_same):
    """SAME_DIFFERENCE."""
    first = RANDOM.normal(size=1000)
    error = RANDOM.normal(size=1000)
    second = first + error * noise * np.linalg.norm(first) / np.linalg.norm(error)
    assert is_same_difference(first, second) is is_same
    assert not is_same_difference(np.zeros(3), np.zeros(3))
