"""Which layers of a model are recorded, and the numbers that files give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import torch

from nndiff.errors import UsageError
from nndiff.names import matches_any, strip_wrappers
from nndiff.recording.capture.plan import NamedModule, Plan, Selection, make_plan
from nndiff.text import listed

FIRST_AND_LAST = "first,last"
ALL_LAYERS = "all"


@dataclass(frozen=True)
class LayerChoice:
    """Hold the modules to record, in order of registration, and the first and last of them."""

    names: tuple[str, ...]  # the model itself, an empty name, is recorded beside them
    numbers: tuple[int, ...]  # that files give them
    first: str
    last: str
    blocks: str = ""  # path of the list of repeated blocks

    def is_block(self, name: str) -> bool:
        """Return True for one of the repeated blocks itself."""
        return bool(self.blocks) and name.rpartition(".")[0] == self.blocks


def choose_layers(model: torch.nn.Module, spec: str) -> LayerChoice:
    """Return the layers that `--layers` names: first,last, all, or patterns of module paths joined by commas."""
    names = [name for name, _ in make_plan(model, Selection(), backward=False).modules if name]
    order = {name: position for position, (name, _) in enumerate(model.named_modules())}
    names.sort(key=lambda name: order[name])
    if not names:  # one module alone: its output is that of the model
        return LayerChoice((), (), "", "")
    blocks = find_blocks(model, names)
    ends = _find_ends(model, names, blocks)
    chosen = names
    if spec == FIRST_AND_LAST:
        chosen = [name for name in names if name in ends]
    elif spec != ALL_LAYERS:
        patterns = [pattern for pattern in spec.split(",") if pattern]
        chosen = [name for name in names if matches_any(name, patterns)]
        if not chosen:
            close = get_close_matches(spec, names, 3)
            hint = f"did you mean {' or '.join(close)}?" if close else f"the model has {listed(names, 8)}"
            raise UsageError(f"--layers {spec!r} matches no module; {hint}")
    first, last = ends if set(ends) <= set(chosen) else (chosen[0], chosen[-1])
    numbers = _number_layers(model, names, blocks)
    return LayerChoice(tuple(chosen), tuple(numbers[name] for name in chosen), first, last, blocks)


def find_blocks(model: torch.nn.Module, names: Sequence[str]) -> str:
    """Return the path of the list of repeated blocks that holds most parameters; an empty text if there is none.

    A ModuleList is one whatever its blocks are, a Sequential only if all of them are of one class.
    """
    best, most = "", 0
    for path, module in model.named_modules():
        children = list(module.children())
        if not path or len(children) < 2 or f"{path}.0" not in names or f"{path}.{len(children) - 1}" not in names:
            continue
        same_class = len({type(child) for child in children}) == 1
        is_list = isinstance(module, torch.nn.ModuleList) or (isinstance(module, torch.nn.Sequential) and same_class)
        sizes = [sum(parameter.numel() for parameter in child.parameters()) for child in children]
        if is_list and all(sizes) and sum(sizes) > most:
            best, most = path, sum(sizes)
    return best


def _find_ends(model: torch.nn.Module, names: Sequence[str], blocks: str) -> tuple[str, str]:
    """Return the first and last of the repeated blocks, else the first and last module with parameters of its own."""
    modules = dict(model.named_modules())
    if blocks:
        return f"{blocks}.0", f"{blocks}.{len(list(modules[blocks].children())) - 1}"
    with_parameters = [name for name in names if next(modules[name].parameters(recurse=False), None) is not None]
    ends = with_parameters or list(names)
    return ends[0], ends[-1]


def _number_layers(model: torch.nn.Module, names: Sequence[str], blocks: str) -> dict[str, int]:
    """Return the number of every layer: that of its block, outside of the blocks that of the block before it.

    Without blocks the modules are counted, so that the last has the highest number.
    """
    numbers = {}
    number = 0
    for position, name in enumerate(names):
        if not blocks:
            number = position
        elif name.startswith(f"{blocks}."):
            number = int(name[len(blocks) + 1 :].split(".")[0])
        numbers[name] = number
    return numbers


def plan_layers(model: torch.nn.Module, names: Sequence[str]) -> tuple[Plan, dict[int, str]]:
    """Return how to hook the layers of these names, and the model itself, and the name of each by its identity.

    A mode may have put a wrapper around the model or a layer: then names are paired without what it adds.
    """
    full = make_plan(model, Selection(), backward=False)
    wanted = {"": "", **{name: name for name in names}}
    present = {name for name, _ in full.modules}
    bare_names: dict[str, list[str]] = {}
    for name in present - set(names) - {""}:
        bare_names.setdefault(strip_wrappers(name), []).append(name)
    for name in names:
        partners = bare_names.get(strip_wrappers(name), [])
        if name not in present and len(partners) == 1:
            wanted[partners[0]] = name
    known_as: dict[int, str] = {}

    def keep(modules: Sequence[NamedModule]) -> list[NamedModule]:
        kept = [(name, module) for name, module in modules if name in wanted]
        known_as.update({id(module): wanted[name] for name, module in kept})
        return kept

    return Plan(keep(full.hooked), keep(full.global_hooked), keep(full.wrapped)), known_as
