"""Relations sought and proven: for pairs that differ, and for tensors that names left without a partner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nndiff.diagnosis.noise import Bounds, RecordedTolerance
from nndiff.diagnosis.site_pairs import SitePair
from nndiff.judge import is_accepted, judge_related
from nndiff.metrics import Metrics
from nndiff.names import looks_trainable, without_numbers
from nndiff.plan import Plan
from nndiff.result import (
    CANDIDATE,
    JOINT,
    REFERENCE,
    Leftover,
    Method,
    Note,
    NoteSlug,
    Pair,
    Related,
    Relation,
    Rules,
    Side,
)
from nndiff.sources import Source
from nndiff.tensors import Shape, Site, Slot, TensorRef
from nndiff.text import counted
from nndiff.tolerance import Tolerance
from nndiff.verdict import RelationKind, Verdict

if TYPE_CHECKING:
    from nndiff.relations import Relation as ProvenRelation


def apply_relation(pair: Pair, relation: Relation, metrics: Metrics, rules: Rules, fits: bool = True) -> Pair:
    """Return a pair with a proven relation; where its kind is accepted, the numbers after it are judged.

    One that does not fit what else is known of the tensors is shown, and accepted only where the user says so.
    """
    site = pair.sites[0] if pair.sites and fits else None
    accepted = all(is_accepted(kind, site, rules) for kind in relation.kinds)
    notes = tuple(note for note in pair.notes if note.slug is not NoteSlug.SAME_COUNT)  # its question is answered
    pair = replace(pair, related=Related(relation, metrics, accepted), notes=notes)
    return replace(pair, verdict=judge_related(relation.kind, metrics, pair.dtype, rules)) if accepted else pair


MOST_READ = 1 << 28  # elements in all that are read to look for relations: some ten seconds
# By these numbers most pairs that differ need no second look: trained apart, their elements go together (no axes are
# permuted), and not by one factor.
UNPERMUTED_CORRELATION = 0.99
SCALED_COSINE = 1e-4  # what rounding to bfloat16 leaves of a cosine of 1
MOST_HINTS = 8  # relations of other tensors that are tried first
NOT_SEARCHED = Note(
    NoteSlug.NOT_SEARCHED, "too large to look for a relation (a transpose, a factor), so there may be one"
)


def prove_pairs(plan: Plan, pairs: Sequence[SitePair], recorded: RecordedTolerance, rules: Rules) -> list[SitePair]:
    """Return the pairs, those that differ with the relation that makes them agree, where one is proven.

    Elements that are all alike fit many relations: such tensors are tried again with those that others have.
    """
    from nndiff import relations

    proven = list(pairs)
    layouts: dict[tuple[Shape, Shape], list[relations.Relation]] = {}  # proven for tensors of the same shapes
    scales: list[relations.Relation] = []
    read = 0
    for attempt in ("all", "constants"):
        for index, site in enumerate(proven):
            pair, reference, candidate = site.pair, [site.reference], [site.candidate]
            if pair.verdict.passed or pair.related or pair.verdict is Verdict.NOT_COMPARED:
                continue
            if pair.has_note(NoteSlug.NOT_SEARCHED) or not may_be_related(site):
                continue
            hints = [*layouts.get(pair.shape, ()), *scales]
            if attempt == "constants" and not (hints and _is_constant(site.reference)):
                continue
            if read > MOST_READ or relations.are_too_large(*reference, *candidate):
                proven[index] = replace(site, pair=replace(pair, notes=(*pair.notes, NOT_SEARCHED)))
                continue
            read += site.reference.count + site.candidate.count
            relation = relations.prove(reference, candidate, pair.atol, pair.rtol, hints)
            if relation is None:
                continue
            known = scales if relation.kind is RelationKind.SCALE else layouts.setdefault(pair.shape, [])
            if relation not in known and len(known) < MOST_HINTS:
                known.append(relation)
            metrics = relations.measure_related(relation, reference, candidate, pair.atol, pair.rtol)
            fits = site.slot is not Slot.PARAM_GRAD or fits_parameter(plan, site, relation, recorded)
            proven[index] = replace(site, pair=apply_relation(pair, relation, metrics, rules, fits))
    return proven


_SLOT_OF_VALUE = {Slot.PARAM_GRAD: Slot.PARAM, Slot.GRAD_OUTPUT: Slot.OUTPUT}


def lay_out_gradients(pairs: Sequence[SitePair], rules: Rules) -> list[SitePair]:
    """Return the pairs, gradients that differ measured in the layout of what they are the gradients of.

    The gradient of a transposed weight is the transposed gradient: that needs no proof, and the numbers of gradients
    laid side by side in two layouts would mean nothing.
    """
    from nndiff import relations

    layouts: dict[tuple[Site, Site], relations.Relation] = {}
    for site in pairs:
        related = site.pair.related
        if related is not None and related.accepted and relations.is_rearrangement(related.relation):
            layouts[site.reference.site, site.candidate.site] = related.relation
    laid_out = []
    for site in pairs:
        pair, slot = site.pair, _SLOT_OF_VALUE.get(site.slot)
        if slot is not None and not pair.verdict.passed and pair.related is None:
            relation = layouts.get((replace(site.reference.site, slot=slot), replace(site.candidate.site, slot=slot)))
            if relation is not None and all(relations.is_readable(tensor) for tensor in site.tensors):
                metrics = relations.measure_related(relation, [site.reference], [site.candidate], pair.atol, pair.rtol)
                site = replace(site, pair=apply_relation(pair, relation, metrics, rules))
        laid_out.append(site)
    return laid_out


def fits_parameter(plan: Plan, gradient: SitePair, relation: ProvenRelation, recorded: RecordedTolerance) -> bool:
    """Return False if the parameters of two gradients are known not to lie as these do.

    A gradient has the layout of its parameter: that of the very same parameter cannot be permuted. Where all that is
    known of the parameters is that they are not the same, they may lie as the gradients do.
    """
    from nndiff.recording.format.weights import read_held_tensors
    from nndiff.relations import measure_related

    pair = gradient.pair
    if relation.kind is not RelationKind.LAYOUT or pair.shape[0] != pair.shape[1]:
        return True  # a sum, an expansion, another shape: the parameters cannot be the same
    values: list[TensorRef] = []
    held = []
    for source, tensor in ((plan.reference, gradient.reference), (plan.candidate, gradient.candidate)):
        value = source.tensors.get(replace(tensor.site, slot=Slot.PARAM).name)
        if value is not None and not value.missing:
            values.append(value)
        held.append(read_held_tensors(source.meta).get(f"{tensor.site.module}.{tensor.site.tensor}".lstrip(".")))
    if len(values) == 2:
        atol, rtol = recorded.choose_bounds(values[:1], values[1:])[:2]
        return measure_related(relation, values[:1], values[1:], atol, rtol).mismatched == 0
    return held[0] is None or held[0] != held[1]


def may_be_related(site: SitePair) -> bool:
    """Return False if the numbers of a pair speak against every relation: then its elements are not read again."""
    numbers = site.pair.stored
    if numbers is None or site.reference.dtype.kind != site.candidate.dtype.kind:
        return True  # other shapes, or a mask
    if 1 - abs(numbers.cosine) < SCALED_COSINE:
        return True
    sizes = [size for size in site.reference.shape if size > 1]
    return len(set(sizes)) < len(sizes) and not numbers.correlation > UNPERMUTED_CORRELATION


def _is_constant(tensor: TensorRef) -> bool:
    stats = tensor.trace.stats
    return stats is not None and stats.min == stats.max


@dataclass
class RelatedTensors:
    """Hold the pairs with what relations were proven, and what is still without a partner."""

    pairs: list[SitePair]
    leftovers: list[Leftover]
    tied: list[tuple[str, TensorRef]] = field(default_factory=list)  # side, and the tensor that is there twice
    notes: list[Note] = field(default_factory=list)

    def list_free(self, side: str, source: Source) -> list[TensorRef]:
        """Return the tensors of a side whose lack of a partner is a difference."""
        return [source.tensors[item.name] for item in self.leftovers if item.counts and item.side == side]

    def add_group(self, site: SitePair, reference: Sequence[TensorRef], candidate: Sequence[TensorRef]) -> None:
        """Add a pair made of tensors that were free."""
        names = {REFERENCE: {tensor.name for tensor in reference}, CANDIDATE: {tensor.name for tensor in candidate}}
        self.leftovers = [item for item in self.leftovers if item.name not in names[item.side]]
        self.pairs.append(site)


def relate_recordings(
    plan: Plan, pairs: Sequence[SitePair], leftovers: Sequence[Leftover], tolerance: Tolerance, rules: Rules
) -> RelatedTensors:
    """Prove relations of pairs that differ, and pair tensors without a partner: tied, stacked or fused, weight norm."""
    recorded = RecordedTolerance(tolerance, plan.reference, plan.candidate)
    if not all(site.passed for site in pairs):
        pairs = lay_out_gradients(prove_pairs(plan, pairs, recorded, rules), rules)
    related = RelatedTensors(list(pairs), list(leftovers))
    if any(leftover.counts for leftover in leftovers):
        pair_tied(plan, related, tolerance, rules)
        _pair_folded_parameters(plan, related, recorded, rules)
        _pair_groups_of_parameters(plan, related.pairs, related, recorded, rules)
    return related


_HELD = (Slot.PARAM, Slot.BUFFER_BEFORE)


def _pair_folded_parameters(plan: Plan, related: RelatedTensors, recorded: RecordedTolerance, rules: Rules) -> None:
    """Pair what one side holds in several layers and the other folded into one, as in checkpoints: a batch norm."""
    from nndiff.relations import relate_groups

    in_question = [site for site in related.pairs if site.slot in _HELD and not site.passed]
    sides: tuple[dict[str, TensorRef], dict[str, TensorRef]] = {}, {}
    recorded_tensors: dict[int, TensorRef] = {}

    def name_as_stored(tensor: TensorRef, side: int) -> str:
        name = f"{tensor.site.module}.{tensor.site.tensor}".lstrip(".")
        sides[side][name] = replace(tensor, name=name)
        recorded_tensors[id(sides[side][name])] = tensor
        return name

    names = [(name_as_stored(site.reference, 0), name_as_stored(site.candidate, 1)) for site in in_question]
    for number, (side, source) in enumerate(((REFERENCE, plan.reference), (CANDIDATE, plan.candidate))):
        for tensor in related.list_free(side, source):
            if tensor.site.slot in _HELD:
                name_as_stored(tensor, number)
    if not all(sides):
        return
    for group in relate_groups(*sides, names, recorded.tolerance.atol, recorded.tolerance.rtol):
        reference, candidate = (
            [recorded_tensors[id(tensor)] for tensor in tensors] for tensors in (group.reference, group.candidate)
        )
        bounds = recorded.choose_bounds(reference, candidate)
        metrics = group.measure(bounds.atol, bounds.rtol)
        pair = apply_relation(make_related_pair(plan, reference, candidate, bounds), group.relation, metrics, rules)
        grouped = {tensor.name for tensor in reference}, {tensor.name for tensor in candidate}
        related.pairs = [
            site
            for site in related.pairs
            if site.reference.name not in grouped[0] or site.candidate.name not in grouped[1]
        ]
        related.add_group(SitePair(pair, reference[0], candidate[0]), reference, candidate)


def _pair_groups_of_parameters(
    plan: Plan, pairs: Sequence[SitePair], related: RelatedTensors, recorded: RecordedTolerance, rules: Rules
) -> None:
    """Pair parameters without a partner, and their gradients, that the other side holds stacked, fused or normed."""
    from nndiff.relations import relate_leftovers

    modules = {candidate: reference for reference, candidate in plan.alignment.modules.items()}

    def tolerance_of(references: Sequence[TensorRef], candidates: Sequence[TensorRef]) -> tuple[float, float]:
        return recorded.choose_bounds(references, candidates)[:2]

    def value_of(gradient: TensorRef) -> TensorRef | None:
        name = replace(gradient.site, slot=Slot.PARAM).name
        for source in (plan.reference, plan.candidate):
            if source.tensors.get(gradient.name) is gradient:
                return source.tensors.get(name)
        return None

    groups = relate_leftovers(
        related.list_free(REFERENCE, plan.reference),
        related.list_free(CANDIDATE, plan.candidate),
        modules.get,
        tolerance_of,
        paired=[tensor for site in pairs for tensor in (site.reference, site.candidate)],
        value_of=value_of,
    )
    for group in groups.groups:
        bounds = recorded.choose_bounds(group.reference, group.candidate)
        pair = make_related_pair(plan, group.reference, group.candidate, bounds)
        pair = apply_relation(pair, group.relation, group.measure(bounds.atol, bounds.rtol), rules)
        site = SitePair(pair, group.reference[0], group.candidate[0])
        related.add_group(site, group.reference, group.candidate)
    if groups.unread:
        text = f"{counted(groups.unread, 'tensor')} without a partner: too large to look for a relation"
        related.notes.append(Note(NoteSlug.NOT_SEARCHED, text))


def pair_tied(plan: Plan, related: RelatedTensors, tolerance: Tolerance, rules: Rules) -> None:
    """Pair tensors without a partner that are a paired one under a second name."""
    for side, tensor, site in list(_find_tied(plan, related.pairs, related.leftovers, tolerance, rules)):
        related.pairs.append(site)
        related.tied.append((side, tensor))
        related.leftovers = [item for item in related.leftovers if (item.side, item.name) != (side, tensor.name)]


def _find_tied(
    plan: Plan, pairs: Sequence[SitePair], leftovers: Sequence[Leftover], tolerance: Tolerance, rules: Rules
) -> Iterator[tuple[str, TensorRef, SitePair]]:
    """Yield tensors without a partner that are a paired one under a second name, each with its pair."""
    from nndiff.relations import measure_related, prove_tied, shares_storage

    blocks: dict[str, Counter[str]] = {
        REFERENCE: Counter(without_numbers(name) for name in plan.reference.tensors),
        CANDIDATE: Counter(without_numbers(name) for name in plan.candidate.tensors),
    }
    for leftover in leftovers:
        if not leftover.counts or (leftover.site is not None and leftover.site.slot is not Slot.PARAM):
            continue
        on_reference = leftover.side == REFERENCE
        tensor = (plan.reference if on_reference else plan.candidate).tensors[leftover.name]
        for site in pairs:
            twin, partner = (site.reference, site.candidate) if on_reference else (site.candidate, site.reference)
            if not site.pair.certain or (leftover.site is not None and twin.site.slot is not leftover.site.slot):
                continue  # what a module computes may be equal to a parameter, and is none
            is_copy = without_numbers(tensor.name) == without_numbers(twin.name) and not shares_storage(tensor, twin)
            if is_copy and blocks[CANDIDATE if on_reference else REFERENCE][without_numbers(partner.name)] > 1:
                continue  # a block more that begins as a copy, where the other side has blocks of its own
            relation = prove_tied(tensor, twin)
            if relation is None:
                continue
            sides = (tensor, partner) if on_reference else (partner, tensor)
            bounds = choose_bounds(plan, [sides[0]], [sides[1]], tolerance)
            if tensor.missing or partner.missing:
                break
            pair = make_related_pair(plan, [sides[0]], [sides[1]], bounds)
            if tensor.shape == partner.shape:
                metrics = measure_related(relation, [sides[0]], [sides[1]], bounds.atol, bounds.rtol)
                tied = apply_relation(pair, relation, metrics, rules)
                # where its twin is rounded, or has rows added, so has the tensor: that is still to be proven
                pair = tied if tied.verdict.passed else replace(tied, stored=metrics)
            yield leftover.side, tensor, SitePair(pair, *sides)
            break


def choose_bounds(
    plan: Plan, references: Sequence[TensorRef], candidates: Sequence[TensorRef], tolerance: Tolerance
) -> Bounds:
    """Return how tensors of two files or recordings that belong together are judged."""
    if plan.recorded:
        return RecordedTolerance(tolerance, plan.reference, plan.candidate).choose_bounds(references, candidates)
    names = [tensor.name for tensor in (*references, *candidates)]
    return Bounds(*tolerance.for_pair(names, references[0].dtype, candidates[0].dtype))


def make_related_pair(
    plan: Plan,
    references: Sequence[TensorRef],
    candidates: Sequence[TensorRef],
    bounds: Bounds,
) -> Pair:
    """Return the pair of tensors that a relation brings together; several on a side go by all their names."""
    reference, candidate = references[0], candidates[0]
    return Pair(
        candidate=plan.label,
        reference_name=JOINT.join(tensor.name for tensor in references),
        candidate_name=JOINT.join(tensor.name for tensor in candidates),
        method=Method.CONTENT,
        certain=True,
        verdict=Verdict.DIFFERENT if reference.shape == candidate.shape else Verdict.SHAPE,
        shape=(reference.shape, candidate.shape),
        dtype=(reference.dtype.name, candidate.dtype.name),
        order=0,
        atol=bounds.atol,
        rtol=bounds.rtol,
        scale=bounds.scale,
        noise=bounds.noise,
        sites=(reference.site, candidate.site) if plan.recorded else None,
    )


def count_tied_once(reference: Side, candidate: Side, tied: Sequence[tuple[str, TensorRef]]) -> tuple[Side, Side]:
    """Return both sides with tensors that are stored under a second name counted once."""
    sides = {REFERENCE: reference, CANDIDATE: candidate}
    for role, tensor in tied:
        side = sides[role]
        trainable = side.trainable - (tensor.count if looks_trainable(tensor.name, tensor.dtype) else 0)
        sides[role] = replace(side, elements=side.elements - tensor.count, trainable=trainable)
    return sides[REFERENCE], sides[CANDIDATE]
