"""Where two runs part first: own error before inherited, certain pairs before guesses, forward before backward."""

from __future__ import annotations

import numpy as np
import pytest

from diagnosis_builders import FakeRelation, explain, make_leftover, make_modules, make_pair, make_tensor
from nndiff.diagnosis.first_divergence import Run
from nndiff.result import CANDIDATE, REFERENCE, InputState, LeftoverReason, PartingReason
from nndiff.tensors import Link, Slot
from nndiff.verdict import Outcome, RelationKind

INPUT = np.arange(6.0)


def build_chain(*steps, certain=True):
    """Return pairs of calls, each given what the one before returned: (module, reference values, candidate values)."""
    given = make_tensor(INPUT, "", Slot.MODEL_INPUT, 0, path="0")
    pairs = [make_pair(given, given)]
    for order, (module, reference, candidate) in enumerate(steps, 1):
        sides = [make_tensor(values, module, order=order, inputs=(order - 1,)) for values in (reference, candidate)]
        pairs.append(make_pair(*sides, certain=certain or not module))
    return pairs


def test_the_first_that_is_out_while_its_inputs_are_in_is_named():
    pairs = build_chain(("a", INPUT, INPUT), ("b", INPUT, INPUT + 1), ("c", INPUT, INPUT + 2), ("", INPUT, INPUT + 2))
    first = explain(pairs).first
    assert (first.name, first.module, first.reason) == ("b:output", "b", PartingReason.OWN_ERROR)
    assert (first.inputs, first.slot, first.max_abs) == (InputState.AGREE, Slot.OUTPUT, 1.0)


@pytest.mark.parametrize("outcome", [Outcome.IDENTICAL, Outcome.CLOSE])
def test_where_the_judgement_passes_nothing_is_the_first_divergence(outcome):
    pairs = build_chain(("a", INPUT, INPUT + 1), ("", INPUT, INPUT))
    explanation = explain(pairs, outcome=outcome)
    assert explanation.first is None
    assert all(finding.harmless for finding in explanation.findings)


def test_guesses_count_when_the_outputs_differ():
    pairs = build_chain(("norm", INPUT, INPUT), ("act", INPUT, INPUT + 1), ("", INPUT, INPUT + 2), certain=False)
    assert explain(pairs).first.name == "act:output"


def test_guesses_do_not_count_when_the_outputs_agree():
    pairs = build_chain(("act", INPUT, INPUT + 1), ("", INPUT, INPUT), certain=False)
    gradient = [make_tensor(v, "act", Slot.PARAM_GRAD, 5, tensor="weight") for v in (INPUT, INPUT * 3)]
    first = explain([*pairs, make_pair(*gradient)]).first
    assert (first.name, first.reason) == ("act.weight:param_grad", PartingReason.GRADIENT)


def guess_inside(certain, agrees):
    """Return a guessed pair that differs inside a block, and a later fault."""
    given = make_tensor(INPUT, "", Slot.MODEL_INPUT, 0, path="0")
    inner = [make_tensor(v, "block.q", order=1, inputs=(0,)) for v in (INPUT, INPUT + 1)]
    block = [make_tensor(v, "block", order=2, inputs=(0,)) for v in (INPUT, INPUT if agrees else INPUT + 2)]
    later = [make_tensor(v, "head", order=3, inputs=(2,)) for v in (INPUT, INPUT + 3)]
    final = [make_tensor(v, "", order=4, inputs=(0,)) for v in (INPUT, INPUT + 3)]
    return [
        make_pair(given, given), make_pair(*inner, certain=False), make_pair(*block, certain=certain),
        make_pair(*later), make_pair(*final),
    ]  # fmt: skip


def test_a_guess_inside_a_certain_module_that_agrees_is_no_pair():
    assert explain(guess_inside(certain=True, agrees=True)).first.name == "head:output"
    assert explain(guess_inside(certain=True, agrees=False)).first.name == "block.q:output"
    assert explain(guess_inside(certain=False, agrees=True)).first.name == "block.q:output"


@pytest.mark.parametrize(("place", "state"), [(0, InputState.DIFFER), (1, InputState.UNKNOWN)])
def test_an_input_of_another_form_that_differs_decides_only_in_the_first_place(place, state):
    """Masks and positions may have another form on each side."""
    same = make_tensor(INPUT, "", Slot.MODEL_INPUT, 0, path="0")
    given = [make_tensor(values, "a", order=1) for values in (INPUT, INPUT.reshape(2, 3) + 1)]
    orders = (0, 1) if place else (1, 0)
    output = [make_tensor(values, "b", order=2, inputs=orders) for values in (INPUT, INPUT + 1)]
    pairs = [make_pair(same, same), make_pair(*given), make_pair(*output)]
    run = Run(pairs, {0: same, 1: given[0]}, {0: same, 1: given[1]})
    assert run.get_input_state(pairs[2]) is state


