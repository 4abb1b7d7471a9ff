"""Small trainings, run for real and kept in memory as the runs that are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nndiff.run_facts import BUFFERS, GroupNumbers, Jump, Quantity, RunDivergence, RunFacts, StepComparison, StepMark
from nndiff.runs.case import INITIAL, RunCase, StepPair, Where
from nndiff.runs.run import BatchPart, RunDescription, Step, StepTensors, TensorKey, TensorKind
from nndiff.stats.sketches import RawArray, hash_rows, sketch_tensors
from nndiff.verdict import Verdict

EXACT = 1 << 16  # width of rows that hold every element of a small tensor


@dataclass(frozen=True)
class MemoryRun:
    """Be a run that was never written."""

    label: str
    description: RunDescription
    steps: Sequence[Step]
    states: Mapping[int | None, StepTensors]

    @property
    def has_initial(self) -> bool:
        return None in self.states

    def read_tensors(self, step: int | None) -> StepTensors:
        return self.states[step]


@dataclass
class Training:
    """Describe a training; every field is a place where a fault can be planted."""

    make_model: Callable[[], nn.Module]
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    batches: Sequence[Sequence[tuple[Tensor, Tensor]]]  # epochs of batches
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor] = lambda model, x, y: nn.functional.cross_entropy(model(x), y)
    prepare_model: Callable[[nn.Module], None] = lambda model: None
    before_step: Callable[[int, nn.Module, torch.optim.Optimizer], None] = lambda step, model, optimizer: None
    change_gradients: Callable[[int, nn.Module], None] = lambda step, model: None
    after_step: Callable[[int, nn.Module, torch.optim.Optimizer], None] = lambda step, model, optimizer: None
    skips_update: Callable[[int], bool] = lambda step: False
    report_loss: Callable[[int, float], float] = lambda step, loss: loss
    zero_grad: bool = True
    seed: int = 0
    width: int = EXACT
    every: int = 1
    keeps_settings: bool = True
    keeps_initial: bool = True
    keeps_gradients: bool = True
    keeps_data: bool = True
    state_dtype: torch.dtype | None = None
    recorded_model: Callable[[nn.Module], nn.Module] = lambda model: model
    label: str = "run"


def train(training: Training) -> MemoryRun:
    """Train a model and return what a recorder would have kept."""
    torch.manual_seed(training.seed)
    model = training.make_model()
    training.prepare_model(model)
    optimizer = training.make_optimizer(model)
    recorded = training.recorded_model(model)
    states: dict[int | None, StepTensors] = {}
    if training.keeps_initial:
        states[None] = keep_tensors(recorded, None, training)
    steps: list[Step] = []
    for epoch, batches in enumerate(training.batches):
        for batch, (x, y) in enumerate(batches):
            number = len(steps)
            training.before_step(number, model, optimizer)
            loss = training.loss(model, x, y)
            loss.backward()
            training.change_gradients(number, model)
            if not training.skips_update(number):
                optimizer.step()
            training.after_step(number, model, optimizer)
            scalars = {"loss": training.report_loss(number, float(loss.detach()))}
            if training.keeps_settings:
                scalars |= read_settings(optimizer)
            kept = number % training.every == 0
            if kept:
                states[number] = keep_tensors(recorded, optimizer, training, model)
            random_states = {"torch": hashlib.sha1(torch.get_rng_state().numpy().tobytes()).hexdigest()}
            data = (keep_part("0", x), keep_part("1", y)) if training.keeps_data else None
            steps.append(Step(number, epoch, batch, scalars, data, random_states, kept))
            if training.zero_grad:
                optimizer.zero_grad()
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = tuple(tuple(names[parameter] for parameter in group["params"]) for group in optimizer.param_groups)
    description = RunDescription(
        keep="sketch",
        optimizer=type(optimizer).__name__,
        model=type(model).__name__,
        param_groups=groups,
        trainable=frozenset(name for name, parameter in model.named_parameters() if parameter.requires_grad),
        holds_gradients=training.keeps_gradients,
        holds_data=training.keeps_data,
    )
    return MemoryRun(training.label, description, steps, states)


def read_settings(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return the settings of the parameter groups as scalars."""
    scalars: dict[str, float] = {}
    for index, group in enumerate(optimizer.param_groups):
        for name, setting in group.items():
            if isinstance(setting, (int, float)):
                scalars[f"{name}/{index}"] = float(setting)
            elif name == "betas":
                scalars[f"beta1/{index}"], scalars[f"beta2/{index}"] = setting
    return scalars


