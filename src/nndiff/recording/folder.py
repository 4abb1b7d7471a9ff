"""The folder of a recording: made, recognised, cleared, never one that holds something else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from nndiff.errors import SourceError
from nndiff.recording.format import EVENTS, FORMAT, MANIFEST, SHARD
from nndiff.recording.shards import PART_SUFFIX

LEFT = "what ran before is in"  # how the note about a run that failed midway begins


def is_recording(folder: Path) -> bool:
    """Tell whether a folder holds a recording, finished or not."""
    try:
        with open(folder / MANIFEST, "rb") as file:
            return f'"{FORMAT}"'.encode() in file.read(4096)
    except OSError:
        return False


def prepare(folder: Path, overwrite: bool) -> list[Path]:
    """Make the folder, or clear the recording in it if that was asked for; return the folders that are new."""
    if folder.exists() and not folder.is_dir():
        raise SourceError(folder, "is there already and is not a folder; give another path")
    if folder.is_dir() and any(folder.iterdir()):
        _clear(folder, overwrite)
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SourceError(folder, f"cannot be made: {(error.strerror or str(error)).lower()}") from None
    return made


def remove(folder: Path, made: Sequence[Path]) -> None:
    """Take away the files of a recording and the folders that were made for it; nothing that was there before."""
    with suppress(OSError):  # what cannot be taken away stays, and so does the folder around it
        for path in folder.iterdir():
            if _ours(path):
                path.unlink()
        for each in made:
            each.rmdir()


def _clear(folder: Path, overwrite: bool) -> None:
    if not is_recording(folder):
        raise SourceError(folder, "is there already and holds no recording; give another path")
    if not overwrite:
        raise SourceError(folder, "holds a recording already; overwrite it with --overwrite (overwrite=True)")
    foreign = sorted(path.name for path in folder.iterdir() if not _ours(path))
    if foreign:
        raise SourceError(folder, f"holds more than a recording ({', '.join(foreign[:3])}); give another path")
    # the manifest goes last: until then the folder is known for what it is
    for path in sorted(folder.iterdir(), key=lambda path: path.name == MANIFEST):
        path.unlink()


def _ours(path: Path) -> bool:
    name = path.name.removesuffix(PART_SUFFIX)
    return path.is_file() and (name in (MANIFEST, EVENTS) or SHARD.match(name) is not None)


def dump_manifest(body: dict[str, object], meta: dict[str, object]) -> str:
    """Return the manifest's text, a line for each thing: the format first, so that a glance recognises it."""
    lines = [f" {json.dumps(key)}: {_dumps(value)}" for key, value in body.items()]
    inner = ",\n".join(f"  {json.dumps(key)}: {_rows(value)}" for key, value in meta.items())
    return "{\n" + ",\n".join([*lines, f' "meta": {{\n{inner}\n }}']) + "\n}\n"


def _rows(value: object) -> str:
    if not (isinstance(value, list) and value and all(isinstance(each, dict) for each in value)):
        return _dumps(value)
    return "[\n" + ",\n".join(f"   {_dumps(each)}" for each in value) + "\n  ]"


def _dumps(value: object) -> str:
    # on one line: with an indent the encoder in Python is used, which is slow for a model of many modules
    return json.dumps(value, ensure_ascii=True, allow_nan=False)
