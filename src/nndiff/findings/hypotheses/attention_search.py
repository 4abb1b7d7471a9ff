"""Which attention the reference computes: found by trying what settings, sizes and given tensors allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from itertools import permutations, product
from typing import Literal

import numpy as np

from nndiff.diagnosis.modules import get_class, get_settings, is_from_torch
from nndiff.diagnosis.tensor_values import read_wide
from nndiff.diagnosis.trials import MOST_LEFT, Trial
from nndiff.findings.hypotheses.attention_model import (
    FUSED_LAYOUTS,
    Array,
    Attention,
    Channels,
    Layout,
    MaskMode,
    Material,
    Part,
    Rotation,
    attend,
    split_heads,
)
from nndiff.relations.operations import MASKED_BELOW
from nndiff.tolerance import NOISE_FACTOR

MOST_PRODUCTS = 1 << 31  # multiplications of one attention: a second
MOST_PROBES = 2500  # attentions tried on a few rows: a second
MOST_SOURCES = 6  # given tensors among which queries, keys and values are looked for: the last ones
PROBED_ROWS = 4  # queries on which an attention is tried first
USUAL_HEADS = (64, 128, 32, 80, 96, 16, 8, 4, 256)  # channels of a head
USUAL_SOFTCAPS = (50.0, 30.0, 20.0)
USUAL_THETAS = (10000.0, 500000.0, 1000000.0, 100000.0, 160000.0, 5000000.0, 10000000.0, 50000.0, 1000.0, 100.0)
ROTATED_SHARES = (0.5, 0.25, 0.4, 0.75)  # of a head: those of models in use
LEAST_THETA = 100.0  # settings below it are no theta
MOST_THETAS = 4  # settings that are tried as theta
MOST_COUNTED = 16  # heads: every number up to it is tried
MOST_SOFTCAPS = 2  # settings that are tried as softcap
CAPPED = (5.0, 200.0)  # between which a setting may be a softcap
LEAST_SCALE = 1e-4  # settings below it are an eps
NEAR_ONE = 1e-2  # how far sums of chances and squares on a circle may be from 1 in a short type
SAME_ANGLE = 1e-6  # by which halves of given cosines may differ: they are copies

Form = Literal["plain", "time first", "heads first", "heads last", "rows"]


@dataclass(frozen=True)
class Setup:
    """Hold a trial as an attention sees it."""

    trial: Trial
    material: Material
    form: Form  # of what is made

    @cached_property
    def wanted(self) -> tuple[Array, Array]:
        """Return what both sides made, with the batch first."""
        return self.arrange(self.trial.reference_values), self.arrange(self.trial.candidate_values)

    @cached_property
    def limit(self) -> float:
        """Return how far a proven attention may be from what was made."""
        return min(NOISE_FACTOR * self.trial.noise, MOST_LEFT * self.trial.error.max_abs)

    @property
    def time_axis(self) -> int:
        """Return the axis of queries in what is made."""
        return 1 if self.material.made == "output" else 2

    def arrange(self, made: Array) -> Array:
        """Return what was made as [batch, time, channels], or as it is if it has queries and keys."""
        if self.material.made != "output":
            return made
        if self.form == "rows":
            return np.asarray(made[None])
        if self.form == "time first":
            return np.swapaxes(made, 0, 1)
        if self.form == "heads first":
            made = made.swapaxes(1, 2)
        return np.reshape(made, (*made.shape[:2], -1))

    def restore(self, values: Array, made: Array) -> Array:
        """Return values in the form of what was made; closed scores are whatever was put there."""
        if self.material.made == "scores":
            closed = (values < MASKED_BELOW) & (made < MASKED_BELOW)
            return np.asarray(np.where(closed, made, values))
        if self.material.made != "output":
            return values
        if self.form == "time first":
            return np.swapaxes(values, 0, 1)
        if self.form == "heads first":
            batch, heads, time, channels = made.shape
            return np.swapaxes(values.reshape(batch, time, heads, channels), 1, 2)
        return np.reshape(values, made.shape) if values.size == made.size else values

    def fits(self, attention: Attention, side: int, rows: Array) -> bool:
        """Return True if an attention gives what a side made, at some queries."""
        values = attend(self.material, attention, rows)
        wanted = np.take(self.wanted[side], rows, self.time_axis)
        if values is None or values.shape != wanted.shape:
            return False
        if self.material.made == "scores":
            values = self.restore(values, wanted)
        with np.errstate(invalid="ignore"):
            gap = np.where(values == wanted, 0.0, np.abs(values - wanted))
        return bool(gap.max() <= self.limit)

    def proves(self, attention: Attention, side: int) -> bool:
        """Return True if an attention gives everything that a side made."""
        values = attend(self.material, attention)
        if values is None:
            return False
        made = self.trial.candidate_values if side else self.trial.reference_values
        check = self.trial.gives_candidate if side else self.trial.gives_reference
        return check(self.restore(values, made))

    @cached_property
    def rows(self) -> Array:
        """Return a few queries, far apart."""
        time = self.wanted[0].shape[self.time_axis]
        return np.unique(np.linspace(0, time - 1, PROBED_ROWS).round().astype(int))

    @cached_property
    def telling_rows(self) -> Array:
        """Return the queries at which both sides differ most, and one at which they differ least."""
        gap = np.nan_to_num(np.abs(self.wanted[1] - self.wanted[0]), posinf=0.0)
        axes = tuple(axis for axis in range(gap.ndim) if axis != self.time_axis)
        order = np.argsort(gap.max(axes))
        return np.unique(np.concatenate([order[:1], order[1 - PROBED_ROWS :]]))


def list_setups(trial: Trial) -> Iterator[Setup]:
    """Yield the ways in which given tensors and what was made of them may be those of an attention."""
    shape = trial.reference.shape
    if trial.candidate.shape != shape or not 2 <= len(shape) <= 4 or 0 in shape:
        return
    if is_torch_attention(trial):
        yield from _set_up_torch_attention(trial)
        return
    inner = [given for given in trial.inner if given.tensor.dtype.kind == "float"]
    arguments = [given for given in trial.arguments if given.tensor.dtype.kind == "float"]
    usable = [given.values for given in inner or arguments if 2 <= given.values.ndim <= 4 and given.values.size]
    forms: list[Form] = ["plain"]
    if len(shape) == 2:
        forms = ["rows"]
    elif len(shape) == 3:
        forms = ["plain", "time first"]
    elif len(shape) == 4:
        forms = ["heads first", "heads last"]
    squares = [values for values in usable if values.ndim == 4 and _are_chances(values)]
    if len(shape) == 4:
        made: Literal["probabilities", "scores"] = "probabilities" if _are_chances(trial.reference_values) else "scores"
        yield Setup(trial, _gather_material(trial, usable, (shape[0], shape[2], shape[3]), made=made), "plain")
    for form in forms:
        batch, time = _read_sizes(shape, form)
        sources = [_put_batch_first(values, form) for values in usable]
        sources = [values for values in sources if len(values) == batch and values.ndim in (3, 4)]
        material = _gather_material(trial, sources, (batch, time, None))
        yield Setup(trial, material, form)
        for chances in (square for square in squares if len(square) == batch):
            values = [source for source in sources if source.shape != chances.shape]
            yield Setup(trial, Material(values[-MOST_SOURCES:], [], [], chances), form)


def _are_chances(values: Array) -> bool:
    """Return True if every row adds up to 1, as probabilities do."""
    return bool((values >= 0).all()) and bool(np.allclose(values.sum(-1), 1.0, atol=NEAR_ONE))


def _read_sizes(shape: tuple[int, ...], form: Form) -> tuple[int, int]:
    if form == "rows":
        return 1, shape[0]
    if form == "time first":
        return shape[1], shape[0]
    return (shape[0], shape[2]) if form == "heads first" else (shape[0], shape[1])


def _put_batch_first(values: Array, form: Form) -> Array:
    if form == "rows":
        return values[None]
    return values.swapaxes(0, 1) if form == "time first" else values


def _gather_material(
    trial: Trial,
    sources: list[Array],
    sizes: tuple[int, int, int | None],
    project: Callable[[Array], Array] | None = None,
    made: Literal["output", "probabilities", "scores"] = "output",
) -> Material:
    """Return given tensors sorted by what they may be: sources of heads, masks, cosines and sines."""
    batch, time, keys = sizes
    sources = [values for values in sources if values.ndim in (3, 4)][-MOST_SOURCES:]
    lengths = {length for values in sources for length in values.shape[1:-1]} if keys is None else {keys}
    masks: list[Array] = []
    named = [(given.tensor.dtype.kind, given.values) for given in trial.arguments]
    named += [(tensor.dtype.kind, tensor.numpy()) for tensor in trial.model_inputs.values()]
    named += [(given.tensor.dtype.kind, given.values) for given in trial.inner if given.values.ndim == 4]
    named += [(pair[0].dtype.kind, pair[0].numpy()) for pair in trial.weights.values() if pair[0] is not None]
    for _, values in named:
        for length in sorted(lengths):
            for mask in _list_masks(values, batch, time, length):
                if not any(mask.shape == known.shape and np.array_equal(mask, known) for known in masks):
                    masks.append(mask)
    return Material(sources, masks, _list_tables(trial), project=project, made=made)


def _list_masks(values: Array, batch: int, time: int, keys: int) -> Iterator[Array]:
    """Yield a tensor in the forms in which it may be a mask over [batch, heads, queries, keys]."""
    if not values.size or values.shape[-1:] != (keys,) or np.iscomplexobj(values):
        return
    wide = values.astype(np.float64)
    whole = values.dtype.kind in "biu"
    if whole and np.any((wide != 0) & (wide != 1)):
        return
    if values.ndim == 2 and len(values) == batch and np.all((wide == 0) | (wide == 1) | (wide < MASKED_BELOW)):
        yield wide[:, None, None, :]
    if values.ndim == 2 and len(values) == time:
        yield wide[None, None]
    if values.ndim == 3 and len(values) in (1, batch) and values.shape[1] in (1, time):
        yield wide[:, None]
    elif values.ndim == 3 and len(values) % batch == 0 and values.shape[1] in (1, time):
        yield wide.reshape(batch, -1, values.shape[1], keys)
    if values.ndim == 4 and len(values) in (1, batch) and values.shape[2] in (1, time):
        yield wide


def _list_tables(trial: Trial) -> list[tuple[Array, Array]]:
    """Return pairs of given cosines and sines, one column for each frequency."""
    tables: list[tuple[Array, Array]] = []
    held = [pair[0] for pair in trial.weights.values() if pair[0] is not None and len(pair[0].shape) in (2, 3)]
    given = [given.tensor for given in trial.given] + held
    circles = [read_wide(tensor) for tensor in given if tensor.dtype.kind in ("float", "complex") and tensor.count]
    circles = [values[0, 0] if values.shape[:2] == (1, 1) and values.ndim == 4 else values for values in circles]
    circles = [values if values.ndim == 3 else values[None] for values in circles if values.ndim in (2, 3)]
    for values in circles:
        if np.iscomplexobj(values) and np.allclose(np.abs(values), 1.0, atol=NEAR_ONE):
            tables.append((values.real, values.imag))
    real = [values for values in circles if not np.iscomplexobj(values)]
    for cosines, sines in permutations(real, 2):
        if cosines.shape == sines.shape and np.allclose(cosines**2 + sines**2, 1.0, atol=NEAR_ONE):
            half = cosines.shape[-1] // 2
            for parts in ((slice(0, half), slice(half, None)), (slice(0, None, 2), slice(1, None, 2))):
                if half and cosines.shape[-1] % 2 == 0 and _are_copies(cosines, *parts) and _are_copies(sines, *parts):
                    tables.append((cosines[..., parts[0]], sines[..., parts[0]]))
                    break
            else:
                tables.append((cosines, sines))
    # a table turned upside down holds sines for cosines: the first position tells
    return sorted(tables, key=lambda pair: -float(pair[0][:, 0].mean()))[:2]


def _are_copies(values: Array, first: slice, second: slice) -> bool:
    return bool(np.abs(values[..., first] - values[..., second]).max() <= SAME_ANGLE)


def is_torch_attention(trial: Trial) -> bool:
    """Return True for torch's own module, which calls no module inside."""
    return is_from_torch(trial.modules[0]) and get_class(trial.modules[0]) == "MultiheadAttention"


