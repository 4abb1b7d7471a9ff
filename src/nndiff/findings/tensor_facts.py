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
from nndiff.relations.rounding import round_numbers
from nndiff.result import Finding
from nndiff.tensors import TensorRef
from nndiff.text import first_few

# Fresh weights: fewer elements show no distribution, and a sample is this many standard errors from what is expected
# once in 1e6 at most.
FEWEST_DRAWN = 1024
MOST_DEVIATIONS = 5.0
# One step of Adam moves every element by the learning rate: half of them by nearly the most that any moves.
STEP_SHARE = 0.9
RESTING_SHARE = 0.01
FEWEST_STEPPED = 32  # elements of a tensor that shows it
_LAYER = re.compile(r"\d+")


def explain_moved(pairs: Sequence[SitePair], left: Sequence[TensorRef]) -> Finding | None:
    """Return that values are found under another name of their kind: swapped, or layers numbered otherwise.

    `left` are the tensors of the reference without a partner.
    """
    moved = find_moved([site.tensors for site in pairs], left)
    if not moved:
        return None
    moved = sorted(moved, key=sort_by_name)
    examples = [f"`{move.reference_name}` is found as `{move.candidate_name}`" for move in moved]
    evidence = f"{len(moved):,} tensors hold the values of others; {first_few(examples)}"
    repair = "fix the mapping of names in the conversion"
    return Finding(classify_moves(moved), tuple(move.reference_name for move in moved), evidence, repair, 1.0)


def sort_by_name(move: Moved) -> Any:
    """Return the key by which moved tensors stand in natural order of names."""
    return natural_key(move.reference_name)


def classify_moves(moves: Sequence[Moved]) -> Cause:
    """Return whether layers are shifted by one offset, stand in another order, or tensors are swapped otherwise."""
    offsets: set[int] = set()
    for move in moves:
        holder = move.candidate_name
        alike = [name for name in (move.reference_name, move.partner_name) if differ_in_numbers(name, holder)]
        if not alike:
            return Cause.WEIGHTS_SWAPPED
        numbers = zip(_LAYER.findall(alike[0]), _LAYER.findall(holder), strict=True)
        offsets.update(int(after) - int(before) for before, after in numbers if before != after)
    return Cause.LAYERS_SHIFTED if len(offsets) == 1 else Cause.LAYER_ORDER


def differ_in_numbers(name: str, holder: str) -> bool:
    """Return True if two names differ in numbers alone."""
    return _LAYER.sub("#", name) == _LAYER.sub("#", holder)


def find_tensor_facts(pairs: Sequence[SitePair], equal: Sequence[SitePair]) -> Iterator[Finding]:
    """Yield one finding for each fact, with the tensors it holds for; `equal` are the pairs that are explained."""
    groups: dict[tuple[Cause, str], list[str]] = {}
    tells_fresh = not is_untrained(equal)
    for site in pairs:
        fact = describe_difference(site, bool(equal))
        if fact is not None and (fact[0] is not Cause.NOT_LOADED or tells_fresh):
            groups.setdefault(fact, []).append(site.pair.name)
    for (cause, text), names in groups.items():
        evidence = f"{first_few([f'`{name}`' for name in names])}: {text}"
        yield Finding(cause, tuple(names), evidence, REPAIRS[cause], 1.0)
    yield from find_step(pairs, equal)


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


def describe_difference(site: SitePair, others_agree: bool) -> Fact | None:
    """Return what is known of a pair that differs; None where nothing is."""
    initial = describe_initial_vector(site)
    if initial is not None:
        return initial if others_agree else None  # where nothing agrees the whole model may be untrained
    for describe in (describe_nonfinite, describe_constant, describe_grid, describe_rank, describe_fresh):
        fact = describe(site)
        if fact is not None:
            return fact
    return None


def is_untrained(equal: Sequence[SitePair]) -> bool:
    """Return True if most weights that both sides share look fresh too: then looking fresh shows nothing."""
    fresh = compared = 0
    for site in equal:
        numbers = site.pair.stored
        if numbers is not None and numbers.count >= FEWEST_DRAWN and len(site.reference.shape) > 1:
            fan_in = site.reference.count // site.reference.shape[0]
            span = numbers.ref_mean, numbers.ref_std, numbers.ref_min, numbers.ref_max
            compared += 1
            fresh += bool(name_initialisation(*span, fan_in, numbers.count))
    return 2 * fresh > compared


def describe_nonfinite(site: SitePair) -> Fact | None:
    """Return which side has values that are not finite, and whether float16 could not hold them."""
    numbers = site.pair.stored
    if numbers is None or numbers.nonfinite_ref == numbers.nonfinite_cand:
        return None
    side = "candidate" if numbers.nonfinite_cand > numbers.nonfinite_ref else "reference"
    sides = (site.reference, site.candidate) if side == "candidate" else (site.candidate, site.reference)
    whole, cut = (tensor.numpy() for tensor in sides)
    infinite = np.isinf(cut)
    if infinite.any() and np.array_equal(infinite, np.isinf(round_numbers(whole, "float16"))):
        return Cause.OVERFLOW, f"infinite in the {side} where values are beyond the range of float16"
    return Cause.NOT_FINITE, f"NaN or infinity in the {side} where the other side has numbers"


def find_constant(site: SitePair) -> tuple[str, float] | None:
    """Return the side that alone holds one value throughout, and the value."""
    numbers = site.pair.stored
    if numbers is None or numbers.count < 2:
        return None
    constants = numbers.ref_min == numbers.ref_max, numbers.cand_min == numbers.cand_max
    if constants[0] == constants[1]:
        return None
    return ("reference", numbers.ref_min) if constants[0] else ("candidate", numbers.cand_min)


def describe_constant(site: SitePair) -> Fact | None:
    """Return which side holds one value alone."""
    constant = find_constant(site)
    return None if constant is None else (Cause.COLLAPSED, f"every element of the {constant[0]} is {constant[1]:g}")


def describe_initial_vector(site: SitePair) -> Fact | None:
    """Return which side alone holds a norm or bias as it is before any training, or statistics never updated."""
    constant = find_constant(site)
    if constant is None or len(site.reference.shape) != 1 or constant[1] not in (0.0, 1.0):
        return None
    side, value = constant
    untouched = {"running_mean": 0.0, "running_var": 1.0}.get(site.pair.name.rpartition(".")[2])
    if value == untouched:
        return Cause.STATISTICS_RESET, f"running statistics of the {side} are {value:g} throughout: never updated"
    return Cause.NOT_LOADED, f"every element of the {side} is {value:g}, as before any training"


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


def find_step(pairs: Sequence[SitePair], equal: Sequence[SitePair]) -> Iterator[Finding]:
    """Yield that nearly everything moved by one and the same amount: the first step of Adam, whose size is its rate."""
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
    least = STEP_SHARE * largest
    moved = sum(numbers.p50 >= least for numbers in steps)
    # rows of an embedding that no token of the batch asked for stay where they are, but for weight decay
    resting = sum(numbers.p50 <= RESTING_SHARE * largest and numbers.max_abs >= least for numbers in steps)
    frozen = sum(site.reference.count >= FEWEST_STEPPED for site in equal)
    if moved + resting == len(steps) and moved > resting + frozen:
        names = tuple(site.pair.name for site in pairs)
        evidence = f"nearly every element moved by {largest:.3g}, up or down: one step of Adam of that learning rate"
        yield Finding(Cause.OPTIMIZER_STEP, names, evidence, "compare checkpoints of the same step", 0.9)
