"""Read a training run that TrainingRecorder wrote: without torch, step by step, and without trusting what it says."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nndiff.dtypes import find_dtype
from nndiff.errors import SourceError, UnsafeFileError
from nndiff.files import RegularFile, Window
from nndiff.recording.format.checks import ElementChecker, ElementClaim
from nndiff.runs.files import (
    DESCRIPTION,
    DESCRIPTION_LIMIT,
    FORMAT,
    LAYOUT_LIMIT,
    LAYOUTS,
    STEP_LIMIT,
    STEPS,
    is_run,
    measure_folder,
    name_state,
)
from nndiff.runs.lines import (
    Layout,
    RunHeader,
    StepLine,
    line_to_layout,
    line_to_step,
    split_lines,
    text_to_header,
)
from nndiff.runs.run import Run, RunDescription, Step, StepTensors
from nndiff.runs.states import State, fits_stored_tensor, read_state, read_whole_tensors, split_digests
from nndiff.tensors import FileData, TensorRef
from nndiff.text import printable

_INDEXES_KEPT = 16  # headers of state files with whole tensors, which many steps may share

__all__ = ["RecordedRun", "is_run", "open_run"]


@dataclass(frozen=True)
class RunLines:
    """Hold the lines of a run: what each step is, and where its tensors are."""

    initial: StepLine | None
    steps: tuple[StepLine, ...]  # by number, repeated ones replaced
    layouts: tuple[Layout, ...]


class RecordedRun:
    """Be a training run in a folder."""

    def __init__(self, path: str, header: RunHeader, lines: RunLines) -> None:
        self.path = path
        self.lines = lines
        self._header = header
        self._steps = tuple(line.step for line in lines.steps if line.step is not None)
        self._indexes: OrderedDict[int, dict[str, TensorRef]] = OrderedDict()
        self._checker = ElementChecker(path)

    @property
    def label(self) -> str:
        """Return what the run is called: its path."""
        return self.path

    @property
    def description(self) -> RunDescription:
        """Return what is known of the run as a whole."""
        return self._header.description

    @property
    def seed(self) -> int:
        """Return the seed of the sketches."""
        return self._header.seed

    @property
    def steps(self) -> Sequence[Step]:
        """Return the steps in the order they were made, without repetitions."""
        return self._steps

    @property
    def has_initial(self) -> bool:
        """Return True if the state before the first step was kept."""
        return self.lines.initial is not None

    def read_tensors(self, step: int | None) -> StepTensors:
        """Return the tensors of the step at this place in `steps`; None: the state before the first."""
        layout, state = self._read_state(step)
        tensors = StepTensors(
            keys=layout.keys,
            shapes=layout.shapes,
            dtypes=layout.dtypes,
            statistics=state.statistics,
            digests=state.digests,
            widths=layout.widths,
            sketches=state.sketches,
            seed=self.seed,
            tensors=() if state.homes is None else self._find_whole_tensors(layout, state),
        )
        # what follows from the layout is computed once for all steps that share it
        vars(tensors).update(rows=layout.rows, offsets=layout.offsets, counts=layout.counts)
        return tensors

    def measure_step(self, place: int) -> int | None:
        """Return how many bytes the state file of a step takes; None if no tensors were recorded there."""
        state = self.lines.steps[place].state
        if state is None:
            return None
        try:
            return os.stat(self._find_state(state)).st_size
        except OSError:  # replaced since the run was opened
            return 0

    def measure(self) -> int:
        """Return how many bytes all files of the run take."""
        return measure_folder(self.path)

    def find_homes(self, step: int | None) -> set[int]:
        """Return the numbers of the state files in which the whole tensors of a step are."""
        homes = self._read_state(step)[1].homes
        return set() if homes is None else set(homes.tolist()) - {-1}

    def _read_state(self, step: int | None) -> tuple[Layout, State]:
        line = self.lines.initial if step is None else self.lines.steps[step]
        if line is None or line.state is None or line.layout is None:
            raise LookupError("no tensors were recorded there; ask has_tensors or has_initial first")
        layout = self.lines.layouts[line.layout]
        return layout, read_state(self._find_state(line.state), layout, line.crc)

    def _find_state(self, number: int) -> str:
        return os.path.join(self.path, name_state(number))

    def _find_whole_tensors(self, layout: Layout, state: State) -> tuple[TensorRef | None, ...]:
        """Return the whole tensor of each row, in whichever state file it is."""
        assert state.homes is not None
        tensors: list[TensorRef | None] = []
        names = split_digests(state.digests)
        for row, home in enumerate(state.homes.tolist()):
            if home < 0:
                tensors.append(None)
                continue
            shape = layout.shapes[row]
            dtype = find_dtype(layout.dtypes[row])
            stored = self._read_index(home).get(names[row])
            title = printable(layout.keys[row].name, 80)
            nbytes = int(layout.counts[row]) * dtype.itemsize
            if stored is None or not isinstance(stored.data, FileData):
                raise SourceError(
                    self._find_state(home), f"does not hold {title!r}, which another state looks for here"
                )
            if not fits_stored_tensor(stored, layout.dtypes[row], nbytes):
                raise SourceError(self._find_state(home), f"holds {title!r} with another dtype or size than the layout")
            claim = ElementClaim(layout.keys[row].name, name_state(home), shape, dtype, names[row])
            data = self._checker.make_data(stored.data.window, claim)
            tensors.append(TensorRef(layout.keys[row].name, shape, dtype, data))
        return tuple(tensors)

    def _read_index(self, number: int) -> dict[str, TensorRef]:
        """Return the whole tensors in a state file; the files used last are remembered."""
        if number not in self._indexes:
            self._indexes[number] = read_whole_tensors(self._find_state(number))
        self._indexes.move_to_end(number)
        while len(self._indexes) > _INDEXES_KEPT:
            self._indexes.popitem(last=False)
        return self._indexes[number]


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a training run, finished or still being written."""
    return open_recorded_run(path)