def _set_up_torch_attention(trial: Trial) -> Iterator[Setup]:
    """Yield torch's own attention: its projections are computed here from what it holds."""
    prefix = f"{trial.error.module}." if trial.error.module else ""
    held = {name: tensor for name, tensor in trial.model_weights[0].items() if name.startswith(prefix)}
    local = {name.removeprefix(prefix): tensor for name, tensor in held.items()}
    arguments = [given.values for given in trial.arguments if given.tensor.dtype.kind == "float"][:3]
    if "in_proj_weight" not in local or "out_proj.weight" not in local or not arguments:
        return
    arguments += [arguments[-1]] * (3 - len(arguments))
    weights = np.split(read_wide(local["in_proj_weight"]), 3)
    width = len(weights[0])
    bias = read_wide(local["in_proj_bias"]) if "in_proj_bias" in local else np.zeros(3 * width)
    if any(values.ndim not in (2, 3) or values.shape[-1] != width for values in arguments):
        return
    form: Form = "plain" if get_settings(trial.modules[0]).get("batch_first") else "time first"
    form = "rows" if arguments[0].ndim == 2 else form
    sources = [
        _put_batch_first(values, form) @ weight.T + shift
        for values, weight, shift in zip(arguments, weights, np.split(bias, 3), strict=True)
    ]
    out = read_wide(local["out_proj.weight"])
    out_bias = read_wide(local["out_proj.bias"]) if "out_proj.bias" in local else np.zeros(len(out))
    if trial.reference.shape != arguments[0].shape:
        return
    batch, time = _read_sizes(trial.reference.shape, form)
    yield Setup(
        trial, _gather_material(trial, sources, (batch, time, None), lambda merged: merged @ out.T + out_bias), form
    )


