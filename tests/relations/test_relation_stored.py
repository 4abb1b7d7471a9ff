"""Stored relations: what is written is read back, and a hostile file does no more than raise ReportError."""

from __future__ import annotations

import contextlib
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nndiff.errors import ReportError
from nndiff.relations import load_relation, operations, stored
from nndiff.relations.fold_operations import AddLowRank, FoldBatchNorm, FoldNorm, TakeBehind
from nndiff.relations.operations import (
    Add,
    Arrange,
    AsMask,
    Concatenate,
    Expand,
    Flatten,
    MaskForm,
    Multiply,
    Permute,
    Reshape,
    Slice,
    Stack,
    SumOver,
    Take,
    WeightNorm,
    WeightNormGradient,
)
from nndiff.relations.packed import Dequantise, PackedForm
from nndiff.relations.relation import Relation
from nndiff.relations.value_operations import MultiplyAlong, Round, Shift, ShiftAlong
from nndiff.tensors import MOST_AXES
from nndiff.verdict import RelationKind

EXAMPLES = [
    Reshape((2, 3)),
    Reshape(()),
    Flatten(),
    Permute((1, 0)),
    Slice(0, 2, 5),
    Take(1, (3, 0, 2)),
    Arrange((2, 0, 1)),
    Concatenate(0),
    Stack(1),
    Expand((4, 5)),
    SumOver((0, 2)),
    Add(),
    Multiply(-0.5),
    WeightNorm((1, 2)),
    WeightNormGradient((1,)),
    AsMask(MaskForm.TRUE_MASKS),
    Round("bfloat16"),
    MultiplyAlong(0, (2.0, -1.0)),
    Shift(-1.0),
    ShiftAlong(1, (0.0, 1.0, -2.5)),
    FoldBatchNorm(1e-5, 0, True),
    FoldNorm(1, False),
    AddLowRank(2.0, True),
    TakeBehind(True),
    Dequantise(PackedForm.AWQ, 4, 0, 1.0),
]


def store(*candidate, kind="layout", reference=()):
    return {"kind": kind, "reference": list(reference), "candidate": list(candidate)}


def test_it_is_stored_whether_other_orders_agree():
    relation = Relation(RelationKind.LAYOUT, candidate=(Take(0, (1, 0)),), ambiguous=True)
    assert load_relation(json.loads(json.dumps(relation.to_dict()))) == relation
    with pytest.raises(ReportError, match="'ambiguous' is 'yes', expected a bool"):
        load_relation({**store(), "ambiguous": "yes"})


def test_every_operation_is_stored_and_read_back():
    assert {type(example) for example in EXAMPLES} == set(stored.ALL_OPERATIONS)
    assert len({operation.op for operation in stored.ALL_OPERATIONS}) == len(stored.ALL_OPERATIONS)
    for example in EXAMPLES:
        for relation in (
            Relation(RelationKind.LAYOUT, candidate=(example,)),
            Relation(RelationKind.FOLD, (example, Flatten()), (example,)),
        ):
            text = json.dumps(relation.to_dict(), allow_nan=False)
            assert load_relation(json.loads(text)) == relation
            assert example.text in relation.text


@pytest.mark.parametrize("kind", RelationKind)
def test_every_kind_is_read_back(kind):
    assert load_relation(Relation(kind).to_dict()) == Relation(kind)


def test_a_relation_is_told_by_side():
    turned, stacked = (Permute((1, 0)),), (Stack(0),)
    assert Relation(RelationKind.LAYOUT, candidate=turned).text == "permute(1, 0)"
    assert Relation(RelationKind.LAYOUT, stacked).text == "reference: stack along axis 0"
    assert (
        Relation(RelationKind.LAYOUT, stacked, turned).text == "reference: stack along axis 0; candidate: permute(1, 0)"
    )
    assert Relation(RelationKind.TIED).text == "equal elements"
    assert Take(0, tuple(range(9))).text == "take places 0, 1, 2, 3, ... 9 in all along axis 0"


