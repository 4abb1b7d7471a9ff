"""The folder of a recording: made, recognised, replaced, never one that holds something else."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from nndiff.errors import SourceError
from nndiff.recording.format import EVENTS, FORMAT, MANIFEST, SHARD, dumps
from nndiff.recording.shards import PART_SUFFIX

BEFORE_SUFFIX = ".before"  # where a recording waits that is being overwritten
# What notes about a run that failed midway say, or how they begin: where what it did is, and what was there.
LEFT = "what ran before is in"
FINISHED = "what was finished before can be read"
BEFORE = "the recording that was there is in"


class LeftoverNote(str):
    """A note on an error that tells what the failed run left on disk."""

    __slots__ = ()


def is_recording(folder: Path) -> bool:
    """Tell whether a folder holds a recording, finished or not."""
    try:
        with open(folder / MANIFEST, "rb") as file:
            return f'"{FORMAT}"'.encode() in file.read(4096)
    except OSError:
        return False


def refuse_packed(path: str, names: Iterable[str]) -> None:
    """Say what to do with an archive of a recording: taken for a checkpoint it would lose its order and its digests."""
    held = {tuple(name.rpartition("/")[::2]) for name in names}
    if any((folder, EVENTS) in held for folder, name in held if name == MANIFEST):
        raise SourceError(
            path, "a recording packed in an archive, which is not read from there: unpack it, give its folder"
        )


@dataclass(frozen=True)
class Place:
    """Hold where a recording is written, and what has to be done when that ends well or badly."""

    folder: Path
    made: tuple[Path, ...]  # folders that are new, the innermost first
    before: Path | None  # where the recording is that was there before
    spared: bool = False  # that one was put aside by an earlier try: nobody knows whether it is still wanted

    def keep(self) -> None:
        """Let the new recording stand for the one before it."""
        if self.before and not self.spared:
            _remove(self.before, (self.before,))

    def undo(self) -> None:
        """Take away the files of a recording and the folders that were made for it; put back what was there before."""
        _remove(self.folder, self.made)
        if self.before and not self.folder.exists():
            with suppress(OSError):
                self.before.rename(self.folder)


def prepare(path: Path, overwrite: bool) -> Place:
    """Make the folder; a recording in it is put aside, if that was asked for, until the new one is whole."""
    folder = Path(os.path.realpath(path))
    if folder.exists() and not folder.is_dir():
        raise SourceError(path, "is there already and is not a folder; give another path")
    before, spared = None, False
    try:
        if folder.is_dir() and any(folder.iterdir()):
            _check(path, folder, overwrite)
            before, spared = _put_aside(folder)
        made = tuple(each for each in (folder, *folder.parents) if not each.exists())
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SourceError(path, f"cannot be made: {(error.strerror or str(error)).lower()}") from None
    return Place(folder, made, before, spared)


def _put_aside(folder: Path) -> tuple[Path, bool]:
    """Move a recording out of the way; return where one waits, and whether it stays there whatever happens."""
    before, free = _waiting(folder)
    if before and is_recording(before) and not _is_complete(folder):
        _remove(folder, (folder,))  # an earlier try that was cut off: what was there before it is the one to keep
        return before, _is_complete(before)
    return folder.rename(free), False


def _waiting(folder: Path) -> tuple[Path | None, Path]:
    """Return where a recording was put aside last, if one was, and where the next one may wait."""
    last = None
    for number in count(1):
        path = folder.with_name(f"{folder.name}{BEFORE_SUFFIX}{number if number > 1 else ''}")
        if not path.exists():
            break
        last = path
    return last, path


def put_aside(path: str | os.PathLike[str]) -> Path | None:
    """Return where a whole recording still waits that was to be overwritten by the one here."""
    before, _ = _waiting(Path(os.path.realpath(path)))
    return before if before and is_recording(before) and _is_complete(before) else None


def _is_complete(folder: Path) -> bool:
    try:
        with open(folder / MANIFEST, "rb") as file:
            return json.loads(file.read()).get("complete") is True
    except (OSError, ValueError):
        return False


def _remove(folder: Path, made: Sequence[Path]) -> None:
    """Take away what belongs to a recording; nothing else."""
    with suppress(OSError):  # what cannot be taken away stays, and so does the folder around it
        # the manifest goes last: until then the folder is known for what it is
        for path in sorted(folder.iterdir(), key=lambda path: path.name == MANIFEST):
            if _ours(path):
                path.unlink()
        for each in made:
            each.rmdir()


def _check(path: Path, folder: Path, overwrite: bool) -> None:
    if not is_recording(folder):
        raise SourceError(path, "is there already and holds no recording; give another path")
    if not overwrite:
        raise SourceError(path, "holds a recording already; overwrite it with --overwrite (overwrite=True)")
    foreign = sorted(each.name for each in folder.iterdir() if not _ours(each))
    if foreign:
        raise SourceError(path, f"holds more than a recording ({', '.join(foreign[:3])}); give another path")


def _ours(path: Path) -> bool:
    name = path.name.removesuffix(PART_SUFFIX)
    return path.is_file() and (name in (MANIFEST, EVENTS) or SHARD.match(name) is not None)


def dump_manifest(body: dict[str, object], meta: dict[str, object]) -> str:
    """Return the manifest's text, a line for each thing: the format first, so that a glance recognises it.

    No indent: with one the encoder in Python is used, which is slow for a model of many modules.
    """
    lines = [f" {json.dumps(key)}: {dumps(value)}" for key, value in body.items()]
    inner = ",\n".join(f"  {json.dumps(key)}: {_rows(value)}" for key, value in meta.items())
    return "{\n" + ",\n".join([*lines, f' "meta": {{\n{inner}\n }}']) + "\n}\n"


def _rows(value: object) -> str:
    if not (isinstance(value, list) and value and all(isinstance(each, dict) for each in value)):
        return dumps(value)
    return "[\n" + ",\n".join(f"   {dumps(each)}" for each in value) + "\n  ]"
