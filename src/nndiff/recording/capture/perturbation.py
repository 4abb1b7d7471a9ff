"""Move the weights and inputs of a model by half a unit of rounding, or in memory, and put the weights back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch.nn.parameter import is_lazy

from nndiff.recording.capture.inputs import Inputs

_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of axes of a weight
_CLASSES = (torch.Tensor, torch.nn.Parameter)  # a subclass may have no memory of its own


@contextmanager
def weights_in_channels_last(model: torch.nn.Module) -> Iterator[None]:
    """Lay the weights of convolutions out channels last, so that other kernels run.

    Those sum in another order, as half a unit of rounding in weights and inputs never makes them do. A weight that
    shares its memory with another tensor stays as it is.
    """
    laid_out: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
    try:
        for weight in model.parameters():
            layout = _CHANNELS_LAST.get(weight.ndim)
            if layout is None or not _can_be_moved(weight.data) or not _owns_memory(weight.data):
                continue
            if not weight.is_contiguous(memory_format=layout):
                laid_out.append((weight, weight.data))
                weight.data = weight.data.contiguous(memory_format=layout)
        yield
    finally:
        for weight, original in laid_out:
            weight.data = original


@contextmanager
def moved_weights(model: torch.nn.Module, generator: torch.Generator) -> Iterator[None]:
    """Move every floating-point parameter and buffer; afterwards each is what it was, to the bit."""
    moved: list[tuple[torch.Tensor, torch.Tensor]] = []
    seen: set[tuple[object, ...]] = set()
    parameters = {id(parameter) for parameter in model.parameters()}
    try:
        for tensor in chain(model.parameters(), model.buffers()):
            if not _can_be_moved(tensor) or (id(tensor) not in parameters and _is_exact(tensor)):
                continue
            memory = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
            if memory in seen:
                continue  # tied: it moves once
            seen.add(memory)
            moved.append((tensor, tensor.detach().cpu().clone()))
            _move_in_place(tensor.data, generator)
        yield
    finally:
        for tensor, original in reversed(moved):  # of views that overlap, the first holds what both were
            tensor.data.copy_(original)


def move_inputs(inputs: Inputs, generator: torch.Generator) -> Inputs:
    """Return a copy of the inputs with their floating-point tensors moved."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.detach().clone()
        if _can_be_moved(copy) and not _is_exact(copy):
            _move_in_place(copy, generator)
        return copy

    return inputs.change_tensors(move)


def _can_be_moved(tensor: torch.Tensor) -> bool:
    if type(tensor) not in _CLASSES or is_lazy(tensor) or tensor.is_meta or tensor.layout is not torch.strided:
        return False
    is_expanded = any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    return (tensor.dtype in _BITS or tensor.is_complex()) and not is_expanded


def _owns_memory(tensor: torch.Tensor) -> bool:
    """Return True if no other tensor can be a part of the same memory."""
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def _is_exact(tensor: torch.Tensor) -> bool:
    """Return True for whole numbers alone: masks, one-hot rows and counts are no result of rounding.

    A mask is often used as (1 - mask) * -1e38, which makes anything of a 1 that is off by one digit.
    """
    values = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    values = values[torch.isfinite(values)]
    return bool((values == values.round()).all())


def _move_in_place(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Move each element by -1, 0 or +1 ulp with probability 1/4, 1/2, 1/4; zeros, inf and NaN stay.

    Neighbouring numbers have neighbouring bit patterns, whatever the dtype.
    """
    numbers = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    if numbers.dtype not in _BITS:
        return  # complex32
    drawn = torch.randint(0, 4, numbers.shape, generator=generator, dtype=torch.int8)
    steps = ((drawn == 0).to(torch.int8) - (drawn == 1).to(torch.int8)).to(numbers.device)
    bits = numbers.view(_BITS[numbers.dtype])
    moved = (bits + steps).view(numbers.dtype)
    # the largest number of a dtype would become infinite
    stays = (numbers == 0) | ~torch.isfinite(numbers) | ~torch.isfinite(moved)
    numbers.copy_(torch.where(stays, numbers, moved))
