"""Layers that go by the names of others while something really differs: the difference is placed, not the names."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import nndiff
from gradients import slightly
from nndiff.result import NoteSlug

INPUT = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(1))


def stack():
    torch.manual_seed(0)
    layers = [nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 6), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Linear(6, 6))


def shifted(model, at, between):
    layers = list(copy.deepcopy(model))
    return nn.Sequential(*layers[:at], between, *layers[at:])


def scaled(layer):
    with torch.no_grad():
        layer.weight.mul_(1.5)


FAULTS = {
    "a small one": (3, lambda layer: setattr(layer, "approximate", "tanh")),
    "a weight": (5, scaled),
    "the last": (7, scaled),
    "an eps": (4, lambda layer: setattr(layer, "eps", 0.1)),
}


@pytest.mark.parametrize(("at", "between"), [(0, nn.Identity()), (2, nn.Dropout(0.0)), (3, nn.Identity())])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("swapped", "backward"), [(False, False), (False, True), (True, True)], ids=["forward", "backward", "swapped"]
)
def test_a_fault_behind_names_that_are_shifted_is_placed(fault, at, between, swapped, backward):
    one = stack()
    other = shifted(one, at, between)
    place, plant = FAULTS[fault]
    plant(other[place + 1])
    result = nndiff.compare(*((other, one) if swapped else (one, other)), inputs=INPUT, backward=backward)
    assert result.exit_code == 1
    assert result.first_divergence.name == f"{place + swapped}:output"
    assert result.first_divergence.candidate_name == f"{place + 1 - swapped}:output"
    assert any(note.slug is NoteSlug.PAIRED_BY_WEIGHTS for note in result.notes)


def test_what_a_small_difference_passes_at_is_not_that_of_names():
    one = stack()
    other = shifted(one, 2, nn.Identity())
    other[4].approximate = "tanh"
    needed = nndiff.compare(one, other, inputs=INPUT).needed_tolerance
    assert needed < 1e-3
    assert nndiff.compare(one, other, inputs=INPUT, atol=needed, rtol=needed).exit_code == 0


@pytest.mark.parametrize("place", [1, 3, 6])
def test_an_activation_that_is_not_there_is_the_fault_and_no_misleading_name(place):
    one = stack()
    other = copy.deepcopy(one)
    other[place] = nn.Identity()
    result = nndiff.compare(one, other, inputs=INPUT)
    assert result.first_divergence.name == result.first_divergence.candidate_name == f"{place}:output"
    assert not any(note.slug is NoteSlug.PAIRED_BY_WEIGHTS for note in result.notes)


def test_an_activation_of_another_kind_is_the_fault_though_a_later_one_is_of_that_kind():
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 6))
    other = copy.deepcopy(one)
    other[1], other[3] = nn.GELU(), nn.Tanh()
    result = nndiff.compare(one, other, inputs=INPUT)
    assert result.first_divergence.name == result.first_divergence.candidate_name == "1:output"


@pytest.mark.parametrize("at", [1, 3])
def test_a_fault_in_the_layer_right_behind_the_one_put_in_is_placed(at):
    one = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    other = shifted(one, at, nn.Dropout(0.0))
    scaled(other[at + 1])
    first = nndiff.compare(one, other, inputs=INPUT).first_divergence
    assert (first.name, first.candidate_name) == (f"{at}:output", f"{at + 1}:output")
    assert first.weights.differing == (f"{at}.weight",)


@pytest.mark.parametrize("flipped", [False, True])
def test_a_layer_that_goes_by_the_name_of_one_without_weights_is_paired_though_its_weights_are_rounded(flipped):
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    other = shifted(one, 2, nn.Dropout(0.0))
    with torch.no_grad():
        other[3].weight.mul_(1 + 1e-6)
    models = (other, one) if flipped else (one, other)
    result = nndiff.compare(*models, inputs=INPUT, backward=True)
    assert (result.verdict, result.exit_code) == ("close", 0)
    partners = {pair.name: (pair.candidate_name, pair.certain) for pair in result.pairs}
    assert partners["3:output" if flipped else "2:output"] == ("2:output" if flipped else "3:output", True)


def test_a_fault_in_gradients_alone_is_placed_behind_names_that_are_shifted():
    one = stack()
    other = shifted(one, 1, nn.Identity())
    plain = other[6].forward
    other[6].forward = lambda x: plain(slightly(x))
    result = nndiff.compare(one, other, inputs=INPUT, backward=True)
    assert (result.exit_code, result.first_divergence.slot) == (1, "grad_output")
    assert all(pair.verdict.passed for pair in result.pairs if pair.slot == "output")
