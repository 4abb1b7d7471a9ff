"""Write a training run step by step: a step is on disk when `write_step` returns, and a kill loses no earlier one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from nndiff.errors import SourceError, UsageError
from nndiff.recording.format.shards import describe_disk_error, write_atomically
from nndiff.runs.files import (
    DESCRIPTION,
    KEEP_LEVELS,
    LAYOUTS,
    LOCK,
    PART_SUFFIX,
    STEPS,
    is_run,
    list_foreign_files,
    name_state,
    parse_state_name,
)
from nndiff.runs.lines import Layout, RunHeader, StepLine, header_to_text, layout_to_line, step_to_line
from nndiff.runs.reader import get_mark, read_run_header, read_run_lines
from nndiff.runs.run import RunDescription, Step, StepTensors
from nndiff.runs.states import State, read_state, write_state
from nndiff.tensors import TensorRef
from nndiff.text import first_few

Mark = tuple[int, int]  # epoch and batch

_open_folders: set[str] = set()  # of this process, whose own locks do not exclude each other


class FolderLock:
    """Keep other writers out of a run's folder while this process lives.

    A lock of POSIX, not of flock(2): workers of a DataLoader would inherit the latter and outlive a killed training.
    """

    def __init__(self, folder: Path) -> None:
        self._name = os.path.realpath(folder)
        if self._name in _open_folders:
            raise SourceError(folder, "is being written by another recorder of this process; close that one first")
        self._fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            import fcntl

            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass  # not on Windows
        except OSError as error:
            os.close(self._fd)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise SourceError(
                folder, "is being written by another process; give each process (each rank) a folder of its own"
            ) from None
        _open_folders.add(self._name)

    def release(self) -> None:
        """Let others in."""
        os.close(self._fd)
        _open_folders.discard(self._name)


class LineFile:
    """Append lines to a file, each by one write, so that a reader sees it whole or torn at the very end."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._size = os.fstat(self._fd).st_size
        self._cut_torn_line()

    def _cut_torn_line(self) -> None:
        """Remove what a killed writer left behind the last end of a line."""
        end = self._size
        while end > 0:
            start = max(0, end - (1 << 16))
            position = os.pread(self._fd, end - start, start).rfind(b"\n")
            if position >= 0:
                end = start + position + 1
                break
            end = start
        if end < self._size:
            os.ftruncate(self._fd, end)
            self._size = end

    def append(self, line: bytes) -> None:
        """Append one line; if the disk is full the file is as it was."""
        try:
            written = os.write(self._fd, line)
            if written < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(line)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


