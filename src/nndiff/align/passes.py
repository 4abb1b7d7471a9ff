"""Pairing in passes, the surest first: map, rename, name, wrapper prefixes, one common prefix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from nndiff.align.hints import hints
from nndiff.align.plan import Alignment, Match, Tensors
from nndiff.align.rules import Rename, check_map, rename_all
from nndiff.names import strip_wrappers


def align(
    reference: Tensors,
    candidate: Tensors,
    renames: Sequence[Rename] = (),
    mapping: Mapping[str, str] | None = None,
) -> Alignment:
    """Pair the tensors of two sources by name; read nothing."""
    work = _Work(reference, candidate)
    check_map(mapping or {}, reference, candidate)
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
    notes = tuple(f"--rename {rule.pattern.pattern!r} changed no name of the candidate" for rule in idle)
    return work.alignment(notes)


def _rewritten(name: str, renames: Iterable[Rename]) -> str:
    for rule in renames:
        name = rule.apply(name)
    return name


class _Work:
    """Hold what is paired and what is still free."""

    def __init__(self, reference: Tensors, candidate: Tensors) -> None:
        self._reference, self._candidate = reference, candidate
        self.reference = dict.fromkeys(reference)  # free names, in order
        self.candidate = dict.fromkeys(candidate)
        self.matches: dict[str, Match] = {}

    def pair(self, ref_name: str, cand_name: str, matched_by: str) -> None:
        """Pair two free names."""
        self.matches[ref_name] = Match(ref_name, cand_name, matched_by)
        del self.reference[ref_name], self.candidate[cand_name]

    def pair_equal(
        self,
        ref_keys: Mapping[str, str],
        cand_keys: Mapping[str, str],
        matched_by: str,
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        """Pair free names whose keys are equal; a key that stands for two names on a side decides nothing."""
        ref_of = _unique({name: key for name, key in ref_keys.items() if name in self.reference})
        cand_of = _unique({name: key for name, key in cand_keys.items() if name in self.candidate})
        for key, ref_name in ref_of.items():
            cand_name = cand_of.get(key)
            if cand_name is not None:
                changed = renamed is not None and renamed[cand_name] != cand_name
                self.pair(ref_name, cand_name, "rename" if changed else matched_by)

    def alignment(self, notes: tuple[str, ...]) -> Alignment:
        """Return the plan, in the reference's order."""
        left_ref = {name: self._reference[name] for name in self.reference}
        left_cand = {name: self._candidate[name] for name in self.candidate}
        return Alignment(
            tuple(self.matches[name] for name in self._reference if name in self.matches),
            hints(left_ref, left_cand),
            hints(left_cand, left_ref),
            notes,
        )

    def same_shape(self, ref_name: str, cand_name: str) -> bool:
        """Tell whether two tensors have the same shape."""
        return self._reference[ref_name].shape == self._candidate[cand_name].shape


def _unique(keys: Mapping[str, str]) -> dict[str, str]:
    """Return {key: name} of the keys that stand for one name only."""
    counts = Counter(keys.values())
    return {key: name for name, key in keys.items() if counts[key] == 1}


def _pair_by_common_prefix(work: _Work) -> None:
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


def _fits(work: _Work, partners: Mapping[str, str], flipped: bool) -> bool:
    pairs = ((longer, name) if flipped else (name, longer) for name, longer in partners.items())
    return all(work.same_shape(ref_name, cand_name) for ref_name, cand_name in pairs)
