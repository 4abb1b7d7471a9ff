"""Weight norm: weights, and gradients by the chain rule, against finite differences and plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from relation_tensors import ATOL, RTOL, check, tensor

from nndiff.names import fits, made_of, original_of
from nndiff.relations import prove, prove_gradient, weight_norm
from nndiff.verdict import RelationKind

# shape of v, shape of g, axes that the norm runs over
FORMS = {
    "linear": ((5, 4), (5, 1), (1,)),
    "convolution": ((5, 4, 3), (5, 1, 1), (1, 2)),
    "along the last axis": ((5, 4), (1, 4), (0,)),
    "one size for all": ((5, 4), (), (0, 1)),
    "one size in a row": ((5, 4), (1,), (0, 1)),
    "sizes in a row": ((5, 4), (5,), (1,)),
}


def made(form, seed=0):
    v_shape, g_shape, axes = FORMS[form]
    random = np.random.default_rng(seed)
    g, v = random.standard_normal(g_shape), random.standard_normal(v_shape)
    return np.asarray(g), v, axes


def weigh(g, v, axes):
    spread = tuple(1 if axis in axes else size for axis, size in enumerate(v.shape))
    return np.asarray(g).reshape(spread) * v / np.sqrt((v**2).sum(axis=axes, keepdims=True))


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_weight_is_made_of_size_and_direction(form, flipped):
    g, v, axes = made(form)
    weight = weigh(g, v, axes)
    sides = [tensor(weight)], [tensor(g), tensor(v)]
    relation = prove(*(sides[::-1] if flipped else sides), ATOL, RTOL)
    assert relation.kind is RelationKind.FOLD
    check(relation, *(([g, v], [weight]) if flipped else ([weight], [g, v])))


@pytest.mark.parametrize("form", FORMS)
def test_one_wrong_element_is_no_weight_norm(form):
    g, v, axes = made(form)
    for place in (0, v.size - 1):
        weight = weigh(g, v, axes)
        weight.reshape(-1)[place] += 1e-3
        assert weight_norm.prove([tensor(weight)], [tensor(g), tensor(v)], ATOL, RTOL) is None
    shuffled = np.random.default_rng(1).permutation(weigh(g, v, axes).reshape(-1)).reshape(v.shape)
    assert weight_norm.prove([tensor(shuffled)], [tensor(g), tensor(v)], ATOL, RTOL) is None
    assert weight_norm.prove([tensor(v)], [tensor(g), tensor(v)], ATOL, RTOL) is None
    assert weight_norm.prove([tensor(weigh(g, v, axes)[:-1])], [tensor(g), tensor(v)], ATOL, RTOL) is None


def test_a_row_of_nothing_and_what_is_no_number():
    g, v, axes = made("linear")
    v[2], v[3, 0] = 0.0, np.nan
    weight = weigh(g, np.where(v == 0, 1.0, v), axes)
    weight[2] = 0.0
    check(weight_norm.prove([tensor(weight)], [tensor(g), tensor(v)], ATOL, RTOL), [weight], [g, v])
    weight[3] = 0.0
    assert weight_norm.prove([tensor(weight)], [tensor(g), tensor(v)], ATOL, RTOL) is None


def differentiate(function, at, step=1e-6):
    """Return the gradient of a function by central differences: the truth that knows no chain rule."""
    gradient = np.zeros_like(at)
    for place in range(at.size):
        moved = [at.copy(), at.copy()]
        for sign, array in zip((1, -1), moved, strict=True):
            array.reshape(-1)[place] += sign * step
        gradient.reshape(-1)[place] = (function(moved[0]) - function(moved[1])) / (2 * step)
    return gradient


def gradients(form):
    g, v, axes = made(form)
    slopes = np.random.default_rng(7).standard_normal(v.shape)  # dW of a loss that is linear in the weight
    dg = differentiate(lambda size: float((slopes * weigh(size, v, axes)).sum()), g)
    dv = differentiate(lambda direction: float((slopes * weigh(g, direction, axes)).sum()), v)
    return g, v, slopes, dg, dv


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_gradients_follow_the_chain_rule(form, flipped):
    g, v, slopes, dg, dv = gradients(form)
    sides = [tensor(slopes)], [tensor(dg), tensor(dv)]
    relation = prove_gradient(*(sides[::-1] if flipped else sides), [tensor(g), tensor(v)], ATOL, RTOL)
    arrays = [slopes, g, v], [dg, dv]
    check(relation, *(arrays[::-1] if flipped else arrays))


@pytest.mark.parametrize("form", FORMS)
def test_wrong_gradients_are_refused(form):
    g, v, slopes, dg, dv = gradients(form)
    values = [tensor(g), tensor(v)]

    def proven(size, direction):
        return prove_gradient([tensor(slopes)], [tensor(size), tensor(direction)], values, ATOL, RTOL)

    wrong = dv.copy()
    wrong.reshape(-1)[-1] += 1e-3
    assert proven(dg, wrong) is None
    wrong = dg.copy().reshape(-1)
    wrong[0] += 1e-3
    assert proven(wrong.reshape(dg.shape), dv) is None
    assert proven(2 * dg, dv) is None
    # what is added along v cancels in the weight it makes, and is wrong nonetheless
    assert proven(dg, dv + 0.1 * v) is None
    assert prove_gradient([tensor(slopes)], [tensor(dg), tensor(dv)], values[:1], ATOL, RTOL) is None
    assert prove_gradient([tensor(slopes)], [tensor(dg), tensor(dv)], values[::-1], ATOL, RTOL) is None


@pytest.mark.parametrize(
    ("g", "v", "wanted"),
    [
        ((5, 1), (5, 4), True),
        ((1, 4), (5, 4), True),
        ((5,), (5, 4), True),
        ((4,), (5, 4), True),
        ((), (5, 4), True),
        ((1,), (5, 4), True),
        ((3,), (5, 4), False),
        ((5, 2), (5, 4), False),
        ((2, 2), (4,), False),
    ],
)
def test_a_size_fits_its_direction(g, v, wanted):
    assert fits(g, v) is wanted


def test_names_of_both_kinds_of_weight_norm():
    assert made_of("conv", "weight_g") == ("conv", "weight", "g")
    assert made_of("", "weight_v") == ("", "weight", "v")
    assert made_of("conv.parametrizations.weight", "original0") == ("conv", "weight", "g")
    assert made_of("parametrizations.weight", "original1") == ("", "weight", "v")
    assert made_of("conv", "weight") is None
    assert made_of("conv.parametrizations.weight", "original") is None
    assert original_of("conv.parametrizations.weight", "original") == ("conv", "weight")
    assert original_of("conv", "original") is None