class RunWriter:
    """Append steps to the folder of a run; a folder that holds a run already is resumed."""

    def __init__(self, path: str | os.PathLike[str], keep: str = "sketch", seed: int = 0) -> None:
        self.path = Path(path)
        if keep not in KEEP_LEVELS:
            raise UsageError(f"keep must be one of {', '.join(KEEP_LEVELS)}, not {keep!r}")
        self._keeps_whole = keep == "full"
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
        self._layout_file = LineFile(self.path / LAYOUTS)
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
        self._last_layout: Layout | None = None
        self._layout_numbers: dict[object, int] = {}
        self._layout_count = len(lines.layouts)
        for number, layout in enumerate(lines.layouts):
            identity = (layout.keys, layout.shapes, layout.dtypes, layout.widths.tobytes())
            self._layout_numbers[identity] = number
        self._homes: dict[str, int] = {}  # which state file has the tensor of a digest
        self._used_homes: dict[int, set[int]] = {}  # which files each state looks for its tensors in
        if self._keeps_whole:
            for recorded_line in (lines.initial, *lines.steps):
                if recorded_line is not None:
                    self._read_homes(recorded_line, lines.layouts)
        self._next_state = 1 + max(self._list_state_files(), default=-1)
        self._remove_unused_files()

    def _read_homes(self, line: StepLine, layouts: Sequence[Layout]) -> None:
        if line.state is None or line.layout is None:
            return
        state = read_state(os.fspath(self.path / name_state(line.state)), layouts[line.layout])
        if state.homes is not None:
            self._note_homes(line.state, state)

    def _note_homes(self, number: int, state: State) -> None:
        assert state.homes is not None
        homes = state.homes.tolist()
        self._used_homes[number] = set(homes) - {-1}
        digests = state.digests.tobytes().hex()
        for row, home in enumerate(homes):
            if home >= 0:
                self._homes[digests[32 * row : 32 * row + 32]] = home

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

    def _list_state_files(self) -> list[int]:
        numbers = [parse_state_name(name.removesuffix(PART_SUFFIX)) for name in os.listdir(self.path)]
        return [number for number in numbers if number is not None]

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
            line = self._write_tensors(None, tensors)
            self._step_file.append(step_to_line(line))
            self._initial_state = line.state

    def write_step(self, step: Step, tensors: StepTensors | None = None) -> None:
        """Write a step; it replaces earlier ones with its number, or with its epoch and batch."""
        self._check_open()
        with self._report_disk_errors():
            line = StepLine(replace(step, has_tensors=False)) if tensors is None else self._write_tensors(step, tensors)
            self._step_file.append(step_to_line(line))  # after the state file: the line says that it is there
            if self._note_step(step, line.state):
                self._remove_unused_files()

    def _write_tensors(self, step: Step | None, tensors: StepTensors) -> StepLine:
        """Write a state file, and its layout if that is new; return the line that refers to both."""
        number, self._next_state = self._next_state, self._next_state + 1
        layout_number = self._find_layout(tensors)
        new_tensors: dict[str, TensorRef] = {}
        homes = None
        if tensors.tensors:
            homes = np.full(len(tensors.keys), -1, np.int64)
            digests = tensors.digests.tobytes().hex()
            for row, tensor in enumerate(tensors.tensors):
                if tensor is not None:
                    name = digests[32 * row : 32 * row + 32]
                    homes[row] = self._homes.get(name, number)
                    if homes[row] == number:
                        new_tensors[name] = tensor
        state = State(tensors.statistics, tensors.digests, tensors.sketches, homes)
        write_state(self.path / name_state(number), state, new_tensors)
        if homes is not None:
            self._note_homes(number, state)
        recorded_step = None if step is None else replace(step, has_tensors=True)
        return StepLine(recorded_step, number, layout_number)

    def _find_layout(self, tensors: StepTensors) -> int:
        """Return the number of a layout, after writing it if it is new."""
        layout = Layout(tensors.keys, tensors.shapes, tensors.dtypes, tensors.widths)
        last = self._last_layout
        if last is None or not _is_same_layout(layout, last):  # hashing a layout takes a millisecond
            identity = (layout.keys, layout.shapes, layout.dtypes, layout.widths.tobytes())
            if identity not in self._layout_numbers:
                self._layout_file.append(layout_to_line(layout))
                self._layout_numbers[identity] = self._layout_count
                self._layout_count += 1
            self._last_layout, self._last_layout_number = layout, self._layout_numbers[identity]
        return self._last_layout_number

    def _remove_unused_files(self) -> None:
        """Remove state files that no current step needs: replaced ones, and what a killed writer left."""
        used = set(self._states.values())
        if self._initial_state is not None:
            used.add(self._initial_state)
        for number in list(used):
            used |= self._used_homes.get(number, set())
        self._homes = {name: home for name, home in self._homes.items() if home in used}
        for file_name in os.listdir(self.path):
            file_number = parse_state_name(file_name)
            if file_name.endswith(PART_SUFFIX) or (file_number is not None and file_number not in used):
                os.unlink(self.path / file_name)

    def _check_open(self) -> None:
        if not self._is_open:
            raise UsageError(f"{self.path}: a step was recorded after close()")

    def close(self) -> None:
        """Finish; steps that were written stay as they are."""
        if self._is_open:
            self._is_open = False
            self._step_file.close()
            self._layout_file.close()
            self._lock.release()

    @contextmanager
    def _report_disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SourceError(self.path, f"cannot be written: {describe_disk_error(error)}") from None


def _is_same_layout(layout: Layout, last: Layout) -> bool:
    """Return True if a recorder gave the very objects again that it gave last time."""
    return (
        layout.keys is last.keys
        and layout.shapes is last.shapes
        and layout.dtypes is last.dtypes
        and np.array_equal(layout.widths, last.widths)
    )