def keep_part(path: str, part: Tensor) -> BatchPart:
    array = np.ascontiguousarray(part.numpy())
    digest = hashlib.sha1(array.tobytes()).hexdigest()
    samples = hash_rows(array.tobytes(), len(array)).tobytes()
    return BatchPart(path, tuple(array.shape), str(array.dtype), digest, samples)


def keep_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, training: Training, trained: nn.Module | None = None
) -> StepTensors:
    """Return the tensors of a step; without an optimiser, those of the state before the first."""
    tensors: dict[TensorKey, Tensor] = {}
    for name, parameter in model.named_parameters():
        tensors[TensorKey(TensorKind.WEIGHT, name)] = parameter
    for name, buffer in model.named_buffers():
        tensors[TensorKey(TensorKind.BUFFER, name)] = buffer
    if optimizer is not None and trained is not None:
        for name, parameter in trained.named_parameters():
            if training.keeps_gradients and parameter.grad is not None:
                tensors[TensorKey(TensorKind.GRADIENT, name)] = parameter.grad
            for state, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    tensors[TensorKey(TensorKind.STATE, name, state)] = value
    arrays, dtypes = [], []
    for tensor in tensors.values():
        dtypes.append(str(tensor.dtype).removeprefix("torch."))
        plain = tensor.detach().float() if tensor.dtype == torch.bfloat16 else tensor.detach()
        arrays.append(np.ascontiguousarray(plain.numpy()))
    raws = [RawArray.from_array(array) for array in arrays]
    kept = sketch_tensors(raws, [training.width] * len(raws), 7)
    return StepTensors(
        keys=tuple(tensors),
        shapes=tuple(tuple(tensor.shape) for tensor in tensors.values()),
        dtypes=tuple(dtypes),
        statistics=kept.statistics,
        digests=kept.digests,
        widths=kept.widths,
        sketches=kept.sketches,
        seed=7,
    )


def build_case(reference: MemoryRun, candidate: MemoryRun) -> RunCase:
    """Return two runs side by side, with the facts that a comparison would find."""
    places = {(step.epoch, step.batch): place for place, step in enumerate(candidate.steps)}
    pairs = []
    for place, step in enumerate(reference.steps):
        if (step.epoch, step.batch) in places:
            pairs.append(StepPair(place, places[step.epoch, step.batch]))
    names: dict[str, str] = {}
    for state in reference.states.values():
        for key in state.keys:
            if key.kind in (TensorKind.WEIGHT, TensorKind.BUFFER):
                names[key.name] = key.name
    case = RunCase(reference, candidate, names, pairs, RunFacts("candidate", (), {}, {}))
    case.facts = compare_plainly(case)
    return case


_QUANTITY_OF = {
    TensorKind.WEIGHT: Quantity.WEIGHTS,
    TensorKind.BUFFER: Quantity.WEIGHTS,
    TensorKind.GRADIENT: Quantity.GRADIENTS,
    TensorKind.STATE: Quantity.OPTIMIZER,
}


