"""Which modules are listened to, and how closely: decided before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from nndiff.errors import UsageError
from nndiff.names import selected
from nndiff.recording.events import ROOT

# nn.TransformerEncoderLayer looks for hooks on itself and its children and leaves its fused path if there are
# any: such layers are heard from outside, by a hook of the whole process, so that they run as they would alone.
_FUSED = (torch.nn.TransformerEncoderLayer,)


@dataclass(frozen=True)
class Selection:
    """Say which modules are wanted."""

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    depth: int | None = None  # 0 the model alone, 1 its children too, ...
    leaves: bool = False  # only modules without children, and the model

    def wants(self, name: str, module: torch.nn.Module) -> bool:
        """Tell whether a module is to be recorded; the model itself is, unless it is excluded by name."""
        if not name:
            return selected(ROOT, (), self.exclude)
        if self.depth is not None and name.count(".") + 1 > self.depth:
            return False
        if self.leaves and next(module.children(), None) is not None:
            return False
        return selected(name, self.include, self.exclude)


@dataclass
class Plan:
    """Hold the modules to hook, those to hear from outside, and what could not be heard at all."""

    hooked: list[tuple[str, torch.nn.Module]] = field(default_factory=list)
    outside: list[tuple[str, torch.nn.Module]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def make_plan(model: torch.nn.Module, selection: Selection, backward: bool) -> Plan:
    """Return what to listen to."""
    plan = Plan()
    fused: list[str] = []
    compiled: list[str] = []
    deaf: list[str] = []
    for name, module, sealed in _walk(model, backward):
        if getattr(module, "_compiled_call_impl", None) is not None:
            deaf.append(name or ROOT)
            continue
        if not selection.wants(name, module):
            continue
        (plan.outside if sealed == "fused" else plan.hooked).append((name, module))
        if sealed:
            (fused if sealed == "fused" else compiled).append(name or ROOT)
    _say(plan, fused, "use PyTorch's fused path and are recorded as a whole, not inside")
    _say(plan, compiled, "are compiled and are recorded as a whole, not inside")
    _say(plan, deaf, "are compiled in place and are not recorded")
    if not plan.hooked and not plan.outside:
        raise UsageError("no module is selected: check include, exclude, depth and leaves")
    return plan


def _say(plan: Plan, names: list[str], what: str) -> None:
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        plan.notes.append(f"{', '.join(names[:3])}{more} {what}")


def _walk(model: torch.nn.Module, backward: bool) -> Iterator[tuple[str, torch.nn.Module, str]]:
    """Yield every module once, in the order of registration; nothing inside what is sealed."""
    done: set[int] = set()
    stack: list[tuple[str, torch.nn.Module]] = [("", model)]
    while stack:
        name, module = stack.pop()
        if id(module) in done:
            continue
        done.add(id(module))
        sealed = _sealed(module, backward)
        yield name, module, sealed
        if not sealed and getattr(module, "_compiled_call_impl", None) is None:
            children = [
                (f"{name}.{key}" if name else key, each) for key, each in module._modules.items() if each is not None
            ]
            stack.extend(reversed(children))


def _sealed(module: torch.nn.Module, backward: bool) -> str:
    if isinstance(module, _FUSED) and not module.training and not backward:
        return "fused"
    if isinstance(module, torch.jit.ScriptModule) or type(module).__name__ == "OptimizedModule":
        return "compiled"
    return ""
