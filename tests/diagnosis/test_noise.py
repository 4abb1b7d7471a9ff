"""What rounding may do to a pair: the scale of gradients, and noise floors stated for both sides."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from diagnosis_builders import make_tensor
from nndiff.diagnosis.noise import RecordedTolerance, scale_gradients
from nndiff.dtypes import DTYPES
from nndiff.sources.source import Source
from nndiff.tensors import NoData, Site, Slot, Stats, TensorRef, Trace
from nndiff.tolerance import NOISE_FACTOR, Tolerance, choose_tolerance


def gradient_of(shape, largest, slot=Slot.PARAM_GRAD, module="fc"):
    """Return a gradient that is known by its statistics."""
    count = math.prod(shape)
    stats = Stats(count, 0, 0.0, 1.0, -largest, largest, largest, math.sqrt(count) * largest)
    site = Site(module, slot, tensor="bias" if slot is Slot.PARAM_GRAD else "")
    return TensorRef(site.name, shape, DTYPES["float32"], NoData(""), site=site, trace=Trace(stats=stats))


def scale_of(gradient, *others):
    return scale_gradients([gradient, *others])[gradient.name]


def test_a_gradient_is_judged_on_its_own_scale():
    assert scale_of(gradient_of((4,), 0.5)) == 0.5
    assert scale_of(gradient_of((4,), 50.0)) == 1.0
    assert scale_of(gradient_of((4,), 0.0)) == 1.0
    assert scale_gradients([make_tensor([0.5], "fc")]) == {}


def test_noise_is_judged_on_a_share_of_the_largest_of_its_kind():
    assert scale_of(gradient_of((4,), 1e-7), gradient_of((4,), 1.0, module="other")) == pytest.approx(0.01)
    # what the loss hands to the model is no kind of gradient to measure others by
    of_loss = gradient_of((4,), 1.0, Slot.GRAD_OUTPUT, "")
    assert scale_of(gradient_of((4,), 1e-7, Slot.GRAD_OUTPUT), of_loss) == pytest.approx(1e-7)


def bounds_of(references, candidates, tolerance=None, at=-1):
    sides = []
    for label, tensors in (("a", references), ("b", candidates)):
        sides.append(Source(label, "recording", {tensor.name: tensor for tensor in tensors}))
    recorded = RecordedTolerance(tolerance or Tolerance(), *sides)
    return recorded.choose_bounds([references[at]], [candidates[at]])


def ones(dtype="float32", **facts):
    return make_tensor(np.ones(4, np.float32).astype(getattr(ml_dtypes, dtype, dtype)), "fc", **facts)


BY_NOISE = choose_tolerance(tolerance="noise")


def test_a_floor_judges_where_it_is_asked_to():
    sides = [ones(noise=1e-6)], [ones()]
    assert bounds_of(*sides)[:2] == (1e-5, 1e-5)
    assert bounds_of(*sides, BY_NOISE)[:2] == (pytest.approx(NOISE_FACTOR * 1e-6), 0.0)
    assert bounds_of(*sides, choose_tolerance(tolerance="noise", noise_factor=3)).atol == pytest.approx(3e-6)
    assert bounds_of(*sides, BY_NOISE).noise == 1e-6


@pytest.mark.parametrize("noise", [None, math.inf])
def test_without_a_floor_that_says_something_the_default_tolerance_judges(noise):
    assert bounds_of([ones(noise=noise)], [ones()], BY_NOISE)[:2] == (1e-5, 1e-5)


def test_a_floor_of_the_candidate_alone_is_none():
    assert bounds_of([ones()], [ones(noise=1e-6)], BY_NOISE).noise is None


def test_a_tolerance_given_for_a_name_goes_before_the_floor():
    tolerance = choose_tolerance(atol="fc*=0.5", tolerance="noise")
    assert bounds_of([ones(noise=1e-6)], [ones()], tolerance).atol == 0.5


def test_a_gradient_may_be_off_by_its_floor_at_any_tolerance_but_equality():
    sides = [ones(slot=Slot.GRAD_OUTPUT, noise=1e-3)], [ones(slot=Slot.GRAD_OUTPUT)]
    assert bounds_of(*sides)[:2] == (pytest.approx(NOISE_FACTOR * 1e-3), 1e-5)
    assert bounds_of(*sides, choose_tolerance(atol=0.5)).atol == 0.5
    assert bounds_of(*sides, choose_tolerance(atol=0, rtol=0)).atol == 0.0


def test_a_shorter_type_moves_by_as_much_more_as_it_rounds_more():
    assert bounds_of([ones(noise=1e-6)], [ones("bfloat16")]).noise == pytest.approx(1e-6 * 2**16)
    assert bounds_of([ones(noise=1e-6)], [ones("float64")]).noise == 1e-6
    # half a unit of the last place stays that
    assert bounds_of([ones(noise=2.0**-24)], [ones("bfloat16")]).noise == 2.0**-8


def test_rounding_in_a_short_type_is_inherited_by_what_follows_and_not_by_what_came_before():
    candidates = [ones(order=0), ones("bfloat16", order=1, call=1), ones(order=2, call=2)]
    references = [ones(order=number, call=number, noise=1e-6) for number in range(3)]
    floors = [bounds_of(references, candidates, at=number).noise for number in range(3)]
    assert floors == pytest.approx([1e-6, 1e-6 * 2**16, 1e-6 * 2**16])
    # a reference that computes in the short type too has that in its floor already
    both = [ones(order=0, noise=1e-6), ones("bfloat16", order=1, call=1, noise=0.1), ones(order=2, call=2, noise=0.1)]
    assert bounds_of(both, candidates).noise == pytest.approx(0.1)