def compare_plainly(case: RunCase, atol: float = 1e-5, rtol: float = 1e-5) -> RunFacts:
    """Return which steps are not the same bit for bit and which are out of tolerance."""
    parting: dict[Quantity, StepMark | None] = dict.fromkeys(Quantity)
    unequal: dict[Quantity, StepMark | None] = dict.fromkeys(Quantity)
    steps: list[StepComparison] = []

    def note(quantity: Quantity, mark: StepMark, out: bool) -> None:
        unequal[quantity] = unequal[quantity] or mark
        if out:
            parting[quantity] = parting[quantity] or mark

    distances: list[tuple[StepMark, float]] = []
    for place in range(INITIAL, len(case.steps)):
        if place == INITIAL:
            if INITIAL not in case.tensor_places:
                continue
            mark = StepMark(-1)
        else:
            step, partner = case.step(Where.REFERENCE, place), case.step(Where.CANDIDATE, place)
            mark = StepMark(step.number, step.epoch, step.batch)
            if step.data is not None and partner.data is not None and step.data != partner.data:
                note(Quantity.DATA, mark, True)
            first, second = step.scalars["loss"], partner.scalars["loss"]
            if first != second and not (np.isnan(first) and np.isnan(second)):
                note(Quantity.LOSS, mark, not abs(first - second) <= atol + rtol * abs(first))
        groups: dict[str, GroupNumbers] = {}
        if place in case.tensor_places:
            groups, distance = note_tensors(case, place, mark, note, atol, rtol)
            distances.append((mark, distance))
        if place != INITIAL:
            steps.append(StepComparison("candidate", mark, Verdict.CLOSE, {}, groups))
    first_divergence = None
    order = list(Quantity)
    marks = [(mark.number, order.index(quantity), quantity, mark) for quantity, mark in parting.items() if mark]
    if marks:
        _, _, quantity, mark = min(marks, key=lambda entry: entry[:2])
        first_divergence = RunDivergence("candidate", quantity, mark, None)
    return RunFacts(
        "candidate",
        tuple(steps),
        parting,
        unequal,
        first_divergence=first_divergence,
        jumps=tuple(find_jumps(distances)),
    )


def find_jumps(distances: Sequence[tuple[StepMark, float]]) -> Iterable[Jump]:
    """Yield steps at which a distance that was there before grew a thousandfold at once."""
    for (_, before), (mark, distance) in zip(distances[:-1], distances[1:], strict=True):
        if distance > 1000 * before > 0:
            yield Jump(mark, distance / before, "")


def note_tensors(
    case: RunCase, place: int, mark: StepMark, note: Callable[..., None], atol: float, rtol: float
) -> tuple[dict[str, GroupNumbers], float]:
    """Note what differs at a step; return the numbers of the buffers and the distance of the weights."""
    mine, theirs = case.tensors(Where.REFERENCE, place), case.tensors(Where.CANDIDATE, place)
    buffers, identical, squared, norm = 0, 0, 0.0, 0.0
    for key, row in mine.rows.items():
        partner = theirs.rows.get(key)
        quantity = Quantity.INITIAL_WEIGHTS if place == INITIAL else _QUANTITY_OF[key.kind]
        if partner is None:
            note(quantity, mark, True)
            continue
        same = bool((mine.digests[row] == theirs.digests[partner]).all())
        if key.kind is TensorKind.BUFFER:
            buffers, identical = buffers + 1, identical + same
        if mine.shapes[row] == theirs.shapes[partner] and mine.widths[row] == theirs.widths[partner]:
            one, two = mine.sketch(row).astype(float), theirs.sketch(partner).astype(float)
            out = not np.allclose(two, one, atol=atol, rtol=rtol)
            if key.kind is TensorKind.WEIGHT:
                squared, norm = squared + float(np.square(two - one).sum()), norm + float(np.square(one).sum())
        else:
            out = True
        if not same:
            note(quantity, mark, out)
    numbers = GroupNumbers(0, 0, 1, None, None, 0, 0, None, 0, buffers, identical, 0)
    return ({BUFFERS: numbers} if buffers else {}), (squared / norm) ** 0.5 if norm else 0.0


def compare_trainings(reference: Training, **faults: Any) -> RunCase:
    """Return the case of a training and the same one with some fields changed."""
    return build_case(train(reference), train(replace(reference, **faults)))


def make_batches(
    epochs: int = 1, count: int = 8, size: int = 16, features: int = 6, classes: int = 3, seed: int = 1
) -> list[list[tuple[Tensor, Tensor]]]:
    """Return the same batches in every epoch."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(count):
        x = torch.randn(size, features, generator=generator)
        batches.append((x, torch.randint(0, classes, (size,), generator=generator)))
    return [list(batches) for _ in range(epochs)]


def make_mlp(features: int = 6, hidden: int = 12, classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, classes))


def make_norm_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))


def make_dropout_mlp(rate: float) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(rate), nn.Linear(12, 3))
