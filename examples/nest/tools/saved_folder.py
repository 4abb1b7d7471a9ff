"""The folder that save_nemo_outputs.py leaves: written from a recording, read by `nndiff diff` as it is."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nndiff import Recording
from nndiff.errors import SourceError
from nndiff.models.inputs import read_tensor
from nndiff.tensors import Slot, TensorRef

FILES = ("input_data.pt", "forward_output.pt", "parameter_gradients.pt", "hook_data.pkl", "metadata.pkl")


def save_folder(recording: Recording, inputs: dict[str, Any], metadata: dict[str, Any], folder: Path) -> Iterator[str]:
    """Write the files one by one; yield the name of each."""
    outputs: dict[str, dict[int, dict[str, torch.Tensor]]] = {}
    gradients: dict[str, dict[str, torch.Tensor]] = {}
    parameters: dict[str, torch.Tensor] = {}
    losses: list[TensorRef] = []
    for tensor in recording.source().tensors.values():
        site = tensor.site
        if site.slot is Slot.OUTPUT:
            outputs.setdefault(site.module, {}).setdefault(site.call, {})[site.path] = read_tensor(tensor)
        elif site.slot is Slot.GRAD_OUTPUT and site.call == 0:
            gradients.setdefault(site.module, {})[site.path] = read_tensor(tensor)
        elif site.slot is Slot.PARAM_GRAD:
            parameters[f"{site.module}.{site.tensor}"] = read_tensor(tensor)
        elif site.slot is Slot.LOSS:
            losses.append(tensor)
    hooks: dict[str, dict[str, Any]] = {}
    for module, calls in outputs.items():
        hooks[module] = {"all_forward_outputs": [join(paths) for paths in calls.values()]}
        if module in gradients:
            hooks[module]["backward_output_grads"] = join(gradients[module])
    final_output = hooks.pop("")["all_forward_outputs"][0]
    metadata = {**metadata, "loss": float(read_tensor(losses[0])), "torch_version": torch.__version__}
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in zip(FILES, (inputs, final_output, parameters, hooks, metadata), strict=True):
        unfinished = folder / f"{name}.unfinished"  # a file that is complete or absent
        if name.endswith(".pt"):
            torch.save(value, unfinished)
        else:
            unfinished.write_bytes(pickle.dumps(value))
        unfinished.replace(folder / name)
        yield name


def check_folder(folder: str) -> None:
    """Raise SourceError unless a folder holds what `save_folder` writes."""
    missing = [name for name in FILES if not Path(folder, name).is_file()]
    if missing:
        raise SourceError(folder, f"has no {missing[0]}: give a folder that save_nemo_outputs.py wrote")


def join(paths: dict[str, torch.Tensor]) -> Any:
    """Return what a module returned: a tensor, or a tuple of those that were recorded."""
    if list(paths) == [""]:
        return paths[""]
    last = max(int(path) for path in paths)
    return tuple(paths.get(str(index)) for index in range(last + 1))
