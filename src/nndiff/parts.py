"""Stretches of tensors that are compared as tensors of their own: where they lie in the whole, and cut out of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.align.plan import Alignment, Match, Slice, Tensors
from nndiff.recorded import is_gradient
from nndiff.tensors import (
    Data,
    FileData,
    LateData,
    MemoryData,
    Stats,
    StridedFileData,
    TensorRef,
    contiguous_strides,
    settled,
)

_LARGEST = 1 << 26  # elements that are read at once to find the places of parts; beyond, they lie in order
_ALIKE = 1e-3  # of the largest value: enough to tell places apart; whether they agree is judged later
_MOST_ORDERED = 5  # parts whose every order is tried
_FEATURES = 512  # elements of a row it is recognised by


def cut(whole: TensorRef, piece: Slice) -> TensorRef:
    """Return a stretch of a tensor; nothing is read before it is asked for."""
    places = len(piece.places) if piece.places is not None else piece.stop - piece.start
    shape = tuple(places if axis == piece.axis else size for axis, size in enumerate(whole.shape))
    label = piece.name.removeprefix(f"{piece.of}.")
    path = f"{whole.site.path}.{label}" if whole.site.path else label
    trace = replace(whole.trace, digest=None, stats=None, sketch=None, same=None, whole=whole.shape)
    shape = shape[::-1] if piece.turned else shape
    return TensorRef(piece.name, shape, whole.dtype, _data(whole, piece), None, replace(whole.site, path=path), trace)


def _data(whole: TensorRef, piece: Slice) -> Data:
    return LateData(lambda: _stretch(whole, settled(whole.data), piece))


def _stretch(whole: TensorRef, held: Data, piece: Slice) -> Data:
    if not isinstance(held, FileData) or piece.places is not None:
        return MemoryData(_taken(whole.read(0, whole.count).reshape(whole.shape), piece))
    strides = contiguous_strides(whole.shape)
    sizes = tuple(piece.stop - piece.start if axis == piece.axis else size for axis, size in enumerate(whole.shape))
    offset = piece.start * strides[piece.axis]
    if piece.turned:
        sizes, strides = sizes[::-1], strides[::-1]
    return StridedFileData(held.window, held.storage, offset, sizes, strides, held.swapped)


def _taken(array: NDArray[Any], piece: Slice) -> NDArray[Any]:
    places = range(piece.start, piece.stop) if piece.places is None else piece.places
    found: NDArray[Any] = np.take(array, np.asarray(places, np.intp), piece.axis)
    return found.T if piece.turned else found


@dataclass(frozen=True)
class _Cut:
    """Hold a stretch of a whole and the part of the other side that is laid beside it."""

    piece: Slice
    whole: TensorRef
    part: TensorRef


@dataclass(frozen=True)
class Settled:
    """Hold an alignment whose stretches are known, with their tensors."""

    alignment: Alignment
    pieces: Mapping[str, TensorRef]


def settle(alignment: Alignment, reference: Tensors, candidate: Tensors) -> Settled:
    """Find where the parts of fused layers lie, by their outputs: in their order, or dealt out in any other.

    What the outputs tell holds for gradients and parameters of the layer too. Parameters of which no
    output tells are tried in every order.
    """
    wholes = _by_whole(alignment.slices.values(), reference, candidate)
    orders = {cuts[0].piece.group: _places(cuts) for cuts in wholes if cuts[0].whole.site.slot == "output"}
    slices = dict(alignment.slices)
    for cuts in wholes:
        known = orders.get(cuts[0].piece.group) if cuts[0].piece.group else None
        found = _moved(cuts, known) if cuts[0].piece.group else _in_any_order(cuts)
        slices.update({piece.name: piece for piece in _turned(found, cuts)})
    matches = tuple(_told(match, slices) for match in alignment.matches)
    pieces = {each.piece.name: _piece(each.whole, slices[each.piece.name]) for cuts in wholes for each in cuts}
    return Settled(replace(alignment, matches=matches, slices=slices), pieces)


def _by_whole(slices: Iterable[Slice], reference: Tensors, candidate: Tensors) -> list[list[_Cut]]:
    found: dict[tuple[str, bool], list[_Cut]] = {}
    for piece in slices:
        own, other = (reference, candidate) if piece.flipped else (candidate, reference)
        found.setdefault((piece.of, piece.flipped), []).append(_Cut(piece, own[piece.of], other[piece.part]))
    return list(found.values())


def _places(cuts: Sequence[_Cut]) -> tuple[int, ...] | None:
    """Return where in the whole the rows of the parts, taken together, lie; None where they lie in order."""
    if cuts[0].whole.count > _LARGEST or _agree(cuts, [each.piece for each in cuts]):
        return None
    axis = cuts[0].piece.axis
    whole = _rows(_numbers(cuts[0].whole), axis)
    parts = np.concatenate([_rows(_numbers(each.part), axis) for each in cuts])
    weights = np.random.default_rng(0).standard_normal(whole.shape[1])
    places = np.empty(len(whole), np.intp)
    places[np.argsort(parts @ weights)] = np.argsort(whole @ weights)
    return tuple(places.tolist()) if _alike(whole[places], parts) else None


def _rows(array: NDArray[Any], axis: int) -> NDArray[Any]:
    """Return what is at each place along an axis, thinned out where that is much."""
    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    return rows[:, :: max(1, rows.shape[1] // _FEATURES)]


def _numbers(tensor: TensorRef) -> NDArray[Any]:
    numbers = tensor.numpy()
    return numbers.astype(np.complex128 if np.iscomplexobj(numbers) else np.float64)


def _alike(one: NDArray[Any], other: NDArray[Any]) -> bool:
    with np.errstate(invalid="ignore"):
        return bool(np.abs(one - other).max(initial=0.0) <= _ALIKE * np.abs(other).max(initial=0.0))


def _agree(cuts: Sequence[_Cut], pieces: Iterable[Slice]) -> bool:
    """Tell whether all parts together are alike: one of them may be noise beside the others."""
    whole = _numbers(cuts[0].whole)
    here = [_taken(whole, piece).ravel() for piece in pieces]
    return _alike(np.concatenate(here), np.concatenate([_numbers(each.part).ravel() for each in cuts]))


def _moved(cuts: Sequence[_Cut], places: tuple[int, ...] | None) -> list[Slice]:
    if places is None or cuts[0].whole.shape[cuts[0].piece.axis] != len(places):
        return [each.piece for each in cuts]
    return [replace(each.piece, places=places[each.piece.start : each.piece.stop]) for each in cuts]


def _in_any_order(cuts: Sequence[_Cut]) -> list[Slice]:
    natural = [each.piece for each in cuts]
    if len(cuts) > _MOST_ORDERED or cuts[0].whole.count > _LARGEST:
        return natural
    tried = (_reordered(natural, order) for order in permutations(range(len(cuts))))
    return next((pieces for pieces in tried if _agree(cuts, pieces)), natural)


def _reordered(pieces: Sequence[Slice], order: Sequence[int]) -> list[Slice]:
    """Return the stretches of parts that lie in another order, still listed in their own."""
    start = 0
    found = list(pieces)
    for number in order:
        size = pieces[number].stop - pieces[number].start
        found[number] = replace(pieces[number], start=start, stop=start + size)
        start += size
    return found


def _turned(pieces: list[Slice], cuts: Sequence[_Cut]) -> list[Slice]:
    """Return square parameters with their axes exchanged if only so they agree; of others the shape has told."""
    square = len(cuts[0].whole.shape) == 2 and all(each.part.shape[0] == each.part.shape[-1] for each in cuts)
    if not square or cuts[0].whole.site.slot == "output" or cuts[0].whole.count > _LARGEST or _agree(cuts, pieces):
        return pieces
    turned = [replace(piece, turned=not piece.turned) for piece in pieces]
    return turned if _agree(cuts, turned) else pieces


def _told(match: Match, slices: Mapping[str, Slice]) -> Match:
    piece = slices.get(match.reference) or slices.get(match.candidate)
    if piece is None or piece.places is None:
        return match
    return replace(match, matched_by=f"{match.matched_by}, its places by content")


def _piece(whole: TensorRef, where: Slice) -> TensorRef:
    """Return a stretch; one of the reference's gradients with the largest value it is judged by."""
    piece = cut(whole, where)
    if not (where.flipped and is_gradient(piece)):
        return piece
    numbers = np.abs(piece.numpy()).astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    nan = float("nan")
    stats = Stats(numbers.size, numbers.size - finite.size, nan, nan, nan, nan, float(finite.max(initial=0.0)), nan)
    return replace(piece, trace=replace(piece.trace, stats=stats))
