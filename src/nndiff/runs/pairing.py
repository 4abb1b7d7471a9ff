"""Which steps and which parameters of two runs belong together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nndiff.align import Rename, align
from nndiff.dtypes import find_dtype
from nndiff.facts.runs import StepMark
from nndiff.result import Note
from nndiff.runs.case import StepPair
from nndiff.runs.run import Run, Step, StepTensors, TensorKind
from nndiff.tensors import NoData, Shape, TensorRef

_HELD = (TensorKind.WEIGHT, TensorKind.BUFFER)
_NOT_READ = NoData("only the name matters here")


@dataclass(frozen=True)
class PairedSteps:
    """Hold the steps that both runs have, and those that only one has."""

    pairs: tuple[StepPair, ...]
    only_reference: tuple[StepMark, ...]
    only_candidate: tuple[StepMark, ...]


@dataclass(frozen=True)
class LoneTensor:
    """Name a parameter or buffer that only one run has."""

    name: str
    shape: Shape
    dtype: str


@dataclass(frozen=True)
class PairedNames:
    """Hold which parameters and buffers belong together: {reference's name: candidate's name}."""

    names: Mapping[str, str]
    only_reference: tuple[LoneTensor, ...] = ()
    only_candidate: tuple[LoneTensor, ...] = ()
    notes: tuple[Note, ...] = ()


def make_mark(step: Step) -> StepMark:
    """Return the name of a step."""
    return StepMark(step.number, step.epoch, step.batch)


def pair_steps(reference: Run, candidate: Run) -> PairedSteps:
    """Pair steps by epoch and batch where all steps of both runs have them, else by their global number.

    Checkpoints are named by the steps completed before them, and a recorder counts from 0.
    """
    has_batches = all(
        step.epoch is not None and step.batch is not None for step in (*reference.steps, *candidate.steps)
    )
    ahead = int(candidate.description.counts_completed) - int(reference.description.counts_completed)

    def key(step: Step, shift: int = 0) -> tuple[int | None, ...]:
        return (step.epoch, step.batch) if has_batches else (step.number - shift,)

    places = {key(step, ahead): place for place, step in enumerate(candidate.steps)}
    pairs: list[StepPair] = []
    only_reference: list[StepMark] = []
    for place, step in enumerate(reference.steps):
        partner = places.pop(key(step), None)
        if partner is None:
            only_reference.append(make_mark(step))
        else:
            pairs.append(StepPair(place, partner))
    only_candidate = [make_mark(candidate.steps[place]) for place in sorted(places.values())]
    return PairedSteps(tuple(pairs), tuple(only_reference), tuple(only_candidate))


def pair_names(
    reference: StepTensors,
    candidate: StepTensors,
    renames: Sequence[Rename] = (),
    mapping: Mapping[str, str] | None = None,
) -> PairedNames:
    """Pair parameters and buffers by the user's rules, by name, behind a wrapper's prefix, then by equal content."""
    reference_tensors, candidate_tensors = _list_held(reference), _list_held(candidate)
    alignment = align(reference_tensors, candidate_tensors, renames, mapping)
    names = {match.reference: match.candidate for match in alignment.matches}
    names |= _pair_by_content(
        _digests_of(reference, alignment.only_reference), _digests_of(candidate, alignment.only_candidate)
    )
    taken = set(names.values())
    return PairedNames(
        {name: names[name] for name in reference_tensors if name in names},
        tuple(_describe_lone(tensor) for name, tensor in reference_tensors.items() if name not in names),
        tuple(_describe_lone(tensor) for name, tensor in candidate_tensors.items() if name not in taken),
        alignment.notes,
    )


def _list_held(tensors: StepTensors) -> dict[str, TensorRef]:
    held: dict[str, TensorRef] = {}
    for key, shape, dtype in zip(tensors.keys, tensors.shapes, tensors.dtypes, strict=True):
        if key.kind in _HELD:
            held[key.name] = TensorRef(key.name, shape, find_dtype(dtype), _NOT_READ)
    return held


def _digests_of(tensors: StepTensors, names: Mapping[str, object]) -> dict[str, bytes]:
    digests: dict[str, bytes] = {}
    for row, key in enumerate(tensors.keys):
        if key.kind in _HELD and key.name in names:
            digests[key.name] = tensors.digests[row].tobytes()
    return digests


def _pair_by_content(reference: Mapping[str, bytes], candidate: Mapping[str, bytes]) -> dict[str, str]:
    """Pair names whose tensors are the same bit for bit and like no other: zeros and ones tell nothing."""
    reference_counts, candidate_counts = Counter(reference.values()), Counter(candidate.values())
    name_of = {digest: name for name, digest in candidate.items() if candidate_counts[digest] == 1}
    pairs: dict[str, str] = {}
    for name, digest in reference.items():
        if reference_counts[digest] == 1 and digest in name_of:
            pairs[name] = name_of[digest]
    return pairs


def _describe_lone(tensor: TensorRef) -> LoneTensor:
    return LoneTensor(tensor.name, tensor.shape, tensor.dtype.name)
