"""A run made again: what a recording tells of how its model was run, so that another can be run alike."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nndiff.sources import open_source

DEFAULT_SEED = 42
_TORCH = (".pt", ".pth", ".bin", ".pkl")


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
    from nndiff.recording.format.folder import is_recording
    from nndiff.sources.saved_outputs import is_saved_outputs

    return is_recording(Path(path)) or is_saved_outputs(path)


def run_again(path: str) -> RunAgain:
    """Return how a recorded run was made: inputs, seed, mode, backward and what was kept beside the outputs."""
    source = open_source(path)
    meta, mode, seed = source.meta, source.meta.get("mode"), source.meta.get("seed")
    return RunAgain(
        inputs=_inputs_of(path),
        seed=seed if type(seed) is int else DEFAULT_SEED,
        # one that was cut off may only have the gradients that come first
        backward=any(tensor.site.slot.is_gradient for tensor in source.tensors.values()),
        mode=mode if mode in ("train", "eval") else None,
        dropout="off" if meta.get("dropout") == "off" else None,
        params=meta.get("params") is True,
        inputs_kept=meta.get("inputs_kept") is True,
    )


def _inputs_of(path: str) -> str:
    """Return where the inputs are; a recording that cannot feed them again says so before anything runs."""
    from nndiff.sources.saved_outputs import file_of_inputs, is_saved_outputs

    if is_saved_outputs(path):
        return file_of_inputs(path)
    from nndiff.recording import open_recording

    open_recording(path).inputs()
    return path


def seed_of(given: int | None, inputs: Sequence[str]) -> int:
    """Return the seed of a run: the one given, else the one that an older script saved with its inputs, else 42."""
    if given is not None:
        return given
    found = (seed for path in inputs for seed in _seeds(path))
    return next(found, DEFAULT_SEED)


def _seeds(path: str) -> Iterator[int]:
    from nndiff.sources.saved_outputs import saved_settings

    files = saved_settings(path) if os.path.isdir(path) else [path] if path.endswith(_TORCH) else []
    for file in files:
        seed = open_source(file).tensors.get("seed") if os.path.isfile(file) else None
        if seed is not None and seed.scalar and seed.dtype.name == "int64":
            yield int(seed.numpy().item())
