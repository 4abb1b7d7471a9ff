"""Parameters without a partner that two implementations hold in another form: stacked, fused or with weight norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, islice

from nndiff.metrics import Metrics
from nndiff.names import ancestors, made_of, without_numbers
from nndiff.relations import fused, layout, weight_norm
from nndiff.relations.proof import STATS_ROUNDING, agree, is_readable, is_telling, measure_arrays, read_array
from nndiff.relations.relation import Relation
from nndiff.tensors import Slot, TensorRef
from nndiff.verdict import RelationKind

MOST_PARTS_TRIED = 2000  # choices of parts for one whole in one region; most of them end at their shapes
MOST_READ = 1 << 28  # elements read to prove groups, in all: some ten seconds
MOST_PATTERNS = 3  # kinds of tensors that one stack holds: gate, up and down of every expert

Tensors = tuple[TensorRef, ...]
Partner = Callable[[str], "str | None"]  # module of the candidate -> module of the reference
ToleranceOf = Callable[[Sequence[TensorRef], Sequence[TensorRef]], tuple[float, float]]
ValueOf = Callable[[TensorRef], "TensorRef | None"]  # gradient of a parameter -> the parameter


@dataclass(frozen=True)
class RelatedGroup:
    """Hold tensors of both sides that are the same in another form."""

    reference: tuple[TensorRef, ...]
    candidate: tuple[TensorRef, ...]
    relation: Relation
    values: tuple[TensorRef, ...] = ()  # (g, v), where the relation of their gradients needs them

    def measure(self, atol: float, rtol: float) -> Metrics:
        """Return the numbers of both sides after the relation."""
        reference, candidate = self.reference, self.candidate
        if self.values and len(reference) == 1:
            reference = (*reference, *self.values)
        elif self.values:
            candidate = (*candidate, *self.values)
        return measure_related(self.relation, reference, candidate, atol, rtol)


@dataclass(frozen=True)
class RelatedLeftovers:
    """Hold the groups that were found, and the names of tensors that were too large to be looked at."""

    groups: list[RelatedGroup]
    unread: list[str]


def measure_related(
    relation: Relation, reference: Sequence[TensorRef], candidate: Sequence[TensorRef], atol: float, rtol: float
) -> Metrics:
    """Return the numbers of both sides after a relation."""
    sides = [read_array(tensor) for tensor in reference], [read_array(tensor) for tensor in candidate]
    return measure_arrays(*relation.apply(*sides), atol, rtol)


def relate_leftovers(
    reference_leftovers: Sequence[TensorRef],
    candidate_leftovers: Sequence[TensorRef],
    partner: Partner,
    tolerance_of: ToleranceOf,
    *,
    paired: Sequence[TensorRef] = (),
    value_of: ValueOf | None = None,
) -> RelatedLeftovers:
    """Return the groups of parameters, or of their gradients, that are the same in another form, each proven.

    `paired` are parameters that have a partner, but may be the weight that leftovers of weight norm make. `value_of`
    gives the parameter of a gradient; without it, it is looked up among the leftovers.
    """
    finder = GroupFinder(partner, tolerance_of, value_of or (lambda gradient: None))
    finder.remember_values(reference_leftovers, candidate_leftovers)
    for slot in (Slot.PARAM, Slot.PARAM_GRAD):
        finder.start_slot(
            [tensor for tensor in reference_leftovers if tensor.site.slot is slot],
            [tensor for tensor in candidate_leftovers if tensor.site.slot is slot],
        )
        finder.find_weight_norms([tensor for tensor in paired if tensor.site.slot is slot])
        finder.find_in_regions()
    grouped = {tensor.name for group in finder.groups for tensor in (*group.reference, *group.candidate)}
    return RelatedLeftovers(finder.groups, [name for name in finder.unread if name not in grouped])


class GroupFinder:
    """Find groups among the tensors of both sides that have no partner, with bounded work."""

    def __init__(self, partner: Partner, tolerance_of: ToleranceOf, value_of: ValueOf) -> None:
        self.groups: list[RelatedGroup] = []
        self.unread: dict[str, None] = {}  # names of tensors that were too large to be looked at
        self._partner = partner
        self._tolerance_of = tolerance_of
        self._value_of = value_of
        self._values: tuple[dict[tuple[str, str], TensorRef], ...] = ({}, {})
        self._read = 0
        self._free: tuple[list[TensorRef], list[TensorRef]] = ([], [])
        self._proven: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Relation]] = {}  # by the modules of both sides

    def remember_values(self, *sides: Sequence[TensorRef]) -> None:
        """Keep the parameters of both sides, whose values the gradients of a weight norm depend on."""
        for values, tensors in zip(self._values, sides, strict=True):
            for tensor in tensors:
                if tensor.site.slot is Slot.PARAM:
                    values[tensor.site.module, tensor.site.tensor] = tensor

    def start_slot(self, reference: Sequence[TensorRef], candidate: Sequence[TensorRef]) -> None:
        """Look among these tensors from now on."""
        self._free = list(reference), list(candidate)

    def find_weight_norms(self, paired: Sequence[TensorRef]) -> None:
        """Find weights of one side that the other makes of size and direction, by the names of those."""
        for weight_side, normed_side in ((0, 1), (1, 0)):
            weights: dict[tuple[str, str], list[TensorRef]] = {}
            for tensor in (*self._free[weight_side], *paired):
                key = self._rename_module(tensor.site.module, weight_side), tensor.site.tensor
                weights.setdefault(key, []).append(tensor)
            normed: dict[tuple[str, str], dict[str, TensorRef]] = {}
            for tensor in self._free[normed_side]:
                made = made_of(tensor.site.module, tensor.site.tensor)
                if made is not None:
                    key = self._rename_module(made.module, normed_side), made.weight
                    normed.setdefault(key, {})[made.role] = tensor
            for key, roles in normed.items():
                for weight in weights.get(key, ()) if len(roles) == len("gv") else ():
                    sides = (weight,), (roles["g"], roles["v"])
                    if self._prove_weight_norm(*(sides if weight_side == 0 else sides[::-1])):
                        break

    def _rename_module(self, module: str, side: int) -> str:
        """Return the reference's name of a module; its own where it has no partner."""
        renamed = self._partner(module) if side else module
        return module if renamed is None else renamed

    def _prove_weight_norm(self, reference: Tensors, candidate: Tensors) -> bool:
        if not self._may_read((*reference, *candidate)):
            return False
        atol, rtol = self._tolerance_of(reference, candidate)
        if reference[0].site.slot is Slot.PARAM:
            return self._add(reference, candidate, weight_norm.prove(reference, candidate, atol, rtol))
        values = []
        normed_side = 1 if len(reference) == 1 else 0
        for gradient in (reference, candidate)[normed_side]:
            key = gradient.site.module, gradient.site.tensor
            value = self._value_of(gradient) or self._values[normed_side].get(key)
            if value is not None:
                values.append(value)
        relation = weight_norm.prove_gradient(reference, candidate, values, atol, rtol)
        return self._add(reference, candidate, relation, tuple(values))

    def find_in_regions(self) -> None:
        """Find tensors of one part of the model that are the same: one and one, then one and several.

        The innermost part comes first: what does not belong together there may do so in the part around. Each is
        looked at twice, because constant tensors are related only as others of their modules are.
        """
        regions = self._regions_of()
        inside_out = sorted({region for chain in regions.values() for region in chain}, key=count_names, reverse=True)
        for region in inside_out * 2:
            for reference in self._list_free(0, region, regions):
                for candidate in self._list_free(1, region, regions):
                    if reference.count == candidate.count and self._try_group((reference,), (candidate,)):
                        break
            for whole_side in (0, 1):
                for whole in self._list_free(whole_side, region, regions):
                    for parts in list_parts(whole, self._list_free(1 - whole_side, region, regions)):
                        if self._try_group(*(((whole,), parts) if whole_side == 0 else (parts, (whole,)))):
                            break

    def _regions_of(self) -> dict[int, tuple[str, ...]]:
        """Return the parts of the model around each free tensor, by the reference's names: those with a partner."""
        regions: dict[int, tuple[str, ...]] = {}
        shared = {""}
        for tensor in self._free[1]:
            around = []
            for module in (tensor.site.module, *ancestors(tensor.site.module)):
                renamed = self._partner(module) if module else ""
                if renamed is not None:
                    around.append(renamed)
            regions[id(tensor)] = tuple(around)
            shared.update(around)
        for tensor in self._free[0]:
            module = tensor.site.module
            regions[id(tensor)] = tuple(name for name in (module, *ancestors(module)) if name in shared)
        return regions

    def _list_free(self, side: int, region: str, regions: Mapping[int, tuple[str, ...]]) -> list[TensorRef]:
        return [tensor for tensor in self._free[side] if region in regions[id(tensor)]]

    def _try_group(self, reference: Tensors, candidate: Tensors) -> bool:
        """Return True if tensors are proven to be the same in another form; they are free no longer."""
        shapes = [tensor.shape for tensor in reference], [tensor.shape for tensor in candidate]
        (whole_shape,), part_shapes = shapes if len(reference) == 1 else shapes[::-1]
        if len(part_shapes) > 1 and not any(True for _ in fused.list_arrangements(whole_shape, part_shapes)):
            return False
        atol, rtol = self._tolerance_of(reference, candidate)
        if lengths_differ(reference, candidate, atol, rtol) or not self._may_read((*reference, *candidate)):
            return False
        modules = tuple(get_module(tensor) for tensor in reference), tuple(get_module(tensor) for tensor in candidate)
        hints = self._proven.get(modules, [])
        whole = reference[0] if len(reference) == 1 else candidate[0]
        if not hints and not is_telling(read_array(whole), atol, rtol):
            return False
        if len(part_shapes) > 1:
            relation = fused.prove(reference, candidate, atol, rtol, hints)
        elif reference[0].shape == candidate[0].shape and agree(
            read_array(reference[0]), read_array(candidate[0]), atol, rtol
        ):
            relation = Relation(RelationKind.LAYOUT)
        else:
            relation = layout.prove(reference, candidate, atol, rtol, hints)
        if relation is not None:
            self._proven.setdefault(modules, []).append(relation)
        return self._add(reference, candidate, relation)

    def _may_read(self, tensors: Tensors) -> bool:
        """Return True if all tensors can be read and that is not too much; count it as read."""
        count = sum(tensor.count for tensor in tensors)
        largest = max(tensor.count for tensor in tensors)
        if self._read + count > MOST_READ or largest > fused.LARGEST_FUSED:
            self.unread.update(dict.fromkeys(tensor.name for tensor in tensors))
            return False
        if not all(is_readable(tensor, fused.LARGEST_FUSED) for tensor in tensors):
            return False
        self._read += count
        return True

    def _add(self, reference: Tensors, candidate: Tensors, relation: Relation | None, values: Tensors = ()) -> bool:
        if relation is None:
            return False
        self.groups.append(RelatedGroup(reference, candidate, relation, values))
        grouped = {id(tensor) for tensor in (*reference, *candidate)}
        for free in self._free:
            free[:] = [tensor for tensor in free if id(tensor) not in grouped]
        return True


