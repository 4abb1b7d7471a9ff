"""Trials from two torch modules: inner calls are replayed with the reference's tensors, as an experiment does."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from nndiff.diagnosis.trials import Given, Trial
from nndiff.dtypes import find_dtype
from nndiff.recording.capture.model_description import describe_modules
from nndiff.result import OwnError
from nndiff.tensors import MemoryData, Slot, TensorRef, Trace
from nndiff.tolerance import NOISE_FACTOR

DRAWS = 2


def make_ref(tensor: torch.Tensor, order: int = -1) -> TensorRef:
    array = np.ascontiguousarray(tensor.detach().numpy())
    return TensorRef("", array.shape, find_dtype(array.dtype.name), MemoryData(array), trace=Trace(order))


def list_tensors(value: Any, path: str = "") -> list[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        return [(path, value)]
    items: Sequence[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, (tuple, list)):
        items = list(enumerate(value))
    found = []
    for name, item in items:
        found += list_tensors(item, f"{path}.{name}" if path else str(name))
    return found


def replace_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        new = tensors.pop(0)
        return new if new.shape == value.shape else value
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(replace_tensors(item, tensors) for item in value)
    return value


@dataclass
class Call:
    name: str
    cls: str
    inputs: list[tuple[str, torch.Tensor]]
    outputs: list[tuple[str, torch.Tensor]] = field(default_factory=list)


def run(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], replay: Sequence[Call] | None = None
) -> tuple[list[Call], list[tuple[str, torch.Tensor]]]:
    """Return the outermost calls inside a module and what it returns; a replay hands out the reference's outputs."""
    calls: list[Call] = []
    stack: list[int] = []
    handles = []

    def enter(name: str) -> Callable[..., Any]:
        def hook(inner: nn.Module, args: Any, kwargs: Any) -> Any:
            if not stack:
                inputs = [(path, tensor.detach().clone()) for path, tensor in list_tensors(args) + list_tensors(kwargs)]
                calls.append(Call(name, type(inner).__name__, inputs))
            stack.append(1)

        return hook

    def leave(inner: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        stack.pop()
        if stack:
            return None
        calls[-1].outputs = [(path, tensor.detach().clone()) for path, tensor in list_tensors(output)]
        if replay is None or len(calls) > len(replay):
            return None
        same_name = [call for call in replay if call.name == calls[-1].name]
        partner = same_name[0] if len(same_name) == 1 else replay[len(calls) - 1]
        if len(partner.outputs) != len(calls[-1].outputs):
            return None
        return replace_tensors(output, [tensor for _, tensor in partner.outputs])

    for name, inner in module.named_modules():
        if name:
            handles.append(inner.register_forward_pre_hook(enter(name), with_kwargs=True))
            handles.append(inner.register_forward_hook(leave, with_kwargs=True))
    try:
        with torch.no_grad():
            output = module(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return calls, list_tensors(output)


def move(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a tensor moved at random by half a unit of rounding."""
    if not tensor.is_floating_point():
        return tensor
    draw = torch.rand(tensor.shape, generator=generator)
    step = (draw < 0.25).to(tensor.dtype) - (draw > 0.75).to(tensor.dtype)
    up = torch.nextafter(tensor, torch.full_like(tensor, math.inf)) - tensor
    moved = tensor + step * up
    keep = (tensor == 0) | ~torch.isfinite(moved) | ~torch.isfinite(tensor)
    return torch.where(keep, tensor, moved)


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(item, change) for item in value)
    if isinstance(value, dict):
        return {name: map_tensors(item, change) for name, item in value.items()}
    return value


def list_sites(
    calls: Sequence[Call], outputs: Sequence[tuple[str, torch.Tensor]]
) -> dict[tuple[str, int, str], tuple[int, torch.Tensor]]:
    """Return (number of calls before it, tensor) of every place that the module's own code makes."""
    sites = {}
    times = Counter[str]()
    for number, call in enumerate(calls):
        for path, tensor in call.inputs:
            sites[call.name, times[call.name], path] = (number, tensor)
        times[call.name] += 1
    for path, tensor in outputs:
        sites["", 0, path] = (len(calls), tensor)
    return sites


def make_trial(reference: nn.Module, candidate: nn.Module, *args: Any, **kwargs: Any) -> Trial:
    """Return the first own error of a module as a trial."""
    return make_trials(reference, candidate, *args, **kwargs)[0]


def make_trials(
    reference: nn.Module,
    candidate: nn.Module,
    *args: Any,
    model_inputs: Mapping[str, torch.Tensor] | None = None,
    later: bool = False,
    **kwargs: Any,
) -> list[Trial]:
    """Return all own errors of a module as trials; `later` gives what later calls return, too."""
    reference, candidate = reference.eval(), candidate.eval()
    calls, outputs = run(reference, args, kwargs)
    replayed, made = run(candidate, args, kwargs, calls)
    if not {call.name for call in calls} & {call.name for call in replayed}:  # a port with other names: by order
        for call, partner in zip(replayed, calls, strict=False):
            call.name = partner.name
    generator = torch.Generator().manual_seed(0)
    sites = list_sites(calls, outputs)
    floors = dict.fromkeys(sites, 0.0)
    for _ in range(DRAWS):
        moved = copy.deepcopy(reference)
        with torch.no_grad():
            for weight in [*moved.parameters(), *moved.buffers()]:
                weight.copy_(move(weight, generator))
        moved_args, moved_kwargs = map_tensors((args, kwargs), lambda tensor: move(tensor, generator))
        for place, (_, other) in list_sites(*run(moved, moved_args, moved_kwargs)).items():
            floors[place] = max(floors[place], measure_gap(sites[place][1], other))
    candidate_sites = list_sites(replayed, made)
    given = [Given(name, True, "", make_ref(value)) for name, value in list_tensors((*args,))]
    given += [Given(name, True, "", make_ref(value)) for name, value in list_tensors(dict(kwargs))]
    trials = []
    for place, (before, tensor) in sites.items():
        if place not in candidate_sites or tensor.shape != candidate_sites[place][1].shape:
            continue
        other = candidate_sites[place][1]
        difference = measure_gap(tensor, other)
        if difference <= NOISE_FACTOR * floors[place]:
            continue
        inner = []
        for order, call in enumerate(calls if later else calls[:before]):
            for path, value in call.outputs:
                name = f"{call.name}.{path}" if path else call.name
                inner.append(Given(name, False, call.cls, make_ref(value, order=2 * order + 1)))
        trials.append(
            build_trial(
                reference, candidate, tensor, other, [*given, *inner], floors[place], difference, calls, before,
                model_inputs or {},
            )
        )  # fmt: skip
    assert trials, "no own error"
    return trials


def measure_gap(tensor: torch.Tensor, other: torch.Tensor) -> float:
    return (other.double() - tensor.double()).nan_to_num(0.0, 0.0, 0.0).abs().max().item()


def build_trial(
    reference: nn.Module,
    candidate: nn.Module,
    made: torch.Tensor,
    made_by_candidate: torch.Tensor,
    given: Sequence[Given],
    noise: float,
    difference: float,
    calls: Sequence[Call] = (),
    before: int = 0,
    model_inputs: Mapping[str, torch.Tensor] | None = None,
    slot: Slot = Slot.OUTPUT,
) -> Trial:
    described = [{module["name"]: module for module in describe_modules(model)} for model in (reference, candidate)]
    states = [{name: make_ref(value) for name, value in model.state_dict().items()} for model in (reference, candidate)]
    for state, model in zip(states, (reference, candidate), strict=True):
        state.update({name: make_ref(value) for name, value in model.named_buffers()})
    local = {name: value for name, value in states[0].items() if "." not in name}
    error = OwnError(
        "candidate", "block:output", "block:output", 0, slot, "", "",
        (type(reference).__name__, type(candidate).__name__), difference,
        after=calls[before - 1].name if before else "",
        before=calls[before].name if before < len(calls) else "",
    )  # fmt: skip
    return Trial(
        error=error,
        reference=make_ref(made, order=2 * before),
        candidate=make_ref(made_by_candidate),
        given=tuple(given),
        weights={name: (value, states[1].get(name)) for name, value in local.items()},
        model_weights=(states[0], states[1]),
        model_inputs={name: make_ref(value) for name, value in (model_inputs or {}).items()},
        modules=(described[0][""], described[1][""]),
        trees=(described[0], described[1]),
        noise=noise,
    )
