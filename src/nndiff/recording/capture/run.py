"""Run a model once, forward and backward, with a recorder attached."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from nndiff.names import fits, made_of
from nndiff.recording.capture.inputs import Inputs
from nndiff.recording.capture.losses import compute_loss, reaches_nothing
from nndiff.recording.capture.plan import Plan
from nndiff.recording.capture.recorder import Recorder
from nndiff.recording.capture.sinks import Sink
from nndiff.recording.capture.state import State
from nndiff.recording.capture.substitution import Substitution
from nndiff.recording.capture.tensors import is_tensor
from nndiff.recording.environment.randomness import RandomState, seed_everything
from nndiff.recording.format.events import TensorEvent
from nndiff.recording.format.input_structure import describe_inputs
from nndiff.tensors import Site, Slot
from nndiff.text import counted

MOST_NAMES = 1000  # of a list in the metadata


@dataclass(frozen=True)
class RunOptions:
    """Tell what a run does and records."""

    seed: int = 42
    backward: bool = False
    loss: Callable[..., Any] | None = None
    params: bool = False
    inputs_kept: bool = False
    on_call: Callable[[], None] | None = None  # called after each finished call
    substitution: Substitution | None = None  # the reference's tensors, on which the model is to run


@dataclass
class RunFacts:
    """Hold what a run found out besides its events."""

    meta: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    never_called: frozenset[str] = frozenset()


def run_once(
    model: torch.nn.Module, inputs: Inputs, sink: Sink, plan: Plan, options: RunOptions, state: State
) -> RunFacts:
    """Run the model on fresh inputs and send everything to the sink; the caller restores the state."""
    facts = RunFacts()
    fresh = inputs.fresh()
    state.clear_gradients()
    recorder = Recorder(
        sink,
        plan,
        gradients=options.backward,
        inputs_kept=options.inputs_kept,
        on_call=options.on_call,
        substitution=options.substitution,
    )

    def record_input(path: str, tensor: torch.Tensor) -> int:
        event = recorder.record_tensor(Site("", Slot.MODEL_INPUT, path=path), tensor, keep="full")
        return event.order if isinstance(event, TensorEvent) else event

    with recorder:
        facts.meta["inputs"] = describe_inputs(fresh.args, fresh.kwargs, record_input, is_tensor)
        recorded_parameters: set[str] = set()
        if options.params:
            recorded_parameters = _record_parameters(recorder, model)
            for name, buffer in model.named_buffers():
                if not is_lazy(buffer):
                    recorder.record_tensor(_make_site(name, Slot.BUFFER_BEFORE), buffer)
        elif options.backward:
            _record_weight_norm(recorder, model)
        seed_everything(options.seed)
        random_state = RandomState()
        with contextlib.nullcontext() if options.backward else torch.no_grad():
            output = model(*fresh.args, **fresh.kwargs)
        facts.meta["draws"] = random_state.has_advanced()
        if options.params:
            _record_parameters(recorder, model, recorded_parameters)  # those of lazy modules exist only now
        if options.backward:
            _run_backward(recorder, model, fresh, output, options, facts)
        del output
        if options.backward:
            _record_gradients(recorder, model, fresh)
        _record_changes(recorder, options, state, facts)
    if options.substitution is not None:
        facts.meta["replay"] = options.substitution.describe()
    facts.never_called = frozenset(recorder.never_called)
    if recorder.never_called:
        facts.meta["never_called"] = recorder.never_called[:MOST_NAMES]
    if options.backward and recorder.without_gradient:
        facts.meta["without_gradient"] = recorder.without_gradient[:MOST_NAMES]
    return facts


def _run_backward(
    recorder: Recorder, model: torch.nn.Module, inputs: Inputs, output: Any, options: RunOptions, facts: RunFacts
) -> None:
    loss, facts.meta["loss"] = compute_loss(options.loss, model, inputs, output, options.seed)
    # a loss function may say in `origin` where it comes from, and in `if_not_finite` why it may be NaN
    origin = getattr(options.loss, "origin", "")
    if origin and isinstance(origin, str):
        facts.meta["loss_origin"] = origin
    recorder.record_tensor(Site("", Slot.LOSS), loss)
    if reaches_nothing(loss):
        facts.warnings.append(
            "nothing in the output requires a gradient (detached, no_grad, all frozen), so none was recorded"
        )
    elif not bool(torch.isfinite(loss)):
        reason = getattr(options.loss, "if_not_finite", "")
        warning = f"the loss is {loss.item()}, so the gradients mean nothing"
        facts.warnings.append(f"{warning}: {reason}" if reason else warning)
    loss.backward()  # type: ignore[no-untyped-call]


def _make_site(name: str, slot: Slot) -> Site:
    module, _, tensor = name.rpartition(".")
    return Site(module, slot, tensor=tensor)


def _record_parameters(recorder: Recorder, model: torch.nn.Module, recorded: Container[str] = ()) -> set[str]:
    """Record the parameters that are not recorded yet; return their names."""
    names = set()
    for name, parameter in model.named_parameters():
        if name not in recorded and not is_lazy(parameter):
            recorder.record_tensor(_make_site(name, Slot.PARAM), parameter)
            names.add(name)
    return names


def _record_weight_norm(recorder: Recorder, model: torch.nn.Module) -> None:
    """Record the size and direction of normed weights: without them nobody can tell the gradient of a plain weight."""
    parameters = dict(model.named_parameters())
    names_by_weight: dict[tuple[str, str], dict[str, str]] = {}
    for name in parameters:
        module, _, tensor = name.rpartition(".")
        role = made_of(module, tensor)
        if role:
            names_by_weight.setdefault((role.module, role.weight), {})[role.role] = name
    for names_by_role in names_by_weight.values():
        if names_by_role.keys() != {"g", "v"}:
            continue
        names = (names_by_role["g"], names_by_role["v"])
        shapes = [tuple(parameters[name].shape) for name in names]
        if shapes[0] != shapes[1] and fits(shapes[0], shapes[1]):
            for name in names:
                recorder.record_tensor(_make_site(name, Slot.PARAM), parameters[name])


def _record_gradients(recorder: Recorder, model: torch.nn.Module, inputs: Inputs) -> None:
    """Record the gradients of parameters and of the model's inputs."""
    for name, parameter in model.named_parameters():
        site = _make_site(name, Slot.PARAM_GRAD)
        if parameter.grad is not None:
            recorder.record_tensor(site, parameter.grad, phase="backward")
        elif parameter.requires_grad:
            recorder.record_absence(site, "got no gradient", phase="backward")

    def record_input_gradient(path: str, tensor: torch.Tensor) -> int:
        if tensor.is_leaf and tensor.grad is not None:
            recorder.record_tensor(Site("", Slot.MODEL_INPUT_GRAD, path=path), tensor.grad, phase="backward")
        return 0

    describe_inputs(inputs.args, inputs.kwargs, record_input_gradient, is_tensor)


def _record_changes(recorder: Recorder, options: RunOptions, state: State, facts: RunFacts) -> None:
    """Record the buffers that the run changed, and warn of changed parameters."""
    for module, name, before, now in state.list_changed_buffers():
        if before is not None and not options.params:
            recorder.record_tensor(Site(module, Slot.BUFFER_BEFORE, tensor=name), before)
        recorder.record_tensor(Site(module, Slot.BUFFER, tensor=name), now)
    changed = state.list_changed_parameters()
    if changed:
        facts.meta["changed_parameters"] = changed[:MOST_NAMES]
        facts.warnings.append(f"the run wrote to {counted(changed, 'parameter')}")
