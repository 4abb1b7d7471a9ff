"""Inputs from the command line: drawn from the seed by a description, or read from a file or a recording."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nndiff.errors import ModelError, UsageError
from nndiff.models.fitting import fitted
from nndiff.recording.capture.inputs import Inputs
from nndiff.recording.capture.tensors import from_raw
from nndiff.recording.format.folder import is_recording
from nndiff.sources import open_source
from nndiff.sources.saved_outputs import file_of_inputs, is_saved_outputs
from nndiff.tensors import TensorRef
from nndiff.text import first_few, printable

_FORM = re.compile(r"(?P<name>\w+)=(?P<dtype>\w+)\[(?P<shape>[^\]]*)\](?::(?P<low>[^.]+(?:\.\d+)?)\.\.(?P<high>.+))?\Z")
_WHOLE = re.compile(r"[A-Za-z_]\w*=")
_IDS = ("input_ids", "ids", "tokens", "token_ids", "idx")
_NAMELESS = {
    ".npy": "",
    ".pt": "tensor",
    ".pth": "tensor",
    ".bin": "tensor",
}  # what one bare tensor is called; "": as its file
_DEFAULT_HIGH = 100  # whole numbers are drawn below this unless a range is given


@dataclass(frozen=True)
class Drawn:
    """Describe one input that is drawn from the seed."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    low: float | None = None
    high: float | None = None

    def draw(self) -> torch.Tensor:
        """Return the tensor: normal floats, whole numbers from 0, or uniform in the range given."""
        if self.dtype is torch.bool:
            return torch.randint(0, 2, self.shape).bool()
        if not (self.dtype.is_floating_point or self.dtype.is_complex):
            low, high = self.low or 0, _DEFAULT_HIGH if self.high is None else self.high
            return torch.randint(int(low), int(high), self.shape).to(self.dtype)
        if self.low is None or self.high is None:
            wide = torch.complex64 if self.dtype.is_complex else torch.float32
            return torch.randn(self.shape, dtype=wide).to(self.dtype)
        return (torch.rand(self.shape) * (self.high - self.low) + self.low).to(self.dtype)