def list_setting_values(trial: Trial) -> list[float]:
    """Return the numbers among the settings of both modules, of those around them and of those inside."""
    numbers: list[float] = []
    for side, (module, tree) in enumerate(zip(trial.modules, trial.trees, strict=True)):
        path = trial.error.candidate_module if side else trial.error.module
        parents = [".".join(path.split(".")[:depth]) for depth in range(path.count(".") + 1)] if path else []
        for owner in (module, *(tree[parent] for parent in reversed(parents) if parent in tree)):
            for value in get_settings(owner).values():
                if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
                    numbers.append(float(value))
    return list(dict.fromkeys(numbers))


def identify_reference(setup: Setup) -> Attention | None:
    """Return the attention that gives what the reference made, everywhere; the likeliest is tried first."""
    for number, attention in enumerate(_list_attentions(setup)):
        if number >= MOST_PROBES:
            return None
        if setup.fits(attention, 0, setup.rows):
            for variant in (attention, replace(attention, empty_rows="zero")):
                if setup.proves(variant, 0):
                    return variant
    return None


def _list_attentions(setup: Setup) -> Iterator[Attention]:
    """Yield attentions, the likeliest first: tensors in order, known numbers of heads, choices that are not rare."""
    counts = list_head_counts(setup, list_setting_values(setup.trial))
    for group, heads, rarity in product(_list_parts(setup), counts, Rarity):
        for base, size in _list_sizes(setup, group, heads):
            yield from _list_choices(setup, base, size, rarity)


