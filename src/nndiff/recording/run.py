"""Run a model once, forward and backward, with a recorder listening."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from nndiff.recording.call import Inputs
from nndiff.recording.determinism import RandomState, seed_everything
from nndiff.recording.events import TensorEvent
from nndiff.recording.hooks import Recorder
from nndiff.recording.inputs import describe_inputs
from nndiff.recording.losses import loss_of, reaches_nothing
from nndiff.recording.plan import Plan
from nndiff.recording.sink import Sink
from nndiff.recording.state import State
from nndiff.recording.torch_tensors import is_tensor
from nndiff.tensors import Site, Slot
from nndiff.text import counted
from nndiff.weight_norm import fits, made_of

_MANY = 1000  # names kept of a list that may be long


@dataclass(frozen=True)
class Wanted:
    """Say what a run is to do."""

    seed: int = 42
    backward: bool = False
    loss: Callable[..., Any] | None = None
    params: bool = False
    inputs_kept: bool = False
    progress: Callable[[int, int | None], None] | None = None  # calls finished, and their total if it is known


@dataclass
class Facts:
    """Hold what a run found out beside its events."""

    meta: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    never_called: frozenset[str] = frozenset()


def run_once(model: torch.nn.Module, inputs: Inputs, sink: Sink, plan: Plan, wanted: Wanted, state: State) -> Facts:
    """Run the model with fresh inputs and send everything to the sink; the caller restores the state."""
    facts = Facts()
    fed = inputs.fresh()
    state.clear_gradients()
    recorder = Recorder(sink, plan, gradients=wanted.backward, inputs_kept=wanted.inputs_kept, progress=wanted.progress)
    with recorder:
        facts.meta["inputs"] = describe_inputs(fed.args, fed.kwargs, _keep_input(recorder), is_tensor)
        known = _parameters(recorder, model) if wanted.params else set()
        if wanted.params:
            _buffers(recorder, model)
        elif wanted.backward:
            _normed(recorder, model)
        seed_everything(wanted.seed)
        before = RandomState()
        with contextlib.nullcontext() if wanted.backward else torch.no_grad():
            output = model(*fed.args, **fed.kwargs)
        facts.meta["draws"] = before.is_past()
        if wanted.params:
            _parameters(recorder, model, known)
        if wanted.backward:
            loss, facts.meta["loss"] = loss_of(wanted.loss, model, fed, output, wanted.seed)
            facts.meta |= _origin(wanted.loss)
            recorder.tensor(Site("", Slot.LOSS), loss)
            facts.warnings += _about_loss(loss, wanted)
            loss.backward()  # type: ignore[no-untyped-call]
            del loss
        del output
        _after(recorder, model, fed, wanted, state, facts)
    _summary(recorder, wanted, facts)
    return facts


def _origin(loss: Callable[..., Any] | None) -> dict[str, str]:
    """Return what is to be told of where a loss comes from; one that knows says so in `origin`."""
    said = getattr(loss, "origin", "")
    return {"loss_origin": said} if said and isinstance(said, str) else {}


def _about_loss(loss: torch.Tensor, wanted: Wanted) -> list[str]:
    """Return a warning where gradients mean nothing; a loss that knows why says so in `if_not_finite`."""
    if reaches_nothing(loss):
        return ["nothing in the output asks for a gradient (detached, no_grad, all frozen): there is none to record"]
    if bool(torch.isfinite(loss)):
        return []
    why = getattr(wanted.loss, "if_not_finite", "")
    return [f"the loss is {loss.item()}, so no gradient means anything" + (f": {why}" if why else "")]


def _keep_input(recorder: Recorder) -> Callable[[str, torch.Tensor], int]:
    def keep(path: str, tensor: torch.Tensor) -> int:
        event = recorder.tensor(Site("", Slot.MODEL_INPUT, path=path), tensor, keep="full")
        return event.order if isinstance(event, TensorEvent) else event

    return keep


def _parameters(recorder: Recorder, model: torch.nn.Module, known: Container[str] = ()) -> set[str]:
    """Record the parameters that are not known yet and return their names; lazy ones come to be in a forward pass."""
    found = [(name, each) for name, each in model.named_parameters() if name not in known and not is_lazy(each)]
    for name, parameter in found:
        recorder.tensor(_site(name, Slot.PARAM), parameter)
    return {name for name, _ in found}


def _buffers(recorder: Recorder, model: torch.nn.Module) -> None:
    for name, buffer in model.named_buffers():
        if not is_lazy(buffer):
            recorder.tensor(_site(name, Slot.BUFFER_BEFORE), buffer)


def _normed(recorder: Recorder, model: torch.nn.Module) -> None:
    """Record what weights are computed from at each call: only these tell what gradients a plain weight would have."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    parameters = dict(model.named_parameters())
    for name in parameters:
        module, _, tensor = name.rpartition(".")
        made = made_of(module, tensor)
        if made:
            found.setdefault((made.module, made.weight), {})[made.role] = name
    for roles in found.values():
        both = [(name, parameters[name]) for _, name in sorted(roles.items())]
        shapes = [tuple(parameter.shape) for _, parameter in both]
        if len(shapes) == len("gv") and shapes[0] != shapes[1] and fits(*shapes):
            for name, parameter in both:
                recorder.tensor(_site(name, Slot.PARAM), parameter)


def _site(name: str, slot: Slot) -> Site:
    module, _, tensor = name.rpartition(".")
    return Site(module, slot, tensor=tensor)


def _after(recorder: Recorder, model: torch.nn.Module, fed: Inputs, wanted: Wanted, state: State, facts: Facts) -> None:
    """Record what is only there once the run is over: gradients of parameters and inputs, changed buffers."""
    if wanted.backward:
        for name, parameter in model.named_parameters():
            site = _site(name, Slot.PARAM_GRAD)
            if parameter.grad is not None:
                recorder.tensor(site, parameter.grad, phase="backward")
            elif parameter.requires_grad:
                recorder.note(site, "got no gradient", phase="backward")
        describe_inputs(fed.args, fed.kwargs, _input_gradient(recorder), is_tensor)
    for module, name, before, now in state.changed_buffers():
        if before is not None and not wanted.params:
            recorder.tensor(Site(module, Slot.BUFFER_BEFORE, tensor=name), before)
        recorder.tensor(Site(module, Slot.BUFFER, tensor=name), now)
    changed = state.changed_parameters()
    if changed:
        facts.meta["changed_parameters"] = changed[:_MANY]
        facts.warnings.append(f"the run wrote to {counted(changed, 'parameter')}")


def _input_gradient(recorder: Recorder) -> Callable[[str, torch.Tensor], int]:
    def keep(path: str, tensor: torch.Tensor) -> int:
        if tensor.is_leaf and tensor.grad is not None:
            recorder.tensor(Site("", Slot.MODEL_INPUT_GRAD, path=path), tensor.grad, phase="backward")
        return 0

    return keep


def _summary(recorder: Recorder, wanted: Wanted, facts: Facts) -> None:
    silent, flat = recorder.never_called, recorder.without_gradient
    facts.never_called = frozenset(silent)
    if silent:
        facts.meta["never_called"] = silent[:_MANY]
    if wanted.backward and flat:
        facts.meta["without_gradient"] = flat[:_MANY]
