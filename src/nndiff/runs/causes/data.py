"""What the two runs were trained on: other samples, another order, other labels, another batch size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from nndiff.findings.causes import Cause
from nndiff.runs.case import RunCase, Where
from nndiff.runs.causes.onset import Explanation, explain, has_other_data, name_step
from nndiff.runs.run import BatchPart, Run, Step
from nndiff.text import first_few, plural

_LABEL_NAMES = frozenset({"label", "labels", "target", "targets", "y"})
_SHIFTED_BATCHES = 3  # that must all be shifted alike: one batch may well occur twice


def find_data(case: RunCase) -> Iterator[Explanation]:
    """Yield how the batches differ from the first step on at which they do."""
    places = [place for place in range(len(case.steps)) if has_other_data(case, place)]
    if not places or _follows_from_random_state(case, places[0]):
        return
    place = places[0]
    reference, candidate = (case.step(where, place) for where in Where)
    parts, partners = _index_parts(reference), _index_parts(candidate)
    common = [path for path in parts if path in partners]
    changed = [path for path in common if parts[path] != partners[path]]
    step = name_step(case, place)
    sizes = _count_samples(reference), _count_samples(candidate)
    if sizes[0] != sizes[1]:
        evidence = f"batches of {sizes[0]} samples against {sizes[1]} from {step} on"
        repair = "use the same batch size (and drop_last) on both sides; the learning rate often goes with it"
        yield explain(case, place, Cause.BATCH_SIZE, (), evidence, repair, 0.95)
        return
    shift = _find_shift(case, place)
    if shift:
        direction = "later" if shift > 0 else "earlier"
        evidence = (
            f"from {step} on the candidate is given the batches that the reference is given "
            f"{plural(abs(shift), 'step')} {direction}"
        )
        repair = "look for batches that are skipped or repeated: a resumed data loader, a first batch taken for a look"
        yield explain(case, place, Cause.DATA_SHIFTED, (), evidence, repair, 0.95)
        return
    often = f"{plural(len(places), 'step')} of {len(case.steps)}, first {step}"
    if changed and len(changed) < len(common) and _same_samples(parts, partners, common, changed):
        yield _explain_parts(case, place, common, changed, often, parts, partners)
        return
    yield _explain_samples(case, place, often)


def _follows_from_random_state(case: RunCase, place: int) -> bool:
    """Return True if the generators parted before the data did, so that another order is no cause of its own."""
    if place == 0:
        return False
    reference, candidate = (case.step(where, place - 1).random_states for where in Where)
    common = reference.keys() & candidate.keys()
    first, second = (case.step(where, 0).random_states for where in Where)
    apart_at_first = any(first.get(name) != second.get(name) for name in common)
    return not apart_at_first and any(reference[name] != candidate[name] for name in common)


def _index_parts(step: Step) -> dict[str, BatchPart]:
    return {part.path: part for part in step.data or ()}


def _count_samples(step: Step) -> int:
    """Return the size of a batch: that of the first part along its first axis."""
    parts = step.data or ()
    return parts[0].shape[0] if parts and parts[0].shape else 0


def _find_shift(case: RunCase, place: int) -> int:
    """Return by how many steps the candidate's batches come early (positive) or late, or 0."""
    positions: dict[tuple[str, ...], list[int]] = {}
    for position, step in enumerate(case.reference.steps):
        positions.setdefault(_name_batch(step), []).append(position)
    shifts: set[int] | None = None
    pairs = case.steps[place : place + _SHIFTED_BATCHES]
    for pair in pairs:
        known = positions.get(_name_batch(case.candidate.steps[pair.candidate]), [])
        possible = {position - pair.reference for position in known}
        shifts = possible if shifts is None else shifts & possible
    return min(shifts, key=abs) if shifts and len(pairs) == _SHIFTED_BATCHES else 0


def _name_batch(step: Step) -> tuple[str, ...]:
    return tuple(part.digest for part in step.data or ())


def _same_samples(
    parts: dict[str, BatchPart], partners: dict[str, BatchPart], common: Sequence[str], changed: Sequence[str]
) -> bool:
    """Return True if the parts that are equal tell samples apart: labels alone are equal by chance too easily."""
    for path in common:
        samples = np.frombuffer(parts[path].samples, np.uint64)
        if path not in changed and (path not in _find_labels(common) or not len(samples)):
            return True
    # the labels agree, the inputs do not: the same samples only if labels are many and all the same
    labels = [path for path in common if path not in changed]
    return all(len(np.unique(np.frombuffer(parts[path].samples, np.uint64))) > 1 for path in labels)


