"""The folder of a recording: created, recognised, replaced; a folder with anything else in it is left alone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from nndiff.errors import SourceError
from nndiff.files import RegularFile, Window
from nndiff.recording.format.layout import EVENTS, FORMAT, MANIFEST, SHARD_NAME
from nndiff.recording.format.shards import PART_SUFFIX

BEFORE_SUFFIX = ".before"  # of a recording that is being overwritten, until the new one is complete
# Notes on a run that failed midway: where its recording is, and where the one is that it was to overwrite.
LEFT = "what ran before is in"
FINISHED = "what was finished before can be read"
BEFORE = "the recording that was there is in"


class LeftoverNote(str):
    """A note on an error that says what the failed run left on disk."""

    __slots__ = ()


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error, as its add_note does from Python 3.11 on."""
    vars(error).setdefault("__notes__", []).append(note)


def drop_leftover_notes(error: BaseException) -> None:
    """Remove the notes on what the failed run left on disk, because it is no longer there."""
    notes = [note for note in getattr(error, "__notes__", ()) if not isinstance(note, LeftoverNote)]
    if notes:
        vars(error)["__notes__"] = notes
    else:
        vars(error).pop("__notes__", None)


def is_recording(folder: Path) -> bool:
    """Return True if a folder holds a recording, complete or not."""
    try:
        head = Window(RegularFile(os.fspath(folder / MANIFEST))).head(4096)
    except SourceError:
        return False
    return f'"{FORMAT}"'.encode() in head


def refuse_packed(path: str, names: Iterable[str]) -> None:
    """Raise SourceError for an archive of a recording: read as a checkpoint it would lose its order and its digests."""
    members = set(names)
    for name in members:
        folder, slash, file_name = name.rpartition("/")
        if file_name == MANIFEST and folder + slash + EVENTS in members:
            raise SourceError(path, "a recording in an archive; unpack it and give its folder")


@dataclass(frozen=True)
class RecordingFolder:
    """Hold where a recording is written, and how to end that well or badly."""

    path: Path
    created: tuple[Path, ...]  # new folders, the innermost first
    before: Path | None  # where the overwritten recording waits
    keeps_before: bool = False  # an earlier attempt put that one aside: it may still be wanted

    def accept(self) -> None:
        """Let the new recording replace the one before it."""
        if self.before and not self.keeps_before:
            _remove_recording(self.before, (self.before,))

    def undo(self) -> None:
        """Remove the new recording and its folders; put back what was there before."""
        _remove_recording(self.path, self.created)
        if self.before and not self.path.exists():
            with suppress(OSError):
                self.before.rename(self.path)


def prepare_folder(path: Path, overwrite: bool) -> RecordingFolder:
    """Create the folder; with `overwrite` a recording in it is put aside until the new one is complete."""
    folder = Path(os.path.realpath(path))
    if folder.exists() and not folder.is_dir():
        raise SourceError(path, "exists and is not a folder; give another path")
    before, keeps_before = None, False
    try:
        if folder.is_dir() and any(folder.iterdir()):
            _check_replaceable(path, folder, overwrite)
            before, keeps_before = _put_aside(folder)
        created = tuple(parent for parent in (folder, *folder.parents) if not parent.exists())
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SourceError(path, f"cannot be created: {(error.strerror or str(error)).lower()}") from None
    return RecordingFolder(folder, created, before, keeps_before)


def _check_replaceable(path: Path, folder: Path, overwrite: bool) -> None:
    if not is_recording(folder):
        raise SourceError(path, "exists and is not a recording; give another path")
    if not overwrite:
        raise SourceError(path, "holds a recording already; overwrite it with --overwrite (overwrite=True)")
    foreign = sorted(file.name for file in folder.iterdir() if not _is_recording_file(file))
    if foreign:
        raise SourceError(path, f"holds other files than a recording ({', '.join(foreign[:3])}); give another path")


def _put_aside(folder: Path) -> tuple[Path, bool]:
    """Move a recording out of the way; return where one waits, and whether it stays there whatever happens."""
    before, free_path = _find_before(folder)
    if before and is_recording(before) and not _is_complete(folder):
        _remove_recording(folder, (folder,))  # an attempt that was cut off: the one before it is the one to keep
        return before, _is_complete(before)
    return folder.rename(free_path), False


def _find_before(folder: Path) -> tuple[Path | None, Path]:
    """Return where a recording was last put aside, if one was, and where the next one may go."""
    last = None
    for number in count(1):
        path = folder.with_name(f"{folder.name}{BEFORE_SUFFIX}{number if number > 1 else ''}")
        if not path.exists():
            break
        last = path
    return last, path


def put_aside(path: str | os.PathLike[str]) -> Path | None:
    """Return the complete recording that the one here was to overwrite, if it still waits."""
    before, _ = _find_before(Path(os.path.realpath(path)))
    return before if before and is_recording(before) and _is_complete(before) else None


def _is_complete(folder: Path) -> bool:
    try:
        window = Window(RegularFile(os.fspath(folder / MANIFEST)))
        manifest = json.loads(window.read(0, window.size))
    except (SourceError, ValueError, RecursionError):
        return False
    return isinstance(manifest, dict) and manifest.get("complete") is True


def _remove_recording(folder: Path, folders: Sequence[Path]) -> None:
    """Remove the files of a recording, then these folders; nothing else."""
    with suppress(OSError):  # a file that cannot be removed stays, and so does the folder around it
        # the manifest goes last: until then the folder is recognised
        for path in sorted(folder.iterdir(), key=lambda path: path.name == MANIFEST):
            if _is_recording_file(path):
                path.unlink()
        for empty_folder in folders:
            empty_folder.rmdir()


def _is_recording_file(path: Path) -> bool:
    name = path.name.removesuffix(PART_SUFFIX)
    return path.is_file() and (name in (MANIFEST, EVENTS) or SHARD_NAME.match(name) is not None)
