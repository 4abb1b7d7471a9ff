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
    """Return the first gradient that one side lacks, if one does."""
    found = [lost for number in (0, 1) for lost in lost_in(sites, left, number)]
    return foremost(found) if found else None


def foremost(found: Sequence[Lost]) -> Lost:
    """Return the first in the order of the backward pass.

    Where nothing reaches the output of a module, that comes first: its parameters could have no gradient. Of
    several modules that return the very same, it is the outermost.
    """
    at_outputs = [lost for lost in found if lost.at_output]
    if not at_outputs:
        return max(found, key=lambda lost: lost.order)
    first = min(at_outputs, key=lambda lost: int(lost.tensor.meta["order"]))
    digest = first.output.reference.meta.get("digest")
    same = [lost for lost in at_outputs if digest and lost.output.reference.meta.get("digest") == digest]
    return max(same or [first], key=lambda lost: lost.order)


def lost_in(sites: Sequence[SitePair], left: Left, number: int) -> Iterator[Lost]:
    """Yield the gradients a side has alone: of parameters, and at the outputs of what holds them."""
    outputs = _outputs(sites, number)
    reached = {each.meta["forward"]: each for each in left[number] if each.meta["slot"] == "grad_output"}
    owners = [(each, outputs.get(each.meta["module"], ())[-1:]) for each in left[number] if _of_parameter(each)]
    found = [(tensor, site) for tensor, output in owners for _, site in output if not _renamed(site, left, number)]
    modules = {"", *(around for tensor, _ in owners for around in _ancestry(str(tensor.meta["module"])))}
    at_outputs = [(order, site) for module in modules for order, site in outputs.get(module, ()) if order in reached]
    yield from (Lost(reached[order], SIDES[1 - number], site) for order, site in at_outputs)
    yield from (Lost(tensor, SIDES[1 - number], site) for tensor, site in found)


def _of_parameter(tensor: TensorRef) -> bool:
    return bool(tensor.meta["slot"] == "param_grad")


def _renamed(site: SitePair, left: Left, number: int) -> bool:
    """Tell whether the partner of a module has gradients left too: of parameters in another form or of other names."""
    partner = str((site.reference if number else site.candidate).meta["module"])
    others = (str(each.meta["module"]) for each in left[1 - number] if _of_parameter(each))
    return any(other == partner or other.startswith(f"{partner}.parametrizations.".lstrip(".")) for other in others)


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
    """Tell whether a lost gradient comes before one that is out, in the backward pass of the side that has both."""
    made = None if site is None else site.reference.meta.get("forward")
    if site is None or made is None:
        return True
    if not lost.at_output:
        return lost.order >= int(made)
    there = site.reference if lost.missing_in == "candidate" else site.candidate
    return int(lost.tensor.meta["order"]) < int(there.meta["order"])


def lost_why(lost: Lost, asking: Asking) -> str:
    """Return what a gradient that one side lacks says; `asking` tells what was asked for, in vain or not."""
    side, names = lost.missing_in, asking[SIDES.index(lost.missing_in)]
    if names is None:
        return f"no gradient reaches it in the {side}: frozen, detached or not used there"
    if lost.is_asked_for(names):
        return f"no gradient reaches it in the {side}: detached there, or not used"
    what = "nothing in it nor before it asks for one" if lost.at_output else "frozen, tied to another or not there"
    return f"the {side} has no gradient of it: {what}"
