"""The rules of judgement: certain pairs decide, relations are accepted by kind, nothing compared is never a pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nndiff.errors import UsageError
from nndiff.judge import is_accepted, judge_candidate, parse_accept
from nndiff.result import Judgement, Leftover, LeftoverReason, Method, Pair, Rules, Side
from nndiff.sources import open_source
from nndiff.stats import Job
from nndiff.stats.engine import get_engine
from nndiff.tensors import Site, Slot
from nndiff.verdict import Judge, Outcome, RelationKind, Verdict

SIDE = Side("a", "recording", 1, 1, 1, 4)


def measure(count: int):
    tensor = open_source({"a": np.zeros(count, np.float32)}).tensors["a"]
    return next(iter(get_engine().measure([Job(tensor, tensor, 0.0, 0.0)])))


def make_pair(verdict=Verdict.IDENTICAL, site=None, certain=True, count=3) -> Pair:
    metrics = None if verdict in (Verdict.SHAPE, Verdict.NOT_COMPARED) or not count else measure(count)
    sites = (site, site) if site else None
    return Pair("b", "x", "x", Method.NAME, certain, verdict, ((3,), (3,)), ("float32",) * 2, 0, metrics, sites=sites)


def judge(pairs, leftovers=(), rules=None, side=SIDE) -> Judgement:
    return judge_candidate(list(pairs), list(leftovers), rules or Rules(), SIDE, side)


def make_leftover(reason=LeftoverReason.NO_PARTNER, site=None) -> Leftover:
    return Leftover("b", "reference", "y", (3,), "float32", reason, site)


@pytest.mark.parametrize(
    ("verdicts", "leftovers", "count", "expected"),
    [
        ([], 0, 0, Outcome.NOTHING),
        ([], 3, 0, Outcome.NOTHING),
        ([Verdict.IDENTICAL], 0, 0, Outcome.NOTHING),
        ([Verdict.NOT_COMPARED], 0, 0, Outcome.NOTHING),
        ([Verdict.SHAPE], 0, 0, Outcome.DIFFERENT),
        ([Verdict.DIFFERENT], 0, 0, Outcome.DIFFERENT),
        ([Verdict.IDENTICAL, Verdict.NOT_COMPARED], 0, 9, Outcome.DIFFERENT),
        ([Verdict.IDENTICAL], 1, 9, Outcome.DIFFERENT),
        ([Verdict.IDENTICAL, Verdict.NOT_FINITE], 0, 9, Outcome.DIFFERENT),
        ([Verdict.IDENTICAL, Verdict.CLOSE], 0, 9, Outcome.CLOSE),
        ([Verdict.IDENTICAL, Verdict.IDENTICAL], 0, 9, Outcome.IDENTICAL),
    ],
)
def test_nothing_compared_is_never_a_pass(verdicts, leftovers, count, expected):
    pairs = [make_pair(verdict, count=count) for verdict in verdicts]
    assert judge(pairs, [make_leftover()] * leftovers).outcome is expected
    assert expected.exit_code == {"identical": 0, "close": 0, "different": 1, "nothing compared": 2}[expected.value]


OUTPUT, INNER = Site("", Slot.OUTPUT), Site("fc", Slot.OUTPUT)


@pytest.mark.parametrize(
    ("site", "certain", "decides"),
    [
        (INNER, True, True),
        (INNER, False, False),
        (OUTPUT, True, True),
        (Site("", Slot.LOSS), True, True),
        (Site("", Slot.MODEL_INPUT, path="0"), True, True),
        (Site("", Slot.GRAD_OUTPUT), True, True),
        (Site("fc", Slot.GRAD_OUTPUT), True, False),
        (Site("fc", Slot.GRAD_INPUT), True, False),
        (Site("fc", Slot.INPUT), True, False),
        (Site("fc", Slot.PARAM_GRAD, tensor="weight"), True, True),
        (Site("fc", Slot.PARAM_GRAD, tensor="weight"), False, True),
        (Site("fc", Slot.PARAM, tensor="weight"), True, True),
        (Site("fc", Slot.PARAM, tensor="weight"), False, True),
        (Site("", Slot.PARAM, tensor="token"), False, True),
        (Site("bn", Slot.BUFFER, tensor="running_mean"), True, True),
        (None, True, True),
    ],
    ids=str,
)
def test_certain_pairs_and_the_outside_decide(site, certain, decides):
    pair = make_pair(Verdict.DIFFERENT, site, certain)
    assert pair.decides is decides
    outcome = judge([make_pair(site=OUTPUT), pair]).outcome
    assert (outcome is Outcome.DIFFERENT) is decides


def test_outside_and_inside_are_said_apart():
    pairs = [make_pair(site=OUTPUT), make_pair(Verdict.DIFFERENT, INNER), make_pair(site=INNER)]
    found = judge(pairs)
    assert (found.outcome, found.outside) == (Outcome.DIFFERENT, Outcome.IDENTICAL)
    assert (found.inside_compared, found.inside_different) == (2, 1)
    assert judge(pairs, rules=Rules(judge=Judge.OUTPUTS)).outcome is Outcome.IDENTICAL
    assert judge(pairs[1:], rules=Rules(judge=Judge.OUTPUTS)).outcome is Outcome.NOTHING


@pytest.mark.parametrize(
    ("reason", "site", "outcome", "outputs_only"),
    [
        (LeftoverReason.NO_PARTNER, Site("fc", Slot.PARAM_GRAD, tensor="w"), Outcome.DIFFERENT, Outcome.IDENTICAL),
        (LeftoverReason.EXTRA_OUTPUT, Site("", Slot.OUTPUT, path="cache"), Outcome.DIFFERENT, Outcome.IDENTICAL),
        (LeftoverReason.INNER, INNER, Outcome.IDENTICAL, Outcome.IDENTICAL),
        (LeftoverReason.NOT_RECORDED, INNER, Outcome.IDENTICAL, Outcome.IDENTICAL),
        (LeftoverReason.COMPUTED, Site("rope", Slot.BUFFER, tensor="inv_freq"), Outcome.IDENTICAL, Outcome.IDENTICAL),
        (LeftoverReason.NO_PARTNER, OUTPUT, Outcome.DIFFERENT, Outcome.DIFFERENT),
    ],
)
def test_tensors_without_a_partner(reason, site, outcome, outputs_only):
    pairs, leftovers = [make_pair(site=OUTPUT)], [make_leftover(reason, site)]
    assert judge(pairs, leftovers).outcome is outcome
    assert judge(pairs, leftovers, Rules(judge=Judge.OUTPUTS)).outcome is outputs_only


def test_an_extra_output_can_be_accepted():
    leftovers = [make_leftover(LeftoverReason.EXTRA_OUTPUT, Site("", Slot.OUTPUT, path="cache"))]
    rules = Rules(parse_accept(["extra"]))
    assert judge([make_pair(site=OUTPUT)], leftovers, rules).outcome is Outcome.IDENTICAL


@pytest.mark.parametrize("meta", [{"complete": False}, {"not_recorded": {"(model):output.1": "a generator"}}])
def test_what_was_cut_off_or_could_not_be_read_is_no_pass(meta):
    assert judge([make_pair(site=OUTPUT)], side=replace(SIDE, meta=meta)).outcome is Outcome.DIFFERENT


@pytest.mark.parametrize("kind", RelationKind)
def test_relations_are_accepted_by_kind_and_place(kind):
    always = kind is RelationKind.TIED
    inside = always or kind in (RelationKind.LAYOUT, RelationKind.FOLD, RelationKind.MASK)
    assert is_accepted(kind, None, Rules()) is always
    assert is_accepted(kind, OUTPUT, Rules()) is always
    for site in (INNER, Site("fc", Slot.PARAM, tensor="w"), Site("fc", Slot.PARAM_GRAD, tensor="w")):
        assert is_accepted(kind, site, Rules()) is inside
    given = always or kind is RelationKind.MASK
    assert is_accepted(kind, Site("", Slot.MODEL_INPUT), Rules()) is given
    assert is_accepted(kind, None, Rules(frozenset([kind.value])))


def test_what_is_accepted_must_be_known():
    assert parse_accept(["layout,cast", "extra"]) == {"layout", "cast", "extra"}
    with pytest.raises(UsageError, match="'colour' is not a kind of relation: known are layout, cast"):
        parse_accept(["colour"])
