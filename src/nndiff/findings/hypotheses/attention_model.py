"""Attention in NumPy, in double precision, with every choice an implementation makes as a parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nndiff.relations.rounding import round_numbers

Array = NDArray[Any]

CLOSED = -1e30  # added to scores of closed places: far beyond any score, so that a row without open places is even
LOWEST_SHORT = -60000.0  # scores below it are closed: float16 ends at -65504
MOST_STEPS = 40  # of the search for a number; Newton's method needs a handful


class Layout(str, Enum):
    """Say how queries, keys and values lie in a tensor; the value is a word for people."""

    WHOLE = "alone"
    JOINED = "one after the other"
    BY_HEAD = "head by head"
    BY_GROUP = "group by group"


FUSED_LAYOUTS = (Layout.JOINED, Layout.BY_HEAD, Layout.BY_GROUP)


class Channels(str, Enum):
    """Say which channels of a head belong together in RoPE; the value is a word for people."""

    HALVES = "in halves (rotate_half)"
    NEIGHBOURS = "interleaved"


class MaskMode(str, Enum):
    """Say what a mask means: a true place is open, or closed, or its numbers are added to the scores."""

    OPEN = "open"
    CLOSED = "closed"
    ADDED = "added"


@dataclass(frozen=True)
class Part:
    """Say where queries, keys or values are found: a given tensor, or a part of one."""

    source: int
    layout: Layout = Layout.WHOLE
    slot: int = 0  # 0 queries, 1 keys, 2 values
    slots: int = 1  # parts in the tensor: 3, or 2 where keys and values alone are fused


@dataclass(frozen=True)
class Rotation:
    """Say how queries and keys are rotated by their positions."""

    table: int | None = None  # which of the given cosines and sines; None: computed from theta
    theta: float = 10000.0
    width: int | None = None  # channels that are rotated; None: all of a head
    pairs: Channels = Channels.HALVES  # which two channels are rotated together
    spread: Channels = Channels.HALVES  # how frequencies are laid over the channels
    backwards: bool = False
    stretch: float = 1.0  # positions are divided by it
    offset: int = 0  # of the queries against the keys: a shift of both turns nothing
    queries: bool = True
    keys: bool = True


@dataclass(frozen=True)
class Attention:
    """Hold every choice of one implementation of attention."""

    query: Part
    key: Part
    value: Part
    heads: int
    groups: int  # heads of keys and values
    scale: float = 1.0
    tiled: bool = False  # heads of keys and values are repeated as a whole, not one by one
    softcap: float | None = None
    causal: int | None = None  # positions ahead that are open; None: all
    window: int | None = None  # positions back that are open, the own one included
    mask: int | None = None  # which of the given masks
    mask_mode: MaskMode = MaskMode.OPEN
    rotation: Rotation | None = None
    softmax_type: str | None = None  # a shorter type that scores are rounded to, and probabilities too
    empty_rows: Literal["even", "zero"] = "even"  # what becomes of a query that sees no key


@dataclass
class Material:
    """Hold what an attention is made of: arrays with the batch first, and what was computed from them before."""

    sources: Sequence[
        Array
    ]  # [batch, time, channels], [batch, heads, time, channels] or [batch, time, heads, channels]
    masks: Sequence[Array]  # four axes each, to be broadcast over [batch, heads, queries, keys]
    tables: Sequence[tuple[Array, Array]]  # cosines and sines [batch or 1, time, half of the rotated channels]
    probabilities: Array | None = None  # given: only the values are left to be weighted
    project: Callable[[Array], Array] | None = None  # what follows inside the module
    made: Literal["output", "probabilities", "scores"] = "output"
    rotated: dict[Any, tuple[Array, Array]] = field(default_factory=dict)
    split: dict[Any, Array | None] = field(default_factory=dict)


def split_heads(material: Material, part: Part, heads: int, groups: int) -> Array | None:
    """Return a part as [batch, heads, time, channels]; None if its sizes do not allow it."""
    key = (part, heads, groups)
    if key not in material.split:
        material.split[key] = _split_heads(material.sources[part.source], part, heads, groups)
    return material.split[key]


def _split_heads(source: Array, part: Part, heads: int, groups: int) -> Array | None:
    count = heads if part.slots == 3 and part.slot == 0 else groups
    if part.layout is Layout.WHOLE:
        count = heads if part.slot == 0 else groups
        if source.ndim == 4:
            if source.shape[1] == count:
                return source
            return source.swapaxes(1, 2) if source.shape[2] == count else None
        batch, time, width = source.shape
        return source.reshape(batch, time, count, -1).swapaxes(1, 2) if width % count == 0 else None
    if source.ndim != 3:
        return None
    batch, time, width = source.shape
    counts = [heads, groups, groups] if part.slots == 3 else [groups, groups]
    if width % sum(counts):
        return None
    size = width // sum(counts)
    place = part.slot - (3 - part.slots)
    if part.layout is Layout.JOINED:
        start = sum(counts[:place]) * size
        source = source[:, :, start : start + counts[place] * size]
        return np.swapaxes(source.reshape(batch, time, count, size), 1, 2)
    if part.layout is Layout.BY_HEAD and len(set(counts)) == 1:
        return np.swapaxes(source.reshape(batch, time, count, len(counts), size)[:, :, :, place], 1, 2)
    if part.layout is Layout.BY_GROUP and part.slots == 3 and heads % groups == 0:
        each = heads // groups
        grouped = source.reshape(batch, time, groups, each + 2, size)
        if part.slot == 0:
            return np.swapaxes(grouped[:, :, :, :each].reshape(batch, time, heads, size), 1, 2)
        return np.swapaxes(grouped[:, :, :, each + part.slot - 1], 1, 2)
    return None


def compute_frequencies(theta: float, width: int) -> Array:
    """Return the rotary frequencies of a head."""
    exponents: Array = np.arange(0, width, 2) / width
    return np.asarray(theta**-exponents)


def rotate(heads: Array, rotation: Rotation, tables: Sequence[tuple[Array, Array]], offset: int) -> Array | None:
    """Return queries or keys rotated by their positions."""
    time, channels = heads.shape[2:]
    if rotation.table is None:
        width = rotation.width or channels
        positions = (np.arange(time) + offset) / rotation.stretch
        angles = positions[:, None] * compute_frequencies(rotation.theta, width)
        cosines, sines = np.cos(angles)[None], np.sin(angles)[None]
    else:
        cosines, sines = tables[rotation.table]
        width = 2 * cosines.shape[-1]
        if cosines.shape[1] < time or len(cosines) not in (1, len(heads)):
            return None
        cosines, sines = cosines[:, :time], sines[:, :time]
    if width > channels or width % 2:
        return None
    cosines, sines = (_spread(values, rotation.spread)[:, None] for values in (cosines, sines))
    turned, rest = heads[..., :width], heads[..., width:]
    partner = np.empty_like(turned)
    if rotation.pairs is Channels.HALVES:
        partner[..., : width // 2] = -turned[..., width // 2 :]
        partner[..., width // 2 :] = turned[..., : width // 2]
    else:
        partner[..., 0::2] = -turned[..., 1::2]
        partner[..., 1::2] = turned[..., 0::2]
    sign = -1.0 if rotation.backwards else 1.0
    return np.concatenate([turned * cosines + sign * partner * sines, rest], -1)


def _spread(values: Array, spread: Channels) -> Array:
    return np.concatenate([values, values], -1) if spread is Channels.HALVES else np.repeat(values, 2, -1)


def find_open_places(causal: int | None, window: int | None, rows: Array, queries: int, keys: int) -> Array:
    """Return which keys each query may see; the last query stands at the last key."""
    behind = (rows + keys - queries)[:, None] - np.arange(keys)[None]
    opened = np.ones(behind.shape, bool)
    if causal is not None:
        opened &= behind >= -causal
    if window is not None:
        opened &= (behind < window) & (behind > -window)
    return opened


def attend(material: Material, attention: Attention, rows: Array | None = None) -> Array | None:
    """Return what an attention makes, for some queries or all; None if the sizes do not fit."""
    values = split_heads(material, attention.value, attention.heads, attention.groups)
    if values is None:
        return None
    if attention.heads % values.shape[1]:
        return None
    each = attention.heads // values.shape[1]
    heads = np.arange(attention.heads)
    owners = heads % values.shape[1] if attention.tiled else heads // each
    if material.probabilities is not None:
        if rows is not None and rows.max() >= material.probabilities.shape[2]:
            return None
        chances = material.probabilities if rows is None else material.probabilities[:, :, rows]
        if chances.shape[1] != attention.heads or chances.shape[3] != values.shape[2]:
            return None
        return _merge_heads(material, chances @ values[:, owners])
    rotated = _rotate_both(material, attention)
    if rotated is None or rotated[1].shape[1] != values.shape[1] or rotated[0].shape[3] != rotated[1].shape[3]:
        return None
    queries, keys = rotated
    if values.shape[2] != keys.shape[2] or len(queries) != len(keys) or len(keys) != len(values):
        return None
    time = queries.shape[2]
    rows = np.arange(time) if rows is None else rows
    if rows.max() >= time:
        return None
    scores = queries[:, :, rows] @ keys[:, owners].swapaxes(2, 3)
    scores *= attention.scale
    if attention.softcap is not None:
        scores = attention.softcap * np.tanh(scores / attention.softcap)
    opened = find_open_places(attention.causal, attention.window, rows, time, keys.shape[2])
    if not opened.all():
        scores = np.where(opened, scores, CLOSED)
    if attention.mask is not None:
        mask = material.masks[attention.mask]
        if mask.shape[2] not in (1, time) or mask.shape[3] != keys.shape[2] or mask.shape[1] not in (1, len(heads)):
            return None
        mask = mask[:, :, rows] if mask.shape[2] > 1 else mask
        if attention.mask_mode is MaskMode.ADDED:
            scores = scores + np.maximum(mask, CLOSED)
        else:
            scores = np.where((mask != 0) == (attention.mask_mode is MaskMode.OPEN), scores, CLOSED)
    if material.made == "scores":
        return np.asarray(scores)
    if attention.softmax_type is not None:
        rounded = round_numbers(np.maximum(scores, LOWEST_SHORT), attention.softmax_type).astype(np.float64)
        scores = np.where(scores > LOWEST_SHORT, rounded, scores)  # what is closed stays closed
    highest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - highest)
    weights /= weights.sum(-1, keepdims=True)
    if attention.empty_rows == "zero":
        weights *= highest > CLOSED / 2
    if attention.softmax_type is not None:
        weights = round_numbers(weights, attention.softmax_type).astype(np.float64)
    if material.made == "probabilities":
        return np.asarray(weights)
    return _merge_heads(material, weights @ values[:, owners])


def _rotate_both(material: Material, attention: Attention) -> tuple[Array, Array] | None:
    memo = (attention.query, attention.key, attention.heads, attention.groups, attention.rotation)
    if memo not in material.rotated:
        queries = split_heads(material, attention.query, attention.heads, attention.groups)
        keys = split_heads(material, attention.key, attention.heads, attention.groups)
        rotation = attention.rotation
        if rotation is not None and queries is not None and rotation.queries:
            queries = rotate(queries, rotation, material.tables, rotation.offset)
        if rotation is not None and keys is not None and rotation.keys:
            keys = rotate(keys, rotation, material.tables, 0)
        if queries is None or keys is None:
            return None
        material.rotated = dict(list(material.rotated.items())[-8:])
        material.rotated[memo] = (queries, keys)
    return material.rotated[memo]


def _merge_heads(material: Material, heads: Array) -> Array:
    """Return [batch, time, channels]."""
    batch, _, time, _ = heads.shape
    merged = heads.swapaxes(1, 2).reshape(batch, time, -1)
    return material.project(merged) if material.project else merged


def solve_number(compute: Callable[[float], Array | None], wanted: Array, start: float) -> float | None:
    """Return the positive number for which a computation comes nearest to what is wanted, from a start on."""
    place, step = float(np.log(start)), 1e-5
    for _ in range(MOST_STEPS):
        here, beside = compute(float(np.exp(place))), compute(float(np.exp(place + step)))
        if here is None or beside is None or not np.isfinite(here).all():
            return None
        slope = (beside - here) / step
        steepness = float(np.vdot(slope, slope))
        if not np.isfinite(steepness) or steepness == 0:
            return None
        move = float(np.vdot(slope, wanted - here)) / steepness
        place += float(np.clip(move, -1.0, 1.0))
        if abs(move) < 1e-10:
            return float(np.exp(place))
    return float(np.exp(place))
