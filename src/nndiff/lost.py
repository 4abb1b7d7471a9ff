"""Gradients that one side has and the other lacks: frozen, detached, or never reached."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from nndiff.names import ancestors
from nndiff.sites import SitePair
from nndiff.tensors import TensorRef

Left = tuple[Sequence[TensorRef], Sequence[TensorRef]]  # gradients of the reference and of the candidate alone

SIDES = ("reference", "candidate")


@dataclass(frozen=True)
class Asked:
    """Hold what a side asks gradients for, whether it got them or not."""

    parameters: Collection[str]  # names of their gradients
    outputs: Collection[str]


Asking = tuple[Asked | None, Asked | None]  # None where nobody noted it


@dataclass(frozen=True)
class Lost:
    """Hold a gradient that one side has and the other lacks, at a module both have."""

    tensor: TensorRef
    missing_in: str  # reference or candidate
    output: SitePair  # what its module returned
    since: int = -1  # when the first that is lost was reached on the side that has it

    @property
    def order(self) -> int:
        """Return when its module ran: who ran last is first in the backward pass."""
        return int(self.output.reference.trace.order)

    @property
    def at_output(self) -> bool:
        """Tell whether nothing reaches the module at all."""
        return bool(self.tensor.site.slot == "grad_output")

    @property
    def there(self) -> TensorRef:
        """Return what its module returned on the side that lacks it."""
        return self.output.candidate if self.missing_in == "candidate" else self.output.reference

    @property
    def module(self) -> str:
        """Return its module by the name of the side that lacks it."""
        return str(self.there.site.module)

    @property
    def other_name(self) -> str:
        """Return the name it would have on the side that lacks it."""
        here = self.output.reference if self.missing_in == "candidate" else self.output.candidate
        owner = str(here.site.module)
        return f"{self.module}.{self.tensor.name.removeprefix(f'{owner}.')}".lstrip(".") if owner else self.tensor.name

    def is_asked_for(self, asked: Asked) -> bool:
        """Tell whether the side that lacks it asks for it: of a module, for that of a parameter in it."""
        if not self.at_output:
            return self.other_name in asked.parameters
        return any(name.startswith(f"{self.module}.".lstrip(".")) for name in asked.parameters)

    def is_cut(self, asking: Asking) -> bool:
        """Tell whether the output itself asks for no gradient on the side that lacks it."""
        asked = asking[SIDES.index(self.missing_in)]
        return self.at_output and asked is not None and self.there.name not in asked.outputs


def first_lost(sites: Sequence[SitePair], left: Left, asking: Asking) -> Lost | None:
    """Return the first gradient that one side lacks, if one does."""
    found = [lost for number in (0, 1) for lost in lost_in(sites, left, number)]
    return foremost(found, asking) if found else None


def foremost(found: Sequence[Lost], asking: Asking) -> Lost:
    """Return where gradients are lost: at the output that asks for none, else at the first that none reaches.

    What asks for none makes all after it ask for none: the first that ran is where it begins.
    """
    at_outputs = [lost for lost in found if lost.at_output]
    if not at_outputs:
        return max(found, key=lambda lost: lost.order)
    first = min(at_outputs, key=_reached)
    cut = [lost for lost in at_outputs if lost.is_cut(asking)]
    where = _whole(min(cut, key=lambda lost: lost.order), cut, asking) if cut else _outermost(first, at_outputs)
    return replace(where, since=_reached(first))


def _outermost(first: Lost, found: Sequence[Lost]) -> Lost:
    """Return the outermost module that returns the very same."""
    digest = first.output.reference.trace.digest
    same = [lost for lost in found if digest and lost.output.reference.trace.digest == digest]
    return max(same or [first], key=lambda lost: lost.order)


def _reached(lost: Lost) -> int:
    return int(lost.tensor.trace.order)


def _whole(first: Lost, cut: Sequence[Lost], asking: Asking) -> Lost:
    """Return the outermost module around one in which nothing asks for a gradient: as under no_grad."""
    asked = asking[SIDES.index(first.missing_in)]
    silent = [lost for lost in cut if asked and not any(_is_inside(name, lost.module) for name in asked.outputs)]
    holders = [lost for lost in silent if lost.missing_in == first.missing_in and _is_inside(first.module, lost.module)]
    return min(holders, key=lambda lost: len(lost.module), default=first)


def _is_inside(name: str, module: str) -> bool:
    return name.startswith(f"{module}." if module else "")


def lost_in(sites: Sequence[SitePair], left: Left, number: int) -> Iterator[Lost]:
    """Yield the gradients a side has alone: of parameters, and at the outputs of what holds them."""
    outputs = _outputs(sites, number)
    reached = {each.trace.forward: each for each in left[number] if each.site.slot == "grad_output"}
    owners = [(each, outputs.get(each.site.module, ())[-1:]) for each in left[number] if _of_parameter(each)]
    found = [(tensor, site) for tensor, output in owners for _, site in output if not _renamed(site, left, number)]
    owning = {str(tensor.site.module) for tensor, _ in owners}
    modules = {"", *owning, *(around for module in owning for around in ancestors(module))}
    at_outputs = [(order, site) for module in modules for order, site in outputs.get(module, ()) if order in reached]
    yield from (Lost(reached[order], SIDES[1 - number], site) for order, site in at_outputs)
    yield from (Lost(tensor, SIDES[1 - number], site) for tensor, site in found)


def _of_parameter(tensor: TensorRef) -> bool:
    return bool(tensor.site.slot == "param_grad")


def _renamed(site: SitePair, left: Left, number: int) -> bool:
    """Tell whether the partner of a module has gradients left too: of parameters in another form or of other names."""
    partner = str((site.reference if number else site.candidate).site.module)
    others = (str(each.site.module) for each in left[1 - number] if _of_parameter(each))
    inside = f"{partner}." if partner else "parametrizations."
    return any(other == partner or other.startswith(inside) for other in others)


_Output = tuple[int, SitePair]  # with the order of the event on a side


def _outputs(sites: Iterable[SitePair], number: int) -> dict[str, list[_Output]]:
    """Return the outputs of the modules of a side, by its names for them."""
    found: dict[str, list[_Output]] = {}
    for site in sites:
        tensor = site.candidate if number else site.reference
        if site.slot == "output":
            found.setdefault(str(tensor.site.module), []).append((int(tensor.trace.order), site))
    return found


def comes_before(lost: Lost, site: SitePair | None) -> bool:
    """Tell whether a lost gradient comes before one that is out, in the backward pass of the side that has both."""
    made = None if site is None else site.reference.trace.forward
    if site is None or made is None:
        return True
    if not lost.at_output:
        return lost.order >= int(made)
    there = site.reference if lost.missing_in == "candidate" else site.candidate
    return lost.since < int(there.trace.order)


def lost_why(lost: Lost, asking: Asking) -> str:
    """Return what a gradient that one side lacks says."""
    side, asked = lost.missing_in, asking[SIDES.index(lost.missing_in)]
    if asked is None:
        return f"no gradient reaches it in the {side}: frozen, detached or not used there"
    if not lost.is_asked_for(asked):
        what = "nothing in it nor before it asks for one" if lost.at_output else "frozen, tied to another or not there"
        return f"the {side} has no gradient of it: {what}"
    if lost.is_cut(asking):
        return f"its output asks for no gradient in the {side}: detached there, or under no_grad"
    return f"no gradient reaches it in the {side}: what takes it is detached there, or nothing is done with it"
