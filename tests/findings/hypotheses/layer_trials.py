"""Trials of two small torch models: both run on the same inputs, every call inside is given the reference's tensors."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from nndiff.diagnosis.modules import read_module_tree
from nndiff.diagnosis.trials import Given, Trial
from nndiff.findings.hypotheses import FAMILIES, Proof
from nndiff.recording.capture.model_description import describe_modules
from nndiff.result import OwnError
from nndiff.sources.memory import read_tensors
from nndiff.tensors import Slot, TensorRef, Trace

DRAWS = 2


def make_ref(name: str, value: torch.Tensor) -> TensorRef:
    """Return a tensor as recordings hold it, with its digest."""
    tensor = next(read_tensors(name, value.detach().clone()))
    raw = np.ascontiguousarray(tensor.read(0, tensor.count))
    return replace(tensor, trace=Trace(digest=hashlib.sha1(raw.tobytes()).hexdigest()))


class Run:
    """Hold what one forward pass of a model made: outputs of its children, and what it hands to `at`, or returns."""

    def __init__(self, model: nn.Module, inputs: tuple[Any, ...], at: str = "", replayed: Run | None = None) -> None:
        self.inner: dict[str, torch.Tensor] = {}
        self.made: torch.Tensor | None = None
        handles = []
        for name, child in model.named_modules():
            if name:
                handles.append(child.register_forward_hook(self._make_hook(name, replayed)))
        if at:
            handles.append(model.get_submodule(at).register_forward_pre_hook(self._keep_input))
        with torch.no_grad():
            output = model(*(value.clone() if isinstance(value, torch.Tensor) else value for value in inputs))
        for handle in handles:
            handle.remove()
        if not at:
            self.made = output[0] if isinstance(output, tuple) else output

    def _make_hook(self, name: str, replayed: Run | None) -> Callable[..., Any]:
        def keep_output(module: nn.Module, args: Any, output: Any) -> Any:
            if self.made is None and name not in self.inner:
                self.inner[name] = output
            return replayed.inner.get(name, output) if replayed else None

        return keep_output

    def _keep_input(self, module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        if self.made is None:
            self.made = args[0]


def move_half_ulp(value: Any, generator: torch.Generator) -> Any:
    """Return a tensor moved at random: each element by -1, 0, 0 or +1 units in the last place."""
    if not (isinstance(value, torch.Tensor) and value.is_floating_point()):
        return value
    draw = torch.randint(0, 4, value.shape, generator=generator)
    up = torch.nextafter(value, torch.full_like(value, math.inf))
    down = torch.nextafter(value, torch.full_like(value, -math.inf))
    moved = torch.where(draw == 0, down, torch.where(draw == 3, up, value))
    return torch.where((value == 0) | ~torch.isfinite(value), value, moved)


def measure_noise(model: nn.Module, inputs: tuple[Any, ...], made: torch.Tensor, at: str) -> float:
    """Return how far rounding of weights and inputs moves what a model makes."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    noise = 0.0
    for draw in range(DRAWS):
        generator = torch.Generator().manual_seed(draw)
        model.load_state_dict({name: move_half_ulp(value, generator) for name, value in state.items()})
        torch.manual_seed(0)
        moved = Run(model, tuple(move_half_ulp(value, generator) for value in inputs), at).made
        noise = max(noise, float((moved.double() - made.double()).abs().nan_to_num(0, 0, 0).max()))
    model.load_state_dict(state)
    return noise


def make_trial(
    reference: nn.Module,
    candidate: nn.Module,
    *inputs: Any,
    at: str = "",
    model_weights: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]] | None = None,
    path: str = "",
    noise: float | None = None,
) -> Trial:
    """Return the trial of what two models return, or hand to the child `at`, given the same inputs."""
    torch.manual_seed(0)
    states = [{name: value.clone() for name, value in model.state_dict().items()} for model in (reference, candidate)]
    ours = Run(reference, inputs, at)
    torch.manual_seed(1)
    theirs = Run(candidate, inputs, at, replayed=ours)
    assert ours.made is not None
    assert theirs.made is not None
    for model, state in zip((reference, candidate), states, strict=True):
        model.load_state_dict(state)  # running statistics move in train mode
    if noise is None:
        noise = measure_noise(reference, inputs, ours.made, at)
    max_abs = math.inf
    if ours.made.shape == theirs.made.shape:
        gaps = (ours.made.double() - theirs.made.double()).abs()
        max_abs = float(gaps[gaps.isfinite()].max()) if gaps.isfinite().any() else math.nan
    arguments = [
        Given(str(place), True, "", make_ref(str(place), value))
        for place, value in enumerate(inputs)
        if isinstance(value, torch.Tensor)
    ]
    inner = [
        Given(name, False, type(reference.get_submodule(name)).__name__, make_ref(name, value))
        for name, value in ours.inner.items()
        if isinstance(value, torch.Tensor)
    ]
    trees = tuple(read_module_tree({"modules": describe_modules(model)}) for model in (reference, candidate))
    weights = {}
    for name in dict.fromkeys([*states[0], *states[1]]):
        if "." not in name:
            weights[name] = tuple(make_ref(name, state[name]) if name in state else None for state in states)
    if model_weights is None:
        model_weights = tuple({f"{path}{name}": value for name, value in state.items()} for state in states)
    error = OwnError(
        "cand", f"{path}out", f"{path}out", 0, Slot.INPUT if at else Slot.OUTPUT, path.rstrip("."), path.rstrip("."),
        (type(reference).__name__, type(candidate).__name__), max_abs, max_abs / noise if noise else math.inf,
        before=at,
    )  # fmt: skip
    return Trial(
        error, make_ref("out", ours.made), make_ref("out", theirs.made), (*arguments, *inner), weights,
        tuple({name: make_ref(name, value) for name, value in held.items()} for held in model_weights),
        {given.name: given.tensor for given in arguments}, tuple(tree.get("", {}) for tree in trees), trees, noise,
    )  # fmt: skip


def prove(trial: Trial) -> Proof | None:
    """Return the first proof, as `explain_trials` gives it."""
    for family in FAMILIES:
        if family.applies(trial):
            proof = family.prove(trial)
            if proof is not None:
                return proof
    return None


def name_cause(trial: Trial) -> str | None:
    """Return the slug of the proven cause; None where there is none."""
    proof = prove(trial)
    return None if proof is None else proof.cause.value


class Code(nn.Module):
    """Run a function as a module without weights."""

    def __init__(self, run: Callable[..., torch.Tensor], **settings: Any) -> None:
        super().__init__()
        self._run = run
        for name, value in settings.items():
            setattr(self, name, value)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self._run(*inputs)


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    """Return normal numbers."""
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def train(module: nn.Module, seed: int = 0) -> nn.Module:
    """Return a module whose weights look trained, in eval mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                fresh = 0.3 * torch.randn(value.shape, generator=generator)
                if name.endswith("running_var"):
                    fresh = 0.5 + fresh.abs()
                elif value.ndim == 1 and "bias" not in name and "mean" not in name:
                    fresh = 1 + fresh
                value.copy_(fresh)
    return module.eval()


def pair_of(make: Callable[[], nn.Module], other: Callable[[], nn.Module] | None = None) -> tuple[nn.Module, nn.Module]:
    """Return two modules with the same trained weights, as far as both have them."""
    ours, theirs = train(make()), train((other or make)())
    theirs.load_state_dict(
        {name: v for name, v in ours.state_dict().items() if name in theirs.state_dict()}, strict=False
    )
    return ours, theirs
