"""Load any checkpoint into a model: names without their wrappers, and nothing missing in silence."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import torch

from nndiff.errors import CheckpointError
from nndiff.models.inputs import read_tensor
from nndiff.names import natural_key, strip_wrappers
from nndiff.sources import open_source
from nndiff.tensors import TensorRef
from nndiff.text import listed, plural


def load_checkpoint(model: torch.nn.Module, path: str, *, partial: bool = False) -> list[str]:
    """Copy the tensors of a checkpoint into a model; return notes about casts and, if `partial`, about leftovers.

    Unless `partial`, every tensor of the model and every tensor of the checkpoint must have a partner.
    """
    source = open_source(path)
    state = {name: value for name, value in model.state_dict(keep_vars=True).items() if torch.is_tensor(value)}
    pairs, unused = pair_names(state, source.tensors)
    if not pairs:
        raise CheckpointError(f"{path} does not fit the model: {compare_first_names(state, source.tensors)}")
    # a tied weight is filled under the name of its twin
    filled = {state[name].data_ptr() for name in pairs if state[name].numel()}
    missing, misshapen = [], []
    for name, value in state.items():
        if name not in pairs:
            if value.data_ptr() not in filled:
                missing.append(name)
        elif tuple(pairs[name].shape) != tuple(value.shape):
            misshapen.append(f"{name} {list(pairs[name].shape)} into {list(value.shape)}")
    troubles = []
    if missing and not partial:
        troubles.append(f"{len(missing)} missing ({_list_names(missing)})")
    if unused and not partial:
        troubles.append(f"{len(unused)} unexpected ({_list_names(unused)})")
    if misshapen:
        troubles.append(f"{len(misshapen)} with another shape ({_list_names(misshapen)})")
    if troubles:
        raise CheckpointError(f"{path} does not fit the model: {'; '.join(troubles)}", partial_loads=not misshapen)
    cast = []
    with torch.no_grad():
        for name, tensor in pairs.items():
            state[name].copy_(read_tensor(tensor))
            if f"torch.{tensor.dtype.name}" != str(state[name].dtype):
                cast.append(name)
    notes = []
    file = os.path.basename(path.rstrip(os.sep))  # notes go into recordings, which hold no path of this machine
    if cast:
        notes.append(f"cast to the model's dtype: {plural(len(cast), 'tensor')} of {file} ({_list_names(cast)})")
    if missing:
        notes.append(f"not in {file}: {plural(len(missing), 'tensor')} of the model ({_list_names(missing)})")
    if unused:
        notes.append(f"not used: {plural(len(unused), 'tensor')} of {file} ({_list_names(unused)})")
    return notes


def pair_names(
    state: Mapping[str, torch.Tensor], stored: Mapping[str, TensorRef]
) -> tuple[dict[str, TensorRef], list[str]]:
    """Return the stored tensor for each name, as it is or without wrappers, and the stored names left over."""
    pairs = {name: stored[name] for name in state if name in stored}
    unused = {name: None for name in stored if name not in pairs}
    stored_by_bare_name: dict[str, list[str]] = {}
    for name in unused:
        stored_by_bare_name.setdefault(strip_wrappers(name), []).append(name)
    for name in state:
        candidates = stored_by_bare_name.get(strip_wrappers(name), [])
        if name not in pairs and len(candidates) == 1:
            pairs[name] = stored[candidates[0]]
            unused.pop(candidates[0], None)
    return pairs, list(unused)


def compare_first_names(state: Mapping[str, torch.Tensor], stored: Mapping[str, TensorRef]) -> str:
    """Return why no tensor could be loaded."""
    if not stored:
        return "it holds no tensors"
    if not state:
        return "the model has no parameters or buffers"
    return (
        f"no tensor in it has the name of a tensor in the model (it has {next(iter(stored))!r}, the model has "
        f"{next(iter(state))!r})"
    )


def _list_names(names: Sequence[str]) -> str:
    return listed(sorted(names, key=natural_key))
