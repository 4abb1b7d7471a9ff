"""A verdict never depends on how modules are called: consistent renaming changes no verdict."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import nndiff

WORDS = [
    "order",
    "reorder",
    "border",
    "name",
    "prefix",
    "part",
    "guess",
    "content",
    "weights",
    "model",
    "module",
    "0",
    "7",
]
IDENTIFIERS = st.one_of(
    st.sampled_from([*WORDS, "größe", "层", "module_1"]),
    st.text("abcxyz01_é", min_size=1, max_size=6),
)


class Scale(nn.Module):
    """A layer with a parameter of its own name."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(size))

    def forward(self, x):
        return x * self.gain


class Wrapper(nn.Module):
    """fc1, activation, fc2 behind one wrapper."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.fc1, self.act, self.scale, self.fc2 = nn.Linear(4, 8), activation, Scale(8), nn.Linear(8, 4)

    def forward(self, x):
        return self.fc2(self.scale(self.act(self.fc1(x))))


class Net(nn.Module):
    """A wrapper around a wrapper, and a head."""

    def __init__(self, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.backbone, self.head = Wrapper(activation or nn.ReLU()), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


def same(net: Net) -> None:
    """Change nothing."""


def rescale(net: Net) -> None:
    """fc1 x 4, fc2 / 4: the outputs agree, layers inside do not."""
    with torch.no_grad():
        net.backbone.fc1.weight.mul_(4), net.backbone.fc1.bias.mul_(4), net.backbone.fc2.weight.div_(4)


def nudge(net: Net) -> None:
    """One weight that is off."""
    with torch.no_grad():
        net.backbone.fc2.weight[0, 0] += 0.5


def another_activation(net: Net) -> None:
    """Another function in place of the activation."""
    net.backbone.act = nn.GELU()


CHANGES = [same, rescale, nudge, another_activation]


def rename(module: nn.Module, names: dict[str, str]) -> nn.Module:
    """Rename every module and parameter; forward goes on as before by the old names."""
    paths = sorted(dict(module.named_modules()), key=lambda path: -path.count("."))
    for path in paths:
        inner = module.get_submodule(path)
        for table in (inner._modules, inner._parameters):
            for old in list(table):
                table[names[old]] = table.pop(old)
        kind = type(inner)
        if kind.__module__.startswith("torch.nn") or kind in (Scale, Wrapper, Net):
            aliases = {old: names[old] for old in names}

            def find(self, name, aliases=aliases, kind=kind):
                tables = (self.__dict__.get("_modules", {}), self.__dict__.get("_parameters", {}))
                for table in tables:
                    if aliases.get(name) in table:
                        return table[aliases[name]]
                return nn.Module.__getattr__(self, name)

            inner.__class__ = type(kind.__name__, (kind,), {"__getattr__": find, "__module__": kind.__module__})
    return module


def old_names() -> list[str]:
    net = Net()
    return sorted(
        {part for path, _ in (*net.named_modules(), *net.named_parameters()) for part in path.split(".") if part}
    )


def compared(reference: nn.Module, candidate: nn.Module, mapping: dict[str, str] | None = None) -> nndiff.Comparison:
    torch.manual_seed(3)
    inputs = torch.randn(5, 4)
    return nndiff.compare(reference, candidate, inputs=inputs, backward=True, mapping=mapping)


def nets(change) -> tuple[Net, Net]:
    torch.manual_seed(1)
    reference = Net()
    candidate = copy.deepcopy(reference)
    change(candidate)
    return reference, candidate


@functools.cache
def compared_by_their_own_names(change) -> nndiff.Comparison:
    return compared(*nets(change))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@given(identifiers=st.lists(IDENTIFIERS, min_size=len(old_names()), max_size=len(old_names()), unique=True))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_renaming_changes_no_verdict(change, identifiers):
    names = dict(zip(old_names(), identifiers, strict=True))
    reference, candidate = nets(change)
    before = compared_by_their_own_names(change)
    renamed = rename(copy.deepcopy(candidate), names)
    mapping = {}
    for path, _ in (*reference.named_modules(), *reference.named_parameters()):
        if path:
            mapping[path] = ".".join(names[part] for part in path.split("."))
    mapped = compared(reference, renamed, mapping)
    assert (mapped.verdict, mapped.exit_code) == (before.verdict, before.exit_code)
    unmapped = compared(reference, renamed)
    assert before.exit_code == 0 or unmapped.exit_code != 0, "a different model passes under other names"


@pytest.mark.parametrize("name", ["backbone", "reorder", "preorder"])
def test_what_cancels_out_inside_is_different_whatever_the_wrapper_is_called(name):
    reference, candidate = nets(rescale)
    names = {old: name if old == "backbone" else old for old in old_names()}
    found = compared(rename(reference, names), rename(candidate, names))
    assert found.verdict == "different"
