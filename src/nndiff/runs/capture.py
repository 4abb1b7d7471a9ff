"""The state of a training: tensors of model and optimizer by name, hyper-parameters, random generators."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from nndiff.dtypes import DTYPES
from nndiff.recording.capture.tensors import is_tensor, raw_tensor
from nndiff.recording.format.digests import RawTensor
from nndiff.recording.format.values import flatten
from nndiff.runs.run import StepTensors, TensorKey, TensorKind
from nndiff.stats.sketches import RawArray, allocate_widths, sketch_tensors
from nndiff.tensors import MemoryData, Shape, TensorRef

# Numbers in the sketches of one recorded step. With 65,536 the largest of ResNet-50's tensors get widths from 1,024 on,
# which is 2 % of error of their L2; gradients and optimizer state are only looked at for causes, and get half of that.
WEIGHT_BUDGET = 65_536
GRADIENT_BUDGET = 32_768
STATE_BUDGET = 32_768  # for each kind of state: exp_avg, exp_avg_sq, ...
BUFFER_BUDGET = 8_192

_PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter)
_DTYPE_NAMES = {getattr(torch, name): name for name in DTYPES if hasattr(torch, name)}
_PLAIN_DTYPES = {dtype: name for dtype, name in _DTYPE_NAMES.items() if not dtype.is_complex}
_NOT_HYPER_PARAMETERS = ("params", "param_names")

Rows = list[tuple[str, torch.Tensor]]
Parameters = list[tuple[str, torch.nn.Parameter]]


@dataclass(frozen=True)
class _Family:
    """Hold tensors of one kind that share a budget."""

    kind: TensorKind
    state: str
    budget: int
    rows: Rows


def list_parameters(model: torch.nn.Module) -> Parameters:
    """Return the parameters of a model by name, tied ones once."""
    return [(name, parameter) for name, parameter in model.named_parameters() if not is_lazy(parameter)]


def collect_families(
    model: torch.nn.Module, parameters: Parameters, optimizers: Sequence[Any], with_gradients: bool
) -> list[_Family]:
    """Return weights, buffers, gradients and optimizer state, each tensor once and by the model's name of it."""
    buffers: Rows = [(name, buffer) for name, buffer in model.named_buffers() if not is_lazy(buffer)]
    families = [
        _Family(TensorKind.WEIGHT, "", WEIGHT_BUDGET, list(parameters)),
        _Family(TensorKind.BUFFER, "", BUFFER_BUDGET, buffers),
    ]
    if with_gradients:
        gradients = [(name, parameter.grad) for name, parameter in parameters if parameter.grad is not None]
        families.append(_Family(TensorKind.GRADIENT, "", GRADIENT_BUDGET, gradients))
    states: dict[str, Rows] = {}
    for optimizer in optimizers:
        for name, parameter in parameters:
            for state, value in _list_state(optimizer.state.get(parameter)):
                states.setdefault(state, []).append((name, value))
    for state, rows in states.items():
        families.append(_Family(TensorKind.STATE, state, STATE_BUDGET, rows))
    return families


