"""Which modules are listened to, and how closely: decided before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from nndiff.recording.capture.selection import Selection, selection_notes
from nndiff.recording.capture.state import is_training
from nndiff.tensors import MODEL

# nn.TransformerEncoderLayer looks for hooks on itself and its children and leaves its fused path if there are
# any: such layers are heard from outside, by a hook of the whole process, so that they run as they would alone.
_FUSED = (torch.nn.TransformerEncoderLayer,)


@dataclass
class Plan:
    """Hold the modules to hook, those to hear in other ways, and what is worth knowing of them."""

    hooked: list[tuple[str, torch.nn.Module]] = field(default_factory=list)
    outside: list[tuple[str, torch.nn.Module]] = field(default_factory=list)  # by a hook of the whole process
    replaced: list[tuple[str, torch.nn.Module]] = field(default_factory=list)  # by a call around the compiled one
    notes: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """Return the names of all modules that are listened to."""
        return [name or MODEL for name, _ in (*self.hooked, *self.outside, *self.replaced)]


_IN_PLACE = "compiled in place"
_SEALS = {
    "fused": "uses PyTorch's fused path and is recorded as a whole, not inside",
    "scripted": "is TorchScript and is recorded as a whole, not inside",
    "compiled": "is compiled and is recorded as a whole, not inside: record it before torch.compile to see inside",
    _IN_PLACE: "is compiled in place and is recorded as a whole, not inside: record it before compile() to see inside",
}
_CALLS_COMPILED = "calls a compiled function: modules that run inside of that are not recorded"


def make_plan(model: torch.nn.Module, selection: Selection, backward: bool) -> Plan:
    """Return what to listen to."""
    plan = Plan()
    kinds: dict[str, list[str]] = {}
    walked: list[str] = []
    for name, module, sealed in _walk(model, backward):
        walked.append(name or MODEL)
        if not selection.wants(name, module):
            continue
        found = {"fused": plan.outside, _IN_PLACE: plan.replaced}.get(sealed, plan.hooked)
        found.append((name, module))
        if sealed:
            kinds.setdefault(_SEALS[sealed], []).append(name or MODEL)
        elif any(_is_compiled(each) for each in vars(module).values()):
            kinds.setdefault(_CALLS_COMPILED, []).append(name or MODEL)
    plan.notes += [_note(names, what) for what, names in kinds.items()]
    plan.notes += selection_notes(model, selection, walked, plan.names)
    return plan


def _note(names: list[str], what: str) -> str:
    more = f" (and so for {', '.join(names[1:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''})"
    return f"{names[0]} {what}" + (more if len(names) > 1 else "")


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
        if not sealed:
            children = [
                (f"{name}.{key}" if name else key, each) for key, each in module._modules.items() if each is not None
            ]
            stack.extend(reversed(children))


def _sealed(module: torch.nn.Module, backward: bool) -> str:
    """Return why nothing can be heard inside a module, or nothing."""
    if getattr(module, "_compiled_call_impl", None) is not None:
        return _IN_PLACE
    if isinstance(module, torch.jit.ScriptModule):
        return "scripted"
    if type(module).__name__ == "OptimizedModule" or _is_compiled(getattr(module, "forward", None)):
        return "compiled"
    if isinstance(module, _FUSED) and not is_training(module) and not backward:
        return "fused"
    return ""


def _is_compiled(value: object) -> bool:
    """Tell whether a function is one of torch.compile; what torch.compiler.disable gives has the same mark."""
    marked = callable(value) and hasattr(value, "_torchdynamo_orig_callable")
    return marked and not getattr(value, "_torchdynamo_disable", False)
