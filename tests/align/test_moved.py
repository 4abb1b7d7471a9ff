"""Tensors whose names pair them wrongly: what they hold is found under another name."""

from __future__ import annotations

import numpy as np

from helpers import Arrays, refs
from nndiff.align.moved import Moved, find_moved


def find(reference: Arrays, candidate: Arrays) -> list[Moved]:
    tensors, partners = refs(reference), refs(candidate)
    return find_moved([(tensors[name], partners[name]) for name in tensors])


def draw(*names: str) -> Arrays:
    random = np.random.default_rng(0)
    return {name: random.standard_normal((4, 4)) for name in names}


def test_swapped_tensors_are_found_even_when_they_are_transposed() -> None:
    model = draw("gate", "up", "down")
    swapped = {"gate": model["up"], "up": model["gate"].T.copy(), "down": model["down"] + 1}
    assert find(model, swapped) == [Moved("gate", "gate", "up"), Moved("up", "up", "gate")]


def test_shifted_layers_are_found() -> None:
    model = draw("l.0", "l.1", "l.2")
    shifted = {"l.0": np.zeros((4, 4)), "l.1": model["l.0"], "l.2": model["l.1"]}
    assert find(model, shifted) == [Moved("l.0", "l.0", "l.1"), Moved("l.1", "l.1", "l.2")]


def test_what_is_merely_rearranged_in_its_place_has_not_moved() -> None:
    model = draw("a", "b")
    assert find(model, {"a": model["a"].T.copy(), "b": model["b"] + 1}) == []


def test_values_that_several_tensors_hold_and_constants_show_nothing() -> None:
    model = draw("a", "b", "c")
    twice = {"a": model["b"], "b": model["b"][::-1].copy(), "c": np.ones((4, 4))}
    assert find(model, twice) == []
    ones = {"a": np.ones((4, 4)), "b": np.zeros((4, 4))}
    assert find(ones, {"a": ones["b"], "b": ones["a"]}) == []