def count_names(module: str) -> int:
    """Return how deep a module lies; the model itself at 0."""
    return len(module.split(".")) if module else 0


def get_module(tensor: TensorRef) -> str:
    """Return the module that a parameter belongs to."""
    return tensor.site.module


def list_parts(whole: TensorRef, tensors: Sequence[TensorRef]) -> Iterator[Tensors]:
    """Yield several tensors that have as many elements as one: neighbours, then those of like names, then any."""
    smaller = []
    by_pattern: dict[str, list[TensorRef]] = {}
    for tensor in tensors:
        if 0 < tensor.count < whole.count and len(whole.shape) - len(tensor.shape) in (0, 1):
            smaller.append(tensor)
            by_pattern.setdefault(without_numbers(tensor.name), []).append(tensor)
    counts = sorted(tensor.count for tensor in smaller)
    sizes = []  # of how many tensors as many elements can be
    for size in range(2, len(counts) + 1):
        if sum(counts[:size]) <= whole.count <= sum(counts[-size:]):
            sizes.append(size)
    choices = chain(
        list_neighbours(smaller, sizes),
        list_patterns(list(by_pattern.values())),
        *(combinations(smaller, size) for size in sizes),
    )
    for parts in islice(choices, MOST_PARTS_TRIED):
        if sum(part.count for part in parts) == whole.count:
            yield parts


