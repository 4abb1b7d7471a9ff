"""Names, versions and limits of the files of a training run.

History: 1 the first.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from nndiff.errors import SourceError
from nndiff.files import RegularFile, Window

FORMAT = "nndiff.run"
VERSION = 1
DESCRIPTION = "run.json"
LAYOUTS = "layouts.jsonl"
STEPS = "steps.jsonl"
LOCK = "lock"
STATE_NAME = re.compile(r"state-([0-9]{6,9})\.safetensors\Z")
PART_SUFFIX = ".part"
KEEP_LEVELS = ("stats", "sketch", "full")  # each holds what the ones before it hold

DESCRIPTION_LIMIT = 64 << 20  # bytes
LINE_LIMIT = 32 << 20  # bytes: a layout of a quarter of a million tensors
STEP_LIMIT = 10_000_000  # lines
LAYOUT_LIMIT = 100_000  # lines
SKETCH_LIMIT = 1 << 24  # numbers of all sketches of one step


def name_state(number: int) -> str:
    """Return the file name of a state."""
    return f"state-{number:06d}.safetensors"


def parse_state_name(name: str) -> int | None:
    """Return the number of a state by its file name, or None if it is another file."""
    match = STATE_NAME.match(name)
    return int(match[1]) if match else None


def is_run(path: str | os.PathLike[str]) -> bool:
    """Return True if a folder holds a training run that TrainingRecorder wrote."""
    try:
        head = Window(RegularFile(os.path.join(path, DESCRIPTION))).head(4096)
    except SourceError:
        return False
    return f'"{FORMAT}"'.encode() in head


def list_foreign_files(folder: Path) -> list[str]:
    """Return the names of what is in a folder and belongs to no training run."""
    foreign = []
    for entry in folder.iterdir():
        name = entry.name.removesuffix(PART_SUFFIX)
        is_ours = name in (DESCRIPTION, LAYOUTS, STEPS, LOCK) or parse_state_name(name) is not None
        if not is_ours or not entry.is_file():
            foreign.append(entry.name)
    return sorted(foreign)


def measure_folder(folder: str | os.PathLike[str]) -> int:
    """Return how many bytes the files in a folder take."""
    return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False))
