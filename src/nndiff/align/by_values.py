"""Pairing files by what their tensors hold: the same bytes, the same values, the same once rounded, or by their place.

Only tensors that names left over take part. Equal contents are paired if there is one of them on each side. Several
equal ones are told apart by the places that certain pairs show, and if those do not tell, by nothing.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from nndiff.align.alignment import Draft
from nndiff.align.block_order import restore_block_order
from nndiff.align.by_sum import pair_groups
from nndiff.align.contents import Contents, Hashes, keep_fitting, list_readable
from nndiff.align.name_parts import list_by_region
from nndiff.align.places import Places, learn_from_draft
from nndiff.result import Method, Note, NoteSlug
from nndiff.stats.content_hashes import Rounding, find_roundings
from nndiff.tensors import TensorRef

_MOST_COMPARED = 50  # names of one kind and part that are compared with those of the other side; it is slow
_MOST_NAMED = 3  # sets of equal tensors that a note names

_WORD = re.compile(r"[A-Za-z]+")
Kinds = Mapping[str, Hashable]  # by name, of one side: only tensors of one kind are paired


EqualNames = tuple[list[str], list[str]]  # of both sides: tensors that hold the same values


def pair_by_values(draft: Draft) -> list[EqualNames]:
    """Pair the free tensors of two files by what they hold; return equal ones that could not be told apart."""
    contents = Contents()
    tensors, partners = list_readable(draft, is_candidate=False), list_readable(draft, is_candidate=True)
    reference = contents.hash_tensors(keep_fitting(tensors, partners))
    candidate = contents.hash_tensors(keep_fitting(partners, tensors))
    _pair_equal(draft, contents, reference, candidate)
    pair_groups(draft, contents, reference, candidate)
    for hashes in _hash_rounded(draft, contents):
        for names in list_unique_pairs(draft, contents, *hashes):
            draft.pair(*names, Method.CAST)
        pair_groups(draft, contents, *hashes)
    _pair_equal(draft, contents, reference, candidate)  # places are known now that were not before
    _pair_tied(draft, contents, reference, candidate)
    for hashes in _hash_rounded(draft, contents):
        _pair_tied(draft, contents, *hashes)
    equal = group_by_key(draft, reference, candidate)  # what nothing has told apart so far
    _pair_by_block(draft, {name for names in equal for side in names for name in side})
    pair_groups(draft, contents, reference, candidate, follow_only=True)
    restore_block_order(draft)
    return group_by_key(draft, reference, candidate)


def name_method(draft: Draft, contents: Contents, reference: str, candidate: str) -> Method:
    """Return CONTENT for two tensors of the same bytes, VALUES for others of the same values, CAST for rounded ones."""
    tensors = draft.reference[reference], draft.candidate[candidate]
    hashes = [contents.hash_tensor(tensor) for tensor in tensors]
    same_form = tensors[0].shape == tensors[1].shape and tensors[0].dtype == tensors[1].dtype
    if hashes[0].key != hashes[1].key:
        return Method.CAST
    return Method.CONTENT if same_form and hashes[0].placed == hashes[1].placed else Method.VALUES


def group_by_key(draft: Draft, reference: Hashes, candidate: Hashes, in_order: bool = False) -> list[EqualNames]:
    """Return the free tensors of both sides that hold the same values, in the same order if asked."""
    groups: dict[Hashable, EqualNames] = {}
    for side, hashes in enumerate((reference, candidate)):
        for name in draft.free_names(bool(side)):
            if name in hashes:
                key = hashes[name] if in_order else hashes[name].key
                groups.setdefault(key, ([], []))[side].append(name)
    return [names for names in groups.values() if all(names)]


def list_unique_pairs(
    draft: Draft, contents: Contents, reference: Hashes, candidate: Hashes
) -> Iterator[tuple[str, str]]:
    """Yield free tensors that hold the same and have no equals on their sides: first by order too, then by values."""
    for in_order, is_telling in ((True, contents.is_telling), (False, contents.is_varied)):
        for references, candidates in group_by_key(draft, reference, candidate, in_order):
            if len(references) == len(candidates) == 1 and is_telling(draft.reference[references[0]]):
                yield references[0], candidates[0]


def _pair_equal(draft: Draft, contents: Contents, reference: Hashes, candidate: Hashes) -> None:
    """Pair tensors of equal values: the only ones on each side, then those whose places are known."""
    for names in list_unique_pairs(draft, contents, reference, candidate):
        draft.pair(*names, name_method(draft, contents, *names))
    keys = {name: content.key for name, content in reference.items()}
    partner_keys = {name: content.key for name, content in candidate.items()}

    def choose_method(reference_name: str, candidate_name: str) -> Method:
        return name_method(draft, contents, reference_name, candidate_name)

    def is_certain(name: str, is_inside: bool) -> bool:
        return is_inside or contents.is_varied(draft.reference[name])

    PlacePairing(draft, keys, partner_keys, choose_method, is_certain).run()


def _pair_tied(draft: Draft, contents: Contents, reference: Hashes, candidate: Hashes) -> None:
    """Pair a tensor that the other side holds several times: the others are tied to the one that is paired."""
    for in_order, is_telling in ((True, contents.is_telling), (False, contents.is_varied)):
        for references, candidates in group_by_key(draft, reference, candidate, in_order):
            if min(len(references), len(candidates)) > 1 or not is_telling(draft.reference[references[0]]):
                continue
            choices = [(name, partner) for name in references for partner in candidates]
            names = max(choices, key=lambda choice: share_words(*choice))  # the first of several that are as good
            draft.pair(*names, name_method(draft, contents, *names))


def _hash_rounded(draft: Draft, contents: Contents) -> Iterator[tuple[Hashes, Hashes]]:
    """Yield hashes of the free tensors, those of one side rounded to a type that those of the other were rounded to."""
    roundings: tuple[dict[str, tuple[Rounding, ...]], ...] = ({}, {})
    for side in (0, 1):
        for tensor in list_readable(draft, bool(side)):
            if tensor.dtype.kind == "float" and tensor.count > 1:
                roundings[side][tensor.name] = find_roundings(tensor)
    for rounded_side, rounding in product((0, 1), Rounding):
        sides: list[list[TensorRef]] = [[], []]
        for side in (0, 1):
            for tensor in draft.free_tensors(bool(side)):
                is_rounded = rounding in roundings[side].get(tensor.name, ())
                if tensor.name in roundings[side] and is_rounded is (side != rounded_side):
                    sides[side].append(tensor)
        hashes: list[Hashes] = []
        for side in (0, 1):
            fitting = keep_fitting(sides[side], sides[1 - side])
            hashes.append(contents.hash_tensors(fitting, rounding if side == rounded_side else Rounding.NOTHING))
        yield hashes[0], hashes[1]


def _pair_by_block(draft: Draft, ambiguous: set[str]) -> None:
    """Pair tensors of other values by their places; those that are ambiguous by content stay so."""
    kinds: list[dict[str, Hashable]] = [{}, {}]
    for side in (0, 1):
        for tensor in draft.free_tensors(bool(side)):
            if tensor.name not in ambiguous and tensor.count and tensor.dtype.kind == "float":
                kinds[side][tensor.name] = tuple(sorted(size for size in tensor.shape if size > 1))
    PlacePairing(draft, kinds[0], kinds[1], lambda *names: Method.BLOCK, lambda *place: False).run()


def measure_similarity(name: str, partner: str) -> float:
    """Return the share of letters that two names have in common."""
    return difflib.SequenceMatcher(None, name, partner, autojunk=False).ratio()


def share_words(name: str, partner: str) -> float:
    """Return the share of words that two names have in common."""
    words, partner_words = set(_WORD.findall(name)), set(_WORD.findall(partner))
    return len(words & partner_words) / max(1, len(words | partner_words))


@dataclass(frozen=True)
class PlacePairing:
    """Pair free tensors of one kind by their places in the models."""

    draft: Draft
    reference_kinds: Kinds
    candidate_kinds: Kinds
    choose_method: Callable[[str, str], Method]
    is_certain: Callable[
        [str, bool], bool
    ]  # of a tensor that its region tells: is it inside one, or in the whole model

    def run(self) -> None:
        """Pair until nothing more is found: every certain pair may show the place of another."""
        while self._list_free():
            places = learn_from_draft(self.draft)
            if not (self._pair_predicted(places) or self._pair_in_regions(places)):
                return

    def _list_free(self) -> list[str]:
        """Return the free tensors of the reference that one of the candidate is of a kind with."""
        free_kinds = {self.candidate_kinds[name] for name in self.draft.free_candidate if name in self.candidate_kinds}
        return [name for name in self.draft.free_reference if self.reference_kinds.get(name) in free_kinds]

    def _pair_predicted(self, places: Places) -> bool:
        """Pair tensors whose names other blocks show."""
        predicted: dict[str, str] = {}
        for name in self._list_free():
            fitting = []
            for partner in places.predict_names(name):
                is_free = partner in self.draft.free_candidate
                if is_free and self.candidate_kinds.get(partner) == self.reference_kinds[name]:
                    fitting.append(partner)
            if len(fitting) == 1:
                predicted[name] = fitting[0]
        votes = Counter(predicted.values())
        unique = {name: partner for name, partner in predicted.items() if votes[partner] == 1}
        for name, partner in unique.items():
            self.draft.pair(name, partner, self.choose_method(name, partner))
        return bool(unique)

    def _pair_in_regions(self, places: Places) -> bool:
        """Pair the only tensors of a kind in one part of the models, or those of the most similar names there."""
        names = list_by_region(self._list_free())
        partners = list_by_region(name for name in self.draft.free_candidate if name in self.candidate_kinds)
        found = False
        for region, partner_region in places.regions():
            kinds: dict[Hashable, tuple[list[str], list[str]]] = {}
            for name in names.get(region, ()):
                if name in self.draft.free_reference:
                    kinds.setdefault(self.reference_kinds[name], ([], []))[0].append(name)
            for name in partners.get(partner_region, ()):
                if name in self.draft.free_candidate:
                    kinds.setdefault(self.candidate_kinds[name], ([], []))[1].append(name)
            for references, candidates in kinds.values():
                for name, partner in match_names(references, candidates, len(region), len(partner_region)):
                    certain = self.is_certain(name, bool(region))
                    self.draft.pair(name, partner, self.choose_method(name, partner), certain)
                    found = True
        return found


def match_names(
    references: Sequence[str], candidates: Sequence[str], skipped: int, partner_skipped: int
) -> list[tuple[str, str]]:
    """Return the only two names, or of equally many those that are most similar to each other and to none as much."""
    if len(references) != len(candidates) or len(references) > _MOST_COMPARED:
        return []
    if len(references) == 1:
        return [(references[0], candidates[0])]
    scores: dict[tuple[str, str], float] = {}
    for reference in references:
        for candidate in candidates:
            scores[reference, candidate] = measure_similarity(reference[skipped:], candidate[partner_skipped:])
    matched = []
    for (reference, candidate), score in scores.items():
        rivals = [scores[reference, rival] for rival in candidates if rival != candidate]
        rivals += [scores[rival, candidate] for rival in references if rival != reference]
        if score > max(rivals):
            matched.append((reference, candidate))
    return matched


def note_ambiguous(groups: Sequence[EqualNames]) -> tuple[Note, ...]:
    """Return a note that names some of the tensors that could not be told apart."""
    if not groups:
        return ()
    described = []
    for references, candidates in groups[:_MOST_NAMED]:
        described.append(f"{_list_names(references)} and {_list_names(candidates)}")
    more = f"; and {len(groups) - _MOST_NAMED} more sets" if len(groups) > _MOST_NAMED else ""
    text = f"equal tensors that could not be told apart were not paired, see --map: {'; '.join(described)}{more}"
    return (Note(NoteSlug.AMBIGUOUS_CONTENT, text),)


def _list_names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMED])
    return f"{shown}, ..." if len(names) > _MOST_NAMED else shown