def open_recorded_run(path: str | os.PathLike[str]) -> RecordedRun:
    """Open a training run in a folder that TrainingRecorder wrote."""
    name = os.fspath(path)
    if not os.path.isdir(name):
        raise SourceError(name, "not a folder" if os.path.lexists(name) else "no such file or directory")
    if not is_run(name):
        file_path = os.path.join(name, DESCRIPTION)
        if os.path.lexists(file_path):
            RegularFile(file_path)  # refuses a pipe, a folder or a device, and names it
        raise SourceError(name, f"not a training run: it has no {DESCRIPTION} of the format {FORMAT}")
    return RecordedRun(name, read_run_header(name), read_run_lines(name))


def read_run_header(folder: str) -> RunHeader:
    """Return what run.json says."""
    path = os.path.join(folder, DESCRIPTION)
    window = Window(RegularFile(path))
    if window.size > DESCRIPTION_LIMIT:
        raise UnsafeFileError(path, f"has {window.size:,} bytes; nndiff reads at most {DESCRIPTION_LIMIT:,}")
    return text_to_header(path, window.read(0, window.size))


def read_run_lines(folder: str) -> RunLines:
    """Return the lines of a run; of lines about the same step the last one counts."""
    step_lines = _read_step_lines(folder)  # first: a layout is written before the step that refers to it
    layouts = _read_layouts(folder)
    for line in step_lines:
        if line.layout is not None and line.layout >= len(layouts):
            raise SourceError(os.path.join(folder, STEPS), f"refers to layout {line.layout} of {len(layouts)}")
    initial, steps = select_current(step_lines)
    return RunLines(initial, steps, layouts)


def select_current(lines: Iterable[StepLine]) -> tuple[StepLine | None, tuple[StepLine, ...]]:
    """Return the line of the initial state and those of the steps by number, without the ones that were replaced.

    A line replaces all earlier ones with the same number, or with the same epoch and batch.
    """
    initial: StepLine | None = None
    by_number: dict[int, StepLine] = {}
    numbers: dict[tuple[int, int], int] = {}  # by epoch and batch
    for line in lines:
        if line.step is None:
            initial = initial or line
            continue
        mark = get_mark(line.step)
        if mark is not None:
            by_number.pop(numbers.get(mark, -1), None)
            numbers[mark] = line.step.number
        replaced = by_number.pop(line.step.number, None)
        replaced_mark = get_mark(replaced.step) if replaced and replaced.step else None
        if replaced_mark is not None and replaced_mark != mark:
            numbers.pop(replaced_mark, None)
        by_number[line.step.number] = line
    return initial, tuple(by_number[number] for number in sorted(by_number))


def get_mark(step: Step) -> tuple[int, int] | None:
    """Return epoch and batch, by which a step is known after a restart; None if either was not given."""
    return None if step.epoch is None or step.batch is None else (step.epoch, step.batch)


def _read_step_lines(folder: str) -> list[StepLine]:
    path = os.path.join(folder, STEPS)
    if not os.path.lexists(path):
        return []
    lines = []
    for number, line in split_lines(Window(RegularFile(path))):
        if number > STEP_LIMIT:
            raise UnsafeFileError(path, f"holds more than {STEP_LIMIT:,} steps")
        lines.append(line_to_step(f"{path} line {number}", line))
    return lines


def _read_layouts(folder: str) -> tuple[Layout, ...]:
    path = os.path.join(folder, LAYOUTS)
    if not os.path.lexists(path):
        return ()
    layouts = []
    for number, line in split_lines(Window(RegularFile(path))):
        if number > LAYOUT_LIMIT:
            raise UnsafeFileError(path, f"holds more than {LAYOUT_LIMIT:,} layouts")
        layouts.append(line_to_layout(f"{path} line {number}", line))
    return tuple(layouts)