class Rarity(Enum):
    """Say which choices are tried: none that are rare, RoPE of a part of each head, windows and softcaps."""

    PLAIN = 0
    PARTLY_ROTATED = 1
    LIMITED = 2


def _list_sizes(setup: Setup, group: Iterable[Parts], counts: Iterable[int]) -> Iterator[tuple[Attention, int]]:
    """Yield where queries, keys and values may be, in how many heads, and the channels of a head."""
    numbers = list_setting_values(setup.trial)
    for (query, key, value), heads in product(group, counts):
        for count in _list_group_counts(setup, query, key, heads, numbers):
            base = Attention(query, key, value, heads, count)
            size = 0 if setup.material.probabilities is not None else _measure_head(setup, base)
            if size is not None:
                yield base, size


def _list_choices(setup: Setup, base: Attention, size: int, rarity: Rarity) -> Iterator[Attention]:
    """Yield attentions of these heads with every choice of one rarity."""
    if setup.material.probabilities is not None:
        if rarity is Rarity.PLAIN:
            yield base
        return
    numbers = list_setting_values(setup.trial)
    rotations = list_rotations(setup, size, numbers)
    if rarity is Rarity.PARTLY_ROTATED:
        rotations = list(_list_partial_rotations(rotations, size, numbers))
    places = list(list_places(setup, numbers))
    softcaps = list_softcaps(size, numbers)
    scales = list_scales(setup, size, base.heads, numbers)
    for rotation, place, softcap, scale in product(rotations, places, softcaps, scales):
        causal, window, mask, mode = place
        if (window is not None or softcap is not None) == (rarity is Rarity.LIMITED):
            yield replace(
                base, rotation=rotation, causal=causal, window=window, mask=mask, mask_mode=mode, softcap=softcap,
                scale=scale,
            )  # fmt: skip


