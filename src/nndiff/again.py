"""A run made again: what a recording tells of how its model was run, so that another can be run alike."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nndiff.recorded import GRADIENTS
from nndiff.sources import open_source


@dataclass(frozen=True)
class RunAgain:
    """Hold how a recorded model was run; `inputs` is where its inputs are read from."""

    inputs: str
    seed: int
    backward: bool
    mode: Literal["train", "eval"] | None
    dropout: Literal["off"] | None
    params: bool
    inputs_kept: bool


def is_run(path: str) -> bool:
    """Tell whether a path is a recording, ours or an older script's."""
    if not os.path.isdir(path):
        return False
    from nndiff.recording.folder import is_recording
    from nndiff.sources.saved_outputs import is_saved_outputs

    return is_recording(Path(path)) or is_saved_outputs(path)


def run_again(path: str) -> RunAgain:
    """Return how a recorded run was made: inputs, seed, mode, backward and what was kept beside the outputs."""
    source = open_source(path)
    meta, mode, seed = source.meta, source.meta.get("mode"), source.meta.get("seed")
    return RunAgain(
        inputs=_inputs_of(path),
        seed=seed if type(seed) is int else 42,
        # one that was cut off may only have the gradients that come first
        backward=any(tensor.meta.get("slot") in GRADIENTS for tensor in source.tensors.values()),
        mode=mode if mode in ("train", "eval") else None,
        dropout="off" if meta.get("dropout") == "off" else None,
        params=meta.get("params") is True,
        inputs_kept=meta.get("inputs_kept") is True,
    )


def _inputs_of(path: str) -> str:
    """Return where the inputs are; a recording that cannot feed them again says so before anything runs."""
    saved = os.path.join(path, "input_data.pt")
    if os.path.isfile(saved):
        return saved
    from nndiff.recording import open_recording

    open_recording(path).inputs()
    return path
