"""Where the tensors of a run go: one state file for each recorded step, layouts and whole tensors once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from nndiff.runs.files import LAYOUTS, PART_SUFFIX, name_state, parse_state_name
from nndiff.runs.folder import LineFile
from nndiff.runs.lines import Layout, StepLine, layout_to_line
from nndiff.runs.run import Step, StepTensors
from nndiff.runs.states import State, read_state, split_digests, write_state
from nndiff.tensors import TensorRef


class StateStore:
    """Write state files under numbers that were never used before."""

    def __init__(self, folder: Path, layouts: Sequence[Layout]) -> None:
        self._folder = folder
        self._layouts = list(layouts)
        self._layout_file = LineFile(folder / LAYOUTS)
        self._layout_numbers: dict[object, int] = {}
        for number, layout in enumerate(layouts):
            self._layout_numbers[_identify(layout)] = number
        self._last_layout: Layout | None = None
        self._last_layout_number = -1
        self._homes: dict[str, int] = {}  # which state file has the tensor of a digest
        self._used_homes: dict[int, set[int]] = {}  # which files each state looks for its tensors in
        numbers = [parse_state_name(name.removesuffix(PART_SUFFIX)) for name in os.listdir(folder)]
        self._next_state = 1 + max((number for number in numbers if number is not None), default=-1)

    def read_homes(self, line: StepLine) -> None:
        """Remember where the whole tensors of a step are, if it has tensors."""
        if line.state is not None and line.layout is not None:
            path = os.fspath(self._folder / name_state(line.state))
            self._note_homes(line.state, read_state(path, self._layouts[line.layout], line.crc))

    def _note_homes(self, number: int, state: State) -> None:
        if state.homes is None:
            return
        homes = state.homes.tolist()
        self._used_homes[number] = set(homes) - {-1}
        for digest, home in zip(split_digests(state.digests), homes, strict=True):
            if home >= 0:
                self._homes[digest] = home

    def write(self, step: Step | None, tensors: StepTensors) -> StepLine:
        """Write a state file, and its layout if that is new; return the line of the step, None: the initial state."""
        number, self._next_state = self._next_state, self._next_state + 1
        layout_number = self._find_layout(tensors)
        new_tensors: dict[str, TensorRef] = {}
        homes = None
        if tensors.tensors:
            homes = np.full(len(tensors.keys), -1, np.int64)
            for row, digest in enumerate(split_digests(tensors.digests)):
                tensor = tensors.tensors[row]
                if tensor is not None:
                    homes[row] = self._homes.get(digest, number)
                    if homes[row] == number:
                        new_tensors[digest] = tensor
        state = State(tensors.statistics, tensors.digests, tensors.sketches, homes)
        write_state(self._folder / name_state(number), state, new_tensors)
        self._note_homes(number, state)
        return StepLine(step, number, layout_number, state.compute_crc())

    def _find_layout(self, tensors: StepTensors) -> int:
        """Return the number of a layout, after writing it if it is new."""
        layout = Layout(tensors.keys, tensors.shapes, tensors.dtypes, tensors.widths)
        if self._last_layout is None or not _is_repeated(layout, self._last_layout):
            identity = _identify(layout)
            if identity not in self._layout_numbers:
                self._layout_file.append(layout_to_line(layout))
                self._layout_numbers[identity] = len(self._layouts)
                self._layouts.append(layout)
            self._last_layout, self._last_layout_number = layout, self._layout_numbers[identity]
        return self._last_layout_number

    def remove_unused_files(self, states: Iterable[int]) -> None:
        """Remove files that these states do not need: replaced ones, and what a killed writer left."""
        used = set(states)
        for number in list(used):
            used |= self._used_homes.get(number, set())
        self._homes = {digest: home for digest, home in self._homes.items() if home in used}
        for file_name in os.listdir(self._folder):
            file_number = parse_state_name(file_name)
            if file_name.endswith(PART_SUFFIX) or (file_number is not None and file_number not in used):
                os.unlink(self._folder / file_name)

    def close(self) -> None:
        """Close the file of layouts."""
        self._layout_file.close()


def _identify(layout: Layout) -> object:
    """Return what two layouts share if and only if they are equal."""
    return (layout.keys, layout.shapes, layout.dtypes, layout.widths.tobytes())


def _is_repeated(layout: Layout, last: Layout) -> bool:
    """Return True if the very objects are given again: comparing the names would take a millisecond."""
    return (
        layout.keys is last.keys
        and layout.shapes is last.shapes
        and layout.dtypes is last.dtypes
        and np.array_equal(layout.widths, last.widths)
    )
