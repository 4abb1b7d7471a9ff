"""Convolutions, poolings and resizing: which settings make what each side made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from nndiff.diagnosis.modules import get_class, get_settings
from nndiff.diagnosis.trials import Trial
from nndiff.findings.causes import Cause
from nndiff.findings.hypotheses.family import Family, Proof
from nndiff.findings.hypotheses.layers import find_bias, find_matrix, read_weights
from nndiff.findings.hypotheses.operands import Array, can_read, has_few_numbers, is_forward_trial, list_operands
from nndiff.findings.hypotheses.spatial import (
    MODES,
    RESIZES,
    Pool,
    Sizes,
    Window,
    convolve,
    list_paddings,
    pool_adaptively,
    read_sizes,
    read_window,
    resize,
)

LARGEST_STEP = 4  # strides and dilations that are tried
LARGEST_KERNEL = 9  # side of the windows tried for a pooling whose settings are not known


def may_be_spatial(trial: Trial) -> bool:
    """Return True if something was given that has channels and space, or a sequence."""
    return is_forward_trial(trial) and any(len(given.tensor.shape) >= 2 for given in list_operands(trial))


def prove_spatial(trial: Trial) -> Proof | None:
    """Return the setting by which the candidate's convolution, pooling or resizing differs."""
    if has_few_numbers(trial.reference_values):
        return None
    for given in list_operands(trial):
        for prove in (prove_convolution, prove_pooling, prove_adaptive_pooling, prove_resizing, prove_reduction):
            proof = prove(trial, given.values)
            if proof is not None:
                return proof
    return None


@dataclass(frozen=True)
class Change:
    """Hold one change of how a kernel moves."""

    cause: Cause
    text: str  # "padding is 0"
    window: Window
    is_flipped: bool = False
    start: int = 0  # places that are left out in front


def describe_edges(window: Window) -> str:
    """Return the padding of a window in words."""
    edges = window.padding
    if all(front == behind for front, behind in edges):
        sizes = [front for front, _ in edges]
        return f"{sizes[0]}" if len(set(sizes)) == 1 else f"{tuple(sizes)}"
    return " and ".join(f"{front} in front, {behind} behind" for front, behind in dict.fromkeys(edges))


