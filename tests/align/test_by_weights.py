"""Pairing by weights: certain whatever modules are called, and before names where the two disagree."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import torch
from torch import nn

from aligned import align_models, certain_partners, methods, partners
from nndiff.align import Rename
from nndiff.result import Method, NoteSlug

INPUT = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(1))


def stack():
    torch.manual_seed(0)
    layers = [nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 6), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Linear(6, 6))


def shifted(model, at, between):
    layers = list(copy.deepcopy(model))
    return nn.Sequential(*layers[:at], between, *layers[at:])


def outputs(pairs):
    return {
        name.partition(":")[0]: partner.partition(":")[0] for name, partner in pairs.items() if name.endswith(":output")
    }


@pytest.mark.parametrize("at", [0, 1, 3, 7])
@pytest.mark.parametrize("between", [nn.Identity(), nn.Dropout(0.0)], ids=["identity", "dropout"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("weights_known", [False, True])
def test_a_layer_put_into_a_sequential_shifts_no_pair(tmp_path, at, between, swapped, weights_known):
    model = stack()
    models = (model, shifted(model, at, between))
    expected = {str(place): str(place + (place >= at)) for place in range(8)}
    if swapped:
        models, expected = models[::-1], {partner: place for place, partner in expected.items()}
    found = align_models(tmp_path, models, INPUT, backward=True, weights_known=weights_known)
    if not weights_known:  # nobody tells what modules hold, so names decide
        assert found.against_names == ()
        assert outputs(certain_partners(found))["0"] == "0"
        return
    assert {name: outputs(partners(found))[name] for name in expected} == expected
    assert outputs(certain_partners(found)) == outputs(partners(found))
    moved = [(name, partner) for name, partner in expected.items() if name != partner]
    assert list(found.against_names) == [pair for pair in moved if hasattr(models[0][int(pair[0])], "weight")]
    assert [note.slug for note in found.notes] == [NoteSlug.PAIRED_BY_WEIGHTS]
    gradients = {name: name_of for name, name_of in partners(found).items() if name.endswith(".weight:param_grad")}
    assert gradients == {
        f"{name}.weight:param_grad": f"{partner}.weight:param_grad"
        for name, partner in expected.items()
        if hasattr(models[0][int(name)], "weight")
    }


class Listed(nn.Module):
    """Layers in a list, run from the first or from the last."""

    def __init__(self, layers, backwards):
        super().__init__()
        self.layers, self.backwards = nn.ModuleList(reversed(layers) if backwards else layers), backwards

    def forward(self, x):
        for layer in reversed(self.layers) if self.backwards else self.layers:
            x = torch.tanh(layer(x))
        return x


@pytest.mark.parametrize("faulty", [None, 0, 2, 4])
def test_a_list_in_another_order_is_paired_by_weights_and_its_fault_by_structure(tmp_path, faulty):
    torch.manual_seed(0)
    layers = [nn.Linear(6, 6) for _ in range(5)]
    other = Listed(copy.deepcopy(layers), True)
    if faulty is not None:
        with torch.no_grad():
            other.layers[4 - faulty].weight.mul_(1.5)
    found = methods(align_models(tmp_path, (Listed(layers, False), other), INPUT))
    for place in range(5):
        method = "structure" if place == faulty else "weights"
        assert found[f"layers.{place}:output"] == (f"layers.{4 - place}:output", method, True)


class Attention(nn.Module):
    def __init__(self, returns_tuple=False):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(6, 6) for _ in range(4))
        self.returns_tuple = returns_tuple

    def forward(self, x):
        weights = torch.softmax(self.q(x) @ self.k(x).transpose(-1, -2), -1)
        y = self.o(weights @ self.v(x))
        return (weights, y) if self.returns_tuple else y


class Block(nn.Module):
    def __init__(self, names=("attn", "norm", "act"), returns_tuple=False):
        super().__init__()
        self.names = names
        for name, module in zip(names, (Attention(returns_tuple), nn.LayerNorm(6), nn.ReLU()), strict=True):
            self.add_module(name, module)

    def forward(self, x):
        attention, norm, act = (getattr(self, name) for name in self.names)
        y = attention(x)
        return act(norm(x + (y[1] if isinstance(y, tuple) else y)))


def made(kind, *args, **options):
    torch.manual_seed(0)
    return kind(*args, **options)


def test_swapped_weights_are_paired_by_what_modules_hold(tmp_path):
    reference, candidate = made(Block), made(Block)
    candidate.attn.q.load_state_dict(reference.attn.k.state_dict())
    candidate.attn.k.load_state_dict(reference.attn.q.state_dict())
    found = align_models(tmp_path, (reference, candidate), INPUT)
    assert sorted(found.against_names) == [("attn.k", "attn.q"), ("attn.q", "attn.k")]
    assert methods(found)["attn.q:output"] == ("attn.k:output", "weights", True)
    assert methods(found)["attn:output"] == ("attn:output", "name", True)
    assert methods(found)["norm:output"] == ("norm:output", "name", True)


def test_modules_of_other_names_and_containers_are_paired_by_what_they_hold(tmp_path):
    models = made(Block), made(Block, ("self_attention", "ln", "gate"), returns_tuple=True)
    with torch.no_grad():
        for model in models:
            model.get_submodule(model.names[1]).weight.mul_(1.5)
    found = align_models(tmp_path, models, INPUT, backward=True)
    assert methods(found)["attn:output"] == ("self_attention:output.1", "weights", True)
    assert methods(found)["attn.q:output"] == ("self_attention.q:output", "weights", True)
    assert methods(found)["norm.weight:param_grad"] == ("ln.weight:param_grad", "weights", True)
    assert methods(found)["attn:grad_output"] == ("self_attention:grad_output.1", "module", True)
    assert found.modules["attn"] == "self_attention"
    assert found.against_names == ()


def blocks(order):
    torch.manual_seed(0)
    made_blocks = [Block() for _ in order]
    return nn.Sequential(*(made_blocks[place] for place in order))


def test_blocks_in_another_order_are_paired_with_all_that_is_inside(tmp_path):
    found = align_models(tmp_path, (blocks((0, 1, 2)), blocks((2, 1, 0))), INPUT)
    certain = certain_partners(found)
    for place in range(3):
        for inside in ("attn", "attn.q", "attn.o"):
            assert certain[f"{place}.{inside}:output"] == f"{2 - place}.{inside}:output"
    assert ("0", "2") in found.against_names
    assert all(certain[name] == name for name in certain if name.startswith("("))


def test_a_wrapper_around_a_layer_keeps_the_name_of_the_layer(tmp_path):
    reference, candidate = made(Block), made(Block)
    candidate.attn.q = nn.Sequential(nn.Identity(), candidate.attn.q)
    found = align_models(tmp_path, (reference, candidate), INPUT, backward=True)
    assert methods(found)["attn.q:output"] == ("attn.q:output", "name", True)
    assert methods(found)["attn.q.weight:param_grad"] == ("attn.q.1.weight:param_grad", "weights", True)
    assert found.against_names == ()
    assert found.only_candidate["attn.q.1:output"].same_as == "attn.q:output"


def test_a_wrapper_that_does_more_than_its_layer_is_not_paired_with_it(tmp_path):
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 6)

        def forward(self, x):
            return torch.relu(self.fc(x)) + x

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.mlp = nn.Sequential(nn.Linear(6, 6), nn.ReLU())

        def forward(self, x):
            return self.mlp(x) + x

    found = align_models(tmp_path, (made(Functional), made(Wrapped)), INPUT)
    assert methods(found)["fc:output"] == ("mlp.0:output", "weights", True)


def test_wrappers_are_paired_from_the_outside_in(tmp_path):
    class Outer(nn.Module):
        def __init__(self, names):
            super().__init__()
            self.path = names
            inner = nn.Sequential()
            inner.add_module(names[1], nn.Linear(6, 6))
            self.add_module(names[0], inner)

        def forward(self, x):
            return getattr(self, self.path[0])(x) + x

    found = align_models(tmp_path, (made(Outer, ("a", "b")), made(Outer, ("x", "y"))), INPUT)
    assert found.modules == {"": "", "a": "x", "a.b": "x.y"}
    assert methods(found)["a:output"] == ("x:output", "weights", True)


def test_wrappers_of_another_number_are_not_paired_by_weights(tmp_path):
    """The outer of two may do more than the only one of the other side."""

    class Doubling(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return 2 * self.inner(x)

    torch.manual_seed(0)
    reference = nn.Sequential(OrderedDict(a=nn.Sequential(nn.Linear(6, 6)), end=nn.Tanh()))
    candidate = nn.Sequential(OrderedDict(x=Doubling(copy.deepcopy(reference.a)), last=nn.Tanh()))
    found = methods(align_models(tmp_path, (reference, candidate), INPUT))
    assert found["a.0:output"] == ("x.inner.0:output", "weights", True)
    assert found["a:output"][0] != "x:output" or not found["a:output"][2]


@pytest.mark.parametrize("flipped", [False, True])
def test_a_model_inside_another_that_goes_by_the_name_of_a_layer(tmp_path, flipped):
    plain = stack()
    models = (plain, nn.Sequential(copy.deepcopy(plain)))
    found = align_models(tmp_path, models[::-1] if flipped else models, INPUT)
    expected = {str(place): f"0.{place}" for place in range(8)}
    if flipped:
        expected = {partner: place for place, partner in expected.items()}
    certain = outputs(certain_partners(found))
    assert {name: certain[name] for name in expected} == expected


def test_a_layer_extended_inside_keeps_its_name(tmp_path):
    class Adapted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.down, self.up = base, nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    reference, candidate = made(Block), made(Block)
    candidate.attn.q = Adapted(candidate.attn.q)
    found = align_models(tmp_path, (reference, candidate), INPUT)
    assert methods(found)["attn.q:output"] == ("attn.q:output", "name", True)
    assert found.against_names == ()


@pytest.mark.parametrize("changed", [0, 2])
def test_equal_weights_in_several_modules_decide_nothing(tmp_path, changed):
    torch.manual_seed(0)
    reference = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.LayerNorm(6))
    candidate = copy.deepcopy(reference)
    with torch.no_grad():
        candidate[changed].weight.mul_(1.5)  # leaves one fresh norm, beside two of the other side
    found = align_models(tmp_path, (reference, candidate), INPUT)
    assert found.against_names == ()
    assert {match.method for match in found.matches} == {Method.NAME}


def test_equal_weights_in_several_modules_of_other_names_decide_nothing(tmp_path):
    torch.manual_seed(0)
    layers = [nn.LayerNorm(6), nn.Linear(6, 6), nn.LayerNorm(6)]
    reference = nn.Sequential(OrderedDict(zip(("a", "b", "c"), layers, strict=True)))
    candidate = nn.Sequential(OrderedDict(zip(("x", "y", "z"), copy.deepcopy(layers), strict=True)))
    with torch.no_grad():
        candidate.z.weight.mul_(1.5)  # leaves one fresh norm, the first, beside two
    found = align_models(tmp_path, (reference, candidate), INPUT)
    assert outputs(partners(found)) == {"a": "x", "b": "y", "c": "z", "(model)": "(model)"}
    assert methods(found)["c:output"][1] != "weights"


def test_the_users_map_comes_before_weights(tmp_path):
    reference, candidate = made(Block), made(Block)
    candidate.attn.q.load_state_dict(reference.attn.k.state_dict())
    candidate.attn.k.load_state_dict(reference.attn.q.state_dict())
    mapping = {"attn.q": "attn.q", "attn.k": "attn.k"}
    found = align_models(tmp_path, (reference, candidate), INPUT, mapping=mapping)
    assert methods(found)["attn.q:output"] == ("attn.q:output", "map", True)
    assert found.against_names == ()


def test_rename_rules_are_names_and_may_mislead(tmp_path):
    model = stack()
    candidate = nn.Sequential()
    for place, layer in enumerate((nn.Identity(), *copy.deepcopy(model))):
        candidate.add_module(f"layer{place}", layer)
    found = align_models(tmp_path, (model, candidate), INPUT, renames=[Rename.parse("^layer=>")])
    assert methods(found)["2:output"] == ("layer3:output", "weights", True)
    assert ("2", "layer3") in found.against_names


def test_a_module_called_twice_is_paired_call_by_call(tmp_path):
    class Twice(nn.Module):
        def __init__(self, name):
            super().__init__()
            self.name = name
            self.add_module(name, nn.Linear(6, 6))

        def forward(self, x):
            layer = getattr(self, self.name)
            return layer(torch.tanh(layer(x)))

    found = align_models(tmp_path, (made(Twice, "a"), made(Twice, "b")), INPUT)
    assert methods(found)["a:output"] == ("b:output", "weights", True)
    assert methods(found)["a@1:output"] == ("b@1:output", "weights", True)


def test_a_parameter_of_a_module_is_no_layer_that_holds_the_same(tmp_path):
    class Positions(nn.Module):
        def __init__(self, as_layer):
            super().__init__()
            table = torch.randn(5, 6)
            self.fc = nn.Linear(6, 6)
            if as_layer:
                self.positions = nn.Embedding(5, 6, _weight=table)
            else:
                self.positions = nn.Parameter(table)

        def forward(self, x):
            added = self.positions(torch.arange(5)) if isinstance(self.positions, nn.Module) else self.positions
            return self.fc(x + added)

    class Net(nn.Module):
        def __init__(self, as_layer):
            super().__init__()
            self.encoder = Positions(as_layer)

        def forward(self, x):
            return torch.tanh(self.encoder(x))

    found = align_models(tmp_path, (made(Net, True), made(Net, False)), INPUT)
    assert certain_partners(found)["encoder:output"] == "encoder:output"
    assert "encoder.positions:output" in found.only_reference
