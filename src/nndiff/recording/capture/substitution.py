"""Tensors of the reference in place of the model's own, while a model runs: what each module is given is then right."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch

from nndiff.errors import NndiffError
from nndiff.recording.capture.tensors import from_raw, get_dtype_name, is_tensor, raw_tensor
from nndiff.recording.environment.randomness import RandomState
from nndiff.recording.format.values import flatten, name_steps
from nndiff.tensors import Site, Slot, TensorRef

Paths = dict[str, torch.Tensor]  # by their place inside a value


class Substitution:
    """Hand on the reference's tensors, as fresh copies, wherever a site has a partner of the same size and dtype.

    A partner of another shape holds the same elements in the same order: who names partners sees to that.

    `clean` lists the sites that hold the reference's bytes afterwards; what is not listed went on as it was. `random`
    lists those before which random numbers were drawn, since the call of a module began or ended last.
    """

    def __init__(self, partners: Mapping[str, TensorRef]) -> None:
        self._partners = partners  # the reference's tensors by the name of the model's site
        self.clean: dict[str, None] = {}
        self.random: dict[str, None] = {}
        self._random_state: RandomState | None = None  # when the call of a module began or ended last
        self.has_recomputed = False

    def note_randomness(self, module: str, slot: Slot, call: int, value: Any) -> None:
        """Note the tensors a call was given, or returns, if random numbers were drawn since the last call."""
        if self._random_state is not None and not self._random_state.has_advanced():
            return
        if self._random_state is not None:
            for path, leaf in flatten(value, is_tensor):
                if is_tensor(leaf):
                    self.random[Site(module, slot, call, path).name] = None
        self._random_state = RandomState()

    def replace_arguments(
        self, module: str, call: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Return the arguments of a call with the reference's tensors; None if they hold its bytes already.

        An argument with the right bytes is handed on itself: a module that works in place means that very tensor.
        """
        arguments = {str(number): value for number, value in enumerate(args)} | kwargs
        replaced: Paths = {}
        copies: dict[tuple[int, str | None], torch.Tensor] = {}  # what came in twice goes in twice, as one tensor
        for path, leaf in flatten(arguments, is_tensor):
            name = Site(module, Slot.INPUT, call, path).name
            partner = self._find_partner(name, leaf) if is_tensor(leaf) else None
            if partner is None:
                continue
            elements = partner.read(0, partner.count)
            if not _has_bytes(leaf, elements):
                key = id(leaf), partner.trace.digest
                if key not in copies:
                    copies[key] = _copy_onto(leaf, elements, partner)
                replaced[path] = copies[key]
            self.clean[name] = None
        if not replaced:
            return None
        try:
            rebuilt = rebuild(arguments, replaced)
        except Exception:  # a container of the model's own that cannot be copied
            self._take_back(Site(module, Slot.INPUT, call, path).name for path in replaced)
            return None
        names = list(rebuilt)
        return tuple(rebuilt[name] for name in names[: len(args)]), {name: rebuilt[name] for name in names[len(args) :]}

    def replace_output(self, site: Site, tensor: torch.Tensor) -> torch.Tensor:
        """Return the reference's tensor for an output; the very output if it holds its bytes already.

        What else that is used for then belongs to its gradient, as it does in the reference.
        """
        partner = self._find_partner(site.name, tensor)
        if partner is None:
            return tensor
        elements = partner.read(0, partner.count)
        self.clean[site.name] = None
        return tensor if _has_bytes(tensor, elements) else _copy_onto(tensor, elements, partner)

    def put_back(self, module: str, call: int, output: Any, replaced: Paths) -> Any:
        """Return what a module returned with tensors replaced; as it was if its containers cannot be copied."""
        try:
            return rebuild(output, replaced)
        except Exception:
            self._take_back(Site(module, Slot.OUTPUT, call, path).name for path in replaced)
            return output

    def replace_gradient(self, sites: Sequence[Site], gradient: torch.Tensor) -> torch.Tensor | None:
        """Return the reference's gradient at an output that one or more modules return; None where it is right."""
        partners = {site.name: self._find_partner(site.name, gradient) for site in sites}
        partner = next((found for found in partners.values() if found is not None), None)
        if partner is None:
            return None
        elements = partner.read(0, partner.count)
        self.clean |= dict.fromkeys(name for name, found in partners.items() if found is not None)
        if _has_bytes(gradient, elements):
            return None
        with torch.no_grad():
            return _fill_like(gradient, elements, partner)

    def describe(self) -> dict[str, Any]:
        """Return what was replaced, as metadata of the recording."""
        return {"clean": list(self.clean), "random": list(self.random), "recomputed": self.has_recomputed}

    def _find_partner(self, name: str, tensor: torch.Tensor) -> TensorRef | None:
        partner = self._partners.get(name)
        if partner is None or partner.missing or tensor.is_meta or tensor.layout is not torch.strided:
            return None
        if tensor.is_nested or tensor.is_quantized:
            return None
        fits = partner.count == tensor.numel() and partner.dtype.name == get_dtype_name(tensor)
        return partner if fits else None

    def _take_back(self, names: Iterable[str]) -> None:
        for name in names:
            self.clean.pop(name, None)


