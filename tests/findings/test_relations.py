"""Proven relations are findings: harmless where accepted, with the repair where not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diagnosis_builders import FakeRelation, explain, make_pair, make_tensor
from nndiff.findings.causes import Cause
from nndiff.findings.relations import get_cause
from nndiff.result import Method
from nndiff.tensors import Slot
from nndiff.verdict import Outcome, RelationKind

VALUES = np.arange(6.0)
PERMUTED = FakeRelation(RelationKind.LAYOUT, "permute(1, 0)", ("permute",))


@pytest.mark.parametrize(
    ("kind", "operations", "cause"),
    [
        (RelationKind.LAYOUT, ("reshape", "permute"), Cause.PERMUTED),
        (RelationKind.LAYOUT, ("reshape",), Cause.RESHAPED),
        (RelationKind.LAYOUT, ("expand",), Cause.BROADCAST),
        (RelationKind.LAYOUT, ("sum", "reshape"), Cause.BROADCAST),
        (RelationKind.LAYOUT, ("concatenate", "permute"), Cause.FUSED),
        (RelationKind.LAYOUT, ("slice",), Cause.FUSED),
        (RelationKind.FOLD, ("weight_norm",), Cause.WEIGHT_NORM),
        (RelationKind.FOLD, (), Cause.FOLDED),
        (RelationKind.SCALE, ("multiply",), Cause.SCALED),
        (RelationKind.TIED, (), Cause.TIED),
        (RelationKind.MASK, ("mask", "expand"), Cause.MASK),
        (RelationKind.CAST, (), Cause.CAST),
        (RelationKind.VOCAB, ("slice",), Cause.VOCAB),
    ],
)
def test_a_relation_has_its_cause(kind, operations, cause):
    assert get_cause(FakeRelation(kind, "", operations)) is cause


def turned_pair(module, order=1, accepted=True, relation=PERMUTED):
    sides = [make_tensor(VALUES.reshape(shape), module, order=order, inputs=(0,)) for shape in ((2, 3), (3, 2))]
    return make_pair(*sides, relation=relation, accepted=accepted)


def test_one_finding_for_each_relation_with_all_its_places():
    flat = FakeRelation(RelationKind.LAYOUT, "reshape[6]", ("reshape",))
    pairs = [turned_pair("a", 1), turned_pair("b", 2), turned_pair("c", 3, relation=flat)]
    found = {finding.cause: finding for finding in explain(pairs).findings}
    assert set(found) == {"permuted", "reshaped"}
    assert found["permuted"].where == ("a:output", "b:output")
    assert "permute(1, 0), [3, 2] to [2, 3]" in found["permuted"].evidence
    assert all(finding.harmless and not finding.repair for finding in found.values())


def test_a_relation_that_is_not_accepted_has_a_repair():
    final = turned_pair("", 1, accepted=False)
    (finding,) = explain([final]).findings
    assert (finding.cause, finding.harmless) == ("permuted", False)
    assert finding.repair == "permute(1, 0) on the candidate's side, or accept it with --accept layout"
    (finding,) = explain([final], outcome=Outcome.CLOSE).findings
    assert (finding.harmless, finding.repair) == (True, "")


def test_layers_compared_part_by_part_are_told():
    pairs = []
    for order, name in enumerate(("q", "k")):
        whole = make_tensor(VALUES, "qkv", order=order, call=order, whole=(12,))
        pairs.append(make_pair(make_tensor(VALUES, name, order=order), whole, method=Method.PARTS))
    (finding,) = explain(pairs).findings
    assert (finding.cause, finding.where, finding.harmless) == ("fused", ("qkv",), True)
    wrong = make_tensor(VALUES + 1, "qkv", order=0, whole=(12,))
    pairs[0] = make_pair(pairs[0].reference, wrong, method=Method.PARTS, certain=False)
    final = make_pair(*(make_tensor(v, order=9) for v in (VALUES, VALUES + 1)))
    assert "fused" not in {finding.cause for finding in explain([*pairs, final]).findings}


def layout_change(turns, first_has_inputs):
    """Return a module that turns a tensor, and a final output that differs."""
    given = make_tensor(VALUES, "", Slot.MODEL_INPUT, 0, path="0")
    inputs = (0,) if first_has_inputs else ()
    final = [make_tensor(values, "", order=2, inputs=inputs) for values in (VALUES, VALUES + 1)]
    turning = turned_pair("a") if turns else make_pair(*(make_tensor(VALUES, "a", order=1, inputs=(0,)),) * 2)
    pairs = [make_pair(given, given), turning, make_pair(*final)]
    return [finding for finding in explain(pairs).findings if "layout changes here" in finding.evidence]


def test_a_layout_that_changes_before_an_unexplained_difference_is_mentioned():
    (finding,) = layout_change(turns=True, first_has_inputs=False)
    assert (finding.cause, finding.where, finding.harmless) == ("permuted", ("a:output",), False)
    assert not layout_change(turns=False, first_has_inputs=False)
    # the model itself differs while its inputs agree: no other module needs to be mentioned
    assert not layout_change(turns=True, first_has_inputs=True)


def test_a_module_that_is_given_another_layout_does_not_change_it():
    given = make_tensor(VALUES, "", Slot.MODEL_INPUT, 0, path="0")
    pairs = [make_pair(given, given), turned_pair("a", 1)]
    later = turned_pair("b", 2)
    linked = [
        replace(side, trace=replace(side.trace, inputs=pairs[1].reference.trace.inputs)) for side in later.tensors
    ]
    links = [replace(link, event=1) for link in linked[0].trace.inputs]
    linked = [replace(side, trace=replace(side.trace, inputs=tuple(links))) for side in linked]
    final = [make_tensor(values, "", order=3) for values in (VALUES, VALUES + 1)]
    pairs += [make_pair(*linked, relation=PERMUTED), make_pair(*final)]
    (finding,) = [each for each in explain(pairs).findings if "layout changes here" in each.evidence]
    assert finding.where == ("a:output",)
