"""Pairing in passes, the surest first: map, rename, name, wrapper prefixes, one common prefix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nndiff.align.plan import Alignment, Tensors
from nndiff.align.rules import Rename, check_map, rename_all
from nndiff.align.work import Work
from nndiff.names import strip_wrappers


def align(
    reference: Tensors,
    candidate: Tensors,
    renames: Sequence[Rename] = (),
    mapping: Mapping[str, str] | None = None,
) -> Alignment:
    """Pair the tensors of two sources by name; read nothing."""
    work = Work(reference, candidate)
    notes = pair_by_name(work, renames, mapping)
    return work.alignment(notes)


def pair_by_name(work: Work, renames: Sequence[Rename], mapping: Mapping[str, str] | None) -> tuple[str, ...]:
    """Run all passes that go by names alone; return notes on rules that did nothing."""
    candidate = list(work.candidate)
    check_map(mapping or {}, work.reference, candidate)
    for ref_name, cand_name in (mapping or {}).items():
        work.pair(ref_name, cand_name, "map")
    new_names, idle = rename_all(candidate, renames)
    work.pair_equal({name: name for name in work.reference}, new_names, "name", new_names)
    if renames:  # rules may be written for names without their wrappers
        bare = {name: strip_wrappers(name) for name in work.candidate}
        rewritten = {name: _rewritten(new, renames) for name, new in bare.items()}
        work.pair_equal({name: strip_wrappers(name) for name in work.reference}, rewritten, "rename")
    work.pair_equal(
        {name: strip_wrappers(name) for name in work.reference},
        {name: strip_wrappers(name) for name in work.candidate},
        "prefix",
    )
    _pair_by_common_prefix(work)
    return tuple(f"--rename {rule.pattern.pattern!r} changed no name of the candidate" for rule in idle)


def _rewritten(name: str, renames: Iterable[Rename]) -> str:
    for rule in renames:
        name = rule.apply(name)
    return name


def _pair_by_common_prefix(work: Work) -> None:
    """Pair what is left if one side's names are the other's behind one and the same prefix.

    A guess by nature, so it asks for much: the prefix must pair every free name of the smaller
    side, at least two, each with the same shape.
    """
    small, large = sorted((work.reference, work.candidate), key=len)
    if len(small) < 2:
        return
    flipped = small is work.candidate
    for prefix in _prefixes(small, large):
        partners = {name: prefix + name for name in small}
        if all(longer in large for longer in partners.values()) and _fits(work, partners, flipped):
            for name, longer in partners.items():
                ref_name, cand_name = (longer, name) if flipped else (name, longer)
                work.pair(ref_name, cand_name, f"prefix {prefix}")
            return


def _prefixes(small: Mapping[str, None], large: Mapping[str, None]) -> list[str]:
    first = next(iter(small))
    return [name[: -len(first)] for name in large if name.endswith("." + first)]


def _fits(work: Work, partners: Mapping[str, str], flipped: bool) -> bool:
    pairs = ((longer, name) if flipped else (name, longer) for name, longer in partners.items())
    return all(work.same_shape(ref_name, cand_name) for ref_name, cand_name in pairs)
