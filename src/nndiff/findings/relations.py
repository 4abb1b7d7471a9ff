"""Proven relations between paired tensors, and layers compared part by part, as findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nndiff.diagnosis.site_pairs import SitePair, final_outputs_agree
from nndiff.findings.case import Case
from nndiff.findings.causes import Cause
from nndiff.findings.relation_wording import describe_form
from nndiff.relations import Relation as ProvenRelation
from nndiff.relations import describe_layout
from nndiff.relations.order import read_order
from nndiff.result import Finding, InputState, Relation
from nndiff.tensors import Slot
from nndiff.text import plural
from nndiff.verdict import RelationKind

_CAUSES = {
    RelationKind.CAST: Cause.CAST,
    RelationKind.SCALE: Cause.SCALED,
    RelationKind.SHIFT: Cause.SHIFTED,
    RelationKind.QUANTISED: Cause.QUANTISED,
    RelationKind.FOLD: Cause.FOLDED,
    RelationKind.VOCAB: Cause.VOCAB,
    RelationKind.TIED: Cause.TIED,
    RelationKind.MASK: Cause.MASK,
    RelationKind.LAYOUT: Cause.RESHAPED,
}
# Operations that say more than their kind; the first that a relation has decides.
_CAUSES_OF_OPERATIONS = (
    ("fold_batch_norm", Cause.BATCH_NORM_FOLDED),
    ("weight_norm", Cause.WEIGHT_NORM),
    ("weight_norm_gradient", Cause.WEIGHT_NORM),
    ("concatenate", Cause.FUSED),
    ("stack", Cause.FUSED),
    ("slice", Cause.FUSED),
    ("take", Cause.FUSED),
    ("arrange", Cause.FUSED),
    ("expand", Cause.BROADCAST),
    ("sum", Cause.BROADCAST),
    ("permute", Cause.PERMUTED),
)


def get_cause(relation: Relation) -> Cause:
    """Return the cause a relation is told as."""
    if relation.kind in (RelationKind.LAYOUT, RelationKind.FOLD):
        stored = relation.to_dict()
        both = [operation for side in ("reference", "candidate") for operation in stored.get(side, ())]
        if any(operation.get("is_batch_norm") for operation in both):
            return Cause.BATCH_NORM_FOLDED
        operations = {operation.get("op") for operation in both}
        for operation, cause in _CAUSES_OF_OPERATIONS:
            if operation in operations:
                return cause
    return _CAUSES[relation.kind]


def name_cause(site: SitePair, relation: Relation) -> Cause:
    """Return the cause that the relation of a pair is told as; an order of places along one axis by its name."""
    if not isinstance(relation, ProvenRelation) or site.reference.shape != site.candidate.shape:
        return get_cause(relation)
    if relation.kind is not RelationKind.LAYOUT or relation.reference or read_order(relation.candidate) is None:
        return get_cause(relation)
    name = f"{site.module}.{site.reference.site.tensor}".strip(".")
    shape = [site.reference.shape]
    return describe_form(describe_layout(relation, shape, shape, [name]), relation, ()).cause


def find_relations(case: Case) -> Iterator[Finding]:
    """Yield one finding for each cause, with all the tensors whose relation was proven; one each for what to accept."""
    groups: dict[tuple[Cause, bool, str], list[SitePair]] = {}
    for site in case.run.pairs:
        related = site.pair.related
        if related is None or site.is_part or (site.is_gradient and related.relation.kind is RelationKind.SCALE):
            continue  # fused layers and gradients of one factor have findings of their own
        if related.accepted and not site.passed:
            continue  # a gradient, measured in the layout of its tensor
        text = "" if related.accepted else related.relation.text
        groups.setdefault((name_cause(site, related.relation), related.accepted, text), []).append(site)
    for (cause, accepted, text), sites in groups.items():
        evidence = f"{plural(len(sites), 'tensor')}: {cause.description}{_give_example(sites)}"
        harmless = accepted or case.passed
        repair = ""
        if not harmless and sites[0].pair.related is not None:
            apply = f"{text} on the candidate's side, or " if text else ""
            repair = f"{apply}accept it with --accept {sites[0].pair.related.relation.kind.value}"
        yield Finding(cause, tuple(site.pair.name for site in sites), evidence, repair, 0.99, harmless)


def _give_example(sites: Sequence[SitePair]) -> str:
    """Return the relation of the first tensor and its shapes, where they say something."""
    related = sites[0].pair.related
    if related is None or not related.relation.text:
        return ""
    shapes = sites[0].candidate.shape, sites[0].reference.shape
    change = f", {list(shapes[0])} to {list(shapes[1])}" if shapes[0] != shapes[1] else ""
    texts = {site.pair.related.relation.text for site in sites if site.pair.related is not None}
    which = "" if len(texts) == 1 else "the first by "
    return f"; {which}{related.relation.text}{change}"


def find_fused_layers(case: Case) -> Iterator[Finding]:
    """Yield the layers that were compared part by part; where their parts differ, nobody knows that they are fused."""
    layers: dict[str, None] = {}
    differing: set[str] = set()
    for site in case.run.pairs:
        if not site.is_part:
            continue
        larger = next((tensor for tensor in site.tensors if tensor.trace.whole is not None), site.reference)
        layers[larger.site.module] = None
        if site.slot is Slot.OUTPUT and not site.passed:
            differing.add(larger.site.module)
    agreeing = tuple(layer for layer in layers if layer not in differing)
    if agreeing:
        places = "" if len(agreeing) == 1 else f", in {len(agreeing):,} places"
        evidence = f"one layer does the work of several on the other side{places}; compared part by part"
        yield Finding(Cause.FUSED, agreeing, evidence, "", 1.0, harmless=True)


def find_layout_change(case: Case) -> Iterator[Finding]:
    """Yield the module after which tensors have another layout, where no module is known to differ on its own.

    A layout that changes inside is accepted, and whoever takes the tensor as if it had not changed is wrong.
    """
    first, run = case.first, case.run
    if first is None or first.slot is not Slot.OUTPUT or final_outputs_agree(run.pairs):
        return
    if run.get_input_state(first) is InputState.AGREE:
        return
    for site in run.outputs:
        related = site.pair.related
        if related is None or not site.passed or not site.has_relation(RelationKind.LAYOUT):
            continue
        if site.order < first.order and run.get_input_state(site, as_stored=True) is InputState.AGREE:
            yield Finding(
                get_cause(related.relation),
                (site.pair.name,),
                f"the candidate's layout changes here ({related.relation.text}), before anything differs",
                f"check that what takes the output of {site.candidate_module or 'the model'} expects this layout",
                0.5,
            )
            return
