"""Compare training runs step by step: what parts first, where, and how the distance develops."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.align import Rename
from nndiff.dtypes import DTYPES, find_dtype
from nndiff.errors import UsageError
from nndiff.facts.run_summary import choose_loss, is_loss
from nndiff.facts.runs import (
    ALL,
    BUFFERS,
    GroupNumbers,
    Quantity,
    RunDivergence,
    RunFacts,
    StepComparison,
    StepMark,
    WeightDetails,
)
from nndiff.judge import require_noise
from nndiff.names import matches_any
from nndiff.result import (
    CANDIDATE,
    REFERENCE,
    Comparison,
    Finding,
    Judgement,
    Leftover,
    LeftoverReason,
    Note,
    NoteSlug,
    Side,
)
from nndiff.runs.case import INITIAL, RunCase, Where
from nndiff.runs.distances import MISSING, Distances, RowPairs, measure_distances, sum_up_group
from nndiff.runs.pairing import LoneTensor, PairedNames, PairedSteps, make_mark, pair_names, pair_steps
from nndiff.runs.run import Run, Step, StepTensors, TensorKey, TensorKind
from nndiff.runs.trend import compare_losses, describe_growth, find_jumps, find_leaders
from nndiff.text import counted, plural
from nndiff.tolerance import Tolerance
from nndiff.verdict import Outcome, Verdict

Progress = Callable[[int, int], None]  # steps done, steps in all

FILTERS = (ALL, "mlp", "backbone")
HEAD_WORDS = ("mlp", "fc")  # what `--filter mlp` takes for the head; `backbone` is the rest
INITIAL_MARK = StepMark(INITIAL)
_FLOAT32 = DTYPES["float32"]  # what losses are computed in


@dataclass(frozen=True)
class RunRules:
    """Say which names of two runs belong together, which count, and which are grouped."""

    renames: Sequence[Rename] = ()
    mapping: Mapping[str, str] = field(default_factory=dict)
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    groups: Mapping[str, str] = field(default_factory=dict)  # {name: pattern}
    filter: str = ALL  # one of FILTERS

    def __post_init__(self) -> None:
        if self.filter not in FILTERS:
            raise UsageError(f"--filter {self.filter!r} is unknown: known are {', '.join(FILTERS)}")

    def counts(self, name: str) -> bool:
        """Return True if `filter` lets a parameter of this name decide."""
        return self.filter == ALL or is_head(name) is (self.filter == "mlp")

    def selects(self, name: str) -> bool:
        """Return True if a parameter of this name is compared at all."""
        if self.include and not matches_any(name, tuple(self.include)):
            return False
        return not matches_any(name, tuple(self.exclude))


def is_head(name: str) -> bool:
    """Return True for a parameter of the head, as `--filter mlp` means it."""
    return any(word in name.lower() for word in HEAD_WORDS)


def compare_runs(
    reference: Run,
    candidates: Sequence[Run],
    tolerance: Tolerance,
    rules: RunRules = RunRules(),
    progress: Progress | None = None,
) -> Comparison:
    """Compare a reference run with one or more candidates."""
    from nndiff.runs.causes import explain_runs

    require_noise(tolerance, ())  # no run was trained twice
    facts: list[RunFacts] = []
    findings: list[Finding] = []
    leftovers: list[Leftover] = []
    notes: list[Note] = []
    judgements: dict[str, Judgement] = {}
    for candidate in candidates:
        compared = compare_pair(reference, candidate, tolerance, rules, progress)
        facts.append(compared.case.facts)
        if compared.outcome is not Outcome.NOTHING:
            findings += [replace(finding, candidate=candidate.label) for finding in explain_runs(compared.case)]
        leftovers += compared.leftovers
        notes += compared.notes
        judgements[candidate.label] = Judgement(compared.outcome)
    return Comparison(
        kind="run",
        reference=_describe_side(reference),
        candidates=tuple(_describe_side(candidate) for candidate in candidates),
        tolerance=tolerance,
        pairs=(),
        judgements=judgements,
        leftovers=tuple(leftovers),
        findings=tuple(findings),
        groups=rules.groups,
        notes=tuple(dict.fromkeys(notes)),
        run=tuple(facts),
    )


@dataclass(frozen=True)
class ComparedPair:
    """Hold what the comparison of the reference with one run gives."""

    case: RunCase
    outcome: Outcome
    leftovers: tuple[Leftover, ...]
    notes: tuple[Note, ...]


def compare_pair(
    reference: Run, candidate: Run, tolerance: Tolerance, rules: RunRules, progress: Progress | None = None
) -> ComparedPair:
    """Compare two runs over all the steps they have in common, one step in memory at a time."""
    steps = pair_steps(reference, candidate)
    empty = RunFacts(candidate.label, (), {}, {}, {}, steps.only_reference, steps.only_candidate)
    case = RunCase(reference, candidate, {}, steps.pairs, empty)
    names = PairedNames({})
    if case.tensor_places:
        first = case.tensor_places[0]
        names = pair_names(
            case.tensors(Where.REFERENCE, first),
            case.tensors(Where.CANDIDATE, first),
            rules.renames,
            rules.mapping,
        )
        case.names = {name: partner for name, partner in names.names.items() if rules.selects(name)}
    watch = _Watch(case, tolerance, rules)
    places = [INITIAL, *range(len(steps.pairs))] if INITIAL in case.tensor_places else range(len(steps.pairs))
    for number, place in enumerate(places):
        watch.compare_step(place)
        if progress is not None:
            progress(number + 1, len(places))
    leftovers = tuple(_list_leftovers(names, candidate.label, rules))
    case.facts = watch.build_facts(steps)
    return ComparedPair(case, watch.judge(bool(leftovers)), leftovers, (*names.notes, *watch.list_notes()))


@dataclass(frozen=True)
class _Reading:
    """Say what one step tells of one quantity."""

    quantity: Quantity
    is_equal: bool  # bit for bit
    is_out: bool
    is_known: bool = True
    tensor: str | None = None  # the one that is farthest out


@dataclass(frozen=True)
class _Layout:
    """Hold which tensors of two steps belong together, and of what kind and group each pair is."""

    keys: tuple[tuple[TensorKey, ...], tuple[TensorKey, ...]]
    pairs: RowPairs
    kinds: Mapping[TensorKind, NDArray[np.bool_]]
    groups: Mapping[str, NDArray[np.bool_]]
    counting: NDArray[np.bool_]  # what `--filter` lets decide
    counters: NDArray[np.bool_]  # of steps: compared, but no part of a distance


class _Watch:
    """Go through the steps of two runs in order and note what parts."""

    def __init__(self, case: RunCase, tolerance: Tolerance, rules: RunRules) -> None:
        self.case = case
        self.tolerance = tolerance
        self.rules = rules
        self.steps: list[StepComparison] = []
        self.parting: dict[Quantity, StepMark] = {}
        self.first_unequal: dict[Quantity, StepMark] = {}
        self.worst: dict[Quantity, str | None] = {}  # the tensor that is farthest out when a quantity parts
        self.compared: set[Quantity] = set()
        self.has_unknown = False  # what was kept did not tell how far tensors are apart
        self.weights: list[tuple[StepMark, Distances]] = []
        self._places = frozenset(case.tensor_places)
        self._layout: _Layout | None = None

    def compare_step(self, place: int) -> None:
        """Compare one step of both runs, or the state before the first."""
        if place == INITIAL:
            distances, layout = self._measure_tensors(place)
            if layout.counting.any():
                chosen = distances.select(layout.counting)
                self._note(INITIAL_MARK, [_read_distances(Quantity.INITIAL_WEIGHTS, chosen)])
            return
        steps = self.case.step(Where.REFERENCE, place), self.case.step(Where.CANDIDATE, place)
        mark = make_mark(steps[0])
        scalars: dict[str, tuple[float, float]] = {}
        for name, value in steps[0].scalars.items():
            if name in steps[1].scalars:
                scalars[name] = value, steps[1].scalars[name]
        same_data = has_same_data(*steps)
        readings = [*_read_data(same_data), *self._read_losses(scalars)]
        numbers: dict[TensorKind, dict[str, GroupNumbers]] = {}
        if place in self._places:
            distances, layout = self._measure_tensors(place)
            readings += self._read_tensors(distances, layout)
            numbers = _sum_up_groups(distances, layout)
            is_weight = layout.kinds[TensorKind.WEIGHT] & layout.counting
            if is_weight.any():
                self.weights.append((mark, distances.select(is_weight)))
        self._note(mark, readings)
        self.steps.append(
            StepComparison(
                self.case.candidate.label,
                mark,
                _judge_step(readings),
                scalars,
                {**numbers.get(TensorKind.WEIGHT, {}), **numbers.get(TensorKind.BUFFER, {})},
                numbers.get(TensorKind.GRADIENT),
                numbers.get(TensorKind.STATE),
                same_data,
            )
        )

    def _note(self, mark: StepMark, readings: Iterable[_Reading]) -> None:
        for reading in readings:
            self.compared.add(reading.quantity)
            self.has_unknown = self.has_unknown or not reading.is_known
            if not reading.is_equal:
                self.first_unequal.setdefault(reading.quantity, mark)
            if reading.is_out and reading.quantity not in self.parting:
                self.parting[reading.quantity] = mark
                self.worst[reading.quantity] = reading.tensor

    def _read_losses(self, scalars: Mapping[str, tuple[float, float]]) -> Iterable[_Reading]:
        losses = [pair for name, pair in scalars.items() if is_loss(name)]
        if not losses:
            return
        is_equal = all(pair[0] == pair[1] or (math.isnan(pair[0]) and math.isnan(pair[1])) for pair in losses)
        is_out = False
        for name, (reference, candidate) in scalars.items():
            if is_loss(name) and not (math.isnan(reference) and math.isnan(candidate)):
                atol, rtol = self.tolerance.for_pair((name,), _FLOAT32, _FLOAT32)
                is_out = is_out or not abs(candidate - reference) <= atol + rtol * abs(reference)
        yield _Reading(Quantity.LOSS, is_equal, is_out and not is_equal)

    def _read_tensors(self, distances: Distances, layout: _Layout) -> Iterable[_Reading]:
        quantities = (
            (Quantity.WEIGHTS, (TensorKind.WEIGHT, TensorKind.BUFFER)),
            (Quantity.GRADIENTS, (TensorKind.GRADIENT,)),
            (Quantity.OPTIMIZER, (TensorKind.STATE,)),
        )
        for quantity, kinds in quantities:
            chosen = np.zeros(len(distances.names), bool)
            for kind in kinds:
                chosen |= layout.kinds[kind]
            chosen &= layout.counting
            if chosen.any():
                yield _read_distances(quantity, distances.select(chosen))

    def _measure_tensors(self, place: int) -> tuple[Distances, _Layout]:
        tensors = self.case.tensors(Where.REFERENCE, place), self.case.tensors(Where.CANDIDATE, place)
        keys = tensors[0].keys, tensors[1].keys
        if self._layout is None or self._layout.keys != keys:
            self._layout = _lay_out(*tensors, self.case.names, self.rules, self.tolerance)
        distances = measure_distances(*tensors, self._layout.pairs)
        return distances, self._layout

    def judge(self, has_leftovers: bool) -> Outcome:
        """Return the outcome of the comparison: rules 1 and 4."""
        if not self.steps or not self.compared - {Quantity.INITIAL_WEIGHTS, Quantity.DATA}:
            return Outcome.NOTHING
        if self.parting or has_leftovers or self.has_unknown:
            return Outcome.DIFFERENT
        return Outcome.CLOSE if self.first_unequal else Outcome.IDENTICAL

    def list_notes(self) -> Iterable[Note]:
        """Yield what the reader should know."""
        if self.has_unknown:
            text = (
                "only statistics were kept of tensors that are not the same: record with keep='sketch' to know how far"
            )
            yield Note(NoteSlug.NOT_KEPT, text)
        with_tensors = sum(place != INITIAL for place in self._places)
        if with_tensors < len(self.steps):
            text = (
                f"tensors were compared at {with_tensors:,} of {plural(len(self.steps), 'step')}; of the others only "
                "scalars and batches were recorded on both sides"
            )
            yield Note(NoteSlug.RECORDED_WITHOUT, text)
        if self.rules.filter != ALL:
            yield Note(NoteSlug.LEFT_OUT, f"--filter {self.rules.filter}: only these parameters decide")
        for group, is_member in self._layout.groups.items() if self._layout else ():
            if not is_member.any():
                text = f"the group {group!r} is empty: no parameter that both runs have is in it"
                yield Note(NoteSlug.RULE_WITHOUT_EFFECT, text)
        yield from self._note_lone_scalars()
        if any(name != partner for name, partner in self.case.names.items()):
            text = "some parameters have other names in the candidate: paired by prefix, rule or equal content"
            yield Note(NoteSlug.PAIRED_BY_WEIGHTS, text)
        if self._places and not self.case.names:
            text = "the runs have no parameter in common: pair their names with --rename or --map"
            yield Note(NoteSlug.RULE_WITHOUT_EFFECT, text)

    def _note_lone_scalars(self) -> Iterable[Note]:
        """Yield which scalars only one run has: no difference, but not compared either."""
        if not self.case.steps:
            return
        names = [set(self.case.step(where, 0).scalars) for where in Where]
        for side, own, partner in ((REFERENCE, names[0], names[1]), (CANDIDATE, names[1], names[0])):
            lone = sorted(own - partner)
            if lone and partner:
                text = f"only the {side} has {counted(lone, 'scalar')}: not compared"
                yield Note(NoteSlug.RECORDED_WITHOUT, text)

    def build_facts(self, steps: PairedSteps) -> RunFacts:
        """Return what was found out over all steps."""
        first: RunDivergence | None = None
        for quantity in Quantity:
            mark = self.parting.get(quantity)
            if mark is not None and (first is None or mark.number < first.mark.number):
                first = RunDivergence(self.case.candidate.label, quantity, mark, self.worst[quantity])
        details = _collect_details(self.weights)
        numbers = np.array([mark.number for mark in details.marks], np.int64)
        distances = np.array([_relative_distance(distances) for _, distances in self.weights])
        loss = choose_loss(self.steps)  # the one that reports name
        return RunFacts(
            self.case.candidate.label,
            tuple(self.steps),
            {quantity: self.parting.get(quantity) for quantity in Quantity},
            {quantity: self.first_unequal.get(quantity) for quantity in Quantity},
            {quantity: _explain_unknown(self.case, quantity) for quantity in Quantity if quantity not in self.compared},
            steps.only_reference,
            steps.only_candidate,
            first,
            describe_growth(numbers, distances),
            find_jumps(details),
            find_leaders(details),
            compare_losses(self.steps, loss) if loss else None,
            details,
        )


def has_same_data(reference: Step, candidate: Step) -> bool | None:
    """Return True if the batches of a step are the same; None where one is not known.

    What is compared is content: one side may give a tuple and the other a dict, or one of them a tensor more.
    """
    if reference.data is None or candidate.data is None:
        return None
    digests = {part.digest for part in reference.data}, {part.digest for part in candidate.data}
    return digests[0] <= digests[1] or digests[1] <= digests[0]


def _read_data(same_data: bool | None) -> Iterable[_Reading]:
    if same_data is not None:
        yield _Reading(Quantity.DATA, same_data, not same_data)


def _read_distances(quantity: Quantity, distances: Distances) -> _Reading:
    return _Reading(
        quantity,
        bool(distances.identical.all() or not distances.l2.any()),
        bool(distances.out.any()),
        bool((distances.known | distances.out).all()),
        distances.worst_name,
    )


def _judge_step(readings: Sequence[_Reading]) -> Verdict:
    if any(reading.is_out for reading in readings):
        return Verdict.DIFFERENT
    if not readings or not all(reading.is_known for reading in readings):
        return Verdict.NOT_COMPARED
    return Verdict.IDENTICAL if all(reading.is_equal for reading in readings) else Verdict.CLOSE


_HELD = (TensorKind.WEIGHT, TensorKind.BUFFER)


def _find_row(tensors: StepTensors, key: TensorKey) -> int:
    """Return the row of a tensor; checkpoints do not tell parameters from buffers, so either will do."""
    for kind in _HELD if key.kind in _HELD else (key.kind,):
        row = tensors.rows.get(replace(key, kind=kind))
        if row is not None:
            return row
    return MISSING


def _lay_out(
    reference: StepTensors, candidate: StepTensors, names: Mapping[str, str], rules: RunRules, tolerance: Tolerance
) -> _Layout:
    """Return which tensors of two steps belong together.

    A gradient or a state that only one side has is paired with zeros, unless that side has none of its kind at all.
    """
    partners = {partner: name for name, partner in names.items()}
    kinds_of_both = {key.kind for key in reference.keys} & {key.kind for key in candidate.keys}
    keys: dict[TensorKey, None] = {}  # by the reference's names, in its order
    for key in reference.keys:
        if key.name in names and (key.kind in _HELD or key.kind in kinds_of_both):
            keys[key] = None
    for key in candidate.keys:
        if key.name in partners and key.kind not in _HELD and key.kind in kinds_of_both:
            keys[replace(key, name=partners[key.name])] = None
    state_scales: dict[str, int] = {}
    labels: list[str] = []
    rows: list[tuple[int, int]] = []
    limits: list[tuple[float, float]] = []
    scales: list[int] = []
    for key in keys:
        row = _find_row(reference, key), _find_row(candidate, replace(key, name=names[key.name]))
        dtypes = [
            find_dtype(side.dtypes[at]) for side, at in zip((reference, candidate), row, strict=True) if at != MISSING
        ]
        labels.append(f"{key.name}.{key.state}" if key.state else key.name)
        rows.append(row)
        limits.append(tolerance.for_pair((key.name, names[key.name]), dtypes[0], dtypes[-1]))
        is_derived = key.kind in (TensorKind.GRADIENT, TensorKind.STATE)
        scales.append(state_scales.setdefault(key.state, len(state_scales) + 1) if is_derived else 0)
    groups = {ALL: np.ones(len(keys), bool)}
    counting = np.array([rules.counts(key.name) for key in keys], bool)
    if rules.filter != ALL:
        groups[rules.filter] = counting
    for group, pattern in rules.groups.items():
        groups[group] = np.array([matches_any(key.name, (pattern,)) for key in keys], bool)
    return _Layout(
        (reference.keys, candidate.keys),
        RowPairs(
            tuple(labels),
            np.array([row[0] for row in rows], np.int64),
            np.array([row[1] for row in rows], np.int64),
            np.array([atol for atol, _ in limits], np.float64),
            np.array([rtol for _, rtol in limits], np.float64),
            np.array(scales, np.int64),
        ),
        {kind: np.array([key.kind is kind for key in keys], bool) for kind in TensorKind},
        groups,
        counting,
        np.array([key.state == "step" for key in keys], bool),
    )


def _sum_up_groups(distances: Distances, layout: _Layout) -> dict[TensorKind, dict[str, GroupNumbers]]:
    """Return the numbers of every group of every kind; buffers are one group of their own."""
    numbers: dict[TensorKind, dict[str, GroupNumbers]] = {}
    for kind, is_kind in layout.kinds.items():
        groups = {BUFFERS: layout.groups[ALL]} if kind is TensorKind.BUFFER else layout.groups
        for group, is_member in groups.items():
            summed = sum_up_group(distances.select(is_kind & is_member & ~layout.counters))
            if summed is not None:
                numbers.setdefault(kind, {})[group] = summed
    return numbers


def _relative_distance(distances: Distances) -> float:
    summed = sum_up_group(distances)
    return summed.rel_l2 if summed else 0.0


def _collect_details(weights: Sequence[tuple[StepMark, Distances]]) -> WeightDetails:
    """Return the numbers of every parameter at every step with tensors; a parameter that comes later has NaN before."""
    names = list(dict.fromkeys(name for _, distances in weights for name in distances.names))
    columns = {name: column for column, name in enumerate(names)}
    tables = [np.full((len(weights), len(names)), np.nan) for _ in range(4)]
    for row, (_, distances) in enumerate(weights):
        at = [columns[name] for name in distances.names]
        norms, partners = distances.reference_l2, distances.candidate_l2
        with np.errstate(divide="ignore", invalid="ignore"):
            products = np.square(norms) + np.square(partners) - np.square(distances.l2)
            cosines = np.clip(products / (2 * norms * partners), -1.0, 1.0)
            relative = distances.l2 / norms
        is_equal = distances.l2 == 0
        tables[0][row, at] = distances.l2
        tables[1][row, at] = np.where(is_equal, 0.0, relative)
        tables[2][row, at] = np.where(is_equal, 1.0, cosines)
        tables[3][row, at] = distances.max_abs
    return WeightDetails(tuple(mark for mark, _ in weights), tuple(names), *tables)


def _explain_unknown(case: RunCase, quantity: Quantity) -> str:
    """Return why a quantity could not be compared: what which run lacks."""

    def lacks(run: Run) -> bool:
        if quantity is Quantity.INITIAL_WEIGHTS:
            return not run.has_initial
        if quantity is Quantity.DATA:
            return all(step.data is None for step in run.steps)
        if quantity is Quantity.LOSS:
            return not any(is_loss(name) for step in run.steps for name in step.scalars)
        if quantity is Quantity.WEIGHTS:
            return not any(step.has_tensors for step in run.steps)
        kind = TensorKind.GRADIENT if quantity is Quantity.GRADIENTS else TensorKind.STATE
        return not _has_kind(case, run, kind)

    runs = ((REFERENCE, case.reference), (CANDIDATE, case.candidate))
    lacking = [(side, run) for side, run in runs if lacks(run)]
    what = _LACKED[quantity]
    if not lacking:
        return f"the runs have no {what} in common"
    sides = " and the ".join(side for side, _ in lacking)
    why = ""
    if quantity is Quantity.GRADIENTS and all(run.description.holds_gradients for _, run in lacking):
        why = "; rec.step() must come before zero_grad()"
    return f"the {sides} {'has' if len(lacking) == 1 else 'have'} no {what}{why}"


_LACKED = {
    Quantity.INITIAL_WEIGHTS: "state before the first step",
    Quantity.DATA: "fingerprints of batches",
    Quantity.LOSS: "loss",
    Quantity.GRADIENTS: "gradients",
    Quantity.WEIGHTS: "recorded weights",
    Quantity.OPTIMIZER: "optimiser state",
}


def _has_kind(case: RunCase, run: Run, kind: TensorKind) -> bool:
    """Return True if the last step that both runs have tensors of holds some of a kind."""
    if not case.tensor_places:
        return False
    where = Where.REFERENCE if run is case.reference else Where.CANDIDATE
    return any(key.kind is kind for key in case.tensors(where, case.tensor_places[-1]).keys)


def _list_leftovers(names: PairedNames, candidate: str, rules: RunRules) -> Iterable[Leftover]:
    sides: tuple[tuple[str, Sequence[LoneTensor]], ...] = (
        (REFERENCE, names.only_reference),
        (CANDIDATE, names.only_candidate),
    )
    for side, tensors in sides:
        for tensor in tensors:
            if rules.selects(tensor.name) and rules.counts(tensor.name):
                reason = LeftoverReason.NO_PARTNER
                yield Leftover(candidate, side, tensor.name, tensor.shape, tensor.dtype, reason)


def _describe_side(run: Run) -> Side:
    """Describe a run for the result, by its first step with tensors."""
    place = next((place for place, step in enumerate(run.steps) if step.has_tensors), None)
    names = elements = trainable = 0
    if place is not None or run.has_initial:
        tensors = run.read_tensors(None if run.has_initial else place)
        for key, count in zip(tensors.keys, tensors.counts.tolist(), strict=True):
            if key.kind in (TensorKind.WEIGHT, TensorKind.BUFFER):
                names += 1
                elements += count
                trainable += count if key.kind is TensorKind.WEIGHT else 0
    description = run.description
    meta: dict[str, Any] = {
        "keep": description.keep,
        "steps": len(run.steps),
        "recorded_steps": sum(step.has_tensors for step in run.steps),
    }
    for name, value in (("optimizer", description.optimizer), ("model", description.model)):
        if value:
            meta[name] = value
    return Side(run.label, "run", names, elements, trainable, 0, description.notes, meta)