class _HandOn(torch.autograd.Function):
    """Hand on other elements than a tensor has; the gradient passes as if they were its own."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, others: tuple[torch.Tensor]) -> torch.Tensor:
        return others[0]  # in a tuple: an input that is returned would be a view, which nobody may write to

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


def _copy_onto(tensor: torch.Tensor, elements: np.ndarray[Any, Any], partner: TensorRef) -> torch.Tensor:
    """Return the reference's elements in the memory format of a tensor, behind it in the graph."""
    with torch.no_grad():
        other = _fill_like(tensor, elements, partner)
    if not tensor.requires_grad or not torch.is_grad_enabled():
        return other
    handed: torch.Tensor = _HandOn.apply(tensor, (other,))  # type: ignore[no-untyped-call]
    return handed


def _fill_like(tensor: torch.Tensor, elements: np.ndarray[Any, Any], partner: TensorRef) -> torch.Tensor:
    values = from_raw(elements, partner.dtype.name, tuple(tensor.shape))
    # strides stay as they are: code may view the tensor in ways that only these allow
    plain = tensor.detach()
    filled = torch.empty_like(plain, memory_format=torch.preserve_format)
    return filled.copy_(values.to(plain.device))


def _has_bytes(tensor: torch.Tensor, elements: np.ndarray[Any, Any]) -> bool:
    try:
        own = raw_tensor(tensor).flat
    except (RuntimeError, NotImplementedError, TypeError, KeyError):
        return False
    return own.nbytes == elements.nbytes and np.array_equal(_as_bytes(own), _as_bytes(elements))


def _as_bytes(elements: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(elements).reshape(-1).view(np.uint8)


def rebuild(value: Any, replaced: Mapping[str, Any], path: str = "") -> Any:
    """Return a value with other tensors at some paths, of the same types; what holds none of them stays itself.

    The paths are those of `flatten`. Raises whatever a container raises that cannot be copied.
    """
    if path in replaced:
        return replaced[path]
    inside = f"{path}." if path else ""
    if not any(name.startswith(inside) for name in replaced):
        return value
    if isinstance(value, Mapping):
        changed = copy.copy(value)
        keys = list(value)
        for (step, item), key in zip(name_steps(value.items()), keys, strict=True):
            rebuilt = rebuild(item, replaced, f"{inside}{step}")
            if rebuilt is not item:
                changed[key] = rebuilt  # type: ignore[index]  # of one that cannot be written to, an error
        return changed
    if isinstance(value, (tuple, list)):
        names = getattr(value, "_fields", None)
        keys = list(names) if isinstance(names, tuple) else list(range(len(value)))
        items = []
        for step, item in name_steps(zip(keys, value, strict=True)):
            items.append(rebuild(item, replaced, f"{inside}{step}"))
        return type(value)(*items) if isinstance(names, tuple) else type(value)(items)
    if is_dataclass(value) and not isinstance(value, type):
        rebuilt_object: Any = copy.copy(value)
        for step, item in name_steps((field.name, getattr(value, field.name, None)) for field in fields(value)):
            rebuilt = rebuild(item, replaced, f"{inside}{step}")
            if rebuilt is not item:
                object.__setattr__(rebuilt_object, step, rebuilt)
        return rebuilt_object
    raise NndiffError(f"a {type(value).__name__} cannot be taken apart")
