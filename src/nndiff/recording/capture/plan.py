"""Which modules are recorded, and how they are hooked: decided before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum

import torch

from nndiff.errors import UsageError
from nndiff.names import matches_any, selected
from nndiff.recording.environment.modes import is_training
from nndiff.recording.format.keep_levels import Keep
from nndiff.tensors import MODEL
from nndiff.text import first_few

# nn.TransformerEncoderLayer leaves its fused path if it or its children have hooks: a global hook hears such layers
# without disturbing them.
_FUSED_CLASSES = (torch.nn.TransformerEncoderLayer,)
_MOST_SUGGESTIONS = 8  # top-level modules listed where no name is close to a pattern


@dataclass(frozen=True)
class Selection:
    """Tell which modules to record."""

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    depth: int | None = None  # 0 the model alone, 1 its children too, ...
    leaves: bool = False  # only modules without children, and the model

    def __post_init__(self) -> None:
        if self.depth is not None and not (isinstance(self.depth, int) and self.depth >= 0):
            raise UsageError(f"depth must be 0 (the model alone) or more, not {self.depth!r}")

    def wants_module(self, name: str, module: torch.nn.Module) -> bool:
        """Return True if a module is to be recorded; the model itself is, unless it is excluded by name."""
        if not name:
            return selected(MODEL, (), self.exclude)
        if self.depth is not None and name.count(".") + 1 > self.depth:
            return False
        if self.leaves and next(module.children(), None) is not None:
            return False
        return selected(name, self.include, self.exclude)

    def __str__(self) -> str:
        """Return the options as a user would write them."""
        options = [f"include {pattern!r}" for pattern in self.include]
        options += [f"exclude {pattern!r}" for pattern in self.exclude]
        if self.depth is not None:
            options.append(f"depth {self.depth}")
        if self.leaves:
            options.append("leaves")
        return ", ".join(options)


NamedModule = tuple[str, torch.nn.Module]


@dataclass
class Plan:
    """Hold the modules to record, by the way they are hooked, and notes for the user."""

    hooked: list[NamedModule] = field(default_factory=list)  # by hooks of their own
    global_hooked: list[NamedModule] = field(default_factory=list)  # by the global hook
    wrapped: list[NamedModule] = field(default_factory=list)  # by a wrapper around the compiled call
    notes: list[str] = field(default_factory=list)

    @property
    def modules(self) -> list[NamedModule]:
        """Return all modules to record."""
        return [*self.hooked, *self.global_hooked, *self.wrapped]

    @property
    def names(self) -> list[str]:
        """Return the names of all modules to record."""
        return [name or MODEL for name, _ in self.modules]


class _Seal(Enum):
    """Tell why the modules inside a module cannot be recorded; the value is what its note says."""

    FUSED = "uses PyTorch's fused path and is recorded as a whole, not inside"
    SCRIPTED = "is TorchScript and is recorded as a whole, not inside"
    COMPILED = "is compiled and is recorded as a whole, not inside: record it before torch.compile to see inside"
    COMPILED_IN_PLACE = (
        "is compiled in place and is recorded as a whole, not inside: record it before compile() to see inside"
    )


_CALLS_COMPILED = "calls a compiled function: modules that run inside it are not recorded"


def make_plan(model: torch.nn.Module, selection: Selection, backward: bool) -> Plan:
    """Return which modules of a model to record, and how."""
    plan = Plan()
    names_by_note: dict[str, list[str]] = {}
    reachable: list[str] = []
    for name, module, seal in _walk_modules(model, backward):
        reachable.append(name or MODEL)
        if not selection.wants_module(name, module):
            continue
        if seal is _Seal.FUSED:
            plan.global_hooked.append((name, module))
        elif seal is _Seal.COMPILED_IN_PLACE:
            plan.wrapped.append((name, module))
        else:
            plan.hooked.append((name, module))
        if seal:
            names_by_note.setdefault(seal.value, []).append(name or MODEL)
        elif any(_is_compiled(attribute) for attribute in vars(module).values()):
            names_by_note.setdefault(_CALLS_COMPILED, []).append(name or MODEL)
    for text, names in names_by_note.items():
        note = f"{names[0]} {text}"
        if len(names) > 1:
            note += f" (also {first_few(names[1:])})"
        plan.notes.append(note)
    plan.notes += _check_selection(model, selection, reachable, plan.names)
    return plan


def _walk_modules(model: torch.nn.Module, backward: bool) -> Iterator[tuple[str, torch.nn.Module, _Seal | None]]:
    """Yield every module once, in the order of registration; nothing inside a sealed one."""
    visited: set[int] = set()
    stack: list[NamedModule] = [("", model)]
    while stack:
        name, module = stack.pop()
        if id(module) in visited:
            continue
        visited.add(id(module))
        seal = _find_seal(module, backward)
        yield name, module, seal
        if seal:
            continue
        for key, child in reversed(list(module._modules.items())):
            if child is not None:
                stack.append((f"{name}.{key}" if name else key, child))


def _find_seal(module: torch.nn.Module, backward: bool) -> _Seal | None:
    if getattr(module, "_compiled_call_impl", None) is not None:
        return _Seal.COMPILED_IN_PLACE
    if isinstance(module, torch.jit.ScriptModule):
        return _Seal.SCRIPTED
    if type(module).__name__ == "OptimizedModule" or _is_compiled(getattr(module, "forward", None)):
        return _Seal.COMPILED
    if isinstance(module, _FUSED_CLASSES) and not is_training(module) and not backward:
        return _Seal.FUSED
    return None


def _is_compiled(value: object) -> bool:
    """Return True for a function of torch.compile; torch.compiler.disable leaves the same mark."""
    is_marked = callable(value) and hasattr(value, "_torchdynamo_orig_callable")
    return is_marked and not getattr(value, "_torchdynamo_disable", False)


def _check_selection(
    model: torch.nn.Module, selection: Selection, reachable: Sequence[str], chosen: Collection[str]
) -> list[str]:
    """Return notes on patterns that match nothing; raise UsageError if nothing that was asked for is left."""
    unreachable = {name for name, _ in model.named_modules(remove_duplicate=False)} - {"", *reachable}

    def describe_unmatched(option: str, patterns: Sequence[str]) -> list[str]:
        notes = []
        for pattern in patterns:
            if _matches_some(pattern, reachable):
                continue
            if _matches_some(pattern, unreachable):
                notes.append(
                    f"{option} {pattern!r} matches only modules that cannot be recorded under that name: they run "
                    "inside a module that is recorded as a whole, or are shared and go by their first name"
                )
            else:
                notes.append(f"{option} {pattern!r} matches no module{_suggest_names(pattern, reachable)}")
        return notes

    notes = describe_unmatched("include", selection.include)
    if notes and len(notes) == len(selection.include):
        raise UsageError("; ".join(notes))
    if not chosen or (selection.include and not any(matches_any(name, selection.include) for name in chosen)):
        raise UsageError(f"no module is selected: nothing is left by {selection}")
    if selection.exclude and len(chosen) == 1 < len(reachable):
        notes.append("only one module is recorded: exclude leaves out all others")
    return notes + describe_unmatched("exclude", selection.exclude)


def list_unused_keep_rules(keep: Keep, modules: Sequence[str], sites: Iterable[str]) -> Iterator[str]:
    """Yield a note on every keep rule that matches no recorded tensor."""
    names = [*modules, *sites] if keep.rules else []
    for pattern, level in keep.rules:
        if not _matches_some(pattern, names):
            yield f"keep '{level}:{pattern}' matches nothing that was recorded{_suggest_names(pattern, modules)}"


def _matches_some(pattern: str, names: Iterable[str]) -> bool:
    return any(matches_any(name, (pattern,)) for name in names)


def _suggest_names(pattern: str, names: Sequence[str]) -> str:
    """Return close names in brackets, else the top-level modules of the model."""
    inside = [name for name in names if name != MODEL]
    close = get_close_matches(pattern.rstrip("*."), inside, 3)
    if close:
        return f" (did you mean {' or '.join(close)}?)"
    top_level = [name for name in inside if "." not in name]
    if not top_level:
        return " (the model has none inside)"
    ellipsis = ", ..." if len(top_level) > _MOST_SUGGESTIONS else ""
    return f" (the model has {', '.join(top_level[:_MOST_SUGGESTIONS])}{ellipsis})"
