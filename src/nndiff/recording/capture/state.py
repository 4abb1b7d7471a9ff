"""Leave a model as it was: mode, buffers, gradients, parameters, generators of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch.nn.parameter import is_lazy

from nndiff.recording.capture.state_digests import digest_of, state_digests
from nndiff.recording.capture.tensors import memory_of
from nndiff.recording.environment.generators import OwnGenerators
from nndiff.recording.format.native import native

Mode = Literal["train", "eval"]
_COPY_LIMIT = 256 << 20  # parameters up to so many bytes are copied; of larger models changes are only noticed


class State:
    """Remember a model's state, tell what changed, put it back."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.mode = mode_of(model)
        self.generators = OwnGenerators(model)
        self._model = model
        self._training = [(module, getattr(module, "training", None)) for module in model.modules()]
        self._parameters = [(name, each) for name, each in model.named_parameters() if not is_lazy(each)]
        self._grads = [(each, each.grad) for _, each in self._parameters]
        self._versions = {name: each._version for name, each in self._parameters}
        total = sum(each.numel() * each.element_size() for _, each in self._parameters)
        self._unequal: list[str] | None = None  # as last found; a run may follow, so it holds for one use
        self._copies = {name: _copy(each) for name, each in self._parameters} if total <= _COPY_LIMIT else {}
        self.digests = state_digests(model)
        self._buffers = {
            module: {
                name: (each, None if each is None or is_lazy(each) else _copy(each)) for name, each in held.items()
            }
            for module, held in ((module, module._buffers) for module in model.modules())
        }

    def clear_gradients(self) -> None:
        """Take the gradients away, so that those of the run that follows stand alone."""
        self._unequal = None
        for parameter in (*(each for _, each in self._parameters), *self._made_since()):
            parameter.grad = None

    def _made_since(self) -> list[torch.nn.Parameter]:
        """Return the parameters that came to be in a run: of lazy modules, or made in a forward pass."""
        known = {id(each) for _, each in self._parameters}
        return [each for each in self._model.parameters() if id(each) not in known and not is_lazy(each)]

    def changed_buffers(self) -> Iterator[tuple[str, str, torch.Tensor | None, torch.Tensor]]:
        """Yield module, name, old and new value of every buffer the run changed."""
        names = {module: name for name, module in self._model.named_modules()}
        for module, held in self._buffers.items():
            for name, now in module._buffers.items():
                before = held.get(name, (None, None))[1]
                if now is not None and not is_lazy(now) and (before is None or not _equal(before, now)):
                    yield names.get(module, ""), name, before, now

    def changed_parameters(self) -> list[str]:
        """Return the parameters the run wrote to."""
        self._unequal = unequal = self._find_unequal()
        return [name for name, each in self._parameters if self._is_written(name, each) or name in unequal]

    def _is_written(self, name: str, parameter: torch.Tensor) -> bool:
        return bool(parameter._version != self._versions[name])

    def _find_unequal(self) -> list[str]:
        held = ((name, each, self._copies.get(name)) for name, each in self._parameters)
        copied = ((name, each, copy) for name, each, copy in held if copy is not None)
        return [name for name, each, copy in copied if not self._is_as_before(name, each) and not _equal(copy, each)]

    def _is_as_before(self, name: str, parameter: torch.Tensor) -> bool:
        """Tell whether a parameter has its digest still: that reads one tensor, a comparison with its copy two."""
        before = self.digests.get(name)
        return before is not None and before == digest_of(parameter)

    def restore(self, keep_modes: bool = False) -> list[str]:
        """Put everything back; return the parameters that could not be.

        With `keep_modes`, for another run, the modes stay, and generators that no seed reaches go on as they would.
        """
        lost = [name for name, each in self._parameters if name not in self._copies and self._is_written(name, each)]
        unequal = self._find_unequal() if self._unequal is None else self._unequal
        self._unequal = None
        with torch.no_grad():
            for name, each in self._parameters:
                if name in unequal:
                    each.data.copy_(self._copies[name])
            for module, held in self._buffers.items():
                _restore_buffers(module, held)
        for parameter, grad in (*self._grads, *((each, None) for each in self._made_since())):
            parameter.grad = grad
        if not keep_modes:
            self.generators.restore()
            for module, training in self._training:
                _set_training(module, training)
        return lost


_Held = dict[str, tuple[torch.Tensor | None, torch.Tensor | None]]


def _restore_buffers(module: torch.nn.Module, held: _Held) -> None:
    fixed = isinstance(module, torch.jit.ScriptModule)  # it neither gains nor loses buffers
    for name in [] if fixed else [name for name in module._buffers if name not in held]:
        del module._buffers[name]
    for name, (buffer, copy) in held.items():
        if buffer is not None and copy is not None and not _equal(buffer, copy):
            buffer.data.copy_(copy)
        if not fixed:
            module._buffers[name] = buffer


def is_training(module: torch.nn.Module) -> bool:
    """Tell whether a module is in train mode; frozen TorchScript has no modes, and no flag for them."""
    return bool(getattr(module, "training", False))


def _set_training(module: torch.nn.Module, training: bool | None) -> None:
    if training is not None:
        module.training = training
    else:
        vars(module).pop("training", None)  # model.train() has left it there


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone()


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.is_nested or other.is_nested:  # it has no one shape
        return digest_of(one) == digest_of(other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    one, other = one.detach(), other.detach()
    if one.is_meta or other.is_meta:
        return one.is_meta and other.is_meta
    if one.layout is not torch.strided:
        return digest_of(one) == digest_of(other)
    if _same_bytes(one, other) or torch.equal(one, other):
        return True
    if not (one.is_floating_point() or one.is_complex()):
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.stride(), tensor.is_conj(), tensor.is_neg()


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two tensors on the CPU are the same to the bit; torch wakes all its threads for that."""
    if native is None or _layout(one) != _layout(other):
        return False
    here, there = memory_of(one), memory_of(other)
    return here is not None and there is not None and bool(native.same(here[0], there[0], here[1]))


@contextmanager
def in_mode(model: torch.nn.Module, mode: Mode | None) -> Iterator[None]:
    """Run in train or eval mode; the caller's State puts every flag back."""
    if mode is not None:
        model.train(mode == "train")
    yield


def mode_of(model: torch.nn.Module) -> str:
    """Return train, eval or mixed."""
    flags = {is_training(module) for module in model.modules()}
    return "mixed" if len(flags) == 2 else "train" if flags == {True} else "eval"