def _list_partial_rotations(
    rotations: Iterable[Rotation | None], size: int, numbers: Iterable[float]
) -> Iterator[Rotation]:
    """Yield rotations of the first channels of each head alone."""
    widths = [int(number) for number in numbers if 1 < number < size and number % 2 == 0]
    widths += [int(share * size) for share in ROTATED_SHARES if share * size % 2 == 0]
    for rotation, width in product(rotations, dict.fromkeys(widths)):
        if rotation is not None and rotation.table is None:
            yield replace(rotation, width=width)


Parts = tuple[Part, Part, Part]  # queries, keys, values


def _list_parts(setup: Setup) -> list[list[Parts]]:
    """Return where queries, keys and values may be: in three tensors in order first, then fused, then in any order."""
    sources = setup.material.sources
    count = len(sources)
    if setup.material.probabilities is not None:
        values = []
        for source in reversed(range(count)):
            values += [Part(source, slot=2), *(Part(source, layout, 2, 3) for layout in FUSED_LAYOUTS)]
        return [[(part, part, part) for part in values]]
    in_order: list[Parts] = []
    others: list[Parts] = []
    for triple in permutations(range(count), 3):
        parts = Part(triple[0]), Part(triple[1], slot=1), Part(triple[2], slot=2)
        (in_order if triple == tuple(sorted(triple)) else others).append(parts)
    in_order.reverse()  # the last are what the others went into
    fused: list[Parts] = []
    for source, layout in product(reversed(range(count)), FUSED_LAYOUTS):
        fused.append((Part(source, layout, 0, 3), Part(source, layout, 1, 3), Part(source, layout, 2, 3)))
    for query, both in permutations(range(count), 2):
        for layout in (Layout.JOINED, Layout.BY_HEAD):
            fused.append((Part(query), Part(both, layout, 1, 2), Part(both, layout, 2, 2)))
    return [in_order, fused, others]


