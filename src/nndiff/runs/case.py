"""Two runs side by side, as the search for causes sees them: steps that belong together and rows of numbers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nndiff.facts.runs import RunFacts
from nndiff.runs.run import Run, Step, StepTensors, TensorKey, TensorKind
from nndiff.stats.sketches import RawArray, fold_sketch, sketch_exact_row, sketch_tensors

INITIAL = -1  # the place of the state before the first step, among the steps that both runs have

_WIDEST_SKETCH = 1 << 16  # of a whole tensor that is larger: a row is never as large as a large tensor
_KEPT_STATES = 8  # steps whose tensors stay in memory


class Where(IntEnum):
    """Choose a run."""

    REFERENCE = 0
    CANDIDATE = 1


@dataclass(frozen=True)
class StepPair:
    """Name the places of one step in the two runs."""

    reference: int
    candidate: int


@dataclass
class RunCase:
    """Hold two runs, which of their steps and tensors belong together, and what was found out so far.

    A *row* is what was kept of a tensor: all its elements, or its sketch. Rows of one parameter have one width here,
    whatever they are of (weights, gradients, optimiser state, either run, any step), so linear algebra between them
    estimates the linear algebra of the tensors; it is exact where `is_exact`. Functions of single elements (a square
    root, a clamp) may be computed on exact rows only.
    """

    reference: Run
    candidate: Run
    names: Mapping[str, str]  # parameters and buffers: the reference's name to the candidate's
    steps: Sequence[StepPair]  # those that both runs have, in order; tensors may be missing at some
    facts: RunFacts
    _states: OrderedDict[tuple[Where, int], StepTensors] = field(default_factory=OrderedDict)

    def run(self, where: Where) -> Run:
        """Return one of the runs."""
        return self.candidate if where else self.reference

    def step(self, where: Where, place: int) -> Step:
        """Return the step at a place in `steps`."""
        pair = self.steps[place]
        return self.run(where).steps[pair.candidate if where else pair.reference]

    def has_tensors(self, where: Where, place: int) -> bool:
        """Return True if the tensors of a step were recorded; INITIAL is the state before the first."""
        if place == INITIAL:
            return self.run(where).has_initial
        return self.step(where, place).has_tensors

    def tensors(self, where: Where, place: int) -> StepTensors:
        """Return the tensors of a step; INITIAL is the state before the first."""
        if (where, place) not in self._states:
            position = None
            if place != INITIAL:
                pair = self.steps[place]
                position = pair.candidate if where else pair.reference
            self._states[where, place] = self.run(where).read_tensors(position)
            while len(self._states) > _KEPT_STATES:
                self._states.popitem(last=False)
        return self._states[where, place]

    @cached_property
    def tensor_places(self) -> list[int]:
        """Return the places in `steps` at which both runs have tensors, INITIAL first if both have it."""
        places = [place for place in range(len(self.steps)) if self._both_have_tensors(place)]
        return [INITIAL, *places] if self._both_have_tensors(INITIAL) else places

    def _both_have_tensors(self, place: int) -> bool:
        return self.has_tensors(Where.REFERENCE, place) and self.has_tensors(Where.CANDIDATE, place)

    def is_consecutive(self, place: int) -> bool:
        """Return True if both runs kept tensors right before a step too, so that its update is known."""
        if not self._both_have_tensors(place):
            return False
        if place == 0:
            return self.step(Where.REFERENCE, 0).number == 0 and self._both_have_tensors(INITIAL)
        for where in Where:
            if self.step(where, place).number != self.step(where, place - 1).number + 1:
                return False
        return self._both_have_tensors(place - 1)

    def key(self, where: Where, kind: TensorKind, name: str, state: str = "") -> TensorKey:
        """Return the key of a tensor in a run, by the reference's name."""
        return TensorKey(kind, self.names[name] if where else name, state)

    @cached_property
    def parameter_names(self) -> tuple[str, ...]:
        """Return the parameters that both runs have, by the reference's names, in its order."""
        if not self.tensor_places:
            return ()
        keys = self.tensors(Where.REFERENCE, self.tensor_places[0]).keys
        return tuple(key.name for key in keys if key.kind is TensorKind.WEIGHT and key.name in self.names)

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """Return how many numbers each parameter and buffer has; those that have more on one side are left out."""
        counts: dict[str, int] = {}
        for name in self.names:
            sizes = set()
            for where in Where:
                tensors = self.tensors(where, self.tensor_places[0])
                for kind in (TensorKind.WEIGHT, TensorKind.BUFFER):
                    row = tensors.rows.get(self.key(where, kind, name))
                    if row is not None:
                        sizes.add(int(tensors.counts[row]))
            if len(sizes) == 1:
                counts[name] = sizes.pop()
        return counts

    @cached_property
    def widths(self) -> Mapping[str, int]:
        """Return the width of the rows of each parameter and buffer; 0 where rows cannot be compared."""
        widths: dict[str, int] = {}
        seeds = set()
        places = self.tensor_places[:2]  # the optimiser has no state before the first step
        for place in places:
            for where in Where:
                tensors = self.tensors(where, place)
                seeds.add(tensors.seed)
                references = {partner: name for name, partner in self.names.items()} if where else {}
                for row, key in enumerate(tensors.keys):
                    name = references.get(key.name, "") if where else key.name
                    # a counter or a factor of a state is no row of its parameter
                    if name in self.counts and tensors.counts[row] == self.counts[name]:
                        width = min(int(tensors.kept_widths[row]), max(_WIDEST_SKETCH, int(tensors.widths[row])))
                        widths[name] = min(widths.get(name, width), width)
        for name, width in widths.items():
            if width < self.counts.get(name, 0) and len(seeds) > 1:
                widths[name] = 0  # sketches of different seeds have nothing in common
        return {name: widths.get(name, 0) for name in self.names}

    def is_exact(self, name: str) -> bool:
        """Return True if the rows of a parameter are all its elements."""
        return name in self.counts and self.widths[name] == self.counts[name]

    def row(self, where: Where, place: int, kind: TensorKind, name: str, state: str = "") -> NDArray[np.float64] | None:
        """Return the row of a tensor by the reference's name, or None where the step lacks it."""
        tensors = self.tensors(where, place)
        number = tensors.rows.get(self.key(where, kind, name, state))
        width = self.widths.get(name, 0)
        if number is None or tensors.counts[number] != self.counts.get(name):
            return None
        if width == 0 and tensors.counts[number]:  # the row of an empty tensor is empty
            return None
        return read_row(tensors, number, width)

    def statistics(
        self, where: Where, place: int, kind: TensorKind, name: str, state: str = ""
    ) -> NDArray[np.float64] | None:
        """Return l2, mean, std, min, max and the count of elements that are not finite, exact, or None."""
        tensors = self.tensors(where, place)
        number = tensors.rows.get(self.key(where, kind, name, state))
        return None if number is None else tensors.statistics[number]

    def state_names(self, where: Where, place: int) -> tuple[str, ...]:
        """Return the kinds of optimiser state a step has: exp_avg, exp_avg_sq, momentum_buffer, step, ..."""
        keys = self.tensors(where, place).keys
        return tuple(dict.fromkeys(key.state for key in keys if key.kind is TensorKind.STATE))


def read_row(tensors: StepTensors, number: int, width: int) -> NDArray[np.float64]:
    """Return the elements of a tensor where `width` is their count, else its sketch of that width."""
    count = int(tensors.counts[number])
    whole = tensors.whole(number)
    if whole is not None:
        elements = np.ascontiguousarray(whole.numpy())
        if width == count:
            return elements.reshape(-1).astype(np.float64)
        return sketch_tensors([RawArray.from_array(elements)], [width], tensors.seed).sketches.astype(np.float64)
    kept = tensors.sketch(number)
    if kept.size == width:
        return kept.astype(np.float64)
    return sketch_exact_row(kept, width, tensors.seed) if kept.size == count else fold_sketch(kept, width)
