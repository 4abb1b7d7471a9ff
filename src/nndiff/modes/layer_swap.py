"""Hybrids of two models: any layer of one runs in the place of its twin in the other."""

from __future__ import annotations

import copy
import enum
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.utils._pytree import tree_map_only

from nndiff.errors import ModelError, UsageError
from nndiff.recording.capture.inputs import as_inputs
from nndiff.recording.capture.tensors import is_tensor
from nndiff.recording.environment.randomness import preserve_randomness, seed_everything
from nndiff.recording.format.values import flatten

_SEED = 42  # models that draw random numbers draw the same ones in every run
_BLOCK = 1 << 20  # elements widened to float64 at a time


class Side(enum.Enum):
    """Tell the two models apart."""

    REFERENCE = "reference"
    CANDIDATE = "candidate"

    @property
    def other(self) -> Side:
        """Return the side of the twin."""
        return Side.CANDIDATE if self is Side.REFERENCE else Side.REFERENCE


@dataclass(frozen=True)
class Form:
    """Say how the numbers of a tensor are stored."""

    dtype: torch.dtype
    scale: float = 0.0  # of tensors that torch calls quantized
    zero_point: int = 0

    def convert(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of numbers in this form; any other tensor as it is."""
        if not holds_numbers(tensor):
            return tensor
        if tensor.is_quantized:
            tensor = tensor.dequantize()
        if self.scale:
            return torch.quantize_per_tensor(tensor.float(), self.scale, self.zero_point, self.dtype)
        return tensor.to(self.dtype)


@dataclass(frozen=True)
class Call:
    """Say how a module is called in its own model."""

    order: int  # of its return among all returns
    taken: Form | None
    returned: Form | None
    shapes: tuple[torch.Size, ...]  # of what it returned
    autocast: torch.dtype | None
    feeders: frozenset[str]  # the modules whose outputs it took as they were

    def is_like(self, twin: Call) -> bool:
        """Return True if the twin computes in the same types."""
        return (self.taken, self.returned, self.autocast) == (twin.taken, twin.returned, twin.autocast)


@dataclass(frozen=True)
class Run:
    """Hold what one run of a hybrid gave."""

    outputs: list[torch.Tensor]
    at_modules: dict[str, list[torch.Tensor]]  # of the modules that were watched


@dataclass
class _Model:
    """Hold one of the two models with what was found out about it."""

    root: torch.nn.Module
    core: torch.nn.Module  # the part that corresponds to the whole reference; a mode may wrap the model
    holders: dict[torch.nn.Module, list[tuple[torch.nn.Module, str]]] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)
    written_buffers: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)  # buffer, first value


class ModelPair:
    """Run the reference, the candidate, and hybrids of them; modules go by their names in the reference."""

    def __init__(
        self,
        make_reference: Callable[[], torch.nn.Module],
        make_candidate: Callable[[], torch.nn.Module],
        samples: Sequence[Any],
    ) -> None:
        if not samples:
            raise UsageError("there are no samples to run the models on; samples() must return at least one")
        reference, candidate = make_reference().eval(), make_candidate().eval()
        core = find_core(reference, candidate)
        self._models = {
            Side.REFERENCE: _Model(reference, reference),
            Side.CANDIDATE: _Model(candidate, core),
        }
        for model in self._models.values():
            model.holders = _find_holders(model.root)
            self._observe(model, samples[0])

    def get_module(self, side: Side, name: str) -> torch.nn.Module:
        """Return a module by its name in the reference."""
        return self._models[side].core.get_submodule(name)

    def get_call(self, side: Side, name: str) -> Call | None:
        """Return how a module is called in its own model; None if it never is."""
        return self._models[side].calls.get(name)

    def is_module(self, name: str) -> bool:
        """Return True for the name of a module, False for that of a tensor which a module holds itself."""
        path, _, last = name.rpartition(".")
        return not name or last in self.get_module(Side.REFERENCE, path)._modules

    def is_emptied(self, name: str) -> bool:
        """Return True if the mode left an identity in the place of another module: it was folded into its producer."""
        if not self.is_module(name):
            return False
        own, twin = (self.get_module(side, name) for side in Side)
        return type(twin) is torch.nn.Identity and type(own) is not torch.nn.Identity

    def list_consumers(self, name: str) -> list[str]:
        """Return the modules that take the outputs of a module as they are."""
        calls = self._models[Side.REFERENCE].calls
        return [consumer for consumer, call in calls.items() if name in call.feeders]

    def run(self, host: Side, guests: Collection[str], sample: Any, watch: Collection[str] = ()) -> Run:
        """Run one model with some parts of the other in it; return the final output and outputs of watched modules."""
        if "" in guests:
            return self.run(host.other, (), sample, watch)
        model = self._models[host]
        at_modules: dict[str, list[torch.Tensor]] = {name: [] for name in watch}
        with ExitStack() as stack:
            for name in guests:
                stack.enter_context(self._lend(host, name))
            for name in watch:
                module = model.core.get_submodule(name)

                def keep(module: Any, args: Any, output: Any, kept: list[torch.Tensor] = at_modules[name]) -> None:
                    kept += [tensor.detach().clone() for tensor in list_number_tensors(output)]

                stack.callback(module.register_forward_hook(keep).remove)
            output = _call_model(model.root, sample)
            for buffer, first_value in model.written_buffers:
                buffer.data.copy_(first_value)
        return Run(list_final_tensors(output), at_modules)

    def _observe(self, model: _Model, sample: Any) -> None:
        """Run a model once to learn how its modules are called and which buffers a run writes to."""
        first_values = [(buffer, buffer.detach().clone()) for buffer in model.root.buffers()]
        makers: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()
        maker_names: dict[int, str] = {}
        taken: dict[str, tuple[Form | None, torch.dtype | None, frozenset[str]]] = {}
        order = 0
        with ExitStack() as stack:
            for name, module in model.core.named_modules():

                def before(module: Any, args: Any, kwargs: Any, name: str = name) -> None:
                    tensors = [leaf for _, leaf in flatten((args, kwargs), is_tensor) if is_tensor(leaf)]
                    feeders = {maker_names[id(tensor)] for tensor in tensors if makers.get(id(tensor)) is tensor}
                    taken.setdefault(name, (_get_form(tensors), _get_autocast(tensors), frozenset(feeders)))

                def after(module: Any, args: Any, output: Any, name: str = name) -> None:
                    nonlocal order
                    order += 1
                    tensors = list_number_tensors(output)
                    form, autocast, feeders = taken[name]
                    shapes = tuple(tensor.shape for tensor in tensors)
                    model.calls.setdefault(name, Call(order, form, _get_form(tensors), shapes, autocast, feeders))
                    for tensor in tensors:
                        makers[id(tensor)], maker_names[id(tensor)] = tensor, name

                stack.callback(module.register_forward_pre_hook(before, prepend=True, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(after).remove)
            _call_model(model.root, sample)
        for buffer, first_value in first_values:
            if not torch.equal(buffer, first_value):
                buffer.data.copy_(first_value)
                model.written_buffers.append((buffer, first_value))

    @contextmanager
    def _lend(self, host: Side, name: str) -> Iterator[None]:
        """Put a part of the other model in the place of its twin: a module, or a tensor that a module holds itself."""
        path, _, last = name.rpartition(".")
        if not self.is_module(name):
            with _lend_tensor(self.get_module(host, path), self.get_module(host.other, path), last):
                yield
            return
        own, guest = self.get_module(host, name), self.get_module(host.other, name)
        host_call, home_call = self.get_call(host, name), self.get_call(host.other, name)
        with ExitStack() as stack:
            if host_call is None or home_call is None:
                guest = _fit_weights(guest, own)  # its holder computes with the weights, in its own types
            else:
                # what was folded into one is exchanged as one: nothing is translated in between
                if self.is_emptied(name):
                    host_call = replace(host_call, taken=home_call.taken)
                if any(self.is_emptied(consumer) for consumer in self.list_consumers(name)):
                    host_call = replace(host_call, returned=home_call.returned)
                if not home_call.is_like(host_call):
                    stack.enter_context(_translate_calls(guest, home_call, host_call))
            places = self._models[host].holders[own]
            for place, key in places:
                place._modules[key] = guest
            try:
                yield
            finally:
                for place, key in places:
                    place._modules[key] = own


def find_core(reference: torch.nn.Module, candidate: torch.nn.Module) -> torch.nn.Module:
    """Return the part of the candidate whose children have most names in common with the reference's; outer first."""
    names = reference._modules.keys()
    return max(candidate.modules(), key=lambda module: len(names & module._modules.keys()))


def list_number_tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a value that hold numbers, in their order."""
    return [leaf for _, leaf in flatten(value, is_tensor) if is_tensor(leaf) and holds_numbers(leaf)]


def list_final_tensors(output: Any) -> list[torch.Tensor]:
    """Return the tensors of a final output that are judged: the logits if it has some, else all that hold numbers."""
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    tensors = [logits] if isinstance(logits, torch.Tensor) else list_number_tensors(output)
    if not tensors:
        raise ModelError(f"the model returned a {type(output).__name__} without floating-point tensors to compare")
    return sorted(tensors, key=lambda tensor: tensor.ndim == 0)  # a loss may come before what the model is for


def holds_numbers(tensor: torch.Tensor) -> bool:
    """Return True for tensors of real or complex numbers, also quantized ones; indices and masks are none."""
    return tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized


def compute_squared_error(reference: list[torch.Tensor], candidate: list[torch.Tensor]) -> tuple[float, int]:
    """Return the sum of squared differences in float64, infinite if not finite, and the number of elements."""
    shapes = [[tuple(tensor.shape) for tensor in tensors] for tensors in (reference, candidate)]
    if shapes[0] != shapes[1]:
        raise ModelError(f"the reference gives tensors of shapes {shapes[0]}, the candidate {shapes[1]}")
    total, count = 0.0, 0
    for reference_tensor, candidate_tensor in zip(reference, candidate, strict=True):
        blocks = zip(split_blocks(reference_tensor), split_blocks(candidate_tensor), strict=True)
        for reference_block, candidate_block in blocks:
            # equal infinities differ by nothing, as equal numbers do; the difference of two NaN says nothing
            difference = torch.where(reference_block == candidate_block, 0.0, candidate_block - reference_block)
            total += float(difference.square().sum())
            count += difference.numel()
    return (total if total < float("inf") else float("inf")), count


def split_blocks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the elements of a tensor in float64, a block at a time."""
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    for block in torch.split(tensor.detach().reshape(-1), _BLOCK):
        yield block.double()


def _find_holders(root: torch.nn.Module) -> dict[torch.nn.Module, list[tuple[torch.nn.Module, str]]]:
    """Return all places where each module hangs in the tree: a shared one hangs in several."""
    holders: dict[torch.nn.Module, list[tuple[torch.nn.Module, str]]] = defaultdict(list)
    for holder in root.modules():
        for name, module in holder._modules.items():
            if module is not None:
                holders[module].append((holder, name))
    return holders


def _call_model(model: torch.nn.Module, sample: Any) -> Any:
    """Return the output for a copy of a sample."""
    inputs = as_inputs(sample).fresh()
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    # the fast path of torch's transformer layers depends on whether hooks are there, and calls no submodules
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), preserve_randomness():
            seed_everything(_SEED)
            return model(*inputs.args, **inputs.kwargs)
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)