def list_neighbours(tensors: Sequence[TensorRef], sizes: Sequence[int]) -> Iterator[Tensors]:
    """Yield every row of so many neighbours."""
    for size in sizes:
        for start in range(len(tensors) - size + 1):
            yield tuple(tensors[start : start + size])


def list_patterns(patterns: Sequence[Sequence[TensorRef]]) -> Iterator[Tensors]:
    """Yield the tensors of one, two or three patterns of names, in the order of their numbers."""
    for size in range(1, MOST_PATTERNS + 1):
        for chosen in combinations(patterns, size):
            if len({len(tensors) for tensors in chosen}) == 1 and len(chosen[0]) > 1:
                yield tuple(chain.from_iterable(zip(*chosen, strict=True)))


def lengths_differ(reference: Tensors, candidate: Tensors, atol: float, rtol: float) -> bool:
    """Return True if recorded statistics show that two groups cannot hold the same elements."""
    lengths = []
    for tensors in (reference, candidate):
        length = 0.0
        for tensor in tensors:
            if tensor.trace.stats is None or tensor.trace.stats.nonfinite:
                return False
            length = math.hypot(length, tensor.trace.stats.l2)
        lengths.append(length)
    count = sum(tensor.count for tensor in reference)
    return abs(lengths[0] - lengths[1]) > math.sqrt(count) * atol + (rtol + STATS_ROUNDING) * lengths[0]
