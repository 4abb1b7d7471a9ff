"""Layers that a mode changed, each as small as it can be tried alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from nndiff.modes.layer_swap import ModelPair, Run, Side, compute_squared_error
from nndiff.recording.capture.model_description import collect_plain_attributes


@dataclass(frozen=True)
class ChangedLayer:
    """Name a layer that a mode changed, and what has to be exchanged together with it."""

    name: str
    together: tuple[str, ...]  # a batch norm that was folded into it, for one
    site: str  # the module at whose output its error shows: its own, or that of the module that uses its weights

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the names of everything that is exchanged."""
        return (self.name, *self.together)


def find_changed_layers(pair: ModelPair, sample: Any, on_trial: Callable[[int], None]) -> list[ChangedLayer]:
    """Return the layers a mode changed, in the order they run; parents and children are never both among them."""
    reference = pair.run(Side.REFERENCE, (), sample)
    names = _nominate(pair, "", sample, reference, set())
    groups = [[name] for name in sorted(names, key=lambda name: _get_order(pair, name))]  # producers before consumers
    # a batch norm that was folded into its convolution leaves an identity behind, and neither makes sense alone
    groups = _join_consumers(pair, groups, lambda group, consumers: all(pair.is_emptied(name) for name in consumers))
    groups = _try_groups(pair, groups, sample, reference, on_trial)
    # or it stays, with other weights that undo what the convolution does now
    groups = _join_consumers(pair, groups, lambda group, consumers: _do_cancel(pair, group, consumers, sample))
    return [ChangedLayer(group[0], tuple(group[1:]), find_site(pair, group[-1])) for group in groups]


def find_site(pair: ModelPair, name: str) -> str:
    """Return the innermost module around a part that both models call, with outputs of the same shapes."""
    while name:
        calls = [pair.get_call(side, name) for side in Side]
        if calls[0] and calls[1] and calls[0].shapes == calls[1].shapes:
            break
        name = name.rpartition(".")[0]
    return name


def _get_order(pair: ModelPair, name: str) -> float:
    call = pair.get_call(Side.REFERENCE, name)
    return call.order if call else math.inf


def _nominate(pair: ModelPair, name: str, sample: Any, reference: Run, seen: set[torch.nn.Module]) -> list[str]:
    """Return the smallest parts below a module that are not made alike in both models."""
    own, twin = (pair.get_module(side, name) for side in Side)
    if own in seen:
        return []  # a shared module goes by its first name
    seen.add(own)
    children = [child for child, module in own._modules.items() if module is not None]
    if not children:
        calls = [pair.get_call(side, name) for side in Side]
        is_called_alike = calls[0] is None or calls[1] is None or calls[0].is_like(calls[1])
        is_same = is_called_alike and _are_made_alike(own, twin) and not has_changed_state(own, twin)
        return [] if is_same else [name]
    inner = []
    for child in children:
        if twin._modules.get(child) is not None:
            inner += _nominate(pair, _join(name, child), sample, reference, seen)
    twin_tensors = dict(_list_own_tensors(twin))
    changed_tensors = []
    for tensor_name, tensor in _list_own_tensors(own):
        if tensor_name in twin_tensors and not _are_equal(tensor, twin_tensors[tensor_name]):
            changed_tensors.append(_join(name, tensor_name))
    if name and changed_tensors and not inner:
        return [name]
    inner += changed_tensors
    if _are_made_alike(own, twin) or (inner and _is_explained(pair, name, inner, sample, reference)):
        return inner
    return [name]


def _is_explained(pair: ModelPair, name: str, inner: list[str], sample: Any, reference: Run) -> bool:
    """Return True if a module differs by what is inside it more than by what it does itself."""
    if not name:
        return True  # the whole model as a layer would help nobody
    try:
        by_inner = pair.run(Side.REFERENCE, inner, sample)
        whole = pair.run(Side.REFERENCE, [name], sample)
        inner_error, _ = compute_squared_error(reference.outputs, by_inner.outputs)
        rest_error, _ = compute_squared_error(by_inner.outputs, whole.outputs)
    except Exception:
        return False  # they only fit into their own surroundings
    return inner_error >= rest_error


def _join_consumers(
    pair: ModelPair, groups: list[list[str]], belong_together: Callable[[list[str], list[str]], bool]
) -> list[list[str]]:
    """Return the groups, each joined with those that take its output where they belong together."""
    remaining = list(groups)
    joined = []
    while remaining:
        group = remaining.pop(0)
        while True:
            consumer_names = pair.list_consumers(group[-1])
            consumers = [candidate for candidate in remaining if candidate[0] in consumer_names]
            names = [name for consumer in consumers for name in consumer]
            if not names or not belong_together(group, names):
                break
            group = group + names
            remaining = [candidate for candidate in remaining if candidate not in consumers]
        joined.append(group)
    return joined


