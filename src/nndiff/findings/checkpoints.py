"""Why two checkpoints differ, or how they are the same: one finding for each relation, not for each tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from nndiff.diagnosis.site_pairs import SitePair
from nndiff.findings.causes import Cause
from nndiff.findings.config_files import find_changed_settings
from nndiff.findings.relation_wording import describe_relation
from nndiff.findings.tensor_facts import explain_moved, find_tensor_facts
from nndiff.names import without_numbers
from nndiff.plan import Plan
from nndiff.relations import Relation
from nndiff.relations.buffers import compare_frequencies
from nndiff.relations.proof import agree_after, read_array
from nndiff.result import JOINT, REFERENCE, Finding, Leftover
from nndiff.tensors import Shape, TensorRef
from nndiff.text import first_few
from nndiff.verdict import RelationKind, Verdict

CHOSEN_BY_LAYER = (RelationKind.TIED, RelationKind.CAST, RelationKind.QUANTISED)
UNDONE = frozenset({RelationKind.LAYOUT, RelationKind.SCALE, RelationKind.SHIFT})  # nothing is lost
MOST_PATTERNS = 3  # patterns of names that a finding spells out


def explain_checkpoints(plan: Plan, pairs: Sequence[SitePair], leftovers: Sequence[Leftover]) -> Iterator[Finding]:
    """Yield what is known of two checkpoints beside their numbers, the most telling first."""
    everything = [*plan.reference.tensors]
    yield from find_relations(plan, pairs, everything)
    yield from find_exceptions(plan, pairs)
    yield from find_renamed(pairs, everything)
    yield from find_frequencies(pairs)
    unexplained = [site for site in pairs if site.pair.verdict in (Verdict.DIFFERENT, Verdict.NOT_FINITE)]
    unexplained = [site for site in unexplained if site.pair.related is None]
    left = [item for item in leftovers if item.counts and item.side == REFERENCE]
    moved = explain_moved(unexplained, [plan.reference.tensors[item.name] for item in left])
    if moved is not None:
        yield moved
        unexplained = [site for site in unexplained if site.reference.name not in moved.where]
    explained = [site for site in pairs if site.passed or site.pair.related is not None]
    yield from find_tensor_facts(unexplained, explained)
    yield from find_changed_settings(plan.settings)


def find_relations(plan: Plan, pairs: Sequence[SitePair], everything: Sequence[str]) -> Iterator[Finding]:
    """Yield one finding for each relation that was proven, with all the tensors it holds for."""
    groups: dict[tuple[Cause, str, bool], dict[str, list[SitePair]]] = {}
    for site in pairs:
        related = site.pair.related
        if related is not None and isinstance(related.relation, Relation):
            text = describe_relation(related.relation, *list_tensors(plan, site))
            details = groups.setdefault((text.cause, text.sentence, related.accepted), {})
            details.setdefault(text.detail, []).append(site)
    for (cause, sentence, accepted), details in groups.items():
        sites = [site for group in details.values() for site in group]
        names = [tensor.name for site in sites for tensor in list_tensors(plan, site)[0]]
        known = [detail for detail in details if detail]
        specifics = f" ({first_few(known, MOST_PATTERNS, '; ')})" if known else ""
        evidence = f"{summarize_names(names, everything)}: {sentence}{specifics}"
        related = sites[0].pair.related
        kinds = related.relation.kinds if related is not None else ()
        accept = f"or --accept {','.join(kind.value for kind in kinds)}"
        repair = f"convert the reference again, {accept}"
        if UNDONE.issuperset(kinds):
            repair = f"nndiff map CAND REF -o map.json, nndiff convert CAND --map map.json; {accept}"
        repair = "" if accepted else repair
        yield Finding(cause, tuple(site.pair.name for site in sites), evidence, repair, 1.0, harmless=accepted)


def find_exceptions(plan: Plan, pairs: Sequence[SitePair]) -> Iterator[Finding]:
    """Yield tensors that are not related as most of those at their place in other blocks: a conversion left them out.

    A tensor for which the relation of the others holds as well is none. Nor is one of another precision, which may be
    chosen layer by layer.
    """
    families: dict[tuple[str, Shape, Shape], list[SitePair]] = {}
    for site in pairs:
        if site.passed or site.pair.related is not None:
            family = without_numbers(site.pair.reference_name), *site.pair.shape
            families.setdefault(family, []).append(site)
    groups: dict[str, tuple[dict[str, None], list[SitePair], list[str]]] = {}
    for (pattern, *_), sites in families.items():
        relations = [site.pair.related.relation if site.pair.related is not None else None for site in sites]
        relation, count = max(((known, relations.count(known)) for known in relations), key=lambda known: known[1])
        if not isinstance(relation, Relation) or relation.kind in CHOSEN_BY_LAYER or 2 * count <= len(sites):
            continue
        for site, own in zip(sites, relations, strict=True):
            tensors = list_tensors(plan, site)
            usual = describe_relation(relation.without_rounding(), *tensors)
            text = describe_relation(own.without_rounding(), *tensors) if isinstance(own, Relation) else None
            arrays = [[read_array(tensor) for tensor in side] for side in tensors if text != usual]
            if text == usual or agree_after(relation, arrays[0], arrays[1], 0.0, 0.0):
                continue
            sentence, how = usual.sentence, "equal as it is stored" if text is None else text.sentence
            families_of_sentence, left_out, texts = groups.setdefault(sentence, ({}, [], []))
            families_of_sentence[f"{count:,} of {len(sites):,} `{pattern.split(JOINT)[0]}`"] = None
            left_out.append(site)
            texts.append(f"`{tensors[0][0].name}` ({how})")
    for sentence, (most, left_out, texts) in groups.items():
        evidence = f"{first_few(list(most), MOST_PATTERNS)}: {sentence}; not so {first_few(texts, MOST_PATTERNS)}"
        repair = "check whether the conversion left it out or treated it twice: --accept lets it pass"
        yield Finding(Cause.EXCEPTION, tuple(site.pair.name for site in left_out), evidence, repair, 0.9)


def list_tensors(plan: Plan, site: SitePair) -> tuple[list[TensorRef], list[TensorRef]]:
    """Return the tensors of a pair, of which a relation may bring together several."""
    reference, candidate = (
        [source.tensors[part] for part in ((name,) if name in source.tensors else name.split(JOINT))]
        for source, name in ((plan.reference, site.pair.reference_name), (plan.candidate, site.pair.candidate_name))
    )
    return reference, candidate


def find_frequencies(pairs: Sequence[SitePair]) -> Iterator[Finding]:
    """Yield rotary frequencies that were computed from another base or scaling."""
    changes: dict[str, list[str]] = {}
    for site in pairs:
        if site.passed or site.pair.related is not None:
            continue
        change = compare_frequencies(site.reference, site.candidate)
        if change is not None and change.reference is not None and change.candidate is not None:
            sides = change.reference, change.candidate
            text = " against ".join(f"theta {side.theta:g}" for side in sides)
            if sides[0].factor != sides[1].factor:
                text += f", scaled by {sides[0].factor:g} against {sides[1].factor:g}"
            changes.setdefault(text, []).append(site.pair.name)
    for text, names in changes.items():
        repair = "set rope_theta and rope_scaling of the candidate to those of the reference"
        yield Finding(Cause.ROPE_THETA, tuple(names), f"rotary frequencies: {text}", repair, 1.0)


def find_renamed(pairs: Sequence[SitePair], everything: Sequence[str]) -> Iterator[Finding]:
    """Yield which tensors go by other names, where names did not pair them."""
    renamed = []
    for site in pairs:
        is_group = JOINT in site.pair.reference_name + site.pair.candidate_name
        is_equal = site.passed or site.pair.related is not None
        if site.pair.method.is_by_content and is_equal and not is_group:
            renamed.append(site)
    if not renamed:
        return
    patterns: dict[tuple[str, str], None] = {}
    for site in renamed:
        patterns[without_numbers(site.pair.reference_name), without_numbers(site.pair.candidate_name)] = None
    examples = [f"`{reference}` is `{candidate}`" for reference, candidate in patterns]
    names = list(dict.fromkeys(site.pair.reference_name for site in renamed))  # one may be stored twice on a side
    evidence = f"{len(names):,} of {len(everything):,} paired by their values: {first_few(examples, MOST_PATTERNS)}"
    yield Finding(Cause.RENAMED, tuple(names), evidence, "", 1.0, harmless=True)


def summarize_names(names: Sequence[str], everything: Iterable[str]) -> str:
    """Return how many tensors these are and which: `all 24 of layers.#.q_proj.weight`."""
    if len(names) == 1:
        return f"`{names[0]}`"
    patterns = Counter(without_numbers(name) for name in names)
    in_all = Counter(without_numbers(name) for name in everything)
    is_all = all(in_all[pattern] == count for pattern, count in patterns.items())
    count = f"all {len(names):,}" if is_all else f"{len(names):,}"
    return f"{count} of " + first_few([f"`{pattern}`" for pattern in patterns], MOST_PATTERNS)
