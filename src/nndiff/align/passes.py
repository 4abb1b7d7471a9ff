"""Pairing in passes, the surest first: map, rename, name, wrapper prefixes, one common prefix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nndiff.align.plan import Alignment, Tensors
from nndiff.align.rules import Rename, expand_map, rename_all
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
    for ref_name, cand_name in expand_map(mapping or {}, work.reference, work.candidate).items():
        work.pair(ref_name, cand_name, "map")
    new_names, idle = rename_all(candidate, renames)
    work.pair_equal({name: name for name in work.reference}, new_names, "name", new_names)
    if renames:  # rules may be written for names without their wrappers
        bare = {name: strip_wrappers(name) for name in work.candidate}
        rewritten = {name: _rewritten(new, renames) for name, new in bare.items()}
        work.pair_equal({name: strip_wrappers(name) for name in work.reference}, rewritten, "rename")
        idle = [rule for rule in idle if all(rule.apply(name) == name for name in map(strip_wrappers, candidate))]
    work.pair_equal(
        {name: strip_wrappers(name) for name in work.reference},
        {name: strip_wrappers(name) for name in work.candidate},
        "prefix",
    )
    notes = [*_pair_by_common_prefix(work)]
    _pair_the_only_ones(work)
    notes += [f"--rename {rule.pattern.pattern!r} changed no name of the candidate" for rule in idle]
    return tuple(notes)


def _rewritten(name: str, renames: Iterable[Rename]) -> str:
    for rule in renames:
        name = rule.apply(name)
    return name


def _pair_by_common_prefix(work: Work) -> list[str]:
    """Pair what is left if one side's names are the other's behind one and the same prefix.

    A guess by nature, so it asks for much: the prefix must pair at least two names, at least half of
    the side that lacks it, each with the same shape, and no other prefix may do as well.
    """
    found = [
        (pairs, prefix)
        for flipped in (False, True)
        for prefix, pairs in _by_prefix(work, flipped).items()
        if len(pairs) >= 2 and 2 * len(pairs) >= len(work.candidate if flipped else work.reference)
    ]
    if not found:
        return []
    found.sort(key=lambda each: len(each[0]), reverse=True)
    (pairs, prefix), *others = found
    if others and len(others[0][0]) == len(pairs):
        return [f"the prefixes {prefix!r} and {others[0][1]!r} pair equally many names: neither was taken"]
    for ref_name, cand_name in pairs:
        work.pair(ref_name, cand_name, f"prefix {prefix}")
    return []


def _by_prefix(work: Work, flipped: bool) -> dict[str, list[tuple[str, str]]]:
    """Return the pairs each prefix would make; `flipped`: the reference's names are the longer ones."""
    short, long = (work.candidate, work.reference) if flipped else (work.reference, work.candidate)
    found: dict[str, list[tuple[str, str]]] = {}
    for longer in long:
        start = longer.find(".") + 1
        while start:
            name = longer[start:]
            if name in short:
                pair = (longer, name) if flipped else (name, longer)
                if work.same_shape(*pair):
                    found.setdefault(longer[:start], []).append(pair)
            start = longer.find(".", start) + 1
    return found


def _pair_the_only_ones(work: Work) -> None:
    """Pair the one tensor of each side: a file of a single array gives it no name worth the word."""
    if len(work.all_reference) == len(work.all_candidate) == 1 and work.reference and work.candidate:
        (ref_name,), (cand_name,) = work.reference, work.candidate
        if work.same_shape(ref_name, cand_name):
            work.pair(ref_name, cand_name, "the only one")