def _get_form(tensors: list[torch.Tensor]) -> Form | None:
    """Return the form of the first tensor that holds numbers."""
    for tensor in tensors:
        if tensor.is_quantized and tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            return Form(tensor.dtype, tensor.q_scale(), tensor.q_zero_point())
        if holds_numbers(tensor):
            return Form(tensor.dtype)
    return None


def _get_autocast(tensors: list[torch.Tensor]) -> torch.dtype | None:
    """Return the type that autocast computes in where these tensors are; None if it is off."""
    for tensor in tensors:
        if torch.is_autocast_enabled(tensor.device.type):
            return torch.get_autocast_dtype(tensor.device.type)
    return None


@contextmanager
def _lend_tensor(holder: torch.nn.Module, twin: torch.nn.Module, name: str) -> Iterator[None]:
    """Put a parameter or buffer of the twin in the place of the holder's, with its values in the holder's type."""
    tensors: dict[str, Any] = holder._parameters if name in holder._parameters else holder._buffers
    own, guest = tensors[name], getattr(twin, name)
    if guest.is_floating_point() and guest.dtype != own.dtype:
        guest = guest.detach().to(own.dtype)
    tensors[name] = guest
    try:
        yield
    finally:
        tensors[name] = own


def _fit_weights(guest: torch.nn.Module, own: torch.nn.Module) -> torch.nn.Module:
    """Return the guest with its weights rounded as they are and stored in the host's type."""
    for parameter in own.parameters():
        if parameter.is_floating_point():
            if all(weight.dtype == parameter.dtype for weight in guest.parameters()):
                return guest
            return copy.deepcopy(guest).to(parameter.dtype)
    return guest