def list_head_counts(setup: Setup, numbers: Iterable[float]) -> tuple[list[int], list[int]]:
    """Return how many heads there may be: by shapes and settings, and by usual sizes."""
    made = setup.trial.reference.shape
    if setup.material.made != "output" or setup.form == "heads first":
        return [made[1]], []
    if setup.form == "heads last":
        return [made[2]], []
    if setup.material.probabilities is not None:
        return [setup.material.probabilities.shape[1]], []
    apart = {values.shape[axis] for values in setup.material.sources if values.ndim == 4 for axis in (1, 2)}
    width = made[-1]
    settings = [int(number) for number in numbers if number > 1 and number == int(number)]
    known = [count for count in apart if count > 1 and width % count == 0]
    known += [number for number in settings if width % number == 0]
    known += [width // number for number in settings if width % number == 0 and width > number]
    usual = [width // size for size in USUAL_HEADS if width % size == 0 and width > size]
    usual += [count for count in range(2, MOST_COUNTED + 1) if width % count == 0]
    known = list(dict.fromkeys(known))
    return known, [count for count in dict.fromkeys([*usual, 1]) if count not in known]


def _list_group_counts(setup: Setup, query: Part, key: Part, heads: int, numbers: Iterable[float]) -> list[int]:
    """Return how many heads keys and values may have."""
    if setup.material.probabilities is not None or key.layout is not Layout.WHOLE:
        settings = [int(number) for number in numbers if number >= 1 and number == int(number)]
        return list(dict.fromkeys([heads, *(number for number in settings if number < heads and heads % number == 0)]))
    queries, keys = setup.material.sources[query.source], setup.material.sources[key.source]
    if keys.ndim == 4:
        return [count for count in dict.fromkeys(keys.shape[1:3]) if count <= heads and heads % count == 0]
    width = queries.shape[-1] // heads if queries.ndim == 3 else queries.shape[-1]
    count = keys.shape[-1] // width if width and keys.shape[-1] % width == 0 else 0
    return [count] if count and heads % count == 0 else []


def _measure_head(setup: Setup, attention: Attention) -> int | None:
    """Return the channels of a head, None if the sizes do not fit what was made."""
    values = attend(setup.material, attention, setup.rows)
    if values is None or values.shape != np.take(setup.wanted[0], setup.rows, setup.time_axis).shape:
        return None
    queries = split_heads(setup.material, attention.query, attention.heads, attention.groups)
    return None if queries is None else queries.shape[-1]


def list_rotations(setup: Setup, size: int, numbers: Iterable[float]) -> list[Rotation | None]:
    """Return how queries and keys may be rotated: not at all, by given angles, or by those of theta."""
    rotations: list[Rotation | None] = []
    for table in range(len(setup.material.tables)):
        for pairs in Channels:
            rotations.append(Rotation(table, pairs=pairs, spread=pairs))
    rotations.append(None)
    if not setup.material.tables and size % 2 == 0:
        settings = [number for number in numbers if number >= LEAST_THETA]
        usual = USUAL_THETAS[:1]
        thetas = [*settings, *usual] if len(settings) < MOST_THETAS else [*usual, *settings[:MOST_THETAS]]
        for theta in dict.fromkeys(thetas):
            for pairs in Channels:
                rotations.append(Rotation(None, theta, pairs=pairs, spread=pairs))
    return rotations


Place = tuple[int | None, int | None, int | None, MaskMode]


def list_places(setup: Setup, numbers: Iterable[float]) -> Iterator[Place]:
    """Yield which places may be open: causal, window, mask, and what the mask means."""
    time = setup.wanted[0].shape[setup.time_axis]
    masks: list[tuple[int | None, MaskMode]] = []
    for number, mask in enumerate(setup.material.masks):
        if np.all((mask == 0) | (mask == 1)):
            masks += [(number, MaskMode.OPEN), (number, MaskMode.CLOSED)]
        else:
            masks.append((number, MaskMode.ADDED))
    masks.append((None, MaskMode.OPEN))
    windows = [int(number) for number in numbers if 1 <= number < time and number == int(number)]
    for mask_number, mode in masks:
        for causal in (None, 0):
            yield causal, None, mask_number, mode
    for window in windows[:4]:
        for mask_number, mode in masks:
            yield 0, window, mask_number, mode


def list_softcaps(size: int, numbers: Iterable[float]) -> list[float | None]:
    """Return where scores may be capped: nowhere, or at a number of the settings that is not the size of a head."""
    settings = [number for number in numbers if CAPPED[0] <= number <= CAPPED[1] and number != size]
    return [None, *settings[:MOST_SOFTCAPS]]


def list_scales(setup: Setup, size: int, heads: int, numbers: Iterable[float]) -> list[float]:
    """Return by what scores may be multiplied: the usual factor, those of the settings, and those of mistakes."""
    scales = [size**-0.5, *(number for number in numbers if LEAST_SCALE < number < 1)]
    return list(dict.fromkeys([*scales, 1.0, 1.0 / size]))
