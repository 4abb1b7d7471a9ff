"""Small trainings, run for real and kept in memory as the runs that are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nndiff.findings.causes import Cause
from nndiff.result import Finding
from nndiff.runs.batch import fingerprint_batch
from nndiff.runs.capture import fingerprint_generators, read_hyper_parameters
from nndiff.runs.case import RunCase
from nndiff.runs.causes import explain_runs
from nndiff.runs.comparison import RunRules, compare_pair
from nndiff.runs.run import RunDescription, Step, StepTensors, TensorKey, TensorKind
from nndiff.stats.sketches import RawArray, sketch_tensors
from nndiff.tolerance import Tolerance

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
    add_scalars: Callable[[int, float], Mapping[str, float]] = lambda step, loss: {}
    zero_grad: bool = True
    seed: int = 0
    width: int = EXACT
    sketch_seed: int = 7
    every: int = 1
    keeps_settings: bool = True
    keeps_initial: bool = True
    keeps_gradients: bool = True
    keeps_data: bool = True
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
            scalars |= training.add_scalars(number, scalars["loss"])
            if training.keeps_settings:
                scalars |= read_hyper_parameters([optimizer])
            kept = number % training.every == 0
            if kept:
                states[number] = keep_tensors(recorded, optimizer, training, model)
            data = fingerprint_batch((x, y)) if training.keeps_data else None
            steps.append(Step(number, epoch, batch, scalars, data, fingerprint_generators(), kept))
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
    kept = sketch_tensors(raws, [training.width] * len(raws), training.sketch_seed)
    return StepTensors(
        keys=tuple(tensors),
        shapes=tuple(tuple(tensor.shape) for tensor in tensors.values()),
        dtypes=tuple(dtypes),
        statistics=kept.statistics,
        digests=kept.digests,
        widths=kept.widths,
        sketches=kept.sketches,
        seed=training.sketch_seed,
    )


def build_case(reference: MemoryRun, candidate: MemoryRun) -> RunCase:
    """Return two runs side by side, compared."""
    return compare_pair(reference, candidate, Tolerance(), RunRules()).case


def compare_trainings(reference: Training, **faults: Any) -> RunCase:
    """Return the case of a training and the same one with some fields changed."""
    return build_case(train(reference), train(replace(reference, **faults)))


def expect_cause(
    case: RunCase, cause: Cause, step: str = "epoch 0, batch 0", where: Sequence[str] | None = None
) -> Finding:
    """Return the one finding of a case, which must name this cause, this step and these tensors."""
    findings = explain_runs(case)
    assert [finding.cause for finding in findings] == [cause], findings
    (finding,) = findings
    assert step in finding.evidence, finding
    assert where is None or list(finding.where) == list(where), finding
    assert finding.repair
    assert not finding.harmless
    assert finding.confidence >= 0.7
    return finding


def make_batches(
    epochs: int = 1, count: int = 6, size: int = 16, features: int = 6, classes: int = 3, seed: int = 1
) -> list[list[tuple[Tensor, Tensor]]]:
    """Return the same batches in every epoch."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(count):
        x = torch.randn(size, features, generator=generator)
        batches.append((x, torch.randint(0, classes, (size,), generator=generator)))
    return [list(batches) for _ in range(epochs)]


def split_batches(x: Tensor, y: Tensor, size: int = 16) -> list[tuple[Tensor, Tensor]]:
    """Return the batches of one epoch."""
    return list(zip(x.split(size), y.split(size), strict=True))


def make_mlp(features: int = 6, hidden: int = 12, classes: int = 3) -> nn.Module:
    layers = [nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, classes)]
    return nn.Sequential(*layers)


def make_norm_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 12),
        nn.BatchNorm1d(12),
        nn.ReLU(),
        nn.Linear(12, 12),
        nn.BatchNorm1d(12),
        nn.ReLU(),
        nn.Linear(12, 3),
    )


def make_convnet() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 8, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


class Encoder(nn.Module):
    """Embed tokens and attend: the biases of the keys have gradients of rounding size."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(tokens)).mean(1))


def make_token_batches(count: int = 6) -> list[list[tuple[Tensor, Tensor]]]:
    generator = torch.Generator().manual_seed(3)
    batches = []
    for _ in range(count):
        tokens = torch.randint(0, 20, (16, 5), generator=generator)
        batches.append((tokens, torch.randint(0, 3, (16,), generator=generator)))
    return [batches]


def use(optimizer: type[torch.optim.Optimizer], **settings: Any) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """Return what makes an optimiser of all parameters."""
    return lambda model: optimizer(model.parameters(), **settings)


SGD = use(torch.optim.SGD, lr=0.1)
ADAM = use(torch.optim.Adam, lr=0.01)
SMALL = Training(make_mlp, SGD, make_batches())  # every element is kept
LARGE = Training(lambda: make_mlp(64, 128, 10), SGD, make_batches(features=64, classes=10), width=64)  # sketches
