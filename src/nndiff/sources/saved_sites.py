"""Saved outputs in the order of a run: every tensor at its site, linked to what its module was given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from nndiff.names import ancestors
from nndiff.sources.hook_data import Hooked
from nndiff.tensors import Link, Phase, Site, Slot, TensorRef

SavedTensors = dict[Hooked, list[TensorRef]]  # each tensor is named by its place inside the value

_AT_INPUT = (Slot.INPUT, Slot.GRAD_INPUT)
_FORWARD = (Slot.INPUT, Slot.OUTPUT)
_BACKWARD = (Slot.GRAD_OUTPUT, Slot.GRAD_INPUT)


def place_tensors(saved: SavedTensors) -> Iterator[TensorRef]:
    """Yield all tensors at their sites in the order of a run: inputs, forward, outputs, loss, backward, parameters."""
    for order, (site, tensor) in enumerate(_list_sites(saved)):
        phase: Phase = "backward" if site.slot.is_gradient else "forward"
        trace = replace(tensor.trace, order=order, phase=phase, keep="full")
        yield replace(tensor, name=site.name, site=site, trace=trace)


def _list_sites(saved: SavedTensors) -> Iterator[tuple[Site, TensorRef]]:
    for tensor in _list_tensors(saved, Slot.MODEL_INPUT):
        yield Site("", Slot.MODEL_INPUT, path=tensor.name), tensor
    yield from _list_hooked_sites(saved, _FORWARD)
    for place, tensors in saved.items():
        if place.slot is Slot.OUTPUT and place.from_file:
            for tensor in tensors:
                yield Site("", Slot.OUTPUT, path=tensor.name), tensor
    for tensor in _list_tensors(saved, Slot.LOSS):
        yield Site("", Slot.LOSS, path=tensor.name), tensor
    yield from _list_hooked_sites(saved, _BACKWARD)
    for tensor in _list_tensors(saved, Slot.PARAM_GRAD):
        module, _, parameter = tensor.name.rpartition(".")
        yield Site(module, Slot.PARAM_GRAD, tensor=parameter), tensor


def _list_tensors(saved: SavedTensors, slot: Slot) -> Iterator[TensorRef]:
    for place, tensors in saved.items():
        if place.slot is slot:
            yield from tensors


def _list_hooked_sites(saved: SavedTensors, slots: tuple[Slot, Slot]) -> Iterator[tuple[Site, TensorRef]]:
    """Yield what hooks saw at these slots as the modules ran; gradients the other way round.

    A composite begins before the modules in it and ends after them.
    """
    spans = _find_spans(saved)

    def when(place: Hooked) -> tuple[int, int, int, int]:
        depth = len([*ancestors(place.module)])
        first, last = spans[place.module]
        if place.slot in _AT_INPUT:
            return (first, 0, depth, place.call)
        return (last, 1, -depth, place.call)

    hooked = [place for place in saved if place.slot in slots and not place.from_file]
    hooked.sort(key=when, reverse=slots == _BACKWARD)
    has_output_file = any(place.slot is Slot.OUTPUT and place.from_file for place in saved)
    has_model_inputs = any(place.slot is Slot.MODEL_INPUT for place in saved)
    for place in hooked:
        if not place.module:  # what the model itself took and returned has files of its own
            if place.slot is Slot.OUTPUT and has_output_file:
                continue
            if place.slot is Slot.INPUT and has_model_inputs:
                continue
        slot = place.slot
        assert slot is not None
        if slot is Slot.INPUT and not place.module:
            slot = Slot.MODEL_INPUT
        for tensor in saved[place]:
            yield Site(place.module, slot, place.call, _find_path(saved, place, tensor.name)), tensor


def _find_spans(saved: SavedTensors) -> dict[str, tuple[int, int]]:
    """Return for each module the positions of the first and the last module inside it, in the order of the file."""
    modules: dict[str, None] = {}
    for place in saved:
        if place.slot in (*_FORWARD, *_BACKWARD) and not place.from_file:
            modules[place.module] = None
    spans: dict[str, tuple[int, int]] = {}
    for number, module in enumerate(modules):
        for name in (module, *ancestors(module)):
            first, last = spans.get(name, (number, number))
            spans[name] = min(first, number), max(last, number)
    return spans


def _find_path(saved: SavedTensors, place: Hooked, path: str) -> str:
    """Return the place inside what a module took or returned, as a recording would have it.

    Backward hooks are given a tuple even where the module returned one tensor; inputs always have a position.
    """
    if place.slot in _AT_INPUT:
        return path or "0"
    if place.slot is not Slot.GRAD_OUTPUT or len(saved[place]) > 1:
        return path
    output_paths = [tensor.name for tensor in saved.get(Hooked(place.module, Slot.OUTPUT, place.call), ())]
    if path == "0" and output_paths in ([], [""]):
        return ""
    return "0" if not path and output_paths == ["0"] else path


def link_tensors(tensors: Iterator[TensorRef]) -> Iterator[TensorRef]:
    """Tell each output what its module was given, and each gradient which output it belongs to."""
    latest: dict[str, int] = {}  # the last event of each digest
    inputs: dict[tuple[str, int], list[Link]] = {}
    outputs: dict[tuple[str, int, str], int] = {}
    for tensor in tensors:
        site, trace = tensor.site, tensor.trace
        call = site.module, site.call
        if site.slot is Slot.INPUT:
            inputs.setdefault(call, []).append(_link_input(tensor, latest))
        elif site.slot is Slot.OUTPUT:
            trace = replace(trace, inputs=tuple(inputs.get(call, ())))
            outputs[site.module, site.call, site.path] = trace.order
        elif site.slot is Slot.GRAD_OUTPUT:
            trace = replace(trace, forward=outputs.get((site.module, site.call, site.path)))
        if site.slot in (Slot.OUTPUT, Slot.MODEL_INPUT) and trace.digest and tensor.count > 1:
            latest[trace.digest] = trace.order
        yield replace(tensor, trace=trace)


def _link_input(tensor: TensorRef, latest: Mapping[str, int]) -> Link:
    path, trace = tensor.site.path, tensor.trace
    earlier = latest.get(trace.digest) if trace.digest else None
    return Link(path, "own", trace.order) if earlier is None else Link(path, "equal", earlier)