@pytest.mark.parametrize(("certain", "name"), [(False, "(model):output"), (True, "act:output")])
def test_a_guess_that_could_not_be_compared_proves_nothing(certain, name):
    given = make_tensor(INPUT, "", Slot.MODEL_INPUT, 0, path="0")
    inner = [make_tensor(values, "act", order=1, inputs=(0,), kept=False) for values in (INPUT, INPUT + 1)]
    final = [make_tensor(values, "", order=2, inputs=(0,)) for values in (INPUT, INPUT + 1)]
    pairs = [make_pair(given, given), make_pair(*inner, certain=certain), make_pair(*final)]
    assert explain(pairs).first.name == name


def test_inputs_come_first_then_the_loss_then_parameters():
    inputs = [make_tensor(v, "", Slot.MODEL_INPUT, 0, path="0") for v in (INPUT, INPUT + 1)]
    pairs = build_chain(("", INPUT, INPUT + 1))
    assert explain([make_pair(*inputs), *pairs[1:]]).first.reason is PartingReason.INPUTS_DIFFER
    loss = [make_tensor(v, "", Slot.LOSS, 5) for v in (1.0, 2.0)]
    pairs = build_chain(("", INPUT, INPUT))
    assert explain([*pairs, make_pair(*loss)]).first.reason is PartingReason.LOSS
    parameter = [make_tensor(v, "fc", Slot.PARAM, 5, tensor="weight") for v in (INPUT, INPUT + 1)]
    assert explain([*pairs, make_pair(*parameter)]).first.reason is PartingReason.PARAMETER


def test_inner_gradients_are_not_blamed_for_a_buffer():
    pairs = build_chain(("", INPUT, INPUT))
    inner = [make_tensor(v, "a", Slot.GRAD_OUTPUT, 5, forward=1) for v in (INPUT, INPUT + 1)]
    buffer = [make_tensor(v, "bn", Slot.BUFFER, 6, tensor="running_mean") for v in (INPUT, INPUT + 1)]
    first = explain([*pairs, make_pair(*inner), make_pair(*buffer)]).first
    assert (first.name, first.reason) == ("bn.running_mean:buffer", PartingReason.BUFFER)


def test_what_went_in_is_unknown_or_different():
    unknown = [make_tensor(v, "a", order=1) for v in (INPUT, INPUT + 1)]
    final = [make_tensor(v, "", order=2) for v in (INPUT, INPUT + 1)]
    first = explain([make_pair(*unknown), make_pair(*final)]).first
    assert (first.name, first.reason) == ("a:output", PartingReason.FIRST_OUT)
    # what went into it was made by no module, and differs
    inputs = [make_tensor(v, "a", Slot.INPUT, 1, path="0") for v in (INPUT, INPUT * 2)]
    outputs = [make_tensor(v, "a", order=2, inputs=(1,)) for v in (INPUT, INPUT + 1)]
    sides = [inputs[0]], [inputs[1]]
    first = explain([make_pair(*outputs)], extra_tensors=sides).first
    assert (first.reason, first.inputs) == (PartingReason.BETWEEN_SITES, InputState.DIFFER)


def test_bytes_that_were_not_kept_are_said_to_differ():
    sides = [make_tensor(v, "a", order=1, inputs=(0,), kept=False, stats=None) for v in (INPUT, INPUT + 1)]
    pairs = build_chain(("", INPUT, INPUT + 1))
    first = explain([pairs[0], make_pair(*sides)], outcome=Outcome.DIFFERENT).first
    assert first.reason is PartingReason.NOT_KEPT


