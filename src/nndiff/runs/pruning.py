"""Thin out a training run: tensors of fewer steps, or less of each; scalars and fingerprints of all steps stay."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from nndiff.errors import SourceError, UsageError
from nndiff.recording.format.shards import describe_disk_error, write_atomically
from nndiff.runs.files import DESCRIPTION, KEEP_LEVELS, STEPS, measure_folder
from nndiff.runs.folder import FolderLock
from nndiff.runs.lines import RunHeader, StepLine, header_to_text, step_to_line
from nndiff.runs.reader import RecordedRun, open_recorded_run
from nndiff.runs.run import StepTensors
from nndiff.runs.store import StateStore

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Pruned:
    """Say what pruning did."""

    steps_before: int  # with tensors
    steps_after: int
    bytes_before: int
    bytes_after: int


def prune_run(
    path: str | os.PathLike[str],
    *,
    keep_every: int | None = None,
    last: int | None = None,
    to: str | None = None,
    progress: Progress | None = None,
) -> Pruned:
    """Drop tensors from a run and return what that freed.

    Tensors stay at steps whose number is a multiple of `keep_every`, at the `last` recorded ones, at the first step
    and before it; without these two, at all. `to` keeps only sketches or statistics of them.
    """
    if keep_every is None and last is None and to is None:
        raise UsageError("say what to drop: keep_every, last or to")
    folder = Path(path)
    run = open_recorded_run(folder)  # says what is wrong with it before anything is touched
    _check_level(run, to)
    try:
        lock = FolderLock(folder)
        try:
            return _prune_folder(folder, keep_every, last, to, progress)
        finally:
            lock.release()
    except OSError as error:
        raise SourceError(folder, f"cannot be pruned: {describe_disk_error(error)}") from None


def _check_level(run: RecordedRun, to: str | None) -> None:
    kept = run.description.keep
    if to is not None and (to not in KEEP_LEVELS[:2] or KEEP_LEVELS.index(to) > KEEP_LEVELS.index(kept)):
        raise UsageError(f"{run.label} keeps {kept}, of which {to} cannot be made; only less than it keeps can")


def _prune_folder(
    folder: Path, keep_every: int | None, last: int | None, to: str | None, progress: Progress | None
) -> Pruned:
    """Write new state files and then the new steps.jsonl in one rename; until that, the run is as it was."""
    run = open_recorded_run(folder)
    bytes_before = measure_folder(folder)
    steps_before = sum(step.has_tensors for step in run.steps)
    chosen = _choose_places(run, keep_every, last)
    store = StateStore(folder, run.lines.layouts)
    try:
        rewrites = _must_rewrite(run, chosen, to)
        lines = []
        for done, (place, line) in enumerate(_list_lines(run)):
            if line.state is not None and rewrites and place in chosen:
                line = store.write(line.step, _reduce_tensors(run.read_tensors(place), to))
            elif line.step is not None and place not in chosen:
                line = StepLine(line.step)
            lines.append(line)
            if progress is not None:
                progress(done + 1, len(run.steps) + 1)
        write_atomically(folder / STEPS, b"".join(step_to_line(line) for line in lines).decode())
        store.remove_unused_files(line.state for line in lines if line.state is not None)
    finally:
        store.close()
    if to is not None:
        header = RunHeader(replace(run.description, keep=to), run.seed)
        write_atomically(folder / DESCRIPTION, header_to_text(header))
    steps_after = sum(line.step is not None and line.state is not None for line in lines)
    return Pruned(steps_before, steps_after, bytes_before, measure_folder(folder))


def _list_lines(run: RecordedRun) -> list[tuple[int | None, StepLine]]:
    """Return all lines with their places; the initial state has none."""
    lines: list[tuple[int | None, StepLine]] = []
    if run.lines.initial is not None:
        lines.append((None, run.lines.initial))
    return [*lines, *enumerate(run.lines.steps)]


def _choose_places(run: RecordedRun, keep_every: int | None, last: int | None) -> set[int | None]:
    """Return the places whose tensors stay, None for the initial state."""
    recorded = [place for place, step in enumerate(run.steps) if step.has_tensors]
    chosen: set[int | None] = {None, 0}
    if keep_every is None and last is None:
        chosen.update(recorded)
    if keep_every is not None:
        chosen.update(place for place in recorded if run.steps[place].number % keep_every == 0)
    if last:
        chosen.update(recorded[-last:])
    return chosen


def _must_rewrite(run: RecordedRun, chosen: set[int | None], to: str | None) -> bool:
    """Return True if the states that stay hold too much, or look for tensors in files that go."""
    if to is not None and to != run.description.keep:
        return True
    kept_files, wanted_files = set(), set()
    for place, line in _list_lines(run):
        if place in chosen and line.state is not None:
            kept_files.add(line.state)
            wanted_files |= run.find_homes(place)
    return not wanted_files <= kept_files


def _reduce_tensors(tensors: StepTensors, to: str | None) -> StepTensors:
    """Return tensors without what the level does not keep."""
    if to is None:
        return tensors
    if to == "sketch":
        return replace(tensors, tensors=())
    widths = np.zeros(len(tensors.keys), np.int64)
    return replace(tensors, tensors=(), widths=widths, sketches=np.empty(0, np.float32))
