"""Inversion: operations and what undoes them are the identity, bit by bit, and lost elements are not invented."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nndiff.relations.inversion import invert_operations
from nndiff.relations.operations import (
    Arrange,
    Concatenate,
    Expand,
    Flatten,
    Multiply,
    Permute,
    Reshape,
    Slice,
    Stack,
    SumOver,
    Take,
)


def apply_all(operations, array):
    arrays = [array]
    for operation in operations:
        arrays = operation.apply(arrays)
    (array,) = arrays
    return array


@st.composite
def operations_on_a_shape(draw):
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    operations, current = [], shape
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(["reshape", "flatten", "permute", "take", "arrange", "multiply"]))
        if kind == "reshape":
            factor = draw(st.sampled_from([d for d in range(1, current[0] + 1) if current[0] % d == 0]))
            current = (factor, current[0] // factor, *current[1:])
            operations.append(Reshape(current))
        elif kind == "flatten":
            current = (math.prod(current),)
            operations.append(Flatten())
        elif kind == "permute":
            axes = tuple(draw(st.permutations(range(len(current)))))
            current = tuple(current[axis] for axis in axes)
            operations.append(Permute(axes))
        elif kind == "take":
            axis = draw(st.integers(0, len(current) - 1))
            operations.append(Take(axis, tuple(draw(st.permutations(range(current[axis]))))))
        elif kind == "arrange":
            operations.append(Arrange((0,)))
        else:
            operations.append(Multiply(draw(st.sampled_from([0.5, -2.0, 1024.0]))))
    return shape, operations


@given(operations_on_a_shape(), st.integers(0, 99))
def test_what_is_undone_was_never_done(case, seed):
    shape, operations = case
    array = np.random.default_rng(seed).standard_normal(shape)
    inverse = invert_operations(operations, shape)
    restored = apply_all(inverse, apply_all(operations, array))
    assert restored.shape == shape
    assert np.array_equal(restored, array)


@given(st.permutations(range(5)))
def test_several_arrays_come_back_in_their_order(order):
    (inverse,) = invert_operations([Arrange(tuple(order))], (2,))
    assert inverse.apply(Arrange(tuple(order)).apply("abcde")) == list("abcde")


@pytest.mark.parametrize(
    "operation",
    [Slice(0, 0, 2), Take(0, (2, 0)), Take(5, (0,)), Expand((4, 3)), SumOver((0,)), Concatenate(0), Stack(0)],
)
def test_lost_elements_are_not_invented(operation):
    assert invert_operations([Permute((0, 1)), operation], (4, 3)) is None


@pytest.mark.parametrize("operation", [Reshape((5,)), Permute((0, 2, 1)), Permute((1,))])
def test_operations_that_do_not_fit_the_shape_are_not_undone(operation):
    assert invert_operations([operation], (4, 3)) is None
