"""What is known of tensors of files that no operation makes equal: moved, collapsed, not loaded, a step apart."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nndiff.align.moved import Moved, find_moved
from nndiff.diagnosis.site_pairs import SitePair
from nndiff.findings.causes import Cause
from nndiff.names import natural_key
from nndiff.relations.low_rank import find_rank
from nndiff.relations.quantised import find_grid
from nndiff.result import Finding
from nndiff.text import first_few

# Fresh weights: fewer elements show no distribution, and a sample is this many standard errors from what is expected
# once in 1e6 at most.
FEWEST_DRAWN = 1024
MOST_DEVIATIONS = 5.0
# One step of Adam moves every element by the learning rate: half of them by nearly the most that any moves.
STEP_SHARE = 0.9
FEWEST_STEPPED = 32  # elements of a tensor that shows it
_LAYER = re.compile(r"\d+")


def explain_moved(pairs: Sequence[SitePair]) -> Finding | None:
    """Return that values are found under another name of their kind: swapped, or layers numbered otherwise."""
    moved = find_moved([site.tensors for site in pairs])
    if not moved:
        return None
    moves = {move.reference_name: move.candidate_name for move in sorted(moved, key=sort_by_name)}
    examples = [f"`{name}` is found as `{holder}`" for name, holder in moves.items()]
    evidence = f"{len(moves):,} tensors hold the values of others; {first_few(examples)}"
    repair = "fix the mapping of names in the conversion"
    return Finding(classify_moves(moves), tuple(moves), evidence, repair, 1.0)


def sort_by_name(move: Moved) -> Any:
    """Return the key by which moved tensors stand in natural order of names."""
    return natural_key(move.reference_name)


def classify_moves(moves: dict[str, str]) -> Cause:
    """Return whether layers are shifted by one offset, stand in another order, or tensors are swapped otherwise."""
    offsets: set[int] = set()
    for name, holder in moves.items():
        if _LAYER.sub("#", name) != _LAYER.sub("#", holder):
            return Cause.WEIGHTS_SWAPPED
        numbers = zip(_LAYER.findall(name), _LAYER.findall(holder), strict=True)
        offsets.update(int(after) - int(before) for before, after in numbers if before != after)
    return Cause.LAYERS_SHIFTED if len(offsets) == 1 else Cause.LAYER_ORDER


def find_tensor_facts(pairs: Sequence[SitePair]) -> Iterator[Finding]:
    """Yield one finding for each fact, with the tensors it holds for."""
    groups: dict[tuple[Cause, str], list[str]] = {}
    for site in pairs:
        fact = describe_difference(site)
        if fact is not None:
            groups.setdefault(fact, []).append(site.pair.name)
    for (cause, text), names in groups.items():
        evidence = f"{first_few([f'`{name}`' for name in names])}: {text}"
        yield Finding(cause, tuple(names), evidence, REPAIRS[cause], 1.0)
    yield from find_step(pairs)


REPAIRS = {
    Cause.NOT_FINITE: "look at what wrote this tensor",
    Cause.OVERFLOW: "keep this tensor in bfloat16 or float32",
    Cause.STATISTICS_RESET: "convert in eval mode, and load buffers too",
    Cause.COLLAPSED: "look at what wrote this tensor: a failed shard, a quantiser",
    Cause.LORA: "merge the adapter on both sides, or on neither",
    Cause.QUANTISED: "compare with nndiff modes, or with the checkpoint before it was quantised",
    Cause.NOT_LOADED: "look for missing keys when loading: strict=False hides them",
}
Fact = tuple[Cause, str]


def describe_difference(site: SitePair) -> Fact | None:
    """Return what is known of a pair that differs; None where nothing is."""
    for describe in (describe_nonfinite, describe_constant, describe_grid, describe_rank, describe_fresh):
        fact = describe(site)
        if fact is not None:
            return fact
    return None


def describe_nonfinite(site: SitePair) -> Fact | None:
    """Return which side has values that are not finite, and whether float16 could not hold them."""
    numbers = site.pair.stored
    if numbers is None or numbers.nonfinite_ref == numbers.nonfinite_cand:
        return None
    side = "candidate" if numbers.nonfinite_cand > numbers.nonfinite_ref else "reference"
    sides = (site.reference, site.candidate) if side == "candidate" else (site.candidate, site.reference)
    if sides[1].dtype.name == "float16":
        whole, cut = (np.asarray(tensor.numpy(), np.float64) for tensor in sides)
        if np.array_equal(np.isinf(cut), np.abs(whole) > np.finfo(np.float16).max):
            return Cause.OVERFLOW, f"infinite in the {side} where values are beyond the range of float16"
    return Cause.NOT_FINITE, f"NaN or infinity in the {side} where the other side has numbers"


def describe_constant(site: SitePair) -> Fact | None:
    """Return which side holds one value alone; running statistics that do were never updated."""
    numbers = site.pair.stored
    if numbers is None or numbers.count < 2:
        return None
    constants = numbers.ref_min == numbers.ref_max, numbers.cand_min == numbers.cand_max
    if constants[0] == constants[1]:
        return None
    side, value = ("reference", numbers.ref_min) if constants[0] else ("candidate", numbers.cand_min)
    untouched = {"running_mean": 0.0, "running_var": 1.0}.get(site.pair.name.rpartition(".")[2])
    if value == untouched:
        return Cause.STATISTICS_RESET, f"running statistics of the {side} are {value:g} throughout: never updated"
    return Cause.COLLAPSED, f"every element of the {side} is {value:g}"


def describe_grid(site: SitePair) -> Fact | None:
    """Return to which levels one side was rounded, if every element of the other is within half a step of its own."""
    for side, original, rounded in (
        ("candidate", site.reference, site.candidate),
        ("reference", site.candidate, site.reference),
    ):
        grid = find_grid(original, rounded)
        if grid is not None:
            form = "" if grid.is_uniform else " (nf4)"
            scales = f"groups of {grid.group_size}" if grid.group_size else "one scale for each tensor"
            error = "every element within half a step"
            return Cause.QUANTISED, f"quantised to {grid.bits} bits{form} in the {side}, {scales}, {error}"
    return None


def describe_rank(site: SitePair) -> Fact | None:
    """Return the rank of the difference, if it is low."""
    rank = find_rank(site.reference, site.candidate)
    return None if rank is None else (Cause.LORA, f"the difference has rank {rank}: an adapter merged on one side")


def describe_fresh(site: SitePair) -> Fact | None:
    """Return which side alone has the distribution of a common initialisation, if the sides have nothing in common."""
    numbers = site.pair.stored
    if numbers is None or numbers.count < FEWEST_DRAWN or len(site.reference.shape) < 2:
        return None
    if not abs(numbers.correlation) < MOST_DEVIATIONS / math.sqrt(numbers.count):
        return None
    fan_in = site.reference.count // site.reference.shape[0]
    spans = (
        (numbers.ref_mean, numbers.ref_std, numbers.ref_min, numbers.ref_max),
        (numbers.cand_mean, numbers.cand_std, numbers.cand_min, numbers.cand_max),
    )
    reference, candidate = (name_initialisation(*span, fan_in, numbers.count) for span in spans)
    if bool(reference) == bool(candidate):
        return None
    side = "candidate" if candidate else "reference"
    return Cause.NOT_LOADED, f"the {side} is distributed as {candidate or reference}, as before any training"


def name_initialisation(mean: float, std: float, low: float, high: float, fan_in: int, count: int) -> str:
    """Return the common initialisation that numbers of this mean, spread and range may come from; else nothing."""
    error = MOST_DEVIATIONS / math.sqrt(count)
    bound = 1 / math.sqrt(fan_in)
    uniform_std = bound / math.sqrt(3)
    is_filled = max(abs(low), abs(high)) <= bound * (1 + 1e-6) and min(-low, high) >= bound * (1 - 20 / count)
    if is_filled and abs(mean) < error * uniform_std and abs(std / uniform_std - 1) < error:
        return "uniform numbers up to 1/sqrt(fan in)"
    for spread in (0.02, 0.01):
        most = spread * math.sqrt(2 * math.log(count * 1e6))
        if abs(mean) < error * spread and abs(std / spread - 1) < error and max(-low, high) < most:
            return f"normal numbers of standard deviation {spread:g}"
    return ""


def find_step(pairs: Sequence[SitePair]) -> Iterator[Finding]:
    """Yield that everything moved by one and the same amount: the first step of Adam, whose size is its rate."""
    steps = []
    for site in pairs:
        numbers = site.pair.stored
        if numbers is None or numbers.nonfinite_ref or numbers.nonfinite_cand:
            return
        if numbers.count >= FEWEST_STEPPED:
            steps.append(numbers)
    if not steps:
        return
    largest = max(numbers.max_abs for numbers in steps)
    if all(numbers.p50 >= STEP_SHARE * numbers.max_abs >= STEP_SHARE**2 * largest for numbers in steps):
        names = tuple(site.pair.name for site in pairs)
        evidence = f"nearly every element moved by {largest:.3g}, up or down: one step of Adam of that learning rate"
        yield Finding(Cause.OPTIMIZER_STEP, names, evidence, "compare checkpoints of the same step", 0.9)
