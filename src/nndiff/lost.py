"""Gradients that one side has and the other lacks: frozen, detached, or never reached."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from nndiff.sites import SitePair
from nndiff.tensors import TensorRef

Left = tuple[Sequence[TensorRef], Sequence[TensorRef]]  # gradients of the reference and of the candidate alone
# names of the gradients of parameters that each side asks for, got or not; None where nobody noted them
Asking = tuple[Collection[str] | None, Collection[str] | None]

SIDES = ("reference", "candidate")


@dataclass(frozen=True)
class Lost:
    """Hold a gradient that one side has and the other lacks, at a module both have."""

    tensor: TensorRef
    missing_in: str  # reference or candidate
    output: SitePair  # what its module returned

    @property
    def order(self) -> int:
        """Return when its module ran: who ran last is first in the backward pass."""
        return int(self.output.reference.meta["order"])

    @property
    def at_output(self) -> bool:
        """Tell whether nothing reaches the module at all."""
        return bool(self.tensor.meta["slot"] == "grad_output")

    @property
    def other_name(self) -> str:
        """Return the name it would have on the side that lacks it."""
        here, there = self._modules
        return f"{there}.{self.tensor.name.removeprefix(f'{here}.')}".lstrip(".") if here else self.tensor.name

    def is_asked_for(self, names: Collection[str]) -> bool:
        """Tell whether the side that lacks it asks for it: of a module, for that of a parameter in it."""
        if not self.at_output:
            return self.other_name in names
        prefix = f"{self._modules[1]}.".lstrip(".")
        return any(name.startswith(prefix) for name in names)

    @property
    def _modules(self) -> tuple[str, str]:
        """Return the module on the side that has it, and on the one that lacks it."""
        one, other = str(self.output.reference.meta["module"]), str(self.output.candidate.meta["module"])
        return (one, other) if self.missing_in == "candidate" else (other, one)


def first_lost(sites: Sequence[SitePair], left: Left) -> Lost | None:
    """Return the first gradient that one side lacks, in the order of the backward pass.

    Where nothing reaches the output of a module, that comes first: its parameters could have no gradient.
    """
    found = [lost for number in (0, 1) for lost in _lost(sites, left[number], number)]
    at_outputs = [lost for lost in found if lost.at_output]
    return max(at_outputs or found, key=lambda lost: lost.order, default=None)


def _lost(sites: Sequence[SitePair], tensors: Sequence[TensorRef], number: int) -> Iterator[Lost]:
    """Yield the gradients a side has alone: of parameters, and at the outputs of what holds them."""
    outputs = _outputs(sites, number)
    reached = {each.meta["forward"]: each for each in tensors if each.meta["slot"] == "grad_output"}
    owners = [each for each in tensors if each.meta["slot"] == "param_grad"]
    found = [(tensor, output) for tensor in owners for output in outputs.get(tensor.meta["module"], ())[-1:]]
    modules = {"", *(around for tensor in owners for around in _ancestry(str(tensor.meta["module"])))}
    at_outputs = [(order, site) for module in modules for order, site in outputs.get(module, ()) if order in reached]
    yield from (Lost(reached[order], SIDES[1 - number], site) for order, site in at_outputs)
    yield from (Lost(tensor, SIDES[1 - number], site) for tensor, (_, site) in found)


def _ancestry(module: str) -> Iterator[str]:
    while module:
        yield module
        module = module.rpartition(".")[0]


_Output = tuple[int, SitePair]  # with the order of the event on a side


def _outputs(sites: Iterable[SitePair], number: int) -> dict[str, list[_Output]]:
    """Return the outputs of the modules of a side, by its names for them."""
    found: dict[str, list[_Output]] = {}
    for site in sites:
        tensor = site.candidate if number else site.reference
        if site.slot == "output":
            found.setdefault(str(tensor.meta["module"]), []).append((int(tensor.meta["order"]), site))
    return found


def comes_before(lost: Lost, site: SitePair | None) -> bool:
    """Tell whether a lost gradient comes before one that is out: its module ran later."""
    made = None if site is None else site.reference.meta.get("forward")
    return made is None or lost.order >= made


def lost_why(lost: Lost, asking: Asking) -> str:
    """Return what a gradient that one side lacks says; `asking` tells what was asked for, in vain or not."""
    side, names = lost.missing_in, asking[SIDES.index(lost.missing_in)]
    if names is None:
        return f"no gradient reaches it in the {side}: frozen, detached or not used there"
    if lost.is_asked_for(names):
        return f"no gradient reaches it in the {side}: detached there, or not used"
    what = "no parameter of it nor of what is before it asks for one" if lost.at_output else "it is frozen"
    return f"the {side} has no gradient of it: {what} there"