def attention(reference_inputs, candidate_inputs, paired=True):
    """Return a decoder layer with an attention that is wrong between its projections."""
    given = make_tensor(INPUT, "", Slot.MODEL_INPUT, 0, path="0")
    calls = [
        ("layer.norm", "block.n", INPUT, INPUT, (0,), (0,)),
        ("layer.attn.q", "block.att.q", INPUT, INPUT, (1,), (1,)),
    ]
    calls += [("layer.attn.o", "block.att.o", INPUT, INPUT + 1, (9,), (9,))]
    if paired:
        calls += [("layer.attn", "block.att", INPUT, INPUT + 1, reference_inputs, candidate_inputs)]
    calls += [("layer", "block", INPUT, INPUT + 1, (0,), (0,)), ("", "", INPUT, INPUT + 1, (0,), (0,))]
    pairs = [make_pair(given, given)]
    for order, (module, partner, ours, theirs, links, partner_links) in enumerate(calls, 1):
        sides = (
            make_tensor(ours, module, order=order, inputs=links, cls="R"),
            make_tensor(theirs, partner, order=order, inputs=partner_links, cls="C"),
        )
        pairs.append(make_pair(*sides, certain=not module))
    mixed = [make_tensor(values, "x", Slot.INPUT, 9, path="0") for values in (INPUT, INPUT * 3)]
    facts = {"class": "A", "file": "hf.py", "line": 3}
    metas = (
        {"modules": make_modules(layer={"class": "L"}, layer__attn=facts)},
        {"modules": make_modules(block={"class": "L"}, block__att={"class": "B", "file": "port.py", "line": 7})},
    )
    return explain(pairs, [], *metas, extra_tensors=([mixed[0]], [mixed[1]])).first


LINKS = {
    "the same": ((Link("0", "same", 1),), (Link("0", "same", 1),)),
    "more on one side": ((Link("hidden", "same", 1), Link("cos", "none"), Link("mask", "own", 9)), (1,)),
    "one by keyword": ((Link("hidden", "same", 1), Link("mask", "same", 0)), (1, 0)),
    "not recorded": ((), ()),
}


@pytest.mark.parametrize("links", LINKS)
def test_a_wrong_attention_is_placed_there_whatever_it_is_called_with(links):
    first = attention(*LINKS[links])
    assert (first.name, first.candidate_name) == ("layer.attn:output", "block.att:output")
    assert (first.module, first.candidate_module, first.sources) == (
        "layer.attn",
        "block.att",
        ("hf.py:3", "port.py:7"),
    )
    assert (first.after, first.before) == ("layer.attn.q:output", "layer.attn.o:output")


def test_an_attention_without_a_pair_of_its_own_is_where_to_look():
    first = attention((), (), paired=False)
    assert (first.name, first.reason) == ("layer:output", PartingReason.OWN_ERROR)
    assert (first.module, first.candidate_module) == ("layer.attn", "block.att")
    assert (first.module_classes, first.sources) == (("A", "B"), ("hf.py:3", "port.py:7"))


def test_an_accepted_relation_is_agreement():
    layout = FakeRelation(RelationKind.LAYOUT, "permute(1, 0)", ("permute",))
    pairs = build_chain(("a", INPUT, INPUT), ("b", INPUT, INPUT + 1), ("", INPUT, INPUT + 1))
    turned = [make_tensor(v, "a", order=1, inputs=(0,)) for v in (INPUT.reshape(2, 3), INPUT.reshape(3, 2))]
    pairs[1] = make_pair(*turned, relation=layout)
    first = explain(pairs).first
    assert (first.name, first.inputs) == ("b:output", InputState.AGREE)


def test_an_extra_output_is_first_only_if_nothing_else_differs():
    extra = make_tensor(INPUT, "", order=7, path="cache.0")
    leftover = make_leftover(extra, REFERENCE, LeftoverReason.EXTRA_OUTPUT)
    for difference in (0.0, 1.0):
        pairs = build_chain(("", INPUT, INPUT + difference))
        explanation = explain(pairs, [leftover], extra_tensors=([extra], []))
        (finding,) = [finding for finding in explanation.findings if finding.cause == "outputs-missing"]
        assert finding.evidence == "only the reference returns output.cache"
        is_first = explanation.first.reason is PartingReason.EXTRA_OUTPUT
        assert is_first is not bool(difference)
        if is_first:
            assert (explanation.first.missing_in, explanation.first.verdict) == (CANDIDATE, None)


def test_where_only_the_candidate_links_its_calls_its_order_decides():
    """Hooks of a script may be listed in any order."""
    late = [make_tensor(INPUT, "late", order=1), make_tensor(INPUT + 1, "late", order=5, inputs=(3,))]
    early = [make_tensor(INPUT, "early", order=2), make_tensor(INPUT + 1, "early", order=3, inputs=(0,))]
    assert explain([make_pair(*late), make_pair(*early)]).first.name == "early:output"
