"""Saved outputs as older scripts leave them: input_data.pt, forward_output.pt, parameter_gradients.pt, hook_data.pkl.

Their tensors are given the sites of a recording, so that they are compared as one. What each file holds is
free in form; the usual ones are understood: nested dicts and tuples, `forward`/`backward` above layer names, or
layer names above `forward`/`backward`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from nndiff.sources.source import Source, by_name
from nndiff.tensors import TensorRef

OpenFile = Callable[[str], Source]

HOOKS = "hook_data.pkl"
METADATA = "metadata.pkl"
_FILES = {"input_data.pt": "model_input", "forward_output.pt": "output", "parameter_gradients.pt": "param_grad"}
_FORWARD = ("forward", "forward_outputs", "forward_output", "outputs", "output", "activations")
_BACKWARD = ("backward", "backward_gradients", "backward_grads", "gradients", "grads", "grad_output", "grad_outputs")


def is_saved_outputs(path: str) -> bool:
    """Tell whether a folder has the files those scripts write."""
    present = [name for name in (*_FILES, HOOKS) if os.path.isfile(os.path.join(path, name))]
    return HOOKS in present or {"input_data.pt", "forward_output.pt"} <= set(present)


def open_saved_outputs(path: str, open_file: OpenFile) -> Source:
    """Open such a folder as a recording."""
    tensors: list[TensorRef] = []
    foreign: dict[str, None] = {}
    for file, slot in (("input_data.pt", "model_input"), (HOOKS, ""), *list(_FILES.items())[1:]):
        if not os.path.isfile(os.path.join(path, file)):
            continue
        opened = open_file(os.path.join(path, file))
        foreign.update(dict.fromkeys(opened.foreign))
        for name, tensor in opened.tensors.items():
            tensors.append(_at_site(tensor, len(tensors), *(_hook_site(name) if file == HOOKS else _site(slot, name))))
    facts = {**_metadata(path, open_file), "holds": [*_FILES.values(), "grad_output"]}
    return Source(path, "recording", by_name(path, _linked(tensors)), foreign=tuple(foreign), meta=facts)


def _site(slot: str, name: str) -> tuple[str, str, str, str]:
    """Return module, slot, tensor and path of a tensor in one of the plain files."""
    if slot == "param_grad":
        module, _, tensor = name.rpartition(".")
        return module, slot, tensor, ""
    return "", slot, "", "" if name == "tensor" else name


def _hook_site(name: str) -> tuple[str, str, str, str]:
    """Return the site of a tensor in the hook data: the part that says forward or backward may stand anywhere."""
    parts = name.split(".")
    for index, part in enumerate(parts):
        slot = "output" if part in _FORWARD else "grad_output" if part in _BACKWARD else ""
        if slot:
            module = ".".join(parts[index + 1 :]) if index == 0 else ".".join(parts[:index])
            path = "" if index == 0 else ".".join(parts[index + 1 :])
            return module, slot, "", path
    return name, "output", "", ""


def _at_site(tensor: TensorRef, order: int, module: str, slot: str, owned: str, path: str) -> TensorRef:
    from nndiff.recording.events import Site

    site = Site(module, slot, 0, path, owned)
    meta = {"order": order, "module": module, "call": 0, "slot": slot, "path": path, "tensor": owned, "nth": 0}
    known = {"class": "", "phase": "forward", "keep": "full", "inputs": (), "parent": None, "forward": None}
    return replace(tensor, name=site.name, meta={**meta, **known})


def _linked(tensors: list[TensorRef]) -> Iterator[TensorRef]:
    """Tell each gradient at an output which output it belongs to."""
    outputs = {
        (each.meta["module"], each.meta["path"]): each.meta["order"]
        for each in tensors
        if each.meta["slot"] == "output"
    }
    for tensor in tensors:
        if tensor.meta["slot"] == "grad_output":
            forward = outputs.get((tensor.meta["module"], tensor.meta["path"]))
            yield replace(tensor, meta={**tensor.meta, "forward": forward, "phase": "backward"})
        else:
            yield tensor


def _metadata(path: str, open_file: OpenFile) -> dict[str, Any]:
    """Return the plain facts of metadata.pkl: seed, batch size and the like."""
    file = os.path.join(path, METADATA)
    if not os.path.isfile(file):
        return {}
    opened = open_file(file)
    numbers = {name: each.numpy().item() for name, each in opened.tensors.items() if each.count == 1}
    return {**numbers, **{key: value for key, value in opened.others.items() if len(value) < 200}}