def _try_groups(
    pair: ModelPair, groups: list[list[str]], sample: Any, reference: Run, on_trial: Callable[[int], None]
) -> list[list[str]]:
    """Return the groups that can be exchanged alone and do something else than their twins.

    What does not run in the other model gives way to the module around it.
    """
    remaining = list(groups)
    accepted: list[list[str]] = []
    while remaining:
        on_trial(len(accepted))
        group = remaining.pop(0)
        try:
            is_changed = _try_group(pair, group, sample, reference)
        except Exception:
            if not group[0]:
                raise
            parent = group[0].rpartition(".")[0]
            accepted = [names for names in accepted if not _is_inside(names[0], parent)]
            remaining = [[parent], *(names for names in remaining if not _is_inside(names[0], parent))]
            continue
        if is_changed:
            accepted.append(group)
    return accepted


def _try_group(pair: ModelPair, group: list[str], sample: Any, reference: Run) -> bool:
    """Return True if a group has other weights than its twin, or other outputs for the same inputs."""
    if all(_differs_in_values_only(pair, name) for name in group):
        return True  # it fits, and needs no trial
    for host in Side:
        hybrid = pair.run(host, group, sample)
        compute_squared_error(reference.outputs, hybrid.outputs)  # raises if shapes differ
    for name in group:
        if not pair.is_module(name) or has_changed_state(*(pair.get_module(side, name) for side in Side)):
            return True
    site = find_site(pair, group[-1])
    candidate = pair.run(Side.CANDIDATE, (), sample, [site])
    restored = pair.run(Side.CANDIDATE, group, sample, [site])
    error, _ = compute_squared_error(candidate.at_modules[site], restored.at_modules[site])
    return error > 0


def _differs_in_values_only(pair: ModelPair, name: str) -> bool:
    """Return True if a module differs from its twin in nothing but the values of its weights."""
    if not pair.is_module(name):
        return False
    calls = [pair.get_call(side, name) for side in Side]
    if calls[0] and calls[1] and not calls[0].is_like(calls[1]):
        return False
    own, twin = (pair.get_module(side, name) for side in Side)
    descriptions = []
    for module in (own, twin):
        makes = {path: _describe_make(part) for path, part in module.named_modules()}
        kinds = {key: (type(tensor), tensor.dtype, tensor.shape) for key, tensor in _get_state(module).items()}
        descriptions.append((makes, kinds))
    return descriptions[0] == descriptions[1] and has_changed_state(own, twin)


def _do_cancel(pair: ModelPair, producers: list[str], consumers: list[str], sample: Any) -> bool:
    """Return True if parts and their consumers do less harm together than either of them alone.

    This shows at the consumers' outputs: an output of a few numbers could be right by chance.
    """
    sites = {find_site(pair, part) for part in consumers}
    reference = pair.run(Side.REFERENCE, (), sample, sites)

    def measure(parts: list[str]) -> float:
        hybrid = pair.run(Side.REFERENCE, parts, sample, sites)
        return sum(compute_squared_error(reference.at_modules[site], hybrid.at_modules[site])[0] for site in sites)

    joint_error = measure([*producers, *consumers])
    return measure(producers) > joint_error and measure(consumers) > joint_error


def has_changed_state(own: torch.nn.Module, twin: torch.nn.Module) -> bool:
    """Return True if any parameter or buffer of a module differs in a bit, in its type, or exists on one side only."""
    own_state, twin_state = _get_state(own), _get_state(twin)
    if own_state.keys() != twin_state.keys():
        return True
    return not all(_are_equal(tensor, twin_state[name]) for name, tensor in own_state.items())


def _get_state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _are_equal(own: torch.Tensor, twin: torch.Tensor) -> bool:
    if own is twin:
        return True
    if type(own) is not type(twin) or own.dtype != twin.dtype or own.shape != twin.shape:
        return False
    try:
        return bool(torch.equal(own, twin))
    except (RuntimeError, NotImplementedError):  # packed weights that cannot be compared
        return False


def _are_made_alike(own: torch.nn.Module, twin: torch.nn.Module) -> bool:
    """Return True if two modules have the same class, attributes, hooks, and names of children and tensors."""
    return _describe_make(own) == _describe_make(twin)


def _describe_make(module: torch.nn.Module) -> tuple[Any, ...]:
    # by name: a class that a function defines is another class in every model
    kind = (type(module).__module__, type(module).__qualname__)
    names = (vars(module).keys(), module._modules.keys(), module._parameters.keys(), module._buffers.keys())
    hooks = (len(module._forward_pre_hooks), len(module._forward_hooks))
    return (kind, [set(part) for part in names], hooks, collect_plain_attributes(module))


def _list_own_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for tensors in (module._parameters, module._buffers):
        for name, tensor in tensors.items():
            if tensor is not None:
                yield name, tensor


def _join(name: str, last: str) -> str:
    return f"{name}.{last}" if name else last


def _is_inside(name: str, parent: str) -> bool:
    return not parent or name == parent or name.startswith(parent + ".")