def list_changes(window: Window, declared: Window | None, sizes: Sizes) -> Iterator[Change]:
    """Yield windows with one setting changed, what the candidate declares first."""
    if declared is not None and declared.kernel == window.kernel and declared != window:
        facets: dict[str, tuple[Cause, str]] = {
            "dilation": (Cause.DILATION, f"dilation is {shorten(declared.dilation)}"),
            "stride": (Cause.STRIDE, f"stride is {shorten(declared.stride)}"),
            "padding": (Cause.PADDING, f"padding is {describe_edges(declared)}"),
            "mode": (Cause.PADDING, f"padding mode is {declared.mode}"),
        }
        changed = [name for name in facets if getattr(window, name) != getattr(declared, name)]
        for count in range(1, len(changed) + 1):
            for names in combinations(changed, count):
                values = {name: getattr(declared, name) for name in names}
                texts = ", ".join(facets[name][1] for name in names)
                yield Change(facets[names[0]][0], texts, replace(window, **values))
    for _, padding in list_paddings(window, sizes):
        other = replace(window, padding=padding)
        if other != window:
            yield Change(Cause.PADDING, f"padding is {describe_edges(other)}", other)
    if any(front or behind for front, behind in window.padding):
        for mode in MODES:
            if mode != window.mode:
                yield Change(Cause.PADDING, f"padding mode is {mode}", replace(window, mode=mode))
    rank = len(window.kernel)
    for step in range(1, LARGEST_STEP + 1):
        if window.stride != (step,) * rank:
            yield Change(Cause.STRIDE, f"stride is {step}", replace(window, stride=(step,) * rank))
    for start in range(1, max(window.stride)):
        yield Change(Cause.STRIDE, f"the first window begins at {start}", window, start=start)
    for step in range(1, LARGEST_STEP + 1):
        if window.dilation != (step,) * rank and max(window.kernel) > 1:
            yield Change(Cause.DILATION, f"dilation is {step}", replace(window, dilation=(step,) * rank))
            grown = tuple((step * (size - 1) // 2,) * 2 for size in window.kernel)
            both = replace(window, dilation=(step,) * rank, padding=grown)  # the size of the output stays
            yield Change(Cause.DILATION, f"dilation is {step}, padding is {describe_edges(both)}", both)
    yield Change(Cause.ROWS_PERMUTED, "the kernel is flipped", window, is_flipped=True)


def shorten(sizes: Sizes) -> str:
    """Return sizes, one number if all are the same."""
    return f"{sizes[0]}" if len(set(sizes)) == 1 else f"{sizes}"


def describe_window(window: Window, cause: Cause) -> str:
    """Return what the reference does where the candidate does something else."""
    if cause is Cause.PADDING:
        return f"{describe_edges(window)} ({window.mode})"
    if cause is Cause.STRIDE:
        return shorten(window.stride)
    if cause is Cause.DILATION:
        return shorten(window.dilation)
    return "not flipped"


def describe_change(trial: Trial, change: Change, window: Window, declared: Window | None) -> Proof:
    """Return one change, and whether the candidate's settings speak of it."""
    ours = "0" if change.start else describe_window(window, change.cause)
    evidence = f"{change.text} in the candidate, {ours} in the reference"
    repair = "begin with the first place" if change.start else f"set {change.text.partition(' is ')[0]} to {ours}"
    if declared is not None and declared == window:
        evidence += "; the settings are equal, the candidate's code does not follow them"
        repair = f"have the candidate's code follow its settings: {repair[4:]}"
    return Proof(change.cause, evidence, repair)


def prove_convolution(trial: Trial, values: Array) -> Proof | None:
    """Return the setting by which a convolution with equal weights differs."""
    weights = read_weights(trial, 0)
    matrix, bias_name = find_matrix(weights), find_bias(weights)
    if not matrix or weights[matrix].ndim < 3 or get_settings(trial.modules[0]).get("transposed"):
        return None
    weight, bias = weights[matrix], weights.get(bias_name)
    kernel = weight.shape[2:]
    if values.ndim < len(kernel) + 1:
        return None
    windows = [read_window(get_settings(module), kernel) for module in trial.modules]
    sizes = values.shape[values.ndim - len(kernel) :]
    for window in _list_windows(windows[0], kernel, sizes):
        made = convolve(values, weight, bias, window)
        if made is None or not trial.gives_reference(made):
            continue
        spatial = trial.candidate.shape[len(trial.candidate.shape) - len(kernel) :]
        for change in list_changes(window, windows[1], sizes):
            if change.window.measure_output(tuple(size - change.start for size in sizes)) != spatial:
                continue
            moved = values
            for axis in range(values.ndim - len(kernel), values.ndim):
                moved = np.take(moved, range(change.start, values.shape[axis]), axis)
            used = np.flip(weight, tuple(range(2, weight.ndim))) if change.is_flipped else weight
            made = convolve(moved, used, bias, change.window)
            if made is not None and trial.gives_candidate(made):
                return describe_change(trial, change, window, windows[1])
    return None


def _list_windows(declared: Window | None, kernel: Sizes, sizes: Sizes) -> Iterator[Window]:
    """Yield the window that settings declare, then usual ones: code may pad before it calls a convolution."""
    if declared is None:
        declared = Window(kernel, (1,) * len(kernel), ((0, 0),) * len(kernel), (1,) * len(kernel))
    yield declared
    for _, padding in list_paddings(declared, sizes):
        yield replace(declared, padding=padding)


def read_pool(trial: Trial, side: int, rank: int) -> Pool | None:
    """Return the pooling that a side's class and settings declare."""
    name, settings = get_class(trial.modules[side]).lower(), get_settings(trial.modules[side])
    kernel = read_sizes(settings.get("kernel_size"), rank)
    if "pool" not in name or kernel is None:
        return None
    window = read_window({**settings, "stride": settings.get("stride") or list(kernel)}, kernel)
    if window is None:
        return None
    counts = settings.get("count_include_pad", True)
    return Pool("max" if "max" in name else "mean", window, bool(settings.get("ceil_mode")), bool(counts))


def list_pools(values: Array, made: Sizes) -> Iterator[Pool]:
    """Yield poolings without settings that could turn one shape into another: those of code."""
    rank = len(made) - 2
    if rank not in (1, 2) or values.ndim != len(made) or values.shape[:2] != made[:2]:
        return
    for size in range(2, LARGEST_KERNEL + 1):
        for stride in dict.fromkeys((size, 1, 2)):
            for padding in dict.fromkeys((0, size // 2, (size - 1) // 2)):
                edges = ((padding, padding),) * rank
                window = Window((size,) * rank, (stride,) * rank, edges, (1,) * rank)
                if window.measure_output(values.shape[2:]) == made[2:]:
                    yield Pool("mean", window)
                    yield Pool("max", window)


def prove_pooling(trial: Trial, values: Array) -> Proof | None:
    """Return the setting by which a pooling differs."""
    shape = trial.reference.shape
    rank = len(shape) - 2
    if rank < 1 or values.ndim != len(shape) or values.shape[:2] != shape[:2]:
        return None
    declared = [read_pool(trial, side, rank) for side in (0, 1)]
    pools = [declared[0]] if declared[0] is not None else list_pools(values, shape)
    for pool in pools:
        made = pool.run(values)
        if made is None or not trial.gives_reference(made):
            continue
        theirs = declared[1]
        if theirs is not None and theirs != pool:
            made = theirs.run(values)
            if made is not None and trial.gives_candidate(made) and theirs.window.kernel != pool.window.kernel:
                sizes = shorten(theirs.window.kernel), shorten(pool.window.kernel)
                evidence = f"kernel size is {sizes[0]} in the candidate, {sizes[1]} in the reference"
                return Proof(Cause.POOLING, evidence, f"set `kernel_size` to {sizes[1]}")
        for other, before, after in list_other_pools(pool):
            made = other.run(values)
            if made is not None and trial.gives_candidate(made):
                evidence = f"{after} in the candidate, {before} in the reference"
                return Proof(Cause.POOLING, evidence, f"pool as the reference does: {before}")
        for change in list_changes(pool.window, theirs.window if theirs else None, values.shape[2:]):
            made = None if change.is_flipped else replace(pool, window=change.window).run(values)
            if made is not None and trial.gives_candidate(made):
                return describe_change(trial, change, pool.window, theirs.window if theirs else None)
    return None


def list_other_pools(pool: Pool) -> Iterator[tuple[Pool, str, str]]:
    """Yield poolings of another kind, with what both are called."""
    kinds = {"max": "the maximum", "mean": "the mean"}
    other = "mean" if pool.kind == "max" else "max"
    counted = {True: "padding is counted", False: "padding is not counted"}
    rounded = {True: "sizes are rounded up (ceil_mode)", False: "sizes are rounded down"}
    yield (
        replace(pool, counts_padding=not pool.counts_padding),
        counted[pool.counts_padding],
        counted[not pool.counts_padding],
    )
    yield replace(pool, ceil=not pool.ceil), rounded[pool.ceil], rounded[not pool.ceil]
    for counts in (True, False):
        yield replace(pool, kind=other, counts_padding=counts), kinds[pool.kind], kinds[other]


def prove_adaptive_pooling(trial: Trial, values: Array) -> Proof | None:
    """Return that one side takes the maximum where the other takes the mean, over parts of equal number."""
    shape = trial.reference.shape
    rank = len(shape) - 2
    if rank < 1 or shape != trial.candidate.shape or values.ndim != len(shape) or values.shape[:2] != shape[:2]:
        return None
    if values.shape == shape or any(size > whole for size, whole in zip(shape[2:], values.shape[2:], strict=True)):
        return None
    kinds = {"max": "the maximum", "mean": "the mean"}
    for ours, theirs in (("max", "mean"), ("mean", "max")):
        if trial.gives_reference(pool_adaptively(values, shape[2:], ours)) and trial.gives_candidate(
            pool_adaptively(values, shape[2:], theirs)
        ):
            evidence = f"{kinds[theirs]} in the candidate, {kinds[ours]} in the reference"
            return Proof(Cause.POOLING, evidence, f"take {kinds[ours]}")
    return None


def prove_resizing(trial: Trial, values: Array) -> Proof | None:
    """Return how each side resizes."""
    shape = trial.reference.shape
    rank = len(shape) - 2
    if rank not in (1, 2, 3) or shape != trial.candidate.shape or values.ndim != len(shape):
        return None
    if values.shape[:2] != shape[:2] or values.shape == shape:
        return None
    made = {kind: resize(values, shape[2:], kind) for kind in RESIZES}
    ours = next((kind for kind in RESIZES if trial.gives_reference(made[kind])), None)
    theirs = next((kind for kind in RESIZES if trial.gives_candidate(made[kind])), None)
    if ours is None or theirs is None or ours == theirs:
        return None
    evidence = f"{theirs} in the candidate, {ours} in the reference"
    return Proof(Cause.INTERPOLATION, evidence, f"resize as the reference does: {ours}")


def list_reductions(trial: Trial, values: Array) -> Iterator[tuple[str, Array]]:
    """Yield what is left of numbers if one or two axes are pooled: mean, maximum, first, last, mean of what counts."""
    axes_of = [(axis,) for axis in range(values.ndim)] + ([(2, 3)] if values.ndim == 4 else [])
    for axes in axes_of:
        where = f"axis {axes[0]}" if len(axes) == 1 else f"axes {axes[0]} and {axes[1]}"
        yield f"the mean over {where}", values.mean(axes)
        yield f"the maximum over {where}", values.max(axes)
        yield f"the sum over {where}", values.sum(axes)
        if len(axes) == 1:
            yield f"the first place of {where}", values.take(0, axes[0])
            yield f"the last place of {where}", values.take(-1, axes[0])
    if values.ndim != 3:
        return
    for name, mask in list_masks(trial, values.shape[:2]):
        counts = mask.sum(1)
        with np.errstate(all="ignore"):
            yield f"the mean where `{name}` is set", (values * mask[..., None]).sum(1) / counts[:, None]
        last = np.maximum(counts.astype(int) - 1, 0)
        yield f"the last place where `{name}` is set", values[np.arange(len(values)), last]


def list_masks(trial: Trial, shape: Sizes) -> Iterator[tuple[str, Array]]:
    """Yield masks of zeros and ones of some shape, among what the module or the model was given."""
    tensors = {given.name: given.tensor for given in trial.given} | dict(trial.model_inputs)
    for name, tensor in tensors.items():
        if tensor.shape == shape and can_read(tensor) and tensor.dtype.kind != "complex":
            mask = tensor.numpy().astype(np.float64)
            if np.isin(mask, (0, 1)).all() and 0 < mask.sum() < mask.size:
                yield name, mask


def prove_reduction(trial: Trial, values: Array) -> Proof | None:
    """Return that the sides pool the same numbers in different ways."""
    shape = trial.reference.shape
    if shape != trial.candidate.shape or values.size <= trial.reference.count:
        return None
    made = {name: array for name, array in list_reductions(trial, values) if array.size == trial.reference.count}
    ours = next((name for name, array in made.items() if trial.gives_reference(array.reshape(shape))), None)
    theirs = next((name for name, array in made.items() if trial.gives_candidate(array.reshape(shape))), None)
    if ours is None or theirs is None or ours == theirs:
        return None
    evidence = f"{theirs} in the candidate, {ours} in the reference"
    return Proof(Cause.POOLING, evidence, f"take {ours}")


CONVOLUTIONS = Family("padding, stride, pooling or resizing", may_be_spatial, prove_spatial)
