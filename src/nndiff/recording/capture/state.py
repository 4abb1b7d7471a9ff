"""The state of a model, so that a run leaves it as it was: modes, buffers, gradients, parameters, generators."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from nndiff.recording.capture.tensors import find_memory, raw_tensor
from nndiff.recording.environment.modes import get_mode, set_training_flag
from nndiff.recording.environment.randomness import ModelGenerators
from nndiff.recording.format.digests import measure_tensor, native

_COPY_LIMIT = 256 << 20  # bytes: the parameters of larger models are not copied, only checked for writes

_Buffers = dict[str, tuple[torch.Tensor | None, torch.Tensor | None]]  # name: the buffer itself and a copy


class State:
    """Remember a model's state, tell what changed, put it back."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.mode = get_mode(model)
        self.generators = ModelGenerators(model)
        self.digests = compute_state_digests(model)
        self._model = model
        self._training = [(module, getattr(module, "training", None)) for module in model.modules()]
        self._parameters = {name: parameter for name, parameter in model.named_parameters() if not is_lazy(parameter)}
        self._gradients = [(parameter, parameter.grad) for parameter in self._parameters.values()]
        self._versions = {name: parameter._version for name, parameter in self._parameters.items()}
        self._copies: dict[str, torch.Tensor] = {}
        if sum(parameter.numel() * parameter.element_size() for parameter in self._parameters.values()) <= _COPY_LIMIT:
            self._copies = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        self._unequal: list[str] | None = None  # the last answer; valid once, another run may follow
        self._buffers: dict[torch.nn.Module, _Buffers] = {}
        for module in model.modules():
            buffers: _Buffers = {}
            for name, buffer in module._buffers.items():
                copy = None if buffer is None or is_lazy(buffer) else buffer.detach().clone()
                buffers[name] = (buffer, copy)
            self._buffers[module] = buffers

    def clear_gradients(self) -> None:
        """Remove all gradients, so that the next run starts without any."""
        self._unequal = None
        for parameter in (*self._parameters.values(), *self._list_new_parameters()):
            parameter.grad = None

    def _list_new_parameters(self) -> list[torch.nn.Parameter]:
        """Return the parameters that a run created: of lazy modules, or made in a forward pass."""
        old_ids = {id(parameter) for parameter in self._parameters.values()}
        new_parameters = []
        for parameter in self._model.parameters():
            if id(parameter) not in old_ids and not is_lazy(parameter):
                new_parameters.append(parameter)
        return new_parameters

    def list_changed_buffers(self) -> Iterator[tuple[str, str, torch.Tensor | None, torch.Tensor]]:
        """Yield module, name, old and new value of every buffer the run changed."""
        names = {module: name for name, module in self._model.named_modules()}
        for module, buffers in self._buffers.items():
            for name, now in module._buffers.items():
                _, before = buffers.get(name, (None, None))
                if now is not None and not is_lazy(now) and (before is None or not _are_equal(before, now)):
                    yield names.get(module, ""), name, before, now

    def list_changed_parameters(self) -> list[str]:
        """Return the parameters the run wrote to."""
        self._unequal = self._list_unequal_parameters()
        return [name for name in self._parameters if self._was_written(name) or name in self._unequal]

    def _was_written(self, name: str) -> bool:
        return bool(self._parameters[name]._version != self._versions[name])

    def _list_unequal_parameters(self) -> list[str]:
        """Return the copied parameters that no longer equal their copy."""
        unequal = []
        for name, copy in self._copies.items():
            parameter = self._parameters[name]
            digest = self.digests.get(name)
            if digest is not None and digest == compute_digest(parameter):
                continue  # cheaper than the comparison, which reads two tensors
            if not _are_equal(copy, parameter):
                unequal.append(name)
        return unequal

    def restore(self, keep_modes: bool = False) -> list[str]:
        """Put everything back; return the parameters that changed and could not be put back.

        With `keep_modes`, for another run, modes stay as they are and generators that no seed reaches go on.
        """
        lost = [name for name in self._parameters if name not in self._copies and self._was_written(name)]
        unequal = self._list_unequal_parameters() if self._unequal is None else self._unequal
        self._unequal = None
        with torch.no_grad():
            for name in unequal:
                self._parameters[name].data.copy_(self._copies[name])
            for module, buffers in self._buffers.items():
                _restore_buffers(module, buffers)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        for parameter in self._list_new_parameters():
            parameter.grad = None
        if not keep_modes:
            self.generators.restore()
            for module, training in self._training:
                set_training_flag(module, training)
        return lost


def _restore_buffers(module: torch.nn.Module, buffers: _Buffers) -> None:
    is_fixed = isinstance(module, torch.jit.ScriptModule)  # it neither gains nor loses buffers
    if not is_fixed:
        for name in [name for name in module._buffers if name not in buffers]:
            del module._buffers[name]
    for name, (buffer, copy) in buffers.items():
        if buffer is not None and copy is not None and not _are_equal(buffer, copy):
            buffer.data.copy_(copy)
        if not is_fixed:
            module._buffers[name] = buffer


def compute_state_digests(model: torch.nn.Module) -> dict[str, dict[str, Any]]:
    """Return dtype, shape and digest of every parameter and buffer by name; those without elements are left out."""
    by_identity: dict[int, dict[str, Any] | None] = {}  # tied tensors are read once
    digests: dict[str, dict[str, Any]] = {}
    for name, tensor in itertools.chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    ):
        if id(tensor) not in by_identity:
            by_identity[id(tensor)] = compute_digest(tensor)
        digest = by_identity[id(tensor)]
        if digest is not None:
            digests[name] = digest
    return digests


def compute_digest(tensor: torch.Tensor) -> dict[str, Any] | None:
    """Return dtype, shape and digest of a tensor; None if its elements cannot be read."""
    if is_lazy(tensor) or tensor.is_meta:
        return None
    try:
        raw = raw_tensor(tensor)
    except (RuntimeError, TypeError):
        return None  # special tensors, sharded or packed
    return {"dtype": raw.dtype.name, "shape": list(raw.shape), "digest": measure_tensor(raw, with_stats=False).digest}


def _are_equal(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Return True if two tensors have equal elements; NaN equals NaN."""
    if before.is_nested or after.is_nested:  # without a shape
        return compute_digest(before) == compute_digest(after)
    if before.shape != after.shape or before.dtype != after.dtype:
        return False
    before, after = before.detach(), after.detach()
    if before.is_meta or after.is_meta:
        return before.is_meta and after.is_meta
    if before.layout is not torch.strided:
        return compute_digest(before) == compute_digest(after)
    if _have_equal_bytes(before, after) or torch.equal(before, after):
        return True
    if not (before.is_floating_point() or before.is_complex()):
        return False
    return bool(((before == after) | (before.isnan() & after.isnan())).all())


def _have_equal_bytes(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Return True if two CPU tensors are equal to the bit; torch.equal would start all its threads for that."""
    if native is None or before.stride() != after.stride():
        return False
    if (before.is_conj(), before.is_neg()) != (after.is_conj(), after.is_neg()):
        return False
    memory_before, memory_after = find_memory(before), find_memory(after)
    if memory_before is None or memory_after is None:
        return False
    return bool(native.same(memory_before[0], memory_after[0], memory_before[1]))
