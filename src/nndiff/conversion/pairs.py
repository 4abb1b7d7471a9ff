"""From the pairs of a comparison to a map: each relation is turned so that it leads from reference to candidate."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from nndiff.conversion.map import ConversionMap, Entry, Missing, MissingReason
from nndiff.dtypes import DTYPES
from nndiff.relations import Operation, Relation, relate_parts, split_targets
from nndiff.relations.inversion import invert_operations
from nndiff.result import CANDIDATE, JOINT, Leftover, LeftoverReason, Pair
from nndiff.sources import Source
from nndiff.tensors import TensorRef


def build_map(
    reference: Source, candidate: Source, pairs: Sequence[Pair], leftovers: Sequence[Leftover]
) -> ConversionMap:
    """Return how the candidate's tensors are made of the reference's; what cannot be made is listed with the reason."""
    entries: dict[str, Entry] = {}
    missing: dict[str, Missing] = {}
    for pair in pairs:
        for item in _turn_pair(pair, reference.tensors, candidate.tensors):
            if isinstance(item, Missing):
                missing.setdefault(item.target, item)
            elif item.target not in entries or (item.proven and not entries[item.target].proven):
                entries[item.target] = item
    for leftover in leftovers:
        if leftover.side == CANDIDATE:
            is_computed = leftover.reason is LeftoverReason.COMPUTED
            reason = MissingReason.COMPUTED if is_computed else MissingReason.NO_PARTNER
            missing.setdefault(leftover.name, Missing(leftover.name, reason))
    used = {name for entry in entries.values() for name in entry.sources}
    return ConversionMap(
        reference.label,
        candidate.label,
        tuple(entries[name] for name in candidate.tensors if name in entries),
        tuple(missing[name] for name in candidate.tensors if name in missing and name not in entries),
        tuple(name for name in reference.tensors if name not in used),
    )


def split_names(name: str, known: Container[str]) -> tuple[str, ...]:
    """Return the names of a pair that a relation brings together; a name may hold the joint itself."""
    return (name,) if name in known else tuple(name.split(JOINT))


def _turn_pair(
    pair: Pair, references: Mapping[str, TensorRef], candidates: Mapping[str, TensorRef]
) -> Iterator[Entry | Missing]:
    """Yield the entry of every tensor of the candidate in a pair, or why there is none."""
    sources = split_names(pair.reference_name, references)
    targets = [candidates[name] for name in split_names(pair.candidate_name, candidates)]
    relation = pair.related.relation if pair.related else None
    for number, target in enumerate(targets):
        if target.dtype.name not in DTYPES:
            yield Missing(target.name, MissingReason.ONE_WAY, f"elements of {target.dtype.name}")
        elif isinstance(relation, Relation):
            operations = _lead_to(relation, targets, number)
            if operations is None:
                yield Missing(target.name, MissingReason.ONE_WAY, relation.text)
            else:
                kind = relation.kind
                yield Entry(target.name, sources, operations, target.dtype.name, target.shape, kind)
        elif not pair.certain and not pair.verdict.passed:
            yield Missing(target.name, MissingReason.GUESSED, f"like {sources[0]}")
        elif pair.shape[0] != pair.shape[1]:
            yield Missing(target.name, MissingReason.SHAPE, f"{list(pair.shape[0])} to {list(pair.shape[1])}")
        else:
            passed = pair.verdict.passed
            yield Entry(target.name, sources, (), target.dtype.name, target.shape, proven=passed)


def _lead_to(relation: Relation, targets: Sequence[TensorRef], number: int) -> tuple[Operation, ...] | None:
    """Return the operations from the reference's tensors to one of the candidate's; None if they cannot be turned."""
    split = split_targets(relation, len(targets))
    if split is not None:
        return split[number]
    if len(targets) > 1:
        try:
            relation = relate_parts(relation, targets)[number]
        except ValueError:
            return None
    back = invert_operations(relation.candidate, targets[number].shape)
    return None if back is None else (*relation.reference, *back)
