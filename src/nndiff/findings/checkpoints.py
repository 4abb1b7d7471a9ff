"""Why two checkpoints differ, or how they are the same: one finding for each relation, not for each tensor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from nndiff.diagnosis.site_pairs import SitePair
from nndiff.findings.causes import Cause
from nndiff.findings.config_files import find_changed_settings
from nndiff.findings.relation_wording import describe_relation
from nndiff.names import without_numbers
from nndiff.plan import Plan
from nndiff.relations import Relation
from nndiff.result import JOINT, Finding, Leftover, Method
from nndiff.text import first_few

BY_CONTENT = (Method.CONTENT,)
MOST_PATTERNS = 3  # patterns of names that a finding spells out


def explain_checkpoints(plan: Plan, pairs: Sequence[SitePair], leftovers: Sequence[Leftover]) -> Iterator[Finding]:
    """Yield what is known of two checkpoints beside their numbers, the most telling first."""
    everything = [*plan.reference.tensors]
    yield from find_relations(plan, pairs, everything)
    yield from find_renamed(pairs, everything)
    yield from find_changed_settings(plan.settings)


def find_relations(plan: Plan, pairs: Sequence[SitePair], everything: Sequence[str]) -> Iterator[Finding]:
    """Yield one finding for each relation that was proven, with all the tensors it holds for."""
    groups: dict[tuple[Cause, str], list[SitePair]] = {}
    for site in pairs:
        related = site.pair.related
        if related is not None and isinstance(related.relation, Relation):
            reference = [plan.reference.tensors[name] for name in site.pair.reference_name.split(JOINT)]
            candidate = [plan.candidate.tensors[name] for name in site.pair.candidate_name.split(JOINT)]
            groups.setdefault(describe_relation(related.relation, reference, candidate), []).append(site)
    for (cause, what), sites in groups.items():
        related = sites[0].pair.related
        assert related is not None
        names = [name for site in sites for name in site.pair.reference_name.split(JOINT)]
        kind = related.relation.kind.value
        repair = "" if related.accepted else f"convert with nndiff map and nndiff convert, or --accept {kind}"
        yield Finding(
            cause,
            tuple(site.pair.name for site in sites),
            f"{summarize_names(names, everything)}: {what}",
            repair,
            1.0,
            harmless=related.accepted,
        )


def find_renamed(pairs: Sequence[SitePair], everything: Sequence[str]) -> Iterator[Finding]:
    """Yield which tensors go by other names, where names did not pair them."""
    renamed = [site for site in pairs if site.pair.method in BY_CONTENT]
    if not renamed:
        return
    patterns: dict[tuple[str, str], None] = {}
    for site in renamed:
        patterns[without_numbers(site.pair.reference_name), without_numbers(site.pair.candidate_name)] = None
    examples = [f"`{reference}` is `{candidate}`" for reference, candidate in patterns]
    names = [site.pair.reference_name for site in renamed]
    what = f"other names: {first_few(examples, MOST_PATTERNS)}"
    evidence = f"{summarize_names(names, everything, spell_out=False)}: {what}"
    yield Finding(Cause.RENAMED, tuple(names), evidence, "", 1.0, harmless=True)


def summarize_names(names: Sequence[str], everything: Iterable[str], spell_out: bool = True) -> str:
    """Return how many tensors these are and which: `all 24 of layers.#.q_proj.weight`, `12 tensors (...)`."""
    if len(names) == 1:
        return f"`{names[0]}`"
    patterns = Counter(without_numbers(name) for name in names)
    in_all = Counter(without_numbers(name) for name in everything)
    is_all = all(in_all[pattern] == count for pattern, count in patterns.items())
    count = f"all {len(names):,}" if is_all else f"{len(names):,}"
    if not spell_out:
        return f"{count} tensors"
    return f"{count} of " + first_few([f"`{pattern}`" for pattern in patterns], MOST_PATTERNS)
