"""Inputs from the command line: drawn from the seed as described, or read from a file or a recording."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nndiff.errors import ModelError, UsageError
from nndiff.models.fitting import fit_inputs
from nndiff.recording.capture.inputs import Inputs
from nndiff.recording.capture.tensors import from_raw
from nndiff.recording.format.folder import is_recording
from nndiff.sources import open_source
from nndiff.sources.saved_outputs import file_of_inputs, is_saved_outputs
from nndiff.tensors import TensorRef
from nndiff.text import first_few, printable

_DESCRIPTION = re.compile(
    r"(?P<name>\w+)=(?P<dtype>\w+)\[(?P<shape>[^\]]*)\](?::(?P<low>[^.]+(?:\.\d+)?)\.\.(?P<high>.+))?\Z"
)
_NAMED = re.compile(r"[A-Za-z_]\w*=")
_TOKEN_NAMES = ("input_ids", "ids", "tokens", "token_ids", "idx")
# what a source calls a single tensor that was saved without a name; "": like its file
_NAMELESS = {".npy": "", ".pt": "tensor", ".pth": "tensor", ".bin": "tensor"}
_DEFAULT_HIGH = 100  # whole numbers are drawn below this unless a range is given
DEFAULT_BATCH_SIZE = 2
DEFAULT_SEQ_LEN = 16


@dataclass(frozen=True)
class InputDescription:
    """One input that is drawn from the seed."""

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
            high = _DEFAULT_HIGH if self.high is None else self.high
            return torch.randint(int(self.low or 0), int(high), self.shape).to(self.dtype)
        if self.low is None or self.high is None:
            drawn_dtype = torch.complex64 if self.dtype.is_complex else torch.float32
            return torch.randn(self.shape, dtype=drawn_dtype).to(self.dtype)
        return (torch.rand(self.shape) * (self.high - self.low) + self.low).to(self.dtype)


@dataclass(frozen=True)
class LoadedInputs:
    """The inputs that a file holds for a model, and notes about them."""

    inputs: Inputs
    notes: tuple[str, ...] = ()


def parse_description(text: str, batch_size: int | None, seq_len: int | None) -> InputDescription:
    """Return the input that `NAME=DTYPE[SHAPE]` describes; B in the shape is the batch size, T the length."""
    match = _DESCRIPTION.match(text.replace(" ", ""))
    if not match:
        raise UsageError(
            f"--input {text!r} is not NAME=DTYPE[SHAPE], for example x=float32[2,16] or ids=int64[B,T]:0..99"
        )
    dtype = getattr(torch, match["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"--input {text!r}: torch has no dtype {match['dtype']!r}")
    sizes = {"B": batch_size or DEFAULT_BATCH_SIZE, "T": seq_len or DEFAULT_SEQ_LEN}
    try:
        shape = []
        for size in match["shape"].split(","):
            if size:
                shape.append(sizes[size] if size in sizes else int(size))
        low = float(match["low"]) if match["low"] else None
        high = float(match["high"]) if match["high"] else None
    except ValueError:
        raise UsageError(f"--input {text!r}: shape and range must be numbers (B and T stand for sizes)") from None
    if any(size < 0 for size in shape):
        raise UsageError(f"--input {text!r}: sizes must be 0 or more")
    if low is not None and high is not None and low >= high:
        raise UsageError(f"--input {text!r}: the range must go up")
    return InputDescription(match["name"], dtype, tuple(shape), low, high)


def find_saved_inputs(specs: Sequence[str]) -> str:
    """Return the file that --input names, or an empty text if it describes inputs to draw."""
    files = [spec for spec in specs if not _NAMED.match(spec) and not spec[:1].isdigit()]
    if files and len(specs) > 1:
        raise UsageError("--input takes one saved file or any number of NAME=DTYPE[SHAPE], not both")
    return files[0] if files else ""


def make_input_drawer(specs: Sequence[str], batch_size: int | None, seq_len: int | None) -> Callable[[], Inputs] | None:
    """Return a function that draws the inputs that --input describes, or None if it describes none."""
    if not specs or find_saved_inputs(specs):
        return None
    descriptions: dict[str, InputDescription] = {}
    for spec in specs:
        description = parse_description(spec, batch_size, seq_len)
        if description.name in descriptions:
            raise UsageError(f"--input describes {description.name!r} twice")
        descriptions[description.name] = description
    return lambda: _arrange_call({name: description.draw() for name, description in descriptions.items()})


def make_token_drawer(
    model: torch.nn.Module, batch_size: int | None, seq_len: int | None
) -> Callable[[], Inputs] | None:
    """Return a function that draws token numbers, or None if the model does not start with an embedding of them."""
    names = list(inspect.signature(model.forward).parameters)
    embedding = next((module for module in model.modules() if isinstance(module, torch.nn.Embedding)), None)
    if not names or embedding is None or names[0] not in _TOKEN_NAMES:
        return None
    tokens, shape = embedding.num_embeddings, (batch_size or DEFAULT_BATCH_SIZE, seq_len or DEFAULT_SEQ_LEN)
    return lambda: _arrange_call({names[0]: torch.randint(0, tokens, shape)})


def load_inputs(path: str, model: torch.nn.Module) -> LoadedInputs:
    """Return saved inputs: those of a recorded model, or else tensors that are named like arguments."""
    if is_recording(Path(path)):
        from nndiff.recording.reader import open_recording

        stored_args, stored_kwargs = open_recording(path).inputs()
        args = tuple(_read_tensors_in(value) for value in stored_args)
        kwargs = {name: _read_tensors_in(value) for name, value in stored_kwargs.items()}
        return LoadedInputs(Inputs(args, kwargs, _arrange_for_loss(args, kwargs)))
    file = file_of_inputs(path) if is_saved_outputs(path) else path
    source = open_source(file)
    values = {}
    for name, tensor in source.tensors.items():
        values[name] = tensor.numpy().item() if tensor.scalar else read_tensor(tensor)
    nameless = _NAMELESS.get(Path(file).suffix)
    if nameless is not None and list(values) == [nameless or Path(file).stem]:
        return LoadedInputs(_arrange_call({"0": values.popitem()[1]}))  # the first argument
    fit = fit_inputs(model, values, file)
    notes = list(fit.notes)
    if source.others:
        ignored = [
            f"{printable(name, 40)} = {printable(entry.description, 40)}" for name, entry in source.others.items()
        ]
        notes.append(f"not fed, because it is neither a tensor nor a number: {first_few(ignored, 8)} of {file}")
    return LoadedInputs(_arrange_call(fit.values), tuple(notes))


def read_tensor(tensor: TensorRef) -> torch.Tensor:
    """Return a stored tensor as a torch tensor, which requires a gradient if the stored one did."""
    if tensor.missing:
        raise ModelError(f"input {tensor.name!r} cannot be fed: {tensor.missing}")
    values = from_raw(tensor.read(0, tensor.count), tensor.dtype.name, tensor.shape)
    return values.requires_grad_() if tensor.trace.requires_grad else values


def _read_tensors_in(value: Any) -> Any:
    """Return a value with the stored tensors in it read, however deep they are."""
    if isinstance(value, TensorRef):
        return read_tensor(value)
    if isinstance(value, dict):
        return {key: _read_tensors_in(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_read_tensors_in(item) for item in value)
    return value


def _arrange_call(values: Mapping[str, Any]) -> Inputs:
    """Return a call: names that are numbers (0, 1, arr_0) are positions, all others are keywords."""
    positions: dict[int, Any] = {}
    kwargs: dict[str, Any] = {}
    for name, value in values.items():
        number = name.removeprefix("arr_")
        if number.isdigit():
            positions[int(number)] = value
        elif name.isidentifier():
            kwargs[name] = value
        else:
            raise ModelError(f"no argument can be called {name!r}; save inputs under the names of the arguments")
    args = tuple(positions[number] for number in sorted(positions))
    return Inputs(args, kwargs, _arrange_for_loss(args, kwargs))


def _arrange_for_loss(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return inputs as a loss function gets them: the dict, the tensor or the tuple that inputs() would return."""
    if kwargs and not args:
        return kwargs
    if args and not kwargs:
        return args[0] if len(args) == 1 else args
    return {**{str(number): value for number, value in enumerate(args)}, **kwargs}
