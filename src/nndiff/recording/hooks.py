"""Listen to a model while it runs and change nothing: forward hooks and Tensor.register_hook only."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from nndiff.recording.attach import Attachment
from nndiff.recording.events import TensorEvent
from nndiff.recording.keep import lower
from nndiff.recording.lineage import Lineage
from nndiff.recording.measure import Raw
from nndiff.recording.plan import Plan
from nndiff.recording.recompute import Recomputed
from nndiff.recording.sink import Sink
from nndiff.recording.torch_tensors import is_tensor, raw_tensor
from nndiff.recording.under_way import Frame, UnderWay
from nndiff.recording.values import describe, flatten
from nndiff.tensors import Link, Phase, Site, Slot

_HOLDERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList, torch.nn.ParameterDict)  # never called


class Recorder:
    """Attach to a model's modules, send what they do to a sink, leave without a trace."""

    def __init__(
        self,
        sink: Sink,
        plan: Plan,
        *,
        gradients: bool,
        inputs_kept: bool,
        progress: Callable[[int, int | None], None] | None = None,
    ) -> None:
        self._sink = sink
        self._progress = progress
        self._finished_calls = 0
        self._gradients = gradients
        self._inputs_kept = inputs_kept
        # by identity: some modules (torchmetrics) have a hash that changes with their state
        self._named = {id(module): (module, name) for name, module in (*plan.hooked, *plan.outside, *plan.replaced)}
        self._attachment = Attachment(plan, self._before, self._after)
        self._grad_handles: list[RemovableHandle] = []
        self._under_way = UnderWay(sink.reserve)
        self._lineage = Lineage()
        self._fired: Counter[int] = Counter()
        self._listening: dict[int, str] = {}  # event -> name of an output whose gradient is waited for
        self._recomputed = Recomputed()
        self._lock = threading.RLock()
        self._attached = True

    def __deepcopy__(self, memo: dict[int, Any]) -> Recorder:
        """Stay one: a model that copies its own modules copies no recorder."""
        return self

    def __enter__(self) -> Recorder:
        self._attachment.attach()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def detach(self) -> None:
        """Remove every hook."""
        self._attachment.detach()
        for handle in self._grad_handles:
            handle.remove()
        self._grad_handles.clear()
        self._attached = False

    @property
    def never_called(self) -> list[str]:
        """Return the modules that were listened to and not heard."""
        return [
            name
            for module, name in self._named.values()
            if name and not self._under_way.counts[name] and not isinstance(module, _HOLDERS)
        ]

    @property
    def without_gradient(self) -> list[str]:
        """Return the outputs that could have had a gradient and got none."""
        return list(self._listening.values())

    def tensor(
        self,
        site: Site,
        tensor: torch.Tensor,
        *,
        keep: str | None = None,
        forward: int | None = None,
        phase: Phase = "forward",
    ) -> TensorEvent | int:
        """Record one tensor; return its event, or the order of a note where its elements cannot be read."""
        return self._tensor(site, tensor, self._lineage.find(tensor), keep=keep, forward=forward, phase=phase)

    def _tensor(
        self,
        site: Site,
        tensor: torch.Tensor,
        found: tuple[TensorEvent, str] | None,
        *,
        keep: str | None,
        forward: int | None = None,
        phase: Phase = "forward",
        origin: bool = True,
    ) -> TensorEvent | int:
        """Record a tensor of which is known what it is, or is a view of.

        Without `origin` what comes of the tensor is still said to come from the one it is a view of.
        """
        like = found[0] if found and found[1] == "same" else None
        try:
            raw = None if like else raw_tensor(tensor)
        except (RuntimeError, NotImplementedError, TypeError, KeyError) as error:
            return self._sink.value(site, tensor.__class__.__name__, note=_unreadable(tensor, error), phase=phase)

        def load() -> Raw:
            return raw if raw is not None else raw_tensor(tensor)

        over = None if found else self._lineage.before(tensor)
        event = self._sink.tensor(site, load, keep=keep, like=like, forward=forward, over=over, phase=phase)
        if like is None and origin:
            self._lineage.remember(tensor, event, raw)
        return event

    def note(self, site: Site, text: str, phase: Phase = "forward") -> int:
        """Record that there is nothing at a site, and why."""
        return self._sink.value(site, None, note=text, phase=phase)

    def _before(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._attached or id(module) not in self._named:
            return  # a copy of a module took the hook along
        with self._lock:
            frame = self._under_way.begin(module, self._named[id(module)][1])
            if frame.phase == "forward":
                frame.inputs = self._links(frame, args, kwargs)

    def _links(self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Link, ...]:
        cls = type(frame.module).__name__
        given = {**{str(number): value for number, value in enumerate(args)}, **kwargs}
        links = []
        for path, leaf in flatten(given, is_tensor) if given else ():
            if is_tensor(leaf):
                links.append(self._link(Site(frame.name, Slot.INPUT, frame.call, path, "", cls), leaf))
            else:
                kind, value, note = describe(leaf)
                links.append(Link(path, "value", None, value if value is not None else note or None, kind))
        return tuple(links)

    def _link(self, site: Site, tensor: torch.Tensor) -> Link:
        found = self._lineage.find(tensor)
        level = self._sink.keep.level(site.module, site.name)
        if found and not self._inputs_kept:
            # which part was taken, and how it lies, only the view itself tells; where nothing but statistics is kept
            # it would cost more than all the rest
            if found[1] == "view" and level in ("sketch", "full"):
                self._tensor(site, tensor, found, keep=lower(level, "sketch"), origin=False)
            return Link(site.path, found[1], found[0].order)
        kept = level if self._inputs_kept else lower(level, "sketch")
        event = self._tensor(site, tensor, found, keep=kept)
        if isinstance(event, int):
            return Link(site.path, "own", event)
        how = found[1] if found else "equal" if event.same is not None else "own"
        return Link(site.path, how, event.order)

    def _after(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if not self._attached or id(module) not in self._named:
            return
        with self._lock:
            frame = self._under_way.end(module)
            if frame is None:
                return
            if frame.phase == "recompute":
                self._again(frame, output)
                return
            orders = self._outputs(frame, output)
            cls = type(module).__name__
            self._sink.call(frame.entered, frame.name, frame.call, cls, frame.parent, frame.inputs, orders, frame.phase)
            self._finished_calls += 1
            if self._progress is not None:
                self._progress(self._finished_calls, None)

    def _outputs(self, frame: Frame, output: Any) -> tuple[int, ...]:
        orders = []
        for path, leaf in flatten(output, is_tensor, objects=True):
            site = Site(frame.name, Slot.OUTPUT, frame.call, path, "", type(frame.module).__name__)
            if not is_tensor(leaf):
                orders.append(self._sink.value(site, leaf))
                continue
            event = self.tensor(site, leaf)
            orders.append(event if isinstance(event, int) else event.order)
            if isinstance(event, TensorEvent):
                self._recomputed.remember(event)
                self._listen(leaf, event)
        return tuple(orders)

    def _again(self, frame: Frame, output: Any) -> None:
        """Take a call that was made again in the backward pass as what it is, never as a call of its own."""
        for path, leaf in flatten(output, is_tensor, objects=True):
            if not is_tensor(leaf):
                continue
            wanted = Site(frame.name, Slot.RECOMPUTE, 0, path, "", type(frame.module).__name__)
            event = self._recomputed.record(self, wanted, leaf)
            if event is not None and event.order not in self._listening and not self._fired[event.order]:
                self._listen(leaf, event)

    def _listen(self, tensor: torch.Tensor, event: TensorEvent) -> None:
        """Wait for the gradient at an output: all its uses added up, as autograd hands it on."""
        if not (self._gradients and tensor.requires_grad):
            return
        self._listening[event.order] = event.site.name

        def taken(grad: torch.Tensor) -> None:
            with self._lock:
                self._take_gradient(event, grad)

        handle: RemovableHandle = tensor.register_hook(taken)  # type: ignore[no-untyped-call]
        self._grad_handles.append(handle)

    def _take_gradient(self, event: TensorEvent, grad: torch.Tensor) -> None:
        nth = self._fired[event.order]
        self._fired[event.order] += 1
        self._listening.pop(event.order, None)
        at = event.site
        site = Site(at.module, Slot.GRAD_OUTPUT, at.call, at.path, "", at.cls, nth)
        self.tensor(site, grad, forward=event.order, phase="backward")


def _unreadable(tensor: torch.Tensor, error: Exception) -> str:
    why = "it has no elements (meta device)" if tensor.is_meta else str(error).split("\n", 1)[0][:200]
    return f"a tensor of shape {tuple(tensor.shape)} whose elements cannot be read: {why}"
