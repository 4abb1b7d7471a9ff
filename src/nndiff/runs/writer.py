"""Write a training run step by step: a step is on disk when `write_step` returns, and a kill loses no earlier one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from nndiff.errors import SourceError, UsageError
from nndiff.recording.format.shards import describe_disk_error, write_atomically
from nndiff.runs.files import (
    DESCRIPTION,
    KEEP_LEVELS,
    STEPS,
    is_run,
    list_foreign_files,
)
from nndiff.runs.folder import FolderLock, LineFile
from nndiff.runs.lines import RunHeader, StepLine, header_to_text, step_to_line
from nndiff.runs.reader import get_mark, read_run_header, read_run_lines
from nndiff.runs.run import RunDescription, Step, StepTensors
from nndiff.runs.store import StateStore
from nndiff.text import first_few

Mark = tuple[int, int]  # epoch and batch


class RunWriter:
    """Append steps to the folder of a run; a folder that holds a run already is resumed."""

    def __init__(self, path: str | os.PathLike[str], keep: str = "sketch", seed: int = 0) -> None:
        self.path = Path(path)
        if keep not in KEEP_LEVELS:
            raise UsageError(f"keep must be one of {', '.join(KEEP_LEVELS)}, not {keep!r}")
        self._is_open = False
        with self._report_disk_errors():
            self._prepare_folder()
            self._lock = FolderLock(self.path)
        try:
            with self._report_disk_errors():
                self._begin(keep, seed)
        except BaseException:
            self._lock.release()
            raise
        self._is_open = True

    def _prepare_folder(self) -> None:
        """Create the folder; refuse one that holds something else."""
        if self.path.exists() and not self.path.is_dir():
            raise SourceError(self.path, "exists and is not a folder; give another path")
        self.path.mkdir(parents=True, exist_ok=True)
        foreign = list_foreign_files(self.path)
        if foreign and not is_run(self.path):
            raise SourceError(
                self.path, f"holds something that is not a training run ({first_few(foreign)}); give another path"
            )

    def _begin(self, keep: str, seed: int) -> None:
        """Read what the folder holds, or write the description of a new run."""
        folder = os.fspath(self.path)
        self._header = RunHeader(RunDescription(keep), seed)
        is_resumed = is_run(folder)
        if is_resumed:
            self._header = read_run_header(folder)
            recorded = self._header.description.keep
            if (recorded, self._header.seed) != (keep, seed):
                raise UsageError(
                    f"{folder} holds a run with keep={recorded!r} and seed={self._header.seed}; resume it with the "
                    "same, or give another path"
                )
        else:
            self._write_header()
        self._step_file = LineFile(self.path / STEPS)
        lines = read_run_lines(folder)
        self._initial_state = lines.initial.state if lines.initial else None
        self._marks: dict[int, Mark | None] = {}  # of each step, by its number
        self._numbers: dict[Mark, int] = {}
        self._states: dict[int, int] = {}  # which file has the tensors of a step
        self.first_number: int | None = None  # of the steps there are
        self.first_epoch: int | None = None
        self.last_number = -1
        for line in lines.steps:
            if line.step is not None:
                self._note_step(line.step, line.state)
        self._store = StateStore(self.path, lines.layouts)
        if keep == "full":
            for recorded_line in (lines.initial, *lines.steps):
                if recorded_line is not None:
                    self._store.read_homes(recorded_line)
        self._remove_unused_files()

    def _note_step(self, step: Step, state: int | None) -> bool:
        """Remember a step instead of those that it replaces; return True if one of those had tensors."""
        mark = get_mark(step)
        had_tensors = False
        for number in {step.number, self._numbers.get(mark, step.number) if mark else step.number}:
            if number in self._marks:
                earlier_mark = self._marks.pop(number)
                if earlier_mark is not None:
                    del self._numbers[earlier_mark]
                had_tensors |= self._states.pop(number, None) is not None
        self._marks[step.number] = mark
        if mark is not None:
            self._numbers[mark] = step.number
        if state is not None:
            self._states[step.number] = state
        if self.first_number is None or step.number <= self.first_number:
            self.first_number, self.first_epoch = step.number, step.epoch
        self.last_number = max(self.last_number, step.number)
        return had_tensors

    @property
    def description(self) -> RunDescription:
        """Return what run.json says."""
        return self._header.description

    @property
    def has_initial(self) -> bool:
        """Return True if the state before the first step was kept."""
        return self._initial_state is not None

    def find_number(self, epoch: int | None, batch: int | None) -> int | None:
        """Return the number of the step with this epoch and batch, if the run has it."""
        return None if epoch is None or batch is None else self._numbers.get((epoch, batch))

    def describe(self, description: RunDescription) -> None:
        """Write what is known of the run as a whole, if that is new."""
        if description != self._header.description:
            with self._report_disk_errors():
                self._header = replace(self._header, description=description)
                self._write_header()

    def _write_header(self) -> None:
        write_atomically(self.path / DESCRIPTION, header_to_text(self._header))

    def write_initial(self, tensors: StepTensors) -> None:
        """Write the state before the first step."""
        self._check_open()
        with self._report_disk_errors():
            line = self._store.write(None, tensors)
            self._step_file.append(step_to_line(line))
            self._initial_state = line.state

    def write_step(self, step: Step, tensors: StepTensors | None = None) -> None:
        """Write a step; it replaces earlier ones with its number, or with its epoch and batch."""
        self._check_open()
        with self._report_disk_errors():
            line = StepLine(step) if tensors is None else self._store.write(step, tensors)
            self._step_file.append(step_to_line(line))  # only now is the step there
            if self._note_step(step, line.state):
                self._remove_unused_files()

    def _remove_unused_files(self) -> None:
        initial_states = [] if self._initial_state is None else [self._initial_state]
        self._store.remove_unused_files([*initial_states, *self._states.values()])

    def _check_open(self) -> None:
        if not self._is_open:
            raise UsageError(f"{self.path}: a step was recorded after close()")

    def close(self) -> None:
        """Finish; steps that were written stay as they are."""
        if self._is_open:
            self._is_open = False
            self._step_file.close()
            self._store.close()
            self._lock.release()

    @contextmanager
    def _report_disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SourceError(self.path, f"cannot be written: {describe_disk_error(error)}") from None