def parse_drawn(spec: str, batch_size: int | None, seq_len: int | None) -> Drawn:
    """Return the input `NAME=DTYPE[SHAPE]` describes; in the shape B is --batch-size and T is --seq-len."""
    found = _FORM.match(spec.replace(" ", ""))
    if not found:
        raise UsageError(
            f"--input {spec!r} is not NAME=DTYPE[SHAPE], for example x=float32[2,16] or ids=int64[B,T]:0..99"
        )
    dtype = getattr(torch, found["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"--input {spec!r}: torch has no dtype {found['dtype']!r}")
    sizes = {"B": batch_size or 2, "T": seq_len or 16}
    try:
        shape = tuple(sizes[part] if part in sizes else int(part) for part in found["shape"].split(",") if part)
        low, high = (float(found[end]) if found[end] else None for end in ("low", "high"))
    except ValueError:
        raise UsageError(f"--input {spec!r}: shape and range must be numbers (B and T stand for sizes)") from None
    if any(size < 0 for size in shape) or (low is not None and high is not None and not low < high):
        raise UsageError(f"--input {spec!r}: sizes must be 0 or more and a range must go up")
    return Drawn(found["name"], dtype, shape, low, high)


@dataclass(frozen=True)
class Loaded:
    """Hold the inputs that a file holds for a model, and what is to be told of them."""

    inputs: Inputs
    notes: tuple[str, ...] = ()


def _saved(specs: Sequence[str]) -> str:
    """Return the file that --input names; an empty text where it describes what is to be drawn."""
    files = [spec for spec in specs if not _WHOLE.match(spec) and not spec[:1].isdigit()]
    if files and len(specs) > 1:
        raise UsageError("--input takes one saved file, or any number of NAME=DTYPE[SHAPE], not both")
    return files[0] if files else ""


def from_file(specs: Sequence[str], model: torch.nn.Module) -> Loaded | None:
    """Return the saved inputs that --input names, or None where it names none."""
    file = _saved(specs)
    return load(file, model) if file else None


def from_options(specs: Sequence[str], batch_size: int | None, seq_len: int | None) -> Callable[[], Inputs] | None:
    """Return what draws the inputs that --input options ask for, or None where there are none."""
    if not specs or _saved(specs):
        return None
    drawn = [parse_drawn(spec, batch_size, seq_len) for spec in specs]
    if len({each.name for each in drawn}) != len(drawn):
        raise UsageError("--input names one input twice")
    return lambda: _arranged({each.name: each.draw() for each in drawn})


def load(path: str, model: torch.nn.Module) -> Loaded:
    """Return the inputs that are saved: of a recording its model's inputs, else tensors by the names of arguments."""
    if is_recording(Path(path)):
        from nndiff.recording.reader import open_recording

        args, kwargs = open_recording(path).inputs()
        made = tuple(_with_tensors(each) for each in args), {name: _with_tensors(each) for name, each in kwargs.items()}
        return Loaded(Inputs(made[0], made[1], data_of(*made)))
    file = file_of_inputs(path) if is_saved_outputs(path) else path
    source = open_source(file)
    held = {name: _value(ref) for name, ref in source.tensors.items()}
    alone = _NAMELESS.get(Path(file).suffix)
    if alone is not None and [*held] == [alone or Path(file).stem]:
        return Loaded(_arranged({"0": held.popitem()[1]}))  # saved without a name it is the first argument
    fit = fitted(model, held, file)
    texts = [f"{printable(name, 40)} = {printable(what, 40)}" for name, what in source.describe_others().items()]
    beside = [f"not fed, as it is no tensor and no number: {first_few(texts, 8)} of {file}"] if texts else []
    return Loaded(_arranged(fit.values), (*fit.notes, *beside))


def _value(ref: TensorRef) -> Any:
    """Return a stored value as it was saved: a number as a number."""
    return ref.numpy().item() if ref.scalar else tensor_of(ref)


def tensor_of(ref: TensorRef) -> torch.Tensor:
    """Return a stored tensor as a torch tensor; one that asked for a gradient does so again."""
    if ref.missing:
        raise ModelError(f"input {ref.name!r} cannot be fed: {ref.missing}")
    tensor = from_raw(ref.read(0, ref.count), ref.dtype.name, ref.shape)
    return tensor.requires_grad_() if ref.trace.requires_grad else tensor


def _with_tensors(value: Any) -> Any:
    if isinstance(value, TensorRef):
        return tensor_of(value)
    if isinstance(value, dict):
        return {key: _with_tensors(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_with_tensors(each) for each in value)
    return value


def _arranged(values: Mapping[str, Any]) -> Inputs:
    """Return a call: names that are numbers (0, 1, arr_0) are positions, the others keywords."""
    positions: dict[int, Any] = {}
    kwargs: dict[str, Any] = {}
    for name, value in values.items():
        number = name.removeprefix("arr_")
        if number.isdigit():
            positions[int(number)] = value
        elif name.isidentifier():
            kwargs[name] = value
        else:
            raise ModelError(f"input {name!r} is no name an argument can have; save inputs under the arguments' names")
    args = tuple(positions[number] for number in sorted(positions))
    return Inputs(args, kwargs, data_of(args, kwargs))


def data_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return inputs as a loss function gets them: the dict, the one tensor or the tuple that inputs() would give."""
    if kwargs and not args:
        return kwargs
    if args and not kwargs:
        return args[0] if len(args) == 1 else args
    return {**{str(number): value for number, value in enumerate(args)}, **kwargs}


def guess(model: torch.nn.Module, batch_size: int | None, seq_len: int | None) -> Callable[[], Inputs] | None:
    """Return inputs for the common case, a model of token numbers, or None where it is not that."""
    import inspect

    names = list(inspect.signature(model.forward).parameters)
    table = next((each for each in model.modules() if isinstance(each, torch.nn.Embedding)), None)
    if not names or table is None or names[0] not in _IDS:
        return None
    high, shape = table.num_embeddings, (batch_size or 2, seq_len or 16)
    return lambda: _arranged({names[0]: torch.randint(0, high, shape)})
