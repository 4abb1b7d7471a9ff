"""Which modules are wanted, and what to say where a pattern finds none."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import torch

from nndiff.errors import UsageError
from nndiff.names import matches_any, selected
from nndiff.recording.format.keep_levels import Keep
from nndiff.tensors import MODEL

_SHOWN = 8  # names of a model's parts, where none is close to what was given


@dataclass(frozen=True)
class Selection:
    """Say which modules are wanted."""

    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    depth: int | None = None  # 0 the model alone, 1 its children too, ...
    leaves: bool = False  # only modules without children, and the model

    def __post_init__(self) -> None:
        if self.depth is not None and not (isinstance(self.depth, int) and self.depth >= 0):
            raise UsageError(f"depth must be 0 (the model alone) or more, not {self.depth!r}")

    def wants(self, name: str, module: torch.nn.Module) -> bool:
        """Tell whether a module is to be recorded; the model itself is, unless it is excluded by name."""
        if not name:
            return selected(MODEL, (), self.exclude)
        if self.depth is not None and name.count(".") + 1 > self.depth:
            return False
        if self.leaves and next(module.children(), None) is not None:
            return False
        return selected(name, self.include, self.exclude)


def selection_notes(
    model: torch.nn.Module, selection: Selection, walked: Sequence[str], chosen: Collection[str]
) -> list[str]:
    """Return what is to be said of the patterns; raise where they leave nothing that was asked for.

    `walked` are the modules that can be heard, `chosen` those of them that are.
    """
    hidden = {name for name, _ in model.named_modules(remove_duplicate=False)} - {"", *walked}
    missed = [_missed("include", each, walked, hidden) for each in _idle(selection.include, walked)]
    if missed and len(missed) == len(selection.include):
        raise UsageError("; ".join(missed))
    if not chosen or (selection.include and not any(matches_any(name, selection.include) for name in chosen)):
        raise UsageError(f"no module is selected: nothing is left by {_given(selection)}")
    if selection.exclude and len(chosen) == 1 < len(walked):
        missed.append("only one module is recorded: exclude leaves out all others")
    return missed + [_missed("exclude", each, walked, hidden) for each in _idle(selection.exclude, walked)]


def keep_notes(keep: Keep, modules: Collection[str], sites: Iterable[str]) -> Iterator[str]:
    """Yield what is to be said of rules that no recorded tensor fell under."""
    names = [*modules, *sites] if keep.rules else []
    for pattern, level in keep.rules:
        if _idle([pattern], names):
            yield f"keep '{level}:{pattern}' matches nothing that was recorded{_near(pattern, list(modules))}"


def _idle(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the patterns that name nothing."""
    return [each for each in patterns if not any(matches_any(name, (each,)) for name in names)]


def _missed(option: str, pattern: str, walked: Sequence[str], hidden: set[str]) -> str:
    if any(matches_any(name, (pattern,)) for name in hidden):
        return (
            f"{option} {pattern!r} matches only modules that are not recorded by that name: they run inside a "
            "module that is recorded as a whole, or are shared and go by their first name"
        )
    return f"{option} {pattern!r} matches no module{_near(pattern, walked)}"


def _near(pattern: str, names: Sequence[str]) -> str:
    """Return names that may have been meant, else what the model consists of."""
    inside = [name for name in names if name != MODEL]
    close = get_close_matches(pattern.rstrip("*."), inside, 3)
    if close:
        return f" (did you mean {' or '.join(close)}?)"
    parts = [name for name in inside if "." not in name]
    more = ", ..." if len(parts) > _SHOWN else ""
    return f" (the model has {', '.join(parts[:_SHOWN])}{more})" if parts else " (the model has none inside)"


def _given(selection: Selection) -> str:
    """Return the options that were given, as they would be said."""
    said = [
        *(f"include {pattern!r}" for pattern in selection.include),
        *(f"exclude {pattern!r}" for pattern in selection.exclude),
        *([f"depth {selection.depth}"] if selection.depth is not None else []),
        *(["leaves"] if selection.leaves else []),
    ]
    return ", ".join(said)
