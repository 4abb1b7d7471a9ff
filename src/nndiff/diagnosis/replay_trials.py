"""Trials of own errors: what the code at fault was given, by the reference, and what it made of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nndiff.diagnosis.held_weights import HeldWeights
from nndiff.diagnosis.modules import Trees
from nndiff.diagnosis.replay_calls import CallNode, CallTree
from nndiff.diagnosis.trials import Given, Trial
from nndiff.diagnosis.tried_sites import TriedSite
from nndiff.result import OwnError
from nndiff.tensors import Site, Slot, TensorRef
from nndiff.tolerance import NOISE_FACTOR


class MadeTensors:
    """Know which call of the reference made a tensor, and of what."""

    def __init__(self, tensors: Mapping[str, TensorRef], calls: CallTree) -> None:
        self._tensors, self._calls = tensors, calls
        self._events = {tensor.trace.order: tensor for tensor in tensors.values()}

    def find_first(self, tensor: TensorRef) -> TensorRef:
        """Return the tensor of the reference that had these bytes first."""
        return tensor if tensor.trace.same is None else self._events.get(tensor.trace.same, tensor)

    def find_maker(self, tensor: TensorRef) -> CallNode | None:
        """Return the call of the reference whose code made a tensor first; None for the model's own."""
        first = self.find_first(tensor)
        call = self._calls.find((first.site.module, first.site.call))
        if call is None or first.site.slot is Slot.OUTPUT:
            return call
        return call.parent

    def list_given(self, made: TensorRef, module: str) -> list[Given]:
        """Return what a module was given where it made a tensor: arguments, then outputs inside; none if it did not."""
        maker = self.find_maker(made)
        if maker is None or maker.module != module:
            return []
        given = []
        for link in maker.event.inputs:
            tensor = self._tensors.get(Site(maker.module, Slot.INPUT, maker.call, link.path).name)
            if tensor is None and link.event is not None:
                tensor = self._events.get(link.event)
            if tensor is not None and not tensor.missing:
                given.append(Given(link.path, True, "", tensor))
        for node in self._calls.list_inside(maker):
            is_before = node.order < made.trace.order and node.parent is maker
            for order in node.event.outputs if is_before else ():
                tensor = self._events.get(order)
                if tensor is not None and not tensor.missing:
                    given.append(Given(name_inside(tensor.site, module), False, node.cls, tensor))
        return given


def make_trial(
    error: OwnError,
    site: TriedSite,
    given: Sequence[Given],
    inputs: Mapping[str, TensorRef],
    held: HeldWeights,
    trees: Trees,
    drew: bool,
) -> Trial:
    """Return everything that an experiment about the cause of an error needs; `inputs` are the model's."""
    noise = site.floor
    if noise is None:  # the tolerance in force takes its place
        stats = site.reference.trace.stats
        noise = (site.atol + site.rtol * (stats.abs_max if stats is not None else 0.0)) / NOISE_FACTOR
    return Trial(
        error=error,
        reference=site.reference,
        candidate=site.candidate,
        given=tuple(given),
        weights=held.pair(error.module, error.candidate_module),
        unread_weights=tuple(sorted(held.unread.get(error.candidate_module, ()))),
        model_weights=(held.reference, held.candidate),
        model_inputs=inputs,
        modules=(trees[0].get(error.module, {}), trees[1].get(error.candidate_module, {})),
        trees=trees,
        noise=noise,
        drew=drew,
    )


def name_inside(site: Site, module: str) -> str:
    """Return the name of an output below a module: `q_proj`, `attention.0`."""
    name = site.module.removeprefix(f"{module}.") if module else site.module
    name = f"{name}@{site.call}" if site.call else name
    return f"{name}.{site.path}" if site.path else name
