"""Gradients that one side has and the other lacks: frozen, detached, or never reached."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from nndiff.diagnosis.call_graph import get_forward_order
from nndiff.diagnosis.modules import was_run_by_nndiff
from nndiff.diagnosis.site_pairs import SitePair
from nndiff.names import ancestors
from nndiff.result import CANDIDATE, REFERENCE, SIDES, Leftover, LeftoverReason
from nndiff.sources.source import Source
from nndiff.tensors import Slot, TensorRef

Unpaired = tuple[Sequence[TensorRef], Sequence[TensorRef]]  # gradients only the reference has, and only the candidate
_PARAM_GRAD_SUFFIX = f":{Slot.PARAM_GRAD}"


@dataclass(frozen=True)
class RequestedGradients:
    """Hold what a side wants gradients of, whether it got them or not."""

    parameters: Collection[str]  # names of their gradients
    outputs: Collection[str]


Requests = tuple[RequestedGradients | None, RequestedGradients | None]  # None where nobody noted it


def read_requests(source: Source) -> RequestedGradients | None:
    """Return what a side wants gradients of; None where it was not noted which of them it did not get."""
    unreached = source.meta.get("without_gradient", [])
    if not was_run_by_nndiff(source.meta) or not isinstance(unreached, list):
        return None
    parameters = [name for name in (*source.others, *source.tensors) if name.endswith(_PARAM_GRAD_SUFFIX)]
    outputs = [str(name) for name in unreached]
    by_order = {tensor.trace.order: tensor for tensor in source.tensors.values()}
    for tensor in source.tensors.values():
        output = by_order.get(get_forward_order(tensor)) if tensor.site.slot is Slot.GRAD_OUTPUT else None
        if output is not None:
            outputs.append(output.name)
    return RequestedGradients(frozenset(parameters), frozenset(outputs))


def select_unpaired_gradients(leftovers: Iterable[Leftover], source: Source, side: str) -> list[TensorRef]:
    """Return the gradients of a side without a partner: those that count, and those at outputs inside the model."""
    gradients = []
    for leftover in leftovers:
        is_missing = leftover.reason in (LeftoverReason.NO_PARTNER, LeftoverReason.INNER)
        tensor = source.tensors.get(leftover.name) if leftover.side == side and is_missing else None
        if tensor is not None and tensor.site.slot.is_gradient:
            gradients.append(tensor)
    return gradients


@dataclass(frozen=True)
class MissingGradient:
    """Hold a gradient that one side has and the other lacks, at a module both have."""

    tensor: TensorRef
    missing_in: str  # reference or candidate
    output: SitePair  # what its module returned
    since: int = -1  # when the backward pass of the side that has them came to the first that is missing

    @property
    def order(self) -> int:
        """Return when its module ran: who ran last is first in the backward pass."""
        return self.output.order

    @property
    def is_at_output(self) -> bool:
        """Return True if nothing reaches the module at all."""
        return self.tensor.site.slot is Slot.GRAD_OUTPUT

    @property
    def lacking_output(self) -> TensorRef:
        """Return what its module returned on the side that lacks the gradient."""
        return self.output.candidate if self.missing_in == CANDIDATE else self.output.reference

    @property
    def lacking_module(self) -> str:
        """Return its module by the name of the side that lacks the gradient."""
        return self.lacking_output.site.module

    @property
    def expected_name(self) -> str:
        """Return the name it would have on the side that lacks it."""
        return replace(self.tensor.site, module=self.lacking_module).name

    def is_requested(self, requested: RequestedGradients) -> bool:
        """Return True if the side that lacks it wants it: for a module, that of a parameter in it."""
        if not self.is_at_output:
            return self.expected_name in requested.parameters
        return any(_is_below(name, self.lacking_module) for name in requested.parameters)

    def is_cut(self, requests: Requests) -> bool:
        """Return True if the output itself requires no gradient on the side that lacks it."""
        requested = requests[SIDES.index(self.missing_in)]
        return self.is_at_output and requested is not None and self.lacking_output.name not in requested.outputs

    def comes_before(self, gradient: SitePair | None) -> bool:
        """Return True if it comes before a gradient that is out, in the backward pass of the side that has both."""
        if gradient is None or gradient.reference.trace.forward is None:
            return True
        if not self.is_at_output:
            return self.order >= gradient.reference.trace.forward
        tensor = gradient.reference if self.missing_in == CANDIDATE else gradient.candidate
        return self.since < tensor.trace.order

    def explain(self, requests: Requests) -> str:
        """Return why the gradient is missing, as far as that is known."""
        side, requested = self.missing_in, requests[SIDES.index(self.missing_in)]
        if requested is None:
            return f"no gradient reaches it in the {side}: frozen, detached or unused there"
        if not self.is_requested(requested):
            if self.is_at_output:
                return f"the {side} has no gradient here: nothing in it or before it requires one"
            return f"the {side} has no gradient here: frozen, tied to another parameter, or absent"
        if self.is_cut(requests):
            return f"its output requires no gradient in the {side}: detached there, or under no_grad"
        return f"no gradient reaches it in the {side}: its consumer is detached, or its output is unused"


def find_first_missing(pairs: Sequence[SitePair], unpaired: Unpaired, requests: Requests) -> MissingGradient | None:
    """Return the first gradient that one side lacks, if one does."""
    missing = [*list_missing(pairs, unpaired, CANDIDATE), *list_missing(pairs, unpaired, REFERENCE)]
    return choose_first(missing, requests) if missing else None


def choose_first(missing: Sequence[MissingGradient], requests: Requests) -> MissingGradient:
    """Return where gradients get lost: at the output that requires none, else at the first that none reaches.

    An output that requires no gradient makes everything after it require none: the first that ran is where it begins.
    """
    at_outputs = [gradient for gradient in missing if gradient.is_at_output]
    if not at_outputs:
        return max(missing, key=lambda gradient: gradient.order)
    first = min(at_outputs, key=lambda gradient: gradient.tensor.trace.order)
    cut = [gradient for gradient in at_outputs if gradient.is_cut(requests)]
    if cut:
        place = _find_silent_holder(min(cut, key=lambda gradient: gradient.order), cut, requests)
    else:
        # of the modules that return the very same, the outermost
        place, digest = first, first.output.reference.trace.digest
        for gradient in at_outputs:
            is_same = digest is not None and gradient.output.reference.trace.digest == digest
            if is_same and gradient.order > place.order:
                place = gradient
    return replace(place, since=first.tensor.trace.order)


def list_missing(pairs: Sequence[SitePair], unpaired: Unpaired, missing_in: str) -> Iterator[MissingGradient]:
    """Yield the gradients that a side lacks: at the outputs of modules that hold parameters, and of these."""
    having = 1 - SIDES.index(missing_in)  # the number of the side that has them
    outputs = _group_outputs(pairs, having)
    at_outputs: dict[int, TensorRef] = {}
    of_parameters: list[TensorRef] = []
    for tensor in unpaired[having]:
        if tensor.site.slot is Slot.GRAD_OUTPUT:
            at_outputs[get_forward_order(tensor)] = tensor
        elif tensor.site.slot is Slot.PARAM_GRAD:
            of_parameters.append(tensor)
    modules = {""}
    for tensor in of_parameters:
        modules.update((tensor.site.module, *ancestors(tensor.site.module)))
    for module in sorted(modules):
        for output in outputs.get(module, ()):
            gradient = at_outputs.get(output.orders[having])
            if gradient is not None:
                yield MissingGradient(gradient, missing_in, output)
    for tensor in of_parameters:
        last_output = outputs.get(tensor.site.module, ())[-1:]
        for output in last_output:
            if not _may_have_other_form(tensor, output, unpaired, having):
                yield MissingGradient(tensor, missing_in, output)


def _find_silent_holder(first: MissingGradient, cut: Sequence[MissingGradient], requests: Requests) -> MissingGradient:
    """Return the outermost module around one in which nothing requires a gradient: as under no_grad."""
    requested = requests[SIDES.index(first.missing_in)]
    holder = first
    for gradient in cut if requested else ():
        is_around = gradient.missing_in == first.missing_in and _is_below(first.lacking_module, gradient.lacking_module)
        is_silent = requested and not any(_is_below(name, gradient.lacking_module) for name in requested.outputs)
        if is_around and is_silent and len(gradient.lacking_module) < len(holder.lacking_module):
            holder = gradient
    return holder


def _is_below(name: str, module: str) -> bool:
    return name.startswith(f"{module}." if module else "")


def _may_have_other_form(gradient: TensorRef, output: SitePair, unpaired: Unpaired, having: int) -> bool:
    """Return True if the other side has gradients left that may be this one: in another form or under another name.

    They are of as many elements, or of the module that is the partner of its own.
    """
    partner = output.tensors[1 - having].site.module
    inside = f"{partner}." if partner else "parametrizations."
    for tensor in unpaired[1 - having]:
        module = tensor.site.module
        is_of_partner = module == partner or module.startswith(inside)
        if tensor.site.slot is Slot.PARAM_GRAD and (is_of_partner or tensor.count == gradient.count):
            return True
    return False


def _group_outputs(pairs: Iterable[SitePair], side: int) -> Mapping[str, list[SitePair]]:
    """Return the output pairs by the modules of a side, 0 the reference, 1 the candidate."""
    outputs: dict[str, list[SitePair]] = {}
    for site in pairs:
        if site.slot is Slot.OUTPUT:
            outputs.setdefault(site.tensors[side].site.module, []).append(site)
    return outputs