def _list_state(state: Mapping[str, Any] | None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of one parameter's state, numbers as tensors too."""
    for name, value in (state or {}).items():
        if is_tensor(value):
            yield name, value
            continue
        for path, leaf in flatten(value, is_tensor):
            inner_name = f"{name}.{path}" if path else str(name)
            if is_tensor(leaf):
                yield inner_name, leaf
            elif isinstance(leaf, (bool, int, float)):
                yield inner_name, torch.tensor(float(leaf), dtype=torch.float64, device="cpu")


class StateSampler:
    """Turn the tensors of a training into sketches, statistics and digests."""

    def __init__(self, keep: str, seed: int) -> None:
        self._keep = keep
        self._seed = seed
        # what follows from the names and shapes, which hardly ever change from one step to the next
        self._signature: list[tuple[Any, ...]] = []
        self._keys: tuple[TensorKey, ...] = ()
        self._shapes: tuple[Shape, ...] = ()
        self._dtypes: tuple[str, ...] = ()
        self._widths: list[int] = []
        self.has_parts = False  # a tensor was only in part in this process
        self.unreadable: dict[str, str] = {}  # names of tensors that have no elements here, and why

    def sample(self, families: list[_Family]) -> StepTensors:
        """Return what is to be kept of the tensors."""
        arrays: list[RawArray] = []
        sources: list[torch.Tensor | RawTensor] = []  # kept alive while their memory is read
        signature: list[tuple[Any, ...]] = []
        for family in families:
            kind, state = family.kind, family.state
            for name, tensor in family.rows:
                dtype = _PLAIN_DTYPES.get(tensor.dtype)
                if (
                    type(tensor) in _PLAIN_CLASSES
                    and dtype is not None
                    and tensor.layout is torch.strided
                    and tensor.device.type == "cpu"
                    and tensor.is_contiguous()
                    and not tensor.is_neg()
                    and (tensor.data_ptr() or not tensor.numel())  # a storage may be freed while its tensor stays
                ):
                    shape = tuple(tensor.shape)
                    arrays.append(RawArray(tensor.data_ptr(), tensor.numel(), dtype, shape))
                    sources.append(tensor)
                else:
                    copy = self._copy_tensor(f"{kind.value} {name}", tensor)
                    if copy is None:
                        continue
                    shape, dtype = copy.shape, copy.dtype.name
                    arrays.append(RawArray(copy.flat.ctypes.data, copy.flat.size, dtype, shape))
                    sources.append(copy)
                signature.append((kind, name, state, shape, dtype))
        if signature != self._signature:
            self._plan_rows(signature, families)
        sketched = sketch_tensors(arrays, self._widths, self._seed)
        whole: tuple[TensorRef | None, ...] = ()
        if self._keep == "full":
            whole = tuple(_view_tensor(key.name, source) for key, source in zip(self._keys, sources, strict=True))
        return StepTensors(
            keys=self._keys,
            shapes=self._shapes,
            dtypes=self._dtypes,
            statistics=sketched.statistics,
            digests=sketched.digests,
            widths=sketched.widths,
            sketches=sketched.sketches,
            seed=self._seed,
            tensors=whole,
        )

    def _copy_tensor(self, title: str, tensor: torch.Tensor) -> RawTensor | None:
        """Return the elements of a tensor that is elsewhere or otherwise laid out; None if it has none here."""
        try:
            if hasattr(tensor, "to_local"):  # a DTensor, of which this process may have a part only
                whole_count, tensor = tensor.numel(), tensor.to_local()
                self.has_parts |= tensor.numel() != whole_count
            is_strided = type(tensor) in _PLAIN_CLASSES and tensor.layout is torch.strided
            if is_strided and tensor.numel() and tensor.untyped_storage().nbytes() == 0:
                raise RuntimeError("its storage was freed")
            return raw_tensor(tensor)
        except (RuntimeError, TypeError, NotImplementedError) as error:
            self.unreadable.setdefault(title, type(error).__name__)
            return None

    def _plan_rows(self, signature: list[tuple[Any, ...]], families: list[_Family]) -> None:
        """Decide how wide each sketch is."""
        self._signature = signature
        self._keys = tuple(TensorKey(kind, name, state) for kind, name, state, _, _ in signature)
        self._shapes = tuple(shape for _, _, _, shape, _ in signature)
        self._dtypes = tuple(dtype for _, _, _, _, dtype in signature)
        self._widths = [0] * len(signature)
        if self._keep == "stats":
            return
        for family in families:
            rows = []
            for row, (kind, _, state, _, _) in enumerate(signature):
                if kind is family.kind and state == family.state:
                    rows.append(row)
            counts = [math.prod(self._shapes[row]) for row in rows]
            for row, width in zip(rows, allocate_widths(counts, family.budget), strict=True):
                self._widths[row] = width


def _view_tensor(name: str, source: torch.Tensor | RawTensor) -> TensorRef:
    """Return the elements of a tensor without copying them."""
    raw = source if isinstance(source, RawTensor) else raw_tensor(source)
    return TensorRef(name, raw.shape, raw.dtype, MemoryData(raw.flat))


def compute_gradient_norm(tensors: StepTensors) -> float | None:
    """Return the L2 norm of all gradients as one vector; None if there are none, NaN if one is not finite."""
    rows = [row for row, key in enumerate(tensors.keys) if key.kind is TensorKind.GRADIENT]
    if not rows:
        return None
    norms, nonfinite = tensors.statistics[rows, 0], tensors.statistics[rows, 5]
    return math.nan if nonfinite.any() else math.sqrt(float(norms @ norms))


def list_groups(optimizers: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the parameter groups of all optimizers."""
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def read_hyper_parameters(optimizers: Sequence[Any]) -> dict[str, float]:
    """Return every number in the parameter groups of optimizers, by name and group: lr/0, betas.0/0."""
    numbers: dict[str, float] = {}
    for index, group in enumerate(list_groups(optimizers)):
        for name, value in group.items():
            if name in _NOT_HYPER_PARAMETERS:
                continue
            items = enumerate(value) if isinstance(value, (list, tuple)) else [("", value)]
            for place, item in items:
                if is_tensor(item) and item.numel() == 1:
                    item = item.item()
                if isinstance(item, (bool, int, float)):
                    numbers[f"{name}.{place}/{index}" if place != "" else f"{name}/{index}"] = float(item)
    return numbers


def fingerprint_generators() -> dict[str, str]:
    """Return a digest of the state of every global random generator."""
    states: dict[str, Iterable[Any]] = {
        "torch": [torch.get_rng_state().numpy()],
        "numpy": _list_numpy_state(),
        "python": [repr(random.getstate()).encode()],
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = [state.numpy() for state in torch.cuda.get_rng_state_all()]
    digests = {}
    for name, parts in states.items():
        content = hashlib.blake2b(digest_size=16)
        for part in parts:
            content.update(part)
        digests[name] = content.hexdigest()
    return digests


def _list_numpy_state() -> Iterator[Any]:
    """Yield the state of NumPy's generator as bytes that every version of NumPy gives."""
    for path, leaf in flatten(np.random.get_state(legacy=False), is_tensor):
        yield path.encode()
        yield np.ascontiguousarray(leaf) if isinstance(leaf, np.ndarray) else repr(leaf).encode()


def list_optimizers(optimizer: Any) -> tuple[Any, ...]:
    """Return the optimizers that were given as one, several or none, out of their wrappers (accelerate, Lightning)."""
    optimizers = []
    for item in optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]:
        while isinstance(getattr(item, "optimizer", None), torch.optim.Optimizer):
            item = item.optimizer
        if item is not None:
            optimizers.append(item)
    return tuple(optimizers)


def name_groups(parameters: Parameters, optimizers: Sequence[Any]) -> tuple[tuple[tuple[str, ...], ...], int]:
    """Return the model's names of the parameters in each group, and how many of them the model does not have."""
    names = {id(parameter): name for name, parameter in parameters}
    groups, unknown = [], 0
    for group in list_groups(optimizers):
        known = [names[id(parameter)] for parameter in group["params"] if id(parameter) in names]
        unknown += len(group["params"]) - len(known)
        groups.append(tuple(known))
    return tuple(groups), unknown


def list_trainable(parameters: Parameters) -> frozenset[str]:
    """Return the names of the parameters that require a gradient."""
    return frozenset(name for name, parameter in parameters if parameter.requires_grad)
