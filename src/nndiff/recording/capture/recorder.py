"""Record what modules do while a model runs, and change nothing: forward hooks and Tensor.register_hook only."""

from __future__ import annotations

import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from nndiff.recording.capture.call_stack import CallFrame, CallStack
from nndiff.recording.capture.hooks import CallHooks
from nndiff.recording.capture.lineage import Lineage
from nndiff.recording.capture.plan import Plan
from nndiff.recording.capture.sinks import Sink
from nndiff.recording.capture.substitution import Substitution
from nndiff.recording.capture.tensors import is_tensor, raw_tensor
from nndiff.recording.format.digests import RawTensor
from nndiff.recording.format.events import Content, TensorEvent
from nndiff.recording.format.keep_levels import lower_level
from nndiff.recording.format.values import Placeholder, describe_value, flatten
from nndiff.tensors import Link, Phase, Site, Slot

_NEVER_CALLED_CLASSES = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList, torch.nn.ParameterDict)


class Recorder:
    """Hook a model's modules, send what they do to a sink, and leave no trace.

    `on_call` is called after each finished call of a module, and after each gradient at an output. With a
    `substitution` the model runs on the reference's tensors: each is replaced after it was recorded.
    """

    def __init__(
        self,
        sink: Sink,
        plan: Plan,
        *,
        gradients: bool,
        inputs_kept: bool,
        on_call: Callable[[], None] | None = None,
        substitution: Substitution | None = None,
    ) -> None:
        self._sink = sink
        self._gradients = gradients
        self._inputs_kept = inputs_kept
        self._on_call = on_call
        self._substitution = substitution
        # by identity: some modules (torchmetrics) have a hash that changes with their state
        self._modules = {id(module): (module, name) for name, module in plan.modules}
        self._hooks = CallHooks(plan, self._before_call, self._after_call)
        self._gradient_handles: list[RemovableHandle] = []
        self._call_stack = CallStack(sink.reserve_order)
        self._lineage = Lineage()
        self._gradient_counts: Counter[int] = Counter()  # by the order of the output
        self._awaited: dict[int, str] = {}  # outputs that may still get a gradient: name by order
        self._recomputed = _RecomputeMatcher()
        self._replayed: dict[int, tuple[weakref.ref[torch.Tensor], int, list[TensorEvent]]] = {}  # with their version
        self._lock = threading.RLock()
        self._is_attached = True

    def __deepcopy__(self, memo: dict[int, Any]) -> Recorder:
        """Return the recorder itself: a model that copies its own modules copies no recorder."""
        return self

    def __enter__(self) -> Recorder:
        self._hooks.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def detach(self) -> None:
        """Remove every hook."""
        self._hooks.remove()
        for handle in self._gradient_handles:
            handle.remove()
        self._gradient_handles.clear()
        self._is_attached = False

    @property
    def never_called(self) -> list[str]:
        """Return the planned modules that were not called."""
        names = []
        for module, name in self._modules.values():
            if name and not self._call_stack.call_counts[name] and not isinstance(module, _NEVER_CALLED_CLASSES):
                names.append(name)
        return names

    @property
    def without_gradient(self) -> list[str]:
        """Return the outputs that could have had a gradient and got none."""
        return list(self._awaited.values())

    def record_tensor(
        self,
        site: Site,
        tensor: torch.Tensor,
        *,
        keep: str | None = None,
        forward: int | None = None,
        phase: Phase = "forward",
    ) -> TensorEvent | int:
        """Record one tensor; return its event, or the order of a placeholder if its elements cannot be read."""
        known_as = self._lineage.find_event(tensor)
        return self._record_known(site, tensor, known_as, keep=keep, forward=forward, phase=phase)

    def _record_known(
        self,
        site: Site,
        tensor: torch.Tensor,
        known_as: tuple[TensorEvent, str] | None,
        *,
        keep: str | None,
        forward: int | None = None,
        phase: Phase = "forward",
        remember: bool = True,
    ) -> TensorEvent | int:
        """Record a tensor after `known_as`, what the lineage knows of it, was looked up.

        Without `remember`, later views of the tensor still lead to the event it is a view of.
        """
        same_as = known_as[0] if known_as and known_as[1] == "same" else None
        try:
            raw = None if same_as else raw_tensor(tensor)
        except (RuntimeError, NotImplementedError, TypeError, KeyError) as error:
            reason = "it has none (meta device)" if tensor.is_meta else str(error).split("\n", 1)[0][:200]
            note = f"of shape {tuple(tensor.shape)}, whose elements cannot be read: {reason}"
            return self._sink.add_value(site, Placeholder(type(tensor).__name__, note), phase)

        def load() -> RawTensor:
            return raw if raw is not None else raw_tensor(tensor)

        over = None if known_as else self._lineage.find_overwritten(tensor)
        event = self._sink.add_tensor(site, load, keep=keep, same_as=same_as, forward=forward, over=over, phase=phase)
        if same_as is None and remember:
            self._lineage.remember(tensor, event, raw)
        return event

    def record_absence(self, site: Site, reason: str, phase: Phase = "forward") -> int:
        """Record that there is nothing at a site, and why."""
        return self._sink.add_value(site, Placeholder("NoneType", reason, Content.ABSENT), phase)

    def _before_call(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._is_attached or id(module) not in self._modules:
            return None  # a copy of a module took the hook along
        with self._lock:
            frame = self._call_stack.enter_call(module, self._modules[id(module)][1])
            if self._substitution is not None:
                arguments = {str(number): value for number, value in enumerate(args)} | kwargs
                self._substitution.note_randomness(frame.name, Slot.INPUT, frame.call, arguments)
            if frame.phase == "forward" and (args or kwargs):
                frame.inputs = self._link_inputs(frame, args, kwargs)
                if self._substitution is not None:
                    return self._substitution.replace_arguments(frame.name, frame.call, args, kwargs)
        return None

    def _link_inputs(self, frame: CallFrame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Link, ...]:
        arguments = {str(number): value for number, value in enumerate(args)} | kwargs
        links = []
        for path, leaf in flatten(arguments, is_tensor):
            if is_tensor(leaf):
                site = Site(frame.name, Slot.INPUT, frame.call, path, "", type(frame.module).__name__)
                links.append(self._link_tensor(site, leaf))
            else:
                plain = describe_value(leaf)
                value = plain.value if plain.value is not None else plain.note or None
                links.append(Link(path, "value", None, value, plain.type))
        return tuple(links)

    def _link_tensor(self, site: Site, tensor: torch.Tensor) -> Link:
        """Return how an input came to be, and record the input if no earlier event tells what it is."""
        known_as = self._lineage.find_event(tensor)
        level = self._sink.keep.level(site.module, site.name)
        if known_as and not self._inputs_kept:
            event, how = known_as
            # Only the view itself tells which elements were taken and in which order. Where no more than statistics
            # is kept, it would cost more than everything else.
            if how == "view" and level in ("sketch", "full"):
                self._record_known(site, tensor, known_as, keep=lower_level(level, "sketch"), remember=False)
            return Link(site.path, how, event.order)
        keep = level if self._inputs_kept else lower_level(level, "sketch")
        recorded = self._record_known(site, tensor, known_as, keep=keep)
        if isinstance(recorded, int):
            return Link(site.path, "own", recorded)
        if known_as:
            return Link(site.path, known_as[1], recorded.order)
        return Link(site.path, "own" if recorded.same is None else "equal", recorded.order)

    def _after_call(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if not self._is_attached or id(module) not in self._modules:
            return None
        with self._lock:
            frame = self._call_stack.leave_call(module)
            if frame is None:
                return None
            if self._substitution is not None:
                self._substitution.note_randomness(frame.name, Slot.OUTPUT, frame.call, output)
            if frame.phase == "recompute":
                self._record_recomputed(frame, output)
            else:
                orders = self._record_outputs(frame, output)
                cls = type(module).__name__
                self._sink.add_call(
                    frame.entered, frame.name, frame.call, cls, frame.parent, frame.inputs, orders, frame.phase
                )
            if self._on_call is not None:
                self._on_call()
            if self._substitution is not None and frame.replaced:
                return self._substitution.put_back(frame.name, frame.call, output, frame.replaced)
            return None

    def _record_outputs(self, frame: CallFrame, output: Any) -> tuple[int, ...]:
        orders = []
        # what an object holds (a cache) cannot be exchanged
        replaceable = {path for path, _ in flatten(output, is_tensor)} if self._substitution is not None else ()
        for path, leaf in flatten(output, is_tensor, objects=True):
            site = Site(frame.name, Slot.OUTPUT, frame.call, path, "", type(frame.module).__name__)
            if not is_tensor(leaf):
                orders.append(self._sink.add_value(site, leaf))
                continue
            event = self.record_tensor(site, leaf)
            if isinstance(event, int):
                orders.append(event)
                continue
            orders.append(event.order)
            self._recomputed.remember_output(event)
            handed_on = leaf
            if self._substitution is not None and path in replaceable:
                handed_on = self._substitution.replace_output(site, leaf)
                if handed_on is not leaf:
                    frame.replaced[path] = handed_on
            self._await_gradient(handed_on, event)
        return tuple(orders)

    def _record_recomputed(self, frame: CallFrame, output: Any) -> None:
        """Record the outputs of a call in the backward pass as repetitions of earlier outputs."""
        if self._substitution is not None:
            self._substitution.has_recomputed = True
        for path, leaf in flatten(output, is_tensor, objects=True):
            if not is_tensor(leaf):
                continue
            nth = self._recomputed.count_repetition(frame.name, path)
            site = Site(frame.name, Slot.RECOMPUTE, 0, path, "", type(frame.module).__name__, nth)
            only_output = self._recomputed.find_only_output(frame.name, path)
            recorded = self.record_tensor(site, leaf, keep="digest", forward=only_output, phase="recompute")
            if isinstance(recorded, int):
                continue
            repeated = self._recomputed.match_output(recorded)
            if repeated and repeated.order not in self._awaited and not self._gradient_counts[repeated.order]:
                self._await_gradient(leaf, repeated)

    def _await_gradient(self, tensor: torch.Tensor, event: TensorEvent) -> None:
        """Record the gradient at an output when it comes: summed over all uses, as autograd passes it on."""
        if not (self._gradients and tensor.requires_grad):
            return
        self._awaited[event.order] = event.site.name
        events = [event]
        if self._substitution is not None:
            # the gradient is replaced once: all modules that return this very tensor see the one that came
            known_as = self._replayed.get(id(tensor))
            if known_as is not None and known_as[0]() is tensor and known_as[1] == tensor._version:
                known_as[2].append(event)
                return
            self._replayed[id(tensor)] = weakref.ref(tensor), tensor._version, events

        def record_gradient(gradient: torch.Tensor) -> torch.Tensor | None:
            with self._lock:
                sites = [self._record_gradient(output, gradient) for output in events]
                if self._on_call is not None:
                    self._on_call()
                return self._substitution.replace_gradient(sites, gradient) if self._substitution else None

        handle: RemovableHandle = tensor.register_hook(record_gradient)  # type: ignore[no-untyped-call]
        self._gradient_handles.append(handle)

    def _record_gradient(self, event: TensorEvent, gradient: torch.Tensor) -> Site:
        """Record the gradient at an output; return its site."""
        nth = self._gradient_counts[event.order]
        self._gradient_counts[event.order] += 1
        self._awaited.pop(event.order, None)
        output = event.site
        site = Site(output.module, Slot.GRAD_OUTPUT, output.call, output.path, "", output.cls, nth)
        self.record_tensor(site, gradient, forward=event.order, phase="backward")
        return site


class _RecomputeMatcher:
    """Match outputs computed again in the backward pass (activation checkpointing) with those of the forward pass."""

    def __init__(self) -> None:
        self._outputs: dict[tuple[str, str], list[TensorEvent]] = defaultdict(list)  # by module and path
        self._match_counts: Counter[int] = Counter()  # by the order of the output
        self._repetitions: Counter[tuple[str, str]] = Counter()

    def remember_output(self, event: TensorEvent) -> None:
        """Note an output of the forward pass."""
        self._outputs[event.site.module, event.site.path].append(event)

    def count_repetition(self, module: str, path: str) -> int:
        """Return how many outputs were computed again at this place before, and count one more."""
        self._repetitions[module, path] += 1
        return self._repetitions[module, path] - 1

    def find_only_output(self, module: str, path: str) -> int | None:
        """Return the order of the output at this place if there is one only; among several the digest decides."""
        outputs = self._outputs.get((module, path), [])
        return outputs[0].order if len(outputs) == 1 else None

    def match_output(self, recomputed: TensorEvent) -> TensorEvent | None:
        """Return the output that was computed again: one of equal digest, and the one matched least often so far."""
        outputs = self._outputs.get((recomputed.site.module, recomputed.site.path), [])
        if not outputs:
            return None
        equal = [output for output in outputs if output.digest == recomputed.digest]
        match = min(equal or outputs, key=lambda output: self._match_counts[output.order])
        self._match_counts[match.order] += 1
        return match
