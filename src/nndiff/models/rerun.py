"""How a recorded run was made, so that another model can be run in the same way."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nndiff.sources import open_source

DEFAULT_SEED = 42
_TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".pkl")


@dataclass(frozen=True)
class RunSettings:
    """How a recorded model was run."""

    inputs: str  # the recording or file that holds the inputs
    seed: int
    backward: bool
    mode: Literal["train", "eval"] | None
    dropout: Literal["off"] | None
    params: bool
    inputs_kept: bool


def is_recorded_run(path: str) -> bool:
    """Return True if a path is a recording, or a folder of outputs that an older script saved."""
    if not os.path.isdir(path):
        return False
    from nndiff.recording.format.folder import is_recording
    from nndiff.sources.saved_outputs import is_saved_outputs

    return is_recording(Path(path)) or is_saved_outputs(path)


def read_run_settings(path: str) -> RunSettings:
    """Return how a recorded run was made; raise if its inputs cannot be fed again."""
    from nndiff.recording import open_recording
    from nndiff.sources.saved_outputs import file_of_inputs, is_saved_outputs

    source = open_source(path)
    inputs = path
    if is_saved_outputs(path):
        inputs = file_of_inputs(path)
    else:
        open_recording(path).inputs()  # raises before anything runs
    # not the recorded flag: a backward pass that was cut off may have left none
    has_gradients = any(tensor.site.slot.is_gradient for tensor in source.tensors.values())
    mode, seed = source.meta.get("mode"), source.meta.get("seed")
    return RunSettings(
        inputs=inputs,
        seed=seed if type(seed) is int else DEFAULT_SEED,
        backward=has_gradients,
        mode=mode if mode in ("train", "eval") else None,
        dropout="off" if source.meta.get("dropout") == "off" else None,
        params=source.meta.get("params") is True,
        inputs_kept=source.meta.get("inputs_kept") is True,
    )


def choose_seed(seed: int | None, inputs: Sequence[str]) -> int:
    """Return the given seed, or else the one that an older script saved with the inputs, or else 42."""
    if seed is not None:
        return seed
    from nndiff.sources.saved_outputs import saved_settings

    for path in inputs:
        files = [path] if path.endswith(_TORCH_SUFFIXES) else []
        if os.path.isdir(path):
            files = list(saved_settings(path))
        for file in files:
            saved_seed = open_source(file).tensors.get("seed") if os.path.isfile(file) else None
            if saved_seed is not None and saved_seed.scalar and saved_seed.dtype.name == "int64":
                return int(saved_seed.numpy().item())
    return DEFAULT_SEED