@contextmanager
def _translate_calls(guest: torch.nn.Module, home_call: Call, host_call: Call) -> Iterator[None]:
    """Let a module compute in the types of its own model, and take and return those of its host."""
    contexts: list[torch.autocast] = []

    def before(module: Any, args: Any, kwargs: Any) -> Any:
        tensors = list_number_tensors((args, kwargs))
        device = tensors[0].device.type if tensors else "cpu"
        is_on = home_call.autocast is not None
        context = torch.autocast(device, dtype=home_call.autocast if is_on else None, enabled=is_on)
        context.__enter__()  # type: ignore[no-untyped-call]
        contexts.append(context)
        if home_call.taken is None or home_call.taken == host_call.taken:
            return None
        return tree_map_only(torch.Tensor, home_call.taken.convert, (args, kwargs))

    def after(module: Any, args: Any, output: Any) -> Any:
        contexts.pop().__exit__(None, None, None)
        if host_call.returned is None or home_call.returned == host_call.returned:
            return output
        return tree_map_only(torch.Tensor, host_call.returned.convert, output)

    handles = [
        guest.register_forward_pre_hook(before, prepend=True, with_kwargs=True),
        guest.register_forward_hook(after),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        while contexts:  # the module raised
            contexts.pop().__exit__(None, None, None)
