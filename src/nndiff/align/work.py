"""The state of an alignment under way: what is paired and what is still free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from nndiff.align.hints import Suggest, name_hints
from nndiff.align.plan import Alignment, Match, Tensors


class Work:
    """Hold what is paired and what is still free."""

    def __init__(self, reference: Tensors, candidate: Tensors) -> None:
        self.all_reference, self.all_candidate = reference, candidate
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

    def alignment(self, notes: tuple[str, ...], suggest: Suggest = name_hints) -> Alignment:
        """Return the plan, in the reference's order."""
        left_ref = {name: self.all_reference[name] for name in self.reference}
        left_cand = {name: self.all_candidate[name] for name in self.candidate}
        paired = {match.reference for match in self.matches.values()}
        answered = {match.candidate for match in self.matches.values()}
        return Alignment(
            tuple(self.matches[name] for name in self.all_reference if name in self.matches),
            suggest(left_ref, left_cand, {name: self.all_reference[name] for name in paired}),
            suggest(left_cand, left_ref, {name: self.all_candidate[name] for name in answered}),
            notes,
        )

    def same_shape(self, ref_name: str, cand_name: str) -> bool:
        """Tell whether two tensors have the same shape."""
        return self.all_reference[ref_name].shape == self.all_candidate[cand_name].shape


def _unique(keys: Mapping[str, str]) -> dict[str, str]:
    """Return {key: name} of the keys that stand for one name only."""
    counts = Counter(keys.values())
    return {key: name for name, key in keys.items() if counts[key] == 1}
