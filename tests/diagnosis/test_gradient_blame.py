"""Who made a wrong gradient, which gradients are missing, and factors that all of them share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diagnosis_builders import FakeRelation, explain, make_leftover, make_pair, make_tensor
from nndiff.diagnosis.common_factor import Reach, find_common_factor
from nndiff.diagnosis.gradient_blame import find_bypass
from nndiff.diagnosis.loss_check import drop_meaningless_gradients
from nndiff.result import REFERENCE, LeftoverReason, NoteSlug, PartingReason, Related
from nndiff.tensors import Slot
from nndiff.verdict import RelationKind, Verdict

VALUES = np.array([1.0, -2.0, 3.0, 0.5])
RANDOM = np.random.default_rng(0)


def build_backward(**gradients):
    """Return a chain a, b, c that agrees forward, and gradients at outputs: module=(reference, candidate)."""
    pairs, orders = [], {}
    for order, module in enumerate(("a", "b", "c", "")):
        orders[module or "model"] = order
        tensor = make_tensor(VALUES + order, module, order=order, inputs=(order - 1,) if order else ())
        pairs.append(make_pair(tensor, tensor))
    for number, (module, sides) in enumerate(gradients.items()):
        forward = orders[module]
        tensors = [
            make_tensor(values, "" if module == "model" else module, Slot.GRAD_OUTPUT, 10 + number, forward=forward)
            for values in sides
        ]
        pairs.append(make_pair(*tensors))
    sides = [make_tensor(v, "a", Slot.PARAM_GRAD, 20, tensor="weight") for v in (VALUES, VALUES + 1)]
    return [*pairs, make_pair(*sides)]


def test_who_took_the_output_and_was_handed_a_good_gradient_is_blamed():
    first = explain(build_backward(c=(VALUES, VALUES), b=(VALUES, VALUES), a=(VALUES, VALUES**2))).first
    assert (first.name, first.module, first.reason) == ("a:grad_output", "b", PartingReason.GRADIENT)
    assert "its backward" in first.why


def test_the_first_wrong_gradient_of_the_backward_pass_is_named():
    first = explain(build_backward(c=(VALUES, VALUES), b=(VALUES, VALUES**2), a=(VALUES, VALUES**2))).first
    assert (first.name, first.module) == ("b:grad_output", "c")


def test_a_parameter_behind_a_good_gradient_is_the_work_of_its_module():
    first = explain(build_backward(c=(VALUES, VALUES), b=(VALUES, VALUES), a=(VALUES, VALUES))).first
    assert (first.name, first.module) == ("a.weight:param_grad", "a")
    assert "the gradient at its output agrees" in first.why


def gradient(values, module, order):
    return make_pair(*(make_tensor(v, module, Slot.GRAD_OUTPUT, order, forward=order) for v in values))


@pytest.mark.parametrize(("rest", "is_bypass"), [(5e-5, True), (2e-4, False)])
def test_a_residual_that_is_cut_off_leaves_a_multiple_of_its_gradient(rest, is_bypass):
    """BYPASS_REST: what is left once the multiple is taken away."""
    passing, noise = RANDOM.normal(size=1000), RANDOM.normal(size=1000)
    noise -= passing * (noise @ passing) / (passing @ passing)
    noise *= rest * np.linalg.norm(passing) / np.linalg.norm(noise)
    good = gradient((passing, passing), "sum", 2)
    wrong = gradient((np.zeros(1000), -passing + noise), "a", 1)
    bypass = find_bypass(wrong, [], [good])
    assert (bypass is not None) is is_bypass
    if bypass:
        assert bypass.text == "cut off"


def scale_gradients(*factors, relation=True):
    pairs = []
    for number, factor in enumerate(factors):
        site = gradient((VALUES, VALUES * factor), f"m{number}", number)
        if relation and factor != 1:
            related = Related(FakeRelation(RelationKind.SCALE, "times"), site.pair.stored, False)
            site = replace(site, pair=replace(site.pair, related=related))
        pairs.append(site)
    return pairs


def test_a_factor_is_common_only_if_it_is_proven_for_every_gradient():
    factor = find_common_factor(scale_gradients(0.125, 0.125))
    assert factor is not None
    assert (factor.reach, factor.text, factor.value) == (Reach.ALL, "1/8", pytest.approx(0.125))
    assert find_common_factor(scale_gradients(0.125, 0.125, relation=False)) is None
    assert find_common_factor(scale_gradients(-2.0))
    halfway = find_common_factor(scale_gradients(1.0, 2.0))
    assert halfway is not None
    assert halfway.reach is Reach.SOME


@pytest.mark.parametrize(("apart", "is_common"), [(1e-3, True), (4e-3, False)])
def test_factors_are_one_if_they_are_hardly_apart(apart, is_common):
    """SAME_FACTOR."""
    assert (find_common_factor(scale_gradients(2.0, 2.0 * (1 + apart))) is not None) is is_common


def test_a_scaled_loss_blames_no_layer():
    pairs = build_backward()[:-1] + scale_gradients(2.0, 2.0)
    parameter = make_pair(*(make_tensor(v, "a", Slot.PARAM_GRAD, 20, tensor="w") for v in (VALUES, VALUES * 2)))
    related = Related(FakeRelation(RelationKind.SCALE, "times"), parameter.pair.stored, False)
    pairs.append(replace(parameter, pair=replace(parameter.pair, related=related)))
    explanation = explain(pairs)
    assert (explanation.first.module, explanation.first.reason) == ("", PartingReason.GRADIENT)
    assert {finding.cause for finding in explanation.findings} == {"gradients-scaled"}


def lose_gradient(candidate_meta=None, renamed=False):
    pairs = build_backward(c=(VALUES, VALUES))[:-1]
    gradient = make_tensor(VALUES, "b", Slot.PARAM_GRAD, 20, tensor="weight")
    leftovers = [make_leftover(gradient, REFERENCE, LeftoverReason.NO_PARTNER)]
    if renamed:
        parameter = make_tensor(VALUES, "other", Slot.PARAM_GRAD, 20, tensor="weight")
        leftovers.append(make_leftover(parameter, "candidate", LeftoverReason.NO_PARTNER))
    return explain(pairs, leftovers, {}, candidate_meta, extra_tensors=([gradient], []))


def test_a_gradient_that_one_side_lacks_is_named_with_what_is_known():
    first = lose_gradient().first
    assert (first.name, first.reason, first.missing_in) == (
        "b.weight:param_grad", PartingReason.GRADIENT_MISSING, "candidate",
    )  # fmt: skip
    assert (first.verdict, first.module) == (None, "b")
    assert "frozen, detached or unused there" in first.why
    assert "tied to another parameter" in lose_gradient({"producer": "nndiff.record"}).first.why


def test_names_are_advised_to_be_mapped_only_where_some_have_no_partner():
    for renamed in (False, True):
        (finding,) = [each for each in lose_gradient(renamed=renamed).findings if each.cause == "gradients-missing"]
        assert ("--rename" in finding.repair) is renamed


def test_gradients_of_a_loss_that_is_not_finite_are_not_compared():
    loss = make_tensor(float("nan"), "", Slot.LOSS, 9)
    pairs = [*build_backward(a=(VALUES, VALUES)), make_pair(loss, loss)]
    kept = drop_meaningless_gradients(pairs, [], {}, {})
    gradients = [site for site in kept if site.is_gradient]
    assert {site.pair.verdict for site in gradients} == {Verdict.NOT_COMPARED}
    assert all(site.pair.has_note(NoteSlug.LOSS_NOT_FINITE) for site in gradients)
    explanation = explain(list(kept))
    assert explanation.first.reason is PartingReason.LOSS_NOT_FINITE
    assert {finding.cause for finding in explanation.findings} == {"loss-not-finite"}


@pytest.mark.parametrize(
    ("other_meta", "is_dropped"),
    [
        ({"modules": [{"name": "", "type": "Net", "attributes": {"eps": 1.0, "text": "b"}}]}, False),
        ({"modules": [{"name": "", "type": "Net", "attributes": {"eps": 2.0, "text": "a"}}]}, True),
        ({"modules": [{"name": "", "type": "Other", "attributes": {"eps": 1.0}}]}, True),
    ],
)
def test_one_model_run_twice_stays_identical(other_meta, is_dropped):
    loss = make_tensor(float("inf"), "", Slot.LOSS, 9)
    pairs = [*build_backward(a=(VALUES, VALUES))[:-1], make_pair(loss, loss)]
    meta = {"modules": [{"name": "", "type": "Net", "attributes": {"eps": 1.0, "text": "a"}}]}
    kept = drop_meaningless_gradients(pairs, [], meta, other_meta)
    assert any(site.pair.verdict is Verdict.NOT_COMPARED for site in kept) is is_dropped
    finite = [site for site in pairs if site.slot is not Slot.LOSS]
    assert drop_meaningless_gradients(finite, [], meta, other_meta) == finite