HOSTILE = {
    "no object": [],
    "null": None,
    "a word": "layout",
    "nothing in it": {},
    "no sides": {"kind": "layout"},
    "unknown kind": store(kind="evil"),
    "kind that is no word": store(kind=["layout"]),
    "kind that cannot be hashed": store(kind={}),
    "side that is no list": {"kind": "layout", "reference": {}, "candidate": []},
    "side that is a word": {"kind": "layout", "reference": "abc", "candidate": []},
    "too many operations": store(*[{"op": "flatten"}] * 17),
    "operation that is no object": store("flatten"),
    "unknown operation": store({"op": "__import__"}),
    "operation of no name": store({"op": None}),
    "operation whose name cannot be hashed": store({"op": []}),
    "no shape": store({"op": "reshape"}),
    "shape of words": store({"op": "reshape", "shape": ["2"]}),
    "shape of truths": store({"op": "reshape", "shape": [True]}),
    "shape of fractions": store({"op": "reshape", "shape": [2.0]}),
    "negative shape": store({"op": "reshape", "shape": [-1]}),
    "deep shape": store({"op": "reshape", "shape": [[[[2]]]]}),
    "shape of many axes": store({"op": "reshape", "shape": [1] * (MOST_AXES + 1)}),
    "huge expansion": store({"op": "expand", "shape": [1 << 20, 1 << 20]}),
    "huge size": store({"op": "expand", "shape": [1 << 40]}),
    "size beyond machine words": store({"op": "expand", "shape": [10**400]}),
    "huge size beside none": store({"op": "expand", "shape": [1 << 40, 0]}),
    "axes twice": store({"op": "permute", "axes": [0, 0]}),
    "negative axis": store({"op": "stack", "axis": -1}),
    "axis beyond all": store({"op": "concatenate", "axis": 1000}),
    "axis of none": store({"op": "concatenate", "axis": None}),
    "places twice": store({"op": "take", "axis": 0, "places": [1, 1]}),
    "negative place": store({"op": "take", "axis": 0, "places": [-1]}),
    "places of none": store({"op": "take", "axis": 0, "places": {"0": 1}}),
    "order twice": store({"op": "arrange", "order": [0, 0]}),
    "slice backwards": store({"op": "slice", "axis": 0, "start": 5, "stop": 2}),
    "factor of nothing": store({"op": "multiply", "factor": 0.0}),
    "factor without end": store({"op": "multiply", "factor": math.inf}),
    "factor that is no number": store({"op": "multiply", "factor": math.nan}),
    "factor in words": store({"op": "multiply", "factor": "2"}),
    "factor of a truth": store({"op": "multiply", "factor": True}),
    "huge factor": store({"op": "multiply", "factor": 10**400}),
    "unknown form of mask": store({"op": "mask", "form": "evil"}),
    "form that cannot be hashed": store({"op": "mask", "form": []}),
    "rounding to no type": store({"op": "round", "dtype": "float4"}),
    "rounding to a list": store({"op": "round", "dtype": ["float16"]}),
    "factors with nothing": store({"op": "multiply_along", "axis": 0, "factors": [1.0, 0.0]}),
    "factors in words": store({"op": "multiply_along", "axis": 0, "factors": ["1"]}),
    "shift by nothing": store({"op": "shift", "number": 0.0}),
    "shifts without end": store({"op": "shift_along", "axis": 0, "numbers": [math.inf]}),
    "shifts that are no list": store({"op": "shift_along", "axis": 0, "numbers": 1.0}),
    "negative eps": store({"op": "fold_batch_norm", "eps": -1.0, "axis": 0, "has_bias": True}),
    "flag of a number": store({"op": "fold_norm", "axis": 0, "has_bias": 1}),
    "adapter of nothing": store({"op": "add_low_rank", "scale": 0.0, "transposed": False}),
    "packed in no form": store({"op": "dequantise", "form": "zip", "bits": 4, "offset": 0, "divisor": 1.0}),
    "three bits": store({"op": "dequantise", "form": "awq", "bits": 3, "offset": 0, "divisor": 1.0}),
    "divided by nothing": store({"op": "dequantise", "form": "awq", "bits": 4, "offset": 0, "divisor": 0.0}),
    "control characters": store({"op": "\x1b[2J"}),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_relations_are_refused_with_a_sentence(case):
    with pytest.raises(ReportError) as raised:
        load_relation(HOSTILE[case])
    assert str(raised.value).startswith("a stored relation")
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 250


_plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(st.sampled_from(EXAMPLES), st.data())
def test_whatever_stands_in_a_field_is_read_or_refused(example, data):
    relation = Relation(RelationKind.LAYOUT, candidate=(example,)).to_dict()
    fields = relation["candidate"][0]
    fields[data.draw(st.sampled_from(sorted(fields)))] = data.draw(_plain)
    try:
        loaded = load_relation(relation)
    except ReportError:
        return
    with contextlib.suppress(ValueError):  # a relation of other tensors
        loaded.apply([np.zeros((2, 3))], [np.arange(6.0).reshape(2, 3)])


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("arrays", [[], [np.zeros((2, 3))] * 2, [np.float64(1)], [np.zeros((0, 2))]])
def test_an_operation_that_does_not_fit_raises_one_kind_of_error(example, arrays):
    relation = Relation(RelationKind.LAYOUT, candidate=(example,))
    with contextlib.suppress(ValueError):
        relation.apply([np.zeros(2)], arrays)


# each limit does what it is for; moved threefold, one of these fails


def test_limits_of_what_is_read():
    assert len(load_relation(store(*[{"op": "flatten"}] * 16)).candidate) == operations.MOST_OPERATIONS == 16
    assert load_relation(store({"op": "expand", "shape": [1 << 30]}))
    with pytest.raises(ReportError):
        load_relation(store({"op": "expand", "shape": [(1 << 30) + 1]}))
    fields = operations.Fields("take", {"places": [0] * (operations.MOST_PLACES + 1)})
    with pytest.raises(ReportError):
        fields.read_integers("places", operations.MOST_ELEMENTS, operations.MOST_PLACES)
