"""Names decide nothing but who is paired by name: modules renamed at random are paired as before, or by guess."""

from __future__ import annotations

import copy
import functools
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import nndiff
from aligned import certain_partners, held_weights, partners, without_weights
from nndiff.align.recordings import align_recordings

INPUT = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(1))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(6, 6) for _ in range(4))
        self.rest = nn.Dropout(0.0)

    def forward(self, x):
        weights = torch.softmax(self.q(x) @ self.k(x).transpose(-1, -2), -1)
        return self.o(self.rest(weights @ self.v(x))), weights


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attn, self.act, self.fc = nn.LayerNorm(6), Attention(), nn.ReLU(), nn.Linear(6, 6)

    def forward(self, x):
        x = x + self.attn(self.norm(x))[0]
        return self.act(self.fc(self.act(x)))


class Net(nn.Module):
    """Blocks with fresh norms, which hold the same, an activation called twice, and a head of two parts."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


MODULES = [name for name, _ in Net().named_modules() if name]
FAULTS = {
    "none": lambda model: None,
    "weight": lambda model: model.blocks[1].fc.weight.mul_(1.5),
    "rounding": lambda model: [parameter.mul_(1 + 1e-6) for parameter in model.parameters()],
}


@functools.cache
def recorded(fault):
    """Return tensors and weights of the model with a fault; their elements are not read."""
    model = copy.deepcopy(Net())
    with torch.no_grad():
        FAULTS[fault](model)
    with tempfile.TemporaryDirectory() as folder:
        nndiff.record(model, INPUT, path=Path(folder) / "a.nnrec", backward=True, params=True)
        source = nndiff.open_source(Path(folder) / "a.nnrec")
    return source.tensors, held_weights(source)


def renamed(tensors, weights, new_names):
    """Return a recording in which every module goes by a new path."""

    def new_path(module):
        parts = module.split(".")
        return ".".join(new_names[".".join(parts[: end + 1])] for end in range(len(parts))) if module else ""

    new_tensors = {}
    for tensor in tensors.values():
        site = replace(tensor.site, module=new_path(tensor.site.module))
        new_tensors[site.name] = replace(tensor, name=site.name, site=site)
    new_weights = {}
    for name, digest in weights.items():
        module, _, last = name.rpartition(".")
        new_weights[f"{new_path(module)}.{last}".lstrip(".")] = digest
    return new_tensors, new_weights, {module: new_path(module) for module in MODULES}


WORDS = [
    "order",
    "name",
    "prefix",
    "part",
    "guess",
    "weights",
    "model",
    "module",
    "content",
    "0",
    "1",
    "é",
    "层",
    "relu2",
]
IDENTIFIERS = st.one_of(st.sampled_from(WORDS), st.text("ax_1é层", min_size=1, max_size=5))


@st.composite
def new_names(draw):
    """Return a new last name for every module: no two of one parent are the same, and none is an old one."""
    taken = {}
    names = {}
    old = {module.rpartition(".")[2] for module in MODULES}
    for module in MODULES:
        parent = module.rpartition(".")[0]
        siblings = taken.setdefault(parent, set())
        name = draw(IDENTIFIERS.filter(lambda name, siblings=siblings: name not in siblings | (old - set("01"))))
        siblings.add(name)
        names[module] = name
    return names


def expected_name(name, paths):
    """Return what a tensor of the reference is called in the renamed recording."""
    tensor = recorded("none")[0][name]
    return replace(tensor.site, module=paths.get(tensor.site.module, "")).name


@settings(max_examples=40)
@given(new_names(), st.sampled_from(list(FAULTS)), st.booleans())
def test_with_the_map_given_no_pair_changes(names, fault, weights_known):
    reference, weights = recorded("none")
    plain_tensors, plain_weights = recorded(fault)
    candidate, candidate_weights, paths = renamed(plain_tensors, plain_weights, names)
    known = weights, plain_weights
    known_renamed = weights, candidate_weights
    if not weights_known:
        reference, plain_tensors, candidate = map(without_weights, (reference, plain_tensors, candidate))
        known = known_renamed = {}, {}
    plain = align_recordings(reference, plain_tensors, weights=known)
    called = {tensor.site.module for tensor in reference.values()}
    mapping = {module: path for module, path in paths.items() if module in called}
    found = align_recordings(reference, candidate, mapping=mapping, weights=known_renamed)
    assert partners(found) == {name: expected_name(partner, paths) for name, partner in partners(plain).items()}
    assert set(certain_partners(found)) == set(certain_partners(plain))
    assert dict(found.modules) == {module: paths.get(partner, "") for module, partner in plain.modules.items()}


@settings(max_examples=40)
@given(new_names(), st.sampled_from(list(FAULTS)), st.booleans())
def test_without_a_map_no_certain_pair_is_of_two_layers(names, fault, weights_known):
    reference, weights = recorded("none")
    candidate, candidate_weights, paths = renamed(*recorded(fault), names)
    known = weights, candidate_weights
    if not weights_known:
        reference, candidate, known = without_weights(reference), without_weights(candidate), ({}, {})
    found = align_recordings(reference, candidate, weights=known)
    for name, partner in certain_partners(found).items():
        assert partner == expected_name(name, paths)
    if weights_known and fault == "none":
        assert set(certain_partners(found)) == set(reference)


@settings(max_examples=40)
@given(st.permutations(["q", "k", "v", "o", "rest"]), st.permutations(["0", "1", "2"]))
def test_names_that_change_places_do_not_mislead(inside, outside):
    reference, weights = recorded("none")
    names = {module: module.rpartition(".")[2] for module in MODULES}
    for block, new_block in zip("012", outside, strict=True):
        names[f"blocks.{block}"] = new_block
        for old, new in zip(("q", "k", "v", "o", "rest"), inside, strict=True):
            names[f"blocks.{block}.attn.{old}"] = new
    candidate, candidate_weights, paths = renamed(*recorded("none"), names)
    found = align_recordings(reference, candidate, weights=(weights, candidate_weights))
    for name, partner in certain_partners(found).items():
        assert partner == expected_name(name, paths)
    assert set(certain_partners(found)) == set(reference)
