"""Positions: numbers that are handed on, learned tables, rotary angles, sinusoids: shifted or laid out otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nndiff.diagnosis.tensor_values import read_wide
from nndiff.diagnosis.trials import MOST_LEFT, Trial
from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.attention_model import compute_frequencies, solve_number
from nndiff.findings.hypotheses.attention_search import USUAL_THETAS, list_setting_values
from nndiff.findings.hypotheses.family import Family, Proof
from nndiff.findings.hypotheses.operands import have_equal_values
from nndiff.tolerance import NOISE_FACTOR

Array = NDArray[Any]

MOST_SHIFTED = 3  # positions by which tables are tried to be shifted
LARGEST_TABLE = 1 << 24  # elements of a table of positions
MOST_TABLES = 8  # tables that are tried
ANGLE_ROUNDINGS = 4  # units of rounding that an angle computed in float32 may be off
USUAL_STRETCHES = (2.0, 4.0, 8.0, 16.0, 0.5)  # factors of linear rope scaling
PROBED_POSITIONS = 8  # on which angles are tried first
SAMPLED = 512  # elements by which tables are told apart; all are compared then


def applies(trial: Trial) -> bool:
    """Return True if a tensor has a place for each position, or holds positions itself."""
    shape = trial.reference.shape
    if trial.error.slot.is_gradient or not 0 < trial.reference.count <= LARGEST_TABLE:
        return False
    kind = trial.reference.dtype.kind
    if kind == "int":
        return len(shape) >= 1 and trial.candidate.shape[-1:] == shape[-1:]
    return kind == "float" and len(shape) >= 2 and trial.candidate.shape == shape


def prove(trial: Trial) -> Proof | None:
    """Return how the candidate counts or encodes positions otherwise."""
    if trial.reference.dtype.kind == "int":
        return _explain_numbers(trial)
    for explain in (_explain_angles, _explain_learned, _explain_sinusoids):
        if proof := explain(trial):
            return proof
    return None


# positions as numbers


def _explain_numbers(trial: Trial) -> Proof | None:
    """Return how positions are counted otherwise: from another number on, or padding included."""
    try:
        # those of one sample hold for all
        reference, candidate = np.broadcast_arrays(trial.reference_values, trial.candidate_values)
    except ValueError:
        return None
    steps = np.diff(reference, axis=-1)
    if reference.shape[-1] < 2 or not np.all((steps == 0) | (steps == 1)) or not steps.any():
        return None
    shift = float((candidate - reference).flat[0])
    if shift and np.array_equal(candidate, reference + shift):
        text = f"positions begin at {candidate.min():g} in the candidate, at {reference.min():g} in the reference"
        return Proof(Cause.POSITION_OFFSET, text, f"begin positions at {reference.min():g}")
    counts = dict(_count_positions(trial, reference.shape))
    ours = next((text for text, values in counts.items() if np.array_equal(values, reference)), None)
    theirs = next((text for text, values in counts.items() if np.array_equal(values, candidate)), None)
    if ours and theirs and ours != theirs:
        text = f"positions are counted {theirs} in the candidate, {ours} in the reference"
        return Proof(Cause.POSITION_OFFSET, text, f"count positions {ours}")
    return None


def _count_positions(trial: Trial, shape: tuple[int, ...]) -> Iterator[tuple[str, Array]]:
    """Yield usual ways of counting positions."""
    plain = np.broadcast_to(np.arange(shape[-1], dtype=np.float64), shape)
    for start in range(MOST_SHIFTED):
        yield f"from {start} on, padding included", plain + start
    masks = [given.values for given in trial.arguments] + [tensor.numpy() for tensor in trial.model_inputs.values()]
    for mask in masks:
        if mask.shape != shape:
            continue
        ids = mask.astype(np.float64)
        # tokens, too, tell what is padding: those of one number, at an end
        kept = ids if np.all((ids == 0) | (ids == 1)) else (ids != ids.min()).astype(np.float64)
        counted = np.cumsum(kept, -1)
        for start in range(MOST_SHIFTED):
            yield f"from {start} on, without padding", np.where(kept > 0, counted - 1 + start, max(start - 1, 0))
            yield f"from {start} on, without padding, which is 1", np.where(kept > 0, counted - 1 + start, 1.0)
            yield f"from {start} on, without padding, which is 0", np.where(kept > 0, counted - 1 + start, 0.0)


# learned tables


def _explain_learned(trial: Trial) -> Proof | None:
    """Return from which row on the candidate adds a table that the model holds, if that is the same on both sides."""
    if not all(have_equal_values(*tensors) for tensors in trial.weights.values()):
        return None
    shape = trial.reference.shape
    length = shape[-2]
    gap = trial.candidate_values - trial.reference_values
    for name, table in _list_tables(trial):
        rows: dict[int | None, Array] = {None: np.zeros((length, shape[-1]))}
        for start in range(MOST_SHIFTED + 1):
            if start + length <= len(table):
                rows[start] = table[start : start + length]
        for (ours, added), (theirs, instead) in permutations(rows.items(), 2):
            change = instead - added
            near = np.abs(gap - change)[..., :: max(1, shape[-1] // 8)].max() <= MOST_LEFT * trial.error.max_abs
            if not near or not trial.gives_candidate(trial.reference_values + change):
                continue
            if ours is None or theirs is None:
                who = "reference" if theirs is None else "candidate"
                text = f"only the {who} adds the position embeddings {name}"
                return Proof(Cause.LAYER_SKIPPED, text, "add them on both sides or on neither")
            text = f"positions in {name} begin at row {theirs} in the candidate, at row {ours} in the reference"
            return Proof(Cause.POSITION_OFFSET, text, f"begin at row {ours}")
    return None


def _list_tables(trial: Trial) -> Iterator[tuple[str, Array]]:
    """Yield what the module and those inside it hold with a row for each position."""
    shape = trial.reference.shape
    prefix = f"{trial.error.module}." if trial.error.module else ""
    held = [(name, tensor) for name, tensor in trial.model_weights[0].items() if name.startswith(prefix)]
    fitting = []
    for name, tensor in held:
        form = tensor.shape[1:] if len(tensor.shape) == 3 and tensor.shape[0] == 1 else tensor.shape
        if len(form) == 2 and form[1] == shape[-1] and form[0] >= shape[-2] and tensor.count <= LARGEST_TABLE:
            fitting.append((name, tensor))
    # tables of positions are shorter than those of words
    for name, tensor in sorted(fitting, key=lambda item: item[1].count)[:MOST_TABLES]:
        values = read_wide(tensor)
        yield name, values[0] if values.ndim == 3 else values


# rotary angles


class Spread(str, Enum):
    """Say how frequencies are laid over channels; the value is a word for people."""

    HALVES = "twice, in halves"
    NEIGHBOURS = "twice, interleaved"
    ONCE = "once"


@dataclass(frozen=True)
class Angles:
    """Hold how a table of cosines or sines is computed."""

    wave: str  # cosines or sines
    spread: Spread
    theta: float | None  # None: frequencies that a side holds
    held: int = 0  # which side
    offset: int = 0
    stretch: float = 1.0
    short: bool = False  # frequencies rounded to bfloat16


@dataclass(frozen=True)
class AngleSetup:
    """Hold what a table of angles is computed from."""

    positions: Array  # to be broadcast over [..., time]
    held: tuple[Array | None, Array | None]  # frequencies that either side holds
    width: int


def _compute_angles(setup: AngleSetup, angles: Angles) -> tuple[Array, Array] | None:
    """Return the table, and the angles themselves."""
    count = setup.width if angles.spread is Spread.ONCE else setup.width // 2
    frequencies = setup.held[angles.held] if angles.theta is None else compute_frequencies(angles.theta, 2 * count)
    if frequencies is None or len(frequencies) != count:
        return None
    if angles.short:
        frequencies = _round_short(frequencies)
    turned = ((setup.positions + angles.offset) / angles.stretch)[..., None] * frequencies
    if angles.spread is Spread.HALVES:
        turned = np.concatenate([turned, turned], -1)
    elif angles.spread is Spread.NEIGHBOURS:
        turned = np.repeat(turned, 2, -1)
    return (np.cos(turned) if angles.wave == "cosines" else np.sin(turned)), turned


def _round_short(values: Array) -> Array:
    """Return values rounded to bfloat16, to even."""
    bits = values.astype(np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.asarray(bits.view(np.float32), np.float64)


def _explain_angles(trial: Trial) -> Proof | None:
    """Return how rotary cosines or sines are computed otherwise."""
    if max(np.abs(trial.reference_values).max(), np.abs(trial.candidate_values).max()) > 1 + 1e-2:
        return None
    for setup in _list_angle_setups(trial):
        ours = _find_angles(trial, setup, 0, None)
        if ours is None:
            continue
        theirs = _find_angles(trial, setup, 1, ours)
        return None if theirs is None else _describe_angles(ours, theirs)
    return None


def _list_angle_setups(trial: Trial) -> Iterator[AngleSetup]:
    shape = trial.reference.shape
    if shape[-1] < 2:
        return
    time = shape[-2]
    pairs = [pair for pair in trial.weights.values() if pair[0] is not None and len(pair[0].shape) == 1]
    frequencies = next((pair for pair in pairs if pair[0] is not None and pair[0].count * 2 >= shape[-1]), (None, None))
    held = tuple(None if tensor is None else read_wide(tensor) for tensor in frequencies)
    for given in trial.arguments:
        numbers = given.values
        fits = numbers.shape in ((time,), (1, time), shape[:-1]) or (numbers.ndim == 2 and numbers.shape == shape[:-1])
        if given.tensor.dtype.kind in ("int", "float") and fits and np.all(numbers == np.round(numbers)):
            positions = np.broadcast_to(numbers.astype(np.float64), shape[:-1])
            yield AngleSetup(positions, (held[0], held[1]), shape[-1])
    yield AngleSetup(np.broadcast_to(np.arange(time, dtype=np.float64), shape[:-1]), (held[0], held[1]), shape[-1])


def _find_angles(trial: Trial, setup: AngleSetup, side: int, other: Angles | None) -> Angles | None:
    """Return how a side computes its table; of what the other side does, one thing may be changed."""
    numbers = [number for number in list_setting_values(trial) if number >= 10]
    thetas = list(dict.fromkeys([*numbers, *USUAL_THETAS]))
    spreads = [spread for spread in Spread if setup.width % 2 == 0 or spread is Spread.ONCE]
    plain = [Angles(wave, spread, None, side) for wave in ("cosines", "sines") for spread in spreads]
    known = [replace(angles, theta=theta) for angles in plain for theta in thetas]
    changed = []
    for base in known if other is None else [other]:
        changed += [replace(base, offset=shift) for shift in range(-MOST_SHIFTED, MOST_SHIFTED + 1) if shift]
        changed += [replace(base, stretch=stretch) for stretch in USUAL_STRETCHES]
        changed.append(replace(base, short=True))
    for angles in (*known, *changed):
        if _gives_angles(trial, setup, angles, side):
            return angles
    for base in plain if other is None else [other]:
        for name, start in (("theta", 1e4), ("theta", 3e5), ("stretch", 2.0)):
            solved = _solve_angles(trial, setup, base, side, name, start)
            if solved is not None and _gives_angles(trial, setup, solved, side):
                return solved
    # frequencies that follow no theta: those that the side holds
    return next((angles for angles in plain if _gives_angles(trial, setup, angles, side)), None)


def _gives_angles(trial: Trial, setup: AngleSetup, angles: Angles, side: int) -> bool:
    """Return True if a table is what a side made, but for what rounding in float32 does to an angle."""
    made = trial.candidate_values if side else trial.reference_values
    time = setup.positions.shape[-1]
    few = replace(setup, positions=setup.positions.reshape(-1, time)[0, :PROBED_POSITIONS])
    limit = min(NOISE_FACTOR * trial.noise, MOST_LEFT * trial.error.max_abs)
    for part in (few, setup):  # a look at the first positions spares most tables
        computed = _compute_angles(part, angles)
        if computed is None:
            return False
        table, turned = computed
        rounding = ANGLE_ROUNDINGS * 2.0**-24 * (1 + np.abs(turned))
        if part is few:
            gap = np.abs(table - made.reshape(-1, time, setup.width)[0, :PROBED_POSITIONS])
            if np.any(gap > rounding + limit):
                return False
    return _gives(trial, table, made, rounding, side)


def _gives(trial: Trial, values: Array, made: Array, rounding: Array, side: int) -> bool:
    """Return True if values are what a side made; tables of numbers have no noise, so rounding is allowed for."""
    if rounding.max() > MOST_LEFT * trial.error.max_abs:
        rounding = np.zeros_like(rounding)
    values = np.where(np.abs(values - made) <= rounding, made, values)
    return trial.gives_candidate(values) if side else trial.gives_reference(values)


def _solve_angles(trial: Trial, setup: AngleSetup, base: Angles, side: int, name: str, start: float) -> Angles | None:
    """Return angles with theta or the stretch solved for, on the first positions, whose angles are small."""
    made = trial.candidate_values if side else trial.reference_values
    few = replace(setup, positions=setup.positions[..., :PROBED_POSITIONS])
    base = replace(base, theta=base.theta or 1e4)

    def compute(number: float) -> Array | None:
        changed = replace(base, theta=number) if name == "theta" else replace(base, stretch=number)
        computed = _compute_angles(few, changed)
        return None if computed is None else computed[0]

    if compute(start) is None:
        return None
    number = solve_number(compute, made[..., :PROBED_POSITIONS, :], start)
    if number is None or not 1e-3 < number < 1e12:
        return None
    for digits in range(1, 7):
        rounded = float(f"{number:.{digits - 1}e}")
        angles = replace(base, theta=rounded) if name == "theta" else replace(base, stretch=rounded)
        if _gives_angles(trial, setup, angles, side):
            return angles
    return replace(base, theta=number) if name == "theta" else replace(base, stretch=number)


def _describe_angles(ours: Angles, theirs: Angles) -> Proof | None:
    if ours.wave != theirs.wave:
        text = f"the candidate gives {theirs.wave} where the reference gives {ours.wave}"
        return Proof(Cause.POSITION_LAYOUT, text, "exchange sines and cosines")
    if ours.spread is not theirs.spread:
        text = f"frequencies lie {theirs.spread.value} in the candidate, {ours.spread.value} in the reference"
        return Proof(Cause.POSITION_LAYOUT, text, f"lay frequencies {ours.spread.value}")
    if ours.offset != theirs.offset:
        text = f"positions are shifted by {theirs.offset - ours.offset:+d} in the candidate"
        return Proof(Cause.POSITION_OFFSET, text, f"begin positions at {ours.offset}")
    if ours.short != theirs.short:
        who = "candidate" if theirs.short else "reference"
        text = f"the {who} rounds rotary frequencies to bfloat16"
        return Proof(Cause.LOW_PRECISION, text, "compute the frequencies in float32 on both sides")
    if ours.theta != theirs.theta or (ours.theta is None and ours.held != theirs.held):
        names = [f"{angles.theta:g}" if angles.theta else "frequencies of its own" for angles in (theirs, ours)]
        text = f"theta is {names[0]} in the candidate, {names[1]} in the reference"
        return Proof(Cause.ROPE_THETA, text, f"set rope_theta to {names[1]}" if ours.theta else "use its frequencies")
    if ours.stretch != theirs.stretch:
        text = f"positions are divided by {theirs.stretch:g} in the candidate, by {ours.stretch:g} in the reference"
        return Proof(Cause.SCALED, text, f"set the factor of rope_scaling to {ours.stretch:g}")
    return None


# sinusoids


@dataclass(frozen=True)
class Sinusoids:
    """Hold the layout of sinusoidal position embeddings."""

    order: str
    spacing: str
    start: int


def _explain_sinusoids(trial: Trial) -> Proof | None:
    """Return in what layout the candidate adds sinusoids, if it is another one; whatever they are added to."""
    shape = trial.reference.shape
    length, width = shape[-2:]
    if width % 2 or width < 4 or length < 2:
        return None
    gap = trial.candidate_values - trial.reference_values
    first = gap.reshape(-1, length, width)[0]
    if np.abs(gap).max() > 2 + 1e-2 or np.abs(gap.reshape(-1, length, width) - first).max() > 1e-3:
        return None
    tables: list[tuple[Sinusoids | None, Array]] = [(None, np.zeros((length, width)))]
    for spacing in ("d / 2", "d / 2 - 1"):
        steps = width // 2 - (spacing != "d / 2")
        frequencies = np.exp(-math.log(10000.0) * np.arange(width // 2) / steps)
        for start in range(MOST_SHIFTED):
            angles = (np.arange(length) + start)[:, None] * frequencies
            sines, cosines = np.sin(angles), np.cos(angles)
            for order, parts in (("sines", (sines, cosines)), ("cosines", (cosines, sines))):
                halves = np.concatenate(parts, -1)
                tables.append((Sinusoids(f"{order} first, in halves", spacing, start), halves))
                mixed = np.stack(parts, -1).reshape(length, width)
                tables.append((Sinusoids(f"{order} first, interleaved", spacing, start), mixed))
    step = max(1, length * width // SAMPLED)
    samples = np.stack([table.reshape(-1)[::step] for _, table in tables])
    wanted = first.reshape(-1)[::step]
    rounding = 2 * ANGLE_ROUNDINGS * 2.0**-24 * (1 + np.arange(length)[:, None] * np.ones(width))
    for place, (ours, added) in enumerate(tables):
        distances = np.abs(samples - samples[place] - wanted).max(1)
        for number in np.flatnonzero(distances <= MOST_LEFT * trial.error.max_abs):
            theirs, instead = tables[number]
            values = trial.reference_values + instead - added
            spread = np.broadcast_to(rounding, values.shape)
            if number != place and _gives(trial, values, trial.candidate_values, spread, 1):
                return _describe_sinusoids(ours, theirs)
    return None


def _describe_sinusoids(ours: Sinusoids | None, theirs: Sinusoids | None) -> Proof:
    if ours is None or theirs is None:
        who = "reference" if theirs is None else "candidate"
        text = f"only the {who} adds sinusoidal position embeddings"
        return Proof(Cause.LAYER_SKIPPED, text, "add them on both sides or on neither")
    if ours.order != theirs.order:
        text = f"sinusoids stand {theirs.order} in the candidate, {ours.order} in the reference"
        return Proof(Cause.POSITION_LAYOUT, text, f"put {ours.order}")
    if ours.spacing != theirs.spacing:
        text = f"frequencies are spaced over {theirs.spacing} in the candidate, over {ours.spacing} in the reference"
        return Proof(Cause.POSITION_LAYOUT, text, f"space them over {ours.spacing}")
    text = f"positions begin at {theirs.start} in the candidate, at {ours.start} in the reference"
    return Proof(Cause.POSITION_OFFSET, text, f"begin positions at {ours.start}")


POSITIONS = Family("encoding of positions", applies, prove)
