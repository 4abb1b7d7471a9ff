"""The state of an alignment under way: what is paired and what is still free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence

from nndiff.align.hints import Suggest, name_hints
from nndiff.align.plan import Alignment, Match, Slice, Tensors


class Work:
    """Hold what is paired and what is still free."""

    def __init__(self, reference: Tensors, candidate: Tensors) -> None:
        self.all_reference, self.all_candidate = reference, candidate
        self.reference = dict.fromkeys(reference)  # free names, in order
        self.candidate = dict.fromkeys(candidate)
        self.matches: dict[str, Match] = {}
        self.slices: dict[str, Slice] = {}
        self._of_parts: dict[str, list[Match]] = {}  # of a reference's tensor that is compared in parts

    def free(self, candidate: bool) -> dict[str, None]:
        """Return the free names of a side, in order."""
        return self.candidate if candidate else self.reference

    def tensors(self, candidate: bool) -> Tensors:
        """Return all tensors of a side."""
        return self.all_candidate if candidate else self.all_reference

    def pair(self, ref_name: str, cand_name: str, matched_by: str) -> None:
        """Pair two free names."""
        self.matches[ref_name] = Match(ref_name, cand_name, matched_by)
        del self.reference[ref_name], self.candidate[cand_name]

    def unpair(self, ref_name: str) -> None:
        """Make a pair free again."""
        match = self.matches.pop(ref_name)
        self.reference[match.reference] = self.candidate[match.candidate] = None

    def pair_parts(self, pieces: Sequence[Slice], matched_by: str) -> None:
        """Pair free tensors of one side with the stretches of one of the other."""
        whole, flipped = pieces[0].of, pieces[0].flipped
        self.slices.update({piece.name: piece for piece in pieces})
        if flipped:
            self._of_parts[whole] = [Match(piece.name, piece.part, matched_by) for piece in pieces]
        else:
            self.matches.update({piece.part: Match(piece.part, piece.name, matched_by) for piece in pieces})
        del self.free(not flipped)[whole]
        for piece in pieces:
            del self.free(flipped)[piece.part]

    def partners(self) -> dict[int, int]:
        """Return which recorded events are paired whole: order in the reference and in the candidate."""
        whole = (match for match in self.matches.values() if match.candidate in self.all_candidate)
        return {
            self.all_reference[match.reference].trace.order: self.all_candidate[match.candidate].trace.order
            for match in whole
        }

    def hold_back(self, reference: Container[str], candidate: Container[str]) -> tuple[list[str], list[str]]:
        """Take what belongs to these modules out of what is free; return the names of both sides."""
        held = (
            [name for name in self.reference if self.all_reference[name].site.module in reference],
            [name for name in self.candidate if self.all_candidate[name].site.module in candidate],
        )
        for free, names in zip((self.reference, self.candidate), held, strict=True):
            for name in names:
                del free[name]
        return held

    def give_back(self, held: tuple[list[str], list[str]]) -> None:
        """Make free again what was held back."""
        self.reference.update(dict.fromkeys(held[0]))
        self.candidate.update(dict.fromkeys(held[1]))

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
        matches = tuple(self._in_order())
        paired = [match.reference for match in matches if match.reference in self.all_reference]
        answered = [match.candidate for match in matches if match.candidate in self.all_candidate]
        return Alignment(
            matches,
            suggest(left_ref, left_cand, {name: self.all_reference[name] for name in paired}),
            suggest(left_cand, left_ref, {name: self.all_candidate[name] for name in answered}),
            notes,
            self.slices,
        )

    def _in_order(self) -> Iterator[Match]:
        for name in self.all_reference:
            if name in self.matches:
                yield self.matches[name]
            yield from self._of_parts.get(name, ())

    def same_shape(self, ref_name: str, cand_name: str) -> bool:
        """Tell whether two tensors have the same shape."""
        return self.all_reference[ref_name].shape == self.all_candidate[cand_name].shape


def _unique(keys: Mapping[str, str]) -> dict[str, str]:
    """Return {key: name} of the keys that stand for one name only."""
    counts = Counter(keys.values())
    return {key: name for name, key in keys.items() if counts[key] == 1}
