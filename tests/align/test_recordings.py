"""Pairing recordings: one shared ReLU against three, Sequential against named, guesses marked as such."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from aligned import align_models, methods, partners
from nndiff.align import Hint
from nndiff.result import Method

INPUT = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(3))


class Shared(nn.Module):
    """One ReLU object called three times."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.c(self.relu(self.b(self.relu(self.a(x))))))


class Separate(nn.Module):
    """Three ReLU objects, of which the last goes by the name of the shared one."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 6) for _ in range(3))
        self.act1, self.act2, self.relu = nn.ReLU(), nn.ReLU(), nn.ReLU()

    def forward(self, x):
        return self.relu(self.c(self.act2(self.b(self.act1(self.a(x))))))


def numbered():
    return nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(6, 6), nn.ReLU())))


LAYERS = {
    Shared: ("a", "relu", "b", "relu@1", "c", "relu@2"),
    Separate: ("a", "act1", "b", "act2", "c", "relu"),
    numbered: ("0", "1", "2", "3", "4", "5"),
}


def made(kind, *args):
    torch.manual_seed(0)
    return kind(*args)


@pytest.mark.parametrize("weights_known", [False, True])
@pytest.mark.parametrize("faulty", [False, True])
@pytest.mark.parametrize("kinds", [(Shared, Separate), (Separate, Shared), (Shared, numbered), (numbered, Separate)])
def test_the_same_net_cut_otherwise_is_paired_layer_by_layer(tmp_path, kinds, faulty, weights_known):
    models = [made(kind) for kind in kinds]
    if faulty:
        with torch.no_grad():
            next(models[1].parameters())[0, 0] += 0.5
    found = align_models(tmp_path, models, INPUT, backward=True, weights_known=weights_known)
    layers = zip(*(LAYERS[kind] for kind in kinds), strict=True)
    expected = {f"{reference}:output": f"{candidate}:output" for reference, candidate in layers}
    assert {name: partners(found)[name] for name in expected} == expected
    assert not found.only_reference
    assert not found.only_candidate
    if not faulty:
        assert all(certain for _, _, certain in methods(found).values())
    elif kinds == (Shared, Separate):  # the name `relu` stands for another call
        assert methods(found)["relu@2:output"] == ("relu:output", "call", False)


def test_what_is_near_is_paired_by_statistics_and_is_a_guess(tmp_path):
    class Renamed(Shared):
        def __init__(self):
            super().__init__()
            self.x, self.y, self.z = self.a, self.b, self.c
            del self.a, self.b, self.c
            self.extra = nn.Linear(6, 6)  # without it, the structure would pair y with certainty
            with torch.no_grad():
                for parameter in self.parameters():
                    parameter.mul_(1 + 1e-6)

        def forward(self, x):
            x = self.relu(self.x(x))
            self.extra(x)
            return self.relu(self.z(self.relu(self.y(x))))

    found = methods(align_models(tmp_path, (made(Shared), made(Renamed)), INPUT))
    assert found["b:output"] == ("y:output", "statistics", False)


def test_constants_and_single_numbers_tell_nothing(tmp_path):
    class Constant(nn.Module):
        def __init__(self, value):
            super().__init__()
            self.value = value

        def forward(self, x):
            return torch.full_like(x, self.value)

    class Two(nn.Module):
        def __init__(self, names, values):
            super().__init__()
            self.names = names
            for name, value in zip(names, values, strict=True):
                self.add_module(name, Constant(value))

        def forward(self, x):
            return sum(getattr(self, name)(x) for name in self.names) + x

    found = align_models(tmp_path, (Two("ab", (0.0, 1.0)), Two("cd", (1.0, 0.0))), INPUT)
    assert Method.CONTENT not in {match.method for match in found.matches}
    assert not any(match.certain for match in found.matches if match.reference.startswith(("a:", "b:")))


class Branches(nn.Module):
    def __init__(self, names, order):
        super().__init__()
        self.names, self.order = names, order
        for name in names:
            self.add_module(name, nn.Linear(6, 6))

    def forward(self, x):
        done = {position: getattr(self, self.names[position])(x) for position in self.order}
        return done[0] - done[1]


@pytest.mark.parametrize("weights_known", [False, True])
@pytest.mark.parametrize("faulty", [False, True])
def test_branches_that_run_in_another_order_are_told_apart(tmp_path, faulty, weights_known):
    models = made(Branches, ("l", "r"), (0, 1)), made(Branches, ("z", "y"), (1, 0))
    if faulty:
        with torch.no_grad():
            models[1].z.weight[0, 0] += 0.5
    found = partners(align_models(tmp_path, models, INPUT, weights_known=weights_known))
    assert (found["l:output"], found["r:output"]) == ("z:output", "y:output")


def test_inputs_of_other_names_are_paired_by_content(tmp_path):
    class Fed(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 6)

    class Named(Fed):
        def forward(self, hidden):
            return self.fc(hidden)

    class Otherwise(Fed):
        def forward(self, states):
            return self.fc(states)

    inputs = [{"hidden": INPUT}, {"states": INPUT}]
    found = methods(align_models(tmp_path, (made(Named), made(Otherwise)), inputs))
    assert found["(model):model_input.hidden"] == ("(model):model_input.states", "content", True)


def test_a_wrapper_says_what_it_repeats(tmp_path):
    wrapped = made(Shared)
    wrapped.b = nn.Sequential(nn.Identity(), wrapped.b)
    found = align_models(tmp_path, (made(Shared), wrapped), INPUT, backward=True)
    assert found.only_candidate["b.0:output"] == Hint(same_as="relu:output")
    assert not found.only_reference


class Two(nn.Module):
    """Two layers of one shape, by names that are given, the second never called."""

    def __init__(self, *names):
        super().__init__()
        self.names = names
        for name in names:
            self.add_module(name, nn.Linear(6, 6))

    def forward(self, x):
        weight = getattr(self, self.names[1]).weight
        return getattr(self, self.names[0])(x) @ weight


def test_a_parameter_whose_name_is_nearly_another_has_a_hint(tmp_path):
    candidate = made(Two, "first", "third_layer")
    candidate.register_parameter("weight", nn.Parameter(torch.zeros(6, 6)))  # a second of its name: no pair by that
    candidate.third_layer.bias = None
    with torch.no_grad():
        candidate.first.weight.mul_(2)  # so that what they hold does not tell either
    plain = candidate.forward
    candidate.forward = lambda x: plain(x) + 0 * candidate.weight.sum()
    found = align_models(tmp_path, (made(Two, "first", "third_layers"), candidate), INPUT, backward=True)
    assert found.only_reference["third_layers.weight:param_grad"] == Hint(near="third_layer.weight:param_grad")


def test_a_module_that_is_never_called_is_paired_by_its_weights(tmp_path):
    models = made(Two, "first", "second"), made(Two, "first", "other")
    found = align_models(tmp_path, models, INPUT, backward=True)
    assert found.modules["second"] == "other"
    assert methods(found)["second.weight:param_grad"] == ("other.weight:param_grad", "weights", True)


def test_matches_are_in_the_order_of_the_reference(tmp_path):
    found = align_models(tmp_path, (made(Shared), made(numbered)), INPUT, backward=True)
    outputs = [match.reference for match in found.matches if match.reference.endswith(":output")]
    assert outputs == [f"{name}:output" for name in (*LAYERS[Shared], "(model)")]
