"""Folders of checkpoints with a step in their names, read as training runs: batch dumps, `checkpoint-500`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from nndiff.errors import SourceError
from nndiff.files import RegularFile, Window
from nndiff.names import looks_trainable, natural_key
from nndiff.runs.files import measure_folder
from nndiff.runs.run import RunDescription, Step, StepTensors, TensorKey, TensorKind
from nndiff.sources import open_source
from nndiff.sources.folder import MODEL_NAMES
from nndiff.sources.json_text import read_json
from nndiff.sources.pickle_nodes import Loaded
from nndiff.sources.pickled_source import build_source
from nndiff.sources.torch_file import load_any
from nndiff.sources.tree import Tree, is_number, is_tensor
from nndiff.stats.sketches import RawArray, sketch_tensors
from nndiff.tensors import TensorRef

_DUMPS_FOLDER = "batch_dumps"
_PICKLES = (".pt", ".pth", ".ckpt", ".bin")
_SUFFIXES = (*_PICKLES, ".safetensors")
_EPOCH = re.compile(r"(?:^|[^a-z])epoch[-_=]?(\d{1,12})(?!\d)", re.IGNORECASE)
_BATCH = re.compile(r"(?:^|[^a-z])batch[-_=]?(\d{1,12})(?!\d)", re.IGNORECASE)
_STEP = re.compile(
    r"(?:^|[^a-z])(?:global_?step|step|steps|iter|iteration|checkpoint)[-_=]?(\d{1,12})(?!\d)", re.IGNORECASE
)
_MOST_FILES = 100_000
_OPTIMIZER_KEYS = ("optimizer_state_dict", "optimizer", "optimizer_states.0", "optimizer_state", "optim")
_TRAINER_STATE = "trainer_state.json"  # of transformers' Trainer: its losses by step
_NUMBER_KINDS = ("float", "int", "bool")
_PLACES = (
    "epoch",
    "batch",
    "batch_idx",
    "step",
    "global_step",
    "iteration",
)  # where a checkpoint is, not how well it does


@dataclass(frozen=True)
class DumpFile:
    """Name a checkpoint and the step that its path tells."""

    path: str
    epoch: int | None
    batch: int | None
    number: int | None


def find_dumps(path: str) -> list[DumpFile]:
    """Return the checkpoints of a folder in the order of their steps; none if it is no folder of such checkpoints.

    A folder that holds a model itself, with checkpoints of its training beside it, is that model.
    """
    if _is_checkpoint_folder(path) and not os.path.isdir(os.path.join(path, _DUMPS_FOLDER)):
        return []
    folder = os.path.join(path, _DUMPS_FOLDER)
    folder = folder if os.path.isdir(folder) else path
    try:
        names = sorted(os.listdir(folder), key=natural_key)[:_MOST_FILES]
    except OSError:
        return []
    files: list[DumpFile] = []
    for name in names:
        inner = os.path.join(folder, name)
        epoch = _read_number(_EPOCH, name)
        if os.path.isdir(inner) and epoch is not None and _read_number(_STEP, name) is None:
            for file_name in sorted(os.listdir(inner), key=natural_key)[:_MOST_FILES]:
                dump = _read_name(os.path.join(inner, file_name), file_name, epoch)
                files += [dump] if dump and dump.path.endswith(_SUFFIXES) else []
        else:
            dump = _read_name(inner, name, epoch)
            if dump is not None and (name.endswith(_SUFFIXES) or _is_checkpoint_folder(inner)):
                files.append(dump)
    return sorted(files, key=lambda dump: (dump.number or 0, dump.epoch or 0, dump.batch or 0))


def _read_name(path: str, name: str, epoch: int | None) -> DumpFile | None:
    """Return the step that a name tells, or None; a name that tells an epoch alone is one step per epoch."""
    batch, number = _read_number(_BATCH, name), _read_number(_STEP, name)
    if batch is None and number is None and epoch is None:
        return None
    if batch is None and number is None:
        number = epoch
    return DumpFile(path, epoch, batch, number)


def _read_number(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.search(name)
    return int(match.group(1)) if match else None


def _is_checkpoint_folder(path: str) -> bool:
    """Return True for a folder that holds a model itself, as `checkpoint-500` of transformers does."""
    if not os.path.isdir(path):
        return False
    names = os.listdir(path)
    return any(name in MODEL_NAMES or name.endswith(".index.json") for name in names)


class _LateScalars(Mapping[str, float]):
    """Read the scalars of a checkpoint when they are first asked for: a run may have thousands."""

    def __init__(self, run: DumpRun, place: int, logged: Mapping[str, float]) -> None:
        self._run = run
        self._place = place
        self._logged = logged

    def _read(self) -> Mapping[str, float]:
        return {**self._run.open_step(self._place).scalars, **self._logged}

    def __getitem__(self, name: str) -> float:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


class DumpRun:
    """Read a folder of checkpoints as a training run; one checkpoint is open at a time."""

    def __init__(self, path: str, files: Sequence[DumpFile], notes: Sequence[str] = ()) -> None:
        self.label = path
        self.has_initial = False
        self.description = RunDescription(
            keep="dump",
            holds_gradients=False,
            holds_data=False,
            counts_completed=all(dump.number is not None and dump.number > 0 for dump in files),
            notes=("checkpoints of another tool: no batches, no gradients, no state before the first step", *notes),
        )
        self._files = files
        self._opened: tuple[int, Dump] | None = None
        logged = _read_logged(files)
        steps = []
        for place, dump in enumerate(files):
            number = place if dump.number is None else dump.number
            scalars = _LateScalars(self, place, logged.get(number, {}))
            steps.append(Step(number, dump.epoch, dump.batch, scalars, has_tensors=True))
        self.steps: Sequence[Step] = steps

    def open_step(self, place: int) -> Dump:
        """Return the checkpoint at this place."""
        if self._opened is None or self._opened[0] != place:
            self._opened = place, _open_dump(self._files[place].path)
        return self._opened[1]

    def measure_step(self, place: int) -> int:
        """Return how many bytes the checkpoint at this place takes."""
        path = self._files[place].path
        return measure_folder(path) if os.path.isdir(path) else RegularFile(path).size

    def measure(self) -> int:
        """Return how many bytes all checkpoints take."""
        return sum(self.measure_step(place) for place in range(len(self._files)))

    def read_tensors(self, step: int | None) -> StepTensors:
        """Return the tensors of the checkpoint at this place."""
        if step is None:
            raise LookupError("checkpoints hold no state before the first step")
        return self.open_step(step).tensors


@dataclass(frozen=True)
class Dump:
    """Hold one checkpoint, opened; its elements are read when its tensors are asked for."""

    stored: Mapping[TensorKey, TensorRef]
    scalars: Mapping[str, float]

    @cached_property
    def tensors(self) -> StepTensors:
        """Return the tensors with their statistics and digests."""
        statistics, digests = [], []
        for tensor in self.stored.values():
            # one at a time: a checkpoint is never in memory whole
            elements = np.ascontiguousarray(tensor.read(0, tensor.count))
            raw = RawArray(elements.ctypes.data, tensor.count, tensor.dtype.name, tensor.shape)
            measured = sketch_tensors([raw], [0])
            statistics.append(measured.statistics[0])
            digests.append(measured.digests[0])
        return StepTensors(
            tuple(self.stored),
            tuple(tensor.shape for tensor in self.stored.values()),
            tuple(tensor.dtype.name for tensor in self.stored.values()),
            np.array(statistics).reshape(-1, 6),
            np.array(digests, np.uint8).reshape(-1, 16),
            np.zeros(len(self.stored), np.int64),
            np.zeros(0, np.float32),
            tensors=tuple(self.stored.values()),
        )


def _open_dump(path: str) -> Dump:
    model, optimizer, scalars = _open_parts(path)
    tensors: dict[TensorKey, TensorRef] = {}
    for name, tensor in model.items():
        kind = TensorKind.WEIGHT if looks_trainable(name, tensor.dtype) else TensorKind.BUFFER
        tensors[TensorKey(kind, name)] = tensor
    tensors |= _name_states(optimizer, [key.name for key in tensors if key.kind is TensorKind.WEIGHT], model)
    return Dump(tensors, {**_read_settings(optimizer), **scalars})


Tensors = Mapping[str, TensorRef]


def _open_parts(path: str) -> tuple[Tensors, Tensors, Mapping[str, float]]:
    """Return the tensors of the model, those of the optimiser, and the plain numbers beside them."""
    if os.path.isdir(path):
        optimizer: Tensors = {}
        file = os.path.join(path, "optimizer.pt")
        if os.path.isfile(file):
            optimizer = build_source(file, "torch", load_any(Window(RegularFile(file))), "").tensors
        return open_source(path).tensors, optimizer, {}
    if path.endswith(".safetensors"):
        return open_source(path).tensors, {}, {}
    loaded = load_any(Window(RegularFile(path)))
    root = loaded.root if isinstance(loaded.root, dict) else {}
    source = build_source(path, "torch", loaded)
    scalars: dict[str, float] = {}
    for key, value in root.items():
        # a tensor beside the model is a scalar of the training, one in a bare state_dict is part of the model
        is_scalar = is_number(value) or (is_tensor(value) and bool(source.part))
        if isinstance(key, str) and key not in _PLACES and is_scalar:
            number = _read_scalar(path, loaded, key)
            if number is not None:
                scalars[key] = number
    tree = Tree(path, loaded.root)
    optimizer = {}
    for key in _OPTIMIZER_KEYS:
        owner, _, index = key.partition(".")
        node = root.get(owner)
        if index and isinstance(node, (list, tuple)):
            node = node[0] if node else None
        if isinstance(node, dict) and tree.holds_tensors(node):
            optimizer = build_source(path, "torch", loaded, key).tensors
            break
    model = {name: tensor for name, tensor in source.tensors.items() if name not in scalars}
    return model, optimizer, scalars


def _read_scalar(path: str, loaded: Loaded, key: str) -> float | None:
    """Return a number or a tensor of one element at the top of a checkpoint as a float, or None."""
    tensors = list(build_source(path, "torch", loaded, key).tensors.values())
    if len(tensors) != 1 or tensors[0].count != 1 or tensors[0].dtype.kind not in _NUMBER_KINDS:
        return None
    return float(tensors[0].numpy().reshape(()))


_STATE_NAME = re.compile(r"^state\.(\d+)\.(.+)$")
_SETTING_NAME = re.compile(r"^param_groups\.(\d+)\.(?!params\.)(.+)$")
_MEMBER_NAME = re.compile(r"^param_groups\.(\d+)\.params\.(\d+)$")


def _name_states(optimizer: Tensors, parameters: Sequence[str], model: Tensors) -> dict[TensorKey, TensorRef]:
    """Return the states of an optimiser by the names of their parameters.

    A state_dict knows parameters by number, in the order in which the optimiser was given them. If there are as many
    as the model has and every state has the shape of its parameter, that is the model's order; else they keep numbers.
    Checkpoints do not tell parameters from buffers: empty tensors are left out if there are too many with them.
    """
    members = sum(_MEMBER_NAME.match(name) is not None for name in optimizer)
    if members != len(parameters):
        parameters = [name for name in parameters if model[name].count]
    states: dict[tuple[int, str], TensorRef] = {}
    for name, tensor in optimizer.items():
        match = _STATE_NAME.match(name)
        if match:
            states[int(match.group(1)), match.group(2)] = tensor
    fits = members == len(parameters)
    for (number, _), tensor in states.items():
        fits = (
            fits and number < len(parameters) and (tensor.count == 1 or tensor.shape == model[parameters[number]].shape)
        )
    named: dict[TensorKey, TensorRef] = {}
    for (number, state), tensor in states.items():
        named[TensorKey(TensorKind.STATE, parameters[number] if fits else f"parameter {number}", state)] = tensor
    return named


def _read_settings(optimizer: Tensors) -> dict[str, float]:
    """Return the settings of each parameter group, named as a recorder names them: lr/0, betas.0/0."""
    settings: dict[str, float] = {}
    for name, tensor in optimizer.items():
        match = _SETTING_NAME.match(name)
        if match and tensor.count == 1 and tensor.dtype.kind in _NUMBER_KINDS:
            settings[f"{match.group(2)}/{match.group(1)}"] = float(tensor.numpy().reshape(()))
    return settings


def _read_logged(files: Sequence[DumpFile]) -> Mapping[int, Mapping[str, float]]:
    """Return what transformers' Trainer logged at each step, from the last checkpoint that has it."""
    logged: dict[int, dict[str, float]] = {}
    for dump in reversed(files):
        path = os.path.join(dump.path, _TRAINER_STATE)
        if not os.path.isfile(path):
            continue
        history: Any = read_json(Window(RegularFile(path)), "the state of a Trainer").get("log_history")
        for entry in history if isinstance(history, list) else ():
            number = entry.get("step") if isinstance(entry, dict) else None
            if type(number) is not int:
                continue
            for name, value in entry.items():
                if name not in ("step", "epoch") and isinstance(value, (int, float)):
                    logged.setdefault(number, {})[str(name)] = float(value)
        break
    return logged


def open_dumps(path: str) -> DumpRun:
    """Return a folder of checkpoints as a training run."""
    files = find_dumps(path)
    if not files:
        raise SourceError(path, "holds no checkpoints with a step in their names, such as epoch_001/batch_0010.pt")
    beside = sorted(set(_list_checkpoints(path)) - {dump.path for dump in files}, key=natural_key)
    notes = []
    if beside:
        names = ", ".join(os.path.basename(file) for file in beside[:3])
        notes.append(f"not compared, since no step is in the name: {names}{', ...' if len(beside) > 3 else ''}")
    return DumpRun(path, files, notes)


def _list_checkpoints(path: str) -> list[str]:
    return [os.path.join(path, name) for name in os.listdir(path) if name.endswith(_SUFFIXES)]