def _find_labels(paths: Sequence[str]) -> list[str]:
    """Return the parts of a batch that are labels: by name, or the last of a tuple."""
    named = [path for path in paths if path.rpartition(".")[2].lower() in _LABEL_NAMES]
    return named or ([paths[-1]] if len(paths) > 1 and paths[-1].isdigit() else [])


def _explain_parts(
    case: RunCase,
    place: int,
    common: Sequence[str],
    changed: Sequence[str],
    often: str,
    parts: dict[str, BatchPart],
    partners: dict[str, BatchPart],
) -> Explanation:
    """Return that a part of each batch is equal and another is not."""
    equal = [path for path in common if path not in changed]
    first = changed[0]
    counts = _count_changed(parts[first], partners[first])
    detail = f", {counts[0]} of {plural(counts[1], 'sample')} there" if counts[1] else ""
    dtypes = parts[first].dtype, partners[first].dtype
    if dtypes[0] != dtypes[1]:
        detail += f"; {dtypes[0]} against {dtypes[1]}"
    names = f"{first_few(changed)} differs while {first_few(equal)} is equal: {often}{detail}"
    if set(changed) <= set(_find_labels(common)):
        evidence = f"the inputs are equal, the labels are not: part {names}"
        repair = "compare how labels are read, encoded, smoothed or shifted"
        return explain(case, place, Cause.LABELS_DIFFER, changed, evidence, repair, 0.95)
    evidence = f"the batches hold different values: part {names}"
    repair = "compare preprocessing and augmentation (normalisation, resizing, crops, tokenizer)"
    return explain(case, place, Cause.DATA_DIFFER, changed, evidence, repair, 0.9)


def _count_changed(part: BatchPart, partner: BatchPart) -> tuple[int, int]:
    """Return how many samples of a part differ, and how many there are; 0 where that is not known."""
    if len(part.samples) != len(partner.samples):
        return 0, 0
    first, second = np.frombuffer(part.samples, np.uint64), np.frombuffer(partner.samples, np.uint64)
    return int((first != second).sum()), len(first)


def _explain_samples(case: RunCase, place: int, often: str) -> Explanation:
    """Return whether the samples of the epoch are the same in another order, or others."""
    epoch = case.step(Where.REFERENCE, place).epoch
    step = name_step(case, place)
    reference, candidate = (_collect_samples(case.run(where), epoch) for where in Where)
    shared = _count_shared(reference, candidate)
    fewer = min(len(reference), len(candidate))
    during = f"epoch {epoch}" if epoch is not None else "the run"
    if fewer and shared == fewer:
        evidence = f"batches differ at {often}: the same {plural(shared, 'sample')} in another order during {during}"
        repair = "seed the shuffling alike: the same generator for the data loader, the same worker seeds"
        return explain(case, place, Cause.DATA_ORDER, (), evidence, repair, 0.95)
    known = f"{shared} of {plural(fewer, 'sample')} of {during} occur on both sides" if fewer else "no sample is known"
    incomplete = "; more may in the steps that were not recorded" if shared else ""
    evidence = f"batches differ from {step} on ({often}): {known}{incomplete}"
    repair = "compare the datasets, their split and the preprocessing; then the shuffling seed"
    return explain(case, place, Cause.DATA_DIFFER, (), evidence, repair, 0.9)


def _collect_samples(run: Run, epoch: int | None) -> NDArray[np.uint64]:
    """Return one number for each sample of an epoch, made from all its parts, sorted."""
    samples: list[NDArray[np.uint64]] = [np.empty(0, np.uint64)]
    for step in run.steps:
        if step.epoch != epoch or not step.data:
            continue
        numbers = [np.frombuffer(part.samples, np.uint64) for part in step.data if part.samples]
        mixed = np.zeros(len(numbers[0]) if numbers else 0, np.uint64)
        for number in numbers:
            if len(number) == len(mixed):
                mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + number  # wraps around, as meant
        samples.append(mixed)
    return np.sort(np.concatenate(samples))


def _count_shared(reference: NDArray[np.uint64], candidate: NDArray[np.uint64]) -> int:
    """Return how many samples are on both sides, as often as they occur on both."""
    first, first_counts = np.unique(reference, return_counts=True)
    second, second_counts = np.unique(candidate, return_counts=True)
    _, places, partners = np.intersect1d(first, second, assume_unique=True, return_indices=True)
    return int(np.minimum(first_counts[places], second_counts[partners]).sum())
