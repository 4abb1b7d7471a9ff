"""Attention computed otherwise: the reference's choices are found first, then one or two of them are changed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, permutations

import numpy as np

from nndiff.diagnosis.trials import Trial
from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.attention_model import (
    FUSED_LAYOUTS,
    Array,
    Attention,
    Channels,
    Layout,
    MaskMode,
    Part,
    Rotation,
    attend,
    find_open_places,
    solve_number,
    split_heads,
)
from nndiff.findings.hypotheses.attention_search import (
    LEAST_THETA,
    MOST_PRODUCTS,
    USUAL_SOFTCAPS,
    USUAL_THETAS,
    Setup,
    identify_reference,
    is_torch_attention,
    list_setting_values,
    list_setups,
)
from nndiff.findings.hypotheses.family import Family, Proof
from nndiff.findings.hypotheses.operands import SHORT_TYPES, list_round_numbers
from nndiff.findings.hypotheses.places import Places, describe_places, fit_places
from nndiff.relations.operations import MASKED_BELOW

MOST_SHIFTED = 3  # positions by which a causal mask or a rotation is tried
MOST_WINDOWS = 1024  # widths of a sliding window that are tried
MOST_PAIRS = 3000  # pairs of changes that are tried: half a second
MOST_HEADS = 128  # numbers of heads that are tried for the candidate
PROBED_POSITIONS = 16  # by which heads are told apart
NICE_NUMBER = 1e-3  # relative: a solved number so near a short one is that one, if it proves as well


def applies(trial: Trial) -> bool:
    """Return True if what was given may be queries, keys and values."""
    shape = trial.reference.shape
    if trial.reference.dtype.kind != "float" or not 2 <= len(shape) <= 4 or trial.error.slot.is_gradient:
        return False
    floats = [given for given in trial.given if given.tensor.dtype.kind == "float" and len(given.tensor.shape) >= 2]
    if not floats:
        return False
    longest = max(given.tensor.shape[-2] for given in floats)
    products = 2 * math.prod(shape) * longest
    if products > MOST_PRODUCTS:
        return False
    if is_torch_attention(trial):
        return True
    inner = [given for given in floats if not given.is_argument]
    parts = inner or floats
    widths = [given.tensor.shape[-1] for given in parts]
    # one fused tensor is wider than what becomes of it
    return len(parts) >= 2 or widths[0] > shape[-1] or len(shape) == 4


def prove(trial: Trial) -> Proof | None:
    """Return which choice of an attention the candidate makes otherwise."""
    for setup in list_setups(trial):
        reference = identify_reference(setup)
        if reference is not None:
            return _explain_candidate(setup, _solve_rotation(setup, reference))
    return None


def _explain_candidate(setup: Setup, reference: Attention) -> Proof | None:
    if proof := _explain_order(setup, reference):
        return proof
    changes = list(_list_changes(setup, reference))
    for changed in changes:
        if proof := _check_change(setup, reference, changed):
            return proof
    for changed in _solve_changes(setup, reference):
        if proof := _check_change(setup, reference, changed):
            return proof
    for number, (first, second) in enumerate(combinations(changes, 2)):
        if number >= MOST_PAIRS:
            break
        both = _combine_changes(reference, first, second)
        if both is not None and (proof := _check_change(setup, reference, both)):
            return proof
    return None


def _solve_rotation(setup: Setup, reference: Attention) -> Attention:
    """Return the attention with its rotation by given angles as one by theta, if they are of one theta.

    The candidate may compute its angles itself, from another theta or for other positions.
    """
    rotation = reference.rotation
    if rotation is None or rotation.table is None:
        return reference
    cosines, sines = (values[0] for values in setup.material.tables[rotation.table])
    count = cosines.shape[-1]
    if len(cosines) < 2 or count < 2:
        return reference
    turns = np.arctan2(sines, cosines)
    steps = np.mod(turns[1] - turns[0], 2 * math.pi)  # of one position, for each frequency
    if not 0 < steps[1] < 1:
        return reference
    for theta in list_round_numbers(float(steps[1]) ** -count):
        computed = replace(rotation, table=None, theta=theta, width=2 * count)
        solved = replace(reference, rotation=computed)
        if setup.proves(solved, 0):
            return solved
    return reference


def _explain_order(setup: Setup, reference: Attention) -> Proof | None:
    """Return in which order the candidate merges the heads, if it is another one."""
    merged = attend(replace(setup.material, project=None), reference)
    if merged is None or setup.material.made != "output":
        return None
    batch, time, width = merged.shape
    heads = merged.reshape(batch, time, reference.heads, -1)
    right = "the reference merges [batch, time, heads, channels]"
    orders = [
        (heads.swapaxes(1, 2), f"the candidate merges heads without moving them behind the positions; {right}"),
        (heads.swapaxes(2, 3), f"the candidate merges [batch, time, channels, heads]; {right}"),
    ]
    if setup.material.project is None:
        # each head of the candidate is the head of the reference it is nearest to
        theirs = setup.wanted[1].reshape(heads.shape)
        sample = slice(0, PROBED_POSITIONS)
        gaps = np.abs(theirs[:, sample, :, None] - heads[:, sample, None]).max((0, 1, 4))
        owners = gaps.argmin(1)
        orders.append((heads[:, :, owners], f"heads stand in the order {owners.tolist()} in the candidate"))
    for ordered, text in orders:
        values = ordered.reshape(batch, time, width)
        values = setup.material.project(values) if setup.material.project else values
        if setup.trial.gives_candidate(setup.restore(values, setup.trial.candidate_values)):
            return Proof(Cause.HEAD_ORDER, text, "merge the heads as the reference does")
    return None


def _check_change(setup: Setup, reference: Attention, changed: Attention) -> Proof | None:
    if not setup.fits(changed, 1, setup.telling_rows):
        return None
    for variant in (changed, replace(changed, empty_rows="zero")):
        if setup.proves(variant, 1):
            return _describe_change(setup, reference, variant)
    return None


def _combine_changes(reference: Attention, first: Attention, second: Attention) -> Attention | None:
    """Return an attention with two changes; None if both change the same choice."""
    changed = {}
    for name in reference.__dataclass_fields__:
        values = [getattr(attention, name) for attention in (reference, first, second)]
        if values[1] != values[0] and values[2] != values[0]:
            return None
        if values[1] != values[0] or values[2] != values[0]:
            changed[name] = values[1] if values[1] != values[0] else values[2]
    return replace(reference, **changed)


def _list_changes(setup: Setup, reference: Attention) -> Iterator[Attention]:
    """Yield attentions that differ from the reference's in one choice."""
    numbers = list_setting_values(setup.trial)
    queries = setup.wanted[0].shape[setup.time_axis]
    if reference.groups < reference.heads:
        yield replace(reference, tiled=not reference.tiled)
    if setup.material.probabilities is not None:
        return
    size = _measure_head(setup, reference)
    hidden = size * reference.heads
    scales = [1.0, 1 / size, size**-0.5, hidden**-0.5, size**0.5, size**-0.25, size**-0.5 / 8, size**-0.75]
    scales += [number for number in numbers if number > 0]
    scales += [number**-0.5 for number in numbers if number > 0]
    for scale in dict.fromkeys(scales):
        if not math.isclose(scale, reference.scale, rel_tol=1e-6):
            yield replace(reference, scale=scale)
    for dtype in SHORT_TYPES:
        yield replace(reference, softmax_type=dtype)
    for softcap in dict.fromkeys([None, *(number for number in numbers if number >= 1), *USUAL_SOFTCAPS]):
        if softcap != reference.softcap:
            yield replace(reference, softcap=softcap)
    for causal in (None, *range(-MOST_SHIFTED, MOST_SHIFTED + 1)):
        if causal != reference.causal:
            yield replace(reference, causal=causal)
    for number, mask in enumerate(setup.material.masks):
        modes = tuple(MaskMode) if np.all((mask == 0) | (mask == 1)) else (MaskMode.ADDED,)
        for mode in modes:
            if (number, mode) != (reference.mask, reference.mask_mode):
                yield replace(reference, mask=number, mask_mode=mode)
    if reference.mask is not None:
        yield replace(reference, mask=None)
        # one given mask often stands for causality and padding at once
        yield replace(reference, mask=None, causal=0)
        for number, mask in enumerate(setup.material.masks):
            if mask.shape[2] == 1:
                yield replace(reference, mask=number, mask_mode=MaskMode.OPEN, causal=0)
                yield replace(reference, mask=number, mask_mode=MaskMode.OPEN, causal=None)
                yield replace(reference, mask=number, mask_mode=MaskMode.CLOSED, causal=0)
    for shift in range(-MOST_SHIFTED, MOST_SHIFTED + 1):
        if reference.mask is not None and shift:
            yield replace(reference, mask=None, causal=shift)
    yield from _list_rotation_changes(reference, size, numbers)
    for query, key, value in permutations((reference.query, reference.key, reference.value)):
        if (query, key, value) != (reference.query, reference.key, reference.value):
            yield replace(reference, query=query, key=key, value=value)
    yield from _list_split_changes(reference)
    for heads in range(1, min(hidden, MOST_HEADS) + 1):
        if hidden % heads == 0 and heads != reference.heads and reference.groups == reference.heads:
            yield replace(reference, heads=heads, groups=heads)
            yield replace(reference, heads=heads, groups=heads, scale=(hidden // heads) ** -0.5)
    lengths = [mask.shape[3] for mask in setup.material.masks] + [queries]
    for window in range(1, min(max(lengths), MOST_WINDOWS) + 1):
        if window != reference.window:
            yield replace(reference, window=window)
    if reference.window is not None:
        yield replace(reference, window=None)
    if reference.mask is not None:
        for window in range(1, min(max(lengths), MOST_WINDOWS)):
            yield replace(reference, mask=None, causal=0, window=window)


def _list_split_changes(reference: Attention) -> Iterator[Attention]:
    """Yield other ways of splitting a tensor that holds queries, keys and values."""
    parts = (reference.query, reference.key, reference.value)
    if parts[1].layout is Layout.WHOLE:
        return
    for layout in FUSED_LAYOUTS:
        if layout != parts[1].layout:
            query, key, value = (
                part if part.layout is Layout.WHOLE else Part(part.source, layout, part.slot, part.slots)
                for part in parts
            )
            yield replace(reference, query=query, key=key, value=value)


def _list_rotation_changes(reference: Attention, size: int, numbers: list[float]) -> Iterator[Attention]:
    rotation = reference.rotation
    if rotation is None:
        for theta in dict.fromkeys([number for number in numbers if number >= LEAST_THETA] + list(USUAL_THETAS[:1])):
            for pairs in Channels:
                added = Rotation(None, theta, pairs=pairs, spread=pairs)
                yield replace(reference, rotation=added)
        return
    yield replace(reference, rotation=None)
    variants = []
    for pairs in Channels:
        for spread in Channels:
            variants.append(replace(rotation, pairs=pairs, spread=spread))
    variants.append(replace(rotation, backwards=not rotation.backwards))
    variants.append(replace(rotation, keys=False))
    variants.append(replace(rotation, queries=False))
    if rotation.table is None:
        for theta in dict.fromkeys([number for number in numbers if number >= LEAST_THETA] + list(USUAL_THETAS)):
            variants.append(replace(rotation, theta=theta))
        for shift in range(-MOST_SHIFTED, MOST_SHIFTED + 1):
            if shift:
                variants.append(replace(rotation, offset=rotation.offset + shift))
        for width in (size, size // 2, size // 4):
            variants.append(replace(rotation, width=width))
        for stretch in (2.0, 4.0, 8.0, 0.5):
            variants.append(replace(rotation, stretch=stretch))
    for variant in variants:
        if variant != rotation:
            yield replace(reference, rotation=variant)


def _solve_changes(setup: Setup, reference: Attention) -> Iterator[Attention]:
    """Yield attentions with one number that is solved for."""
    if setup.material.probabilities is not None or setup.material.made == "scores":
        return
    rows = setup.telling_rows
    wanted = np.take(setup.wanted[1], rows, setup.time_axis)
    if not np.isfinite(wanted).all():
        return
    for factor in (1.0, 0.25, 4.0, 1 / 16, 16.0):
        scale = solve_number(
            lambda number: attend(setup.material, replace(reference, scale=number), rows),
            wanted,
            reference.scale * factor,
        )
        for number in _list_nice_numbers(scale):
            yield replace(reference, scale=number)
    for start in (10.0, 1.0):
        softcap = solve_number(
            lambda number: attend(setup.material, replace(reference, softcap=number), rows), wanted, start
        )
        for number in _list_nice_numbers(softcap):
            yield replace(reference, softcap=number)
    rotation = reference.rotation
    if rotation is not None and rotation.table is None:
        for factor in (1.1, 10.0, 0.1, 100.0):
            theta = solve_number(
                lambda number: attend(
                    setup.material, replace(reference, rotation=replace(rotation, theta=number)), rows
                ),
                wanted,
                rotation.theta * factor,
            )
            for number in _list_nice_numbers(theta):
                yield replace(reference, rotation=replace(rotation, theta=number))


def _list_nice_numbers(number: float | None) -> Iterator[float]:
    """Yield a solved number rounded to few digits, if that is near, then as it is."""
    if number is None or not math.isfinite(number) or number <= 0:
        return
    for digits in range(1, 7):
        rounded = float(f"{number:.{digits - 1}e}")
        if abs(rounded - number) <= NICE_NUMBER * number:
            yield rounded
    yield number


def _measure_head(setup: Setup, attention: Attention) -> int:
    queries = split_heads(setup.material, attention.query, attention.heads, attention.groups)
    return 1 if queries is None else int(queries.shape[-1])


def _describe_change(setup: Setup, reference: Attention, candidate: Attention) -> Proof | None:
    """Return the changes of an attention as cause, evidence and repair."""
    found: list[tuple[Cause, str, str]] = []
    roles = [(attention.query, attention.key, attention.value) for attention in (reference, candidate)]
    if roles[0] != roles[1]:
        found.append(_describe_roles(*roles))
    if reference.heads != candidate.heads:
        text = f"the candidate splits channels into {candidate.heads} heads, the reference into {reference.heads}"
        found.append((Cause.ATTRIBUTE, text, f"use {reference.heads} heads in the candidate"))
    elif candidate.scale != reference.scale:
        found.append(
            _describe_number(Cause.ATTENTION_SCALE, "scores are multiplied by", reference.scale, candidate.scale)
        )
    if reference.tiled != candidate.tiled:
        words = "repeated one by one (repeat_interleave)", "tiled as a whole (repeat)"
        ours, theirs = (words[attention.tiled] for attention in (reference, candidate))
        text = f"{reference.groups} key and value heads are {theirs} in the candidate, {ours} in the reference"
        found.append((Cause.KEY_VALUE_GROUPS, text, f"key and value heads must be {ours}"))
    if reference.softcap != candidate.softcap:
        ours, theirs = (
            "not capped" if cap is None else f"capped at {cap:g}" for cap in (reference.softcap, candidate.softcap)
        )
        found.append(
            (Cause.SOFTCAP, f"scores are {theirs} in the candidate, {ours} in the reference", f"scores must be {ours}")
        )
    if reference.softmax_type != candidate.softmax_type:
        text = f"the softmax of scores is computed in {candidate.softmax_type} in the candidate"
        found.append((Cause.LOW_PRECISION, text, "compute the softmax in the type that the reference does"))
    if reference.rotation != candidate.rotation:
        found.append(_describe_rotation(reference.rotation, candidate.rotation))
    masking = [
        (attention.causal, attention.window, attention.mask, attention.mask_mode)
        for attention in (reference, candidate)
    ]
    if masking[0] != masking[1]:
        proof = _describe_masking(setup, reference, candidate)
        if proof is None:
            return None
        found.append((proof.cause, proof.evidence, proof.repair))
    if not found:
        return None
    return Proof(found[0][0], "; ".join(text for _, text, _ in found), "; ".join(repair for _, _, repair in found))


def _describe_number(cause: Cause, what: str, reference: float, candidate: float) -> tuple[Cause, str, str]:
    text = f"{what} {candidate:.6g} in the candidate, by {reference:.6g} in the reference"
    return cause, text, f"multiply by {reference:.6g} in the candidate"


def _describe_roles(reference: tuple[Part, ...], candidate: tuple[Part, ...]) -> tuple[Cause, str, str]:
    names = "queries", "keys", "values"
    if {part.layout for part in reference} != {part.layout for part in candidate}:
        ours, theirs = (parts[1].layout.value for parts in (reference, candidate))
        text = f"queries, keys and values lie {theirs} in one tensor for the candidate, {ours} for the reference"
        return Cause.CONCATENATION, text, f"split them {ours}"
    taken = [names[reference.index(part)] for part in candidate]
    moved = [(name, other) for name, other in zip(names, taken, strict=True) if name != other]
    text = ", ".join(f"{other} as {name}" for name, other in moved)
    return Cause.ROLES_SWAPPED, f"the candidate uses {text}", "exchange them in the candidate"


def _describe_rotation(reference: Rotation | None, candidate: Rotation | None) -> tuple[Cause, str, str]:
    if reference is None or candidate is None:
        ours, theirs = ("not rotated" if rotation is None else "rotated" for rotation in (reference, candidate))
        text = f"queries and keys are {theirs} by their positions (RoPE) in the candidate, {ours} in the reference"
        return Cause.ROPE_LAYOUT, text, f"queries and keys must be {ours} by RoPE"
    if reference.theta != candidate.theta:
        text = f"theta of RoPE is {candidate.theta:g} in the candidate, {reference.theta:g} in the reference"
        return Cause.ROPE_THETA, text, f"set rope_theta to {reference.theta:g}"
    if reference.stretch != candidate.stretch:
        text = f"positions of RoPE are divided by {candidate.stretch:g}, by {reference.stretch:g} in the reference"
        return Cause.ROPE_THETA, text, f"set the factor of rope_scaling to {reference.stretch:g}"
    if reference.offset != candidate.offset:
        shift = candidate.offset - reference.offset
        text = f"positions of queries are shifted by {shift:+d} against those of keys in the candidate"
        return Cause.POSITION_OFFSET, text, "count the positions of queries and keys alike"
    if (reference.queries, reference.keys) != (candidate.queries, candidate.keys):
        what = "queries" if candidate.queries != reference.queries else "keys"
        return Cause.ROPE_LAYOUT, f"the candidate does not rotate the {what} (RoPE)", f"rotate the {what} too"
    if reference.width != candidate.width:
        text = f"RoPE rotates {candidate.width} channels in the candidate, {reference.width or 'all'} in the reference"
        return Cause.ROPE_LAYOUT, text, f"rotate {reference.width or 'all'} channels"
    if reference.backwards != candidate.backwards:
        return Cause.ROPE_LAYOUT, "RoPE rotates the other way round in the candidate", "change the sign of the sines"
    text = (
        f"RoPE pairs channels {candidate.pairs.value} in the candidate, {reference.pairs.value} in the reference; "
        f"frequencies lie {candidate.spread.value} and {reference.spread.value}"
    )
    return Cause.ROPE_LAYOUT, text, f"pair channels {reference.pairs.value}"


def _describe_masking(setup: Setup, reference: Attention, candidate: Attention) -> Proof | None:
    """Return how the open places differ, by what they are and not by how they were made."""
    if (
        candidate.mask_mode is MaskMode.ADDED
        and candidate.mask is not None
        and np.all(setup.material.masks[candidate.mask] >= 0)
    ):
        text = "the candidate adds the mask of zeros and ones to the scores as numbers"
        return Proof(Cause.PADDING_MASK, text, "turn the mask into 0 and -inf before it is added")
    rules: list[Places] = []
    opened = [_find_open(setup, attention) for attention in (reference, candidate)]
    for places in opened:
        rule = fit_places(places)
        if rule is None:
            break
        rules.append(rule)
    if len(rules) == 2 and (proof := describe_places(rules[0], rules[1])):
        return proof
    biases = [_adds_bias(setup, attention) for attention in (reference, candidate)]
    if biases[0] != biases[1]:
        text = "the candidate adds a bias to scores, the reference none"
        if biases[0]:
            text = "the candidate does not add to scores the bias that it is given"
        repair = "add the bias to scores in the candidate" if biases[0] else "add no bias to scores in the candidate"
        return Proof(Cause.BIAS_MISSING, text, repair)
    if candidate.mask is None and reference.mask is not None and candidate.causal == reference.causal:
        return Proof(Cause.PADDING_MASK, "the candidate ignores the mask it is given", "apply the mask")
    if candidate.mask == reference.mask and candidate.mask_mode != reference.mask_mode:
        return Proof(Cause.PADDING_MASK, "the candidate inverts the mask", "invert it")
    if candidate.window != reference.window:
        ours, theirs = (attention.window or "all" for attention in (reference, candidate))
        text = f"a query sees {theirs} positions back in the candidate, {ours} in the reference"
        return Proof(Cause.SLIDING_WINDOW, text, f"set the sliding window to {ours}")
    if candidate.causal != reference.causal:
        text = (
            f"positions ahead that are open: {candidate.causal} in the candidate, {reference.causal} in the reference"
        )
        return Proof(Cause.CAUSAL_MASK, text, "apply the reference's causal mask")
    return None


def _adds_bias(setup: Setup, attention: Attention) -> bool:
    """Return True if what is added to the scores is no mask: numbers that neither leave places open nor close them."""
    if attention.mask is None or attention.mask_mode is not MaskMode.ADDED:
        return False
    added = setup.material.masks[attention.mask]
    return bool(np.any((added != 0) & (added > MASKED_BELOW)))


def _find_open(setup: Setup, attention: Attention) -> Array:
    """Return the open places of an attention: [batch, queries, keys]."""
    keys = split_heads(setup.material, attention.key, attention.heads, attention.groups)
    assert keys is not None, "an attention that was computed has keys"
    batch, time = len(keys), setup.wanted[0].shape[setup.time_axis]
    opened = find_open_places(attention.causal, attention.window, np.arange(time), time, keys.shape[2])
    opened = np.broadcast_to(opened, (batch, *opened.shape))
    if attention.mask is None:
        return opened
    mask = setup.material.masks[attention.mask][:, 0]
    if attention.mask_mode is MaskMode.ADDED:
        return np.asarray(opened & (mask > MASKED_BELOW))
    return np.asarray(opened & ((mask != 0) == (attention.mask_mode is MaskMode.OPEN)))


ATTENTION = Family("attention variant", applies, prove)
