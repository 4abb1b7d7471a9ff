"""What a case is: two models, what they are fed, and the truth about them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from networks import NETWORKS, fresh
from ports import PORTS
from torch import nn

Change = Callable[[Any], None]
# The modules at fault, by the reference's names. Several sets: each of them is a right answer.
Places = tuple[frozenset[str], ...]


def at(*modules: str) -> Places:
    """Return one right answer: all of these modules, and no other."""
    return (frozenset(modules),)


def either(*modules: str) -> Places:
    """Return several right answers, one module each: a weight and the code that reads it, a layer and its caller."""
    return tuple(frozenset([module]) for module in modules)


def code_of(module: str, before: str) -> Places:
    """Return what is right for code between calls: the module itself, or the call inside that it is handed to."""
    return either(module, before)


def code_of_port(block: str, *modules: str) -> Places:
    """Return what is right for code of a port that has no module of its own for it.

    That is the module that its block is paired with, the reference's modules that do this work, and the call inside
    that the result is handed to.
    """
    return either(block, *modules)


@dataclass(frozen=True)
class Fault:
    """Hold a fault: how it is planted, where it is, and what may be said of it."""

    name: str
    family: str
    network: str
    plant: Change
    places: Places
    causes: frozenset[str]  # slugs of findings/causes.py, each of them true
    inputs: Callable[[], Any]
    backward: bool = False
    is_reversed: bool = False  # the reference has the unusual form
    is_ported: bool = False  # the candidate is the hand-written port, and the fault is planted there
    is_ported_back: bool = False  # the reference is the port: places go by its names
    gradients_only: bool = False  # outputs agree
    prepare: Change | None = None  # what is done to both sides first
    shows_at: str = ""  # a module before it whose tensor shows the cause too: what is overwritten in place

    def make_sides(self) -> tuple[nn.Module, nn.Module]:
        """Return reference and candidate, of their own and ready to run."""
        return make_sides([self])


@dataclass(frozen=True)
class Combination:
    """Hold several faults in one model, at different places."""

    faults: tuple[Fault, ...]

    @property
    def name(self) -> str:
        """Return the names of its faults."""
        return "+".join(fault.name for fault in self.faults)

    @property
    def places(self) -> Places:
        """Return all modules at fault, in every combination of right answers."""
        return tuple(frozenset().union(*sets) for sets in itertools.product(*(fault.places for fault in self.faults)))

    @property
    def inputs(self) -> Callable[[], Any]:
        """Return what both sides are fed."""
        return self.faults[0].inputs

    @property
    def backward(self) -> bool:
        """Return whether gradients are compared too."""
        return any(fault.backward for fault in self.faults)

    def make_sides(self) -> tuple[nn.Module, nn.Module]:
        """Return reference and candidate, of their own and ready to run."""
        return make_sides(self.faults)


@dataclass(frozen=True)
class Rewrite:
    """Hold two forms of one network."""

    name: str
    make_sides: Callable[[], tuple[nn.Module, nn.Module]]
    inputs: Callable[[], Any]
    backward: bool = True


def make_sides(faults: Iterable[Fault]) -> tuple[nn.Module, nn.Module]:
    """Return a network as it should be and one with all these faults."""
    faults = list(faults)
    reference = fresh(faults[0].network)
    candidate = fresh(faults[0].network)
    for fault in faults:
        if fault.prepare is not None:
            fault.prepare(reference)
            fault.prepare(candidate)
    if faults[0].is_ported:
        candidate = PORTS[faults[0].network](candidate)
        reference.config.use_cache = False  # ports return no cache
    if faults[0].is_ported_back:
        reference = PORTS[faults[0].network](reference)
        candidate.config.use_cache = False
    for fault in faults:
        fault.plant(reference if fault.is_reversed else candidate)
    return reference, candidate


FAULTS: dict[str, Fault] = {}
REWRITES: dict[str, Rewrite] = {}


def fault(
    network: str, places: Places, causes: str, family: str, inputs: Callable[[], Any] | None = None, **facts: Any
) -> Callable[[Change], Change]:
    """Keep the function below as the way to plant a fault; its name becomes that of the fault."""

    def keep(plant: Change) -> Change:
        name = plant.__name__.replace("_", "-")
        assert name not in FAULTS, f"two faults are called {name}"
        fed = inputs or NETWORKS[network].inputs
        FAULTS[name] = Fault(name, family, network, plant, places, frozenset(causes.split()), fed, **facts)
        return plant

    return keep


def rewrite(
    inputs: Callable[[], Any], backward: bool = True
) -> Callable[[Callable[[], tuple[nn.Module, nn.Module]]], Callable[[], tuple[nn.Module, nn.Module]]]:
    """Keep the function below as the way to make two forms of a network; its name becomes that of the rewrite."""

    def keep(make: Callable[[], tuple[nn.Module, nn.Module]]) -> Callable[[], tuple[nn.Module, nn.Module]]:
        name = make.__name__.replace("_", "-")
        assert name not in REWRITES, f"two rewrites are called {name}"
        REWRITES[name] = Rewrite(name, make, inputs, backward)
        return make

    return keep


def call(model: nn.Module, inputs: Any) -> Any:
    """Return what a model makes of its inputs."""
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def tensors_of(output: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of an output by name; caches are left out."""
    if isinstance(output, torch.Tensor):
        return {"": output}
    return {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}
