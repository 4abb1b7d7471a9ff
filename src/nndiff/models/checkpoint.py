"""Load any checkpoint into a model: names without their wrappers, and nothing missing in silence."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import torch

from nndiff.errors import ModelError
from nndiff.models.inputs import tensor_of
from nndiff.names import natural_key, strip_wrappers
from nndiff.sources import open_source
from nndiff.tensors import TensorRef
from nndiff.text import listed, plural


def load_checkpoint(model: torch.nn.Module, path: str, *, partial: bool = False) -> list[str]:
    """Copy a checkpoint's tensors into the model; return what is worth knowing.

    Every tensor of the model must be found and every tensor of the checkpoint be used, unless `partial`.
    """
    source = open_source(path)
    wanted = {name: value for name, value in model.state_dict(keep_vars=True).items() if torch.is_tensor(value)}
    pairs, unused = _pair(wanted, source.tensors)
    tied = _tied(wanted, pairs)
    missing = [name for name in wanted if name not in pairs and name not in tied]
    shapes = [
        f"{name} {list(pairs[name].shape)} into {list(wanted[name].shape)}"
        for name in pairs
        if tuple(pairs[name].shape) != tuple(wanted[name].shape)
    ]
    _complain(path, missing if not partial else [], unused if not partial else [], shapes)
    if not pairs:
        raise ModelError(
            f"{path}: no tensor of it has a place in the model; it holds {plural(len(source.tensors), 'tensor')}"
        )
    with torch.no_grad():
        for name, ref in pairs.items():
            wanted[name].copy_(tensor_of(ref))
    # by its bare name: what is noted stands in recordings, which know nothing of the machine they were made on
    return _notes(os.path.basename(path.rstrip(os.sep)), pairs, wanted, missing, unused)


def _pair(wanted: Mapping[str, torch.Tensor], held: Mapping[str, TensorRef]) -> tuple[dict[str, TensorRef], list[str]]:
    """Return the tensor for each name, as written or without wrappers, and the names left over."""
    pairs = {name: held[name] for name in wanted if name in held}
    used = set(pairs)
    bare: dict[str, list[str]] = {}
    for name in held:
        if name not in used:
            bare.setdefault(strip_wrappers(name), []).append(name)
    for name in wanted:
        found = bare.get(strip_wrappers(name), [])
        if name not in pairs and len(found) == 1:
            pairs[name] = held[found[0]]
            used.add(found[0])
    return pairs, [name for name in held if name not in used]


def _tied(wanted: Mapping[str, torch.Tensor], pairs: Mapping[str, TensorRef]) -> set[str]:
    """Return the names whose memory is filled under another name."""
    filled = {wanted[name].data_ptr() for name in pairs if wanted[name].numel()}
    return {name for name, value in wanted.items() if name not in pairs and value.data_ptr() in filled}


def _complain(path: str, missing: Sequence[str], unused: Sequence[str], shapes: Sequence[str]) -> None:
    troubles = [
        f"{len(names)} {what} ({_some(names)})"
        for names, what in ((missing, "missing"), (unused, "unexpected"), (shapes, "of another shape"))
        if names
    ]
    if troubles:
        way_out = "" if shapes else "; --partial loads what there is"
        raise ModelError(f"{path} does not fit the model: {'; '.join(troubles)}{way_out}")


def _some(names: Sequence[str]) -> str:
    return listed(sorted(names, key=natural_key))


def _notes(
    file: str,
    pairs: Mapping[str, TensorRef],
    wanted: Mapping[str, torch.Tensor],
    missing: Sequence[str],
    unused: Sequence[str],
) -> list[str]:
    notes = []
    cast = [name for name in pairs if f"torch.{pairs[name].dtype.name}" != str(wanted[name].dtype)]
    if cast:
        notes.append(f"cast to the model's dtype: {plural(len(cast), 'tensor')} of {file} ({_some(cast)})")
    if missing:
        notes.append(f"not in {file}: {plural(len(missing), 'tensor')} of the model ({_some(missing)})")
    if unused:
        notes.append(f"not used: {plural(len(unused), 'tensor')} of {file} ({_some(unused)})")
    return notes
