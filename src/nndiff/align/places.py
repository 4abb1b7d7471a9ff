"""Places of tensors in a model, as certain pairs show them: which block, and which module, belongs to which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from nndiff.align.alignment import Draft
from nndiff.align.name_parts import cut_at_numbers, get_parent

Numbers = dict[int, int]  # of the reference's blocks: those of the candidate
_FEWEST_FOR_RULE = 2  # blocks that must follow a rule before it is trusted for another block


class BlockPair:
    """Hold what certain pairs say about one kind of block of each side: `h.` and `blocks.`."""

    def __init__(self) -> None:
        self._votes: dict[int, set[int]] = {}  # of each of the reference's numbers: those of the candidate
        self._endings: dict[str, dict[str, set[int]]] = {}  # {reference's ending: {candidate's: numbers that show it}}

    def add_pair(self, number: int, partner: int, ending: str, partner_ending: str) -> None:
        """Add a certain pair of tensors in two blocks."""
        self.add_numbers(number, partner)
        self._endings.setdefault(ending, {}).setdefault(partner_ending, set()).add(number)

    def add_numbers(self, number: int, partner: int) -> None:
        """Add two blocks that share a certain pair."""
        self._votes.setdefault(number, set()).add(partner)

    def numbers(self) -> Numbers:
        """Return the blocks that belong together: those about which all pairs agree."""
        chosen: Numbers = {}
        for number, partners in self._votes.items():
            if len(partners) == 1:
                chosen[number] = next(iter(partners))
        taken = Counter(chosen.values())
        return {number: partner for number, partner in chosen.items() if taken[partner] == 1}

    def endings_of(self, ending: str, number: int) -> set[str]:
        """Return what other blocks than this one show that a tensor is called in the candidate."""
        return {partner for partner, shown in self._endings.get(ending, {}).items() if shown - {number}}


def predict_number(known: Numbers, number: int, reference: Iterable[int], candidate: Iterable[int]) -> int | None:
    """Return the candidate's block for one of the reference's: known, or by the rule that all known blocks follow."""
    if number in known:
        return known[number]
    if len(known) < _FEWEST_FOR_RULE:
        return None
    shifts = {partner - block for block, partner in known.items()}
    if len(shifts) == 1:
        return number + shifts.pop()
    sums = {partner + block for block, partner in known.items()}
    if len(sums) == 1:
        return sums.pop() - number
    ours, theirs = set(reference), set(candidate)
    if ours != theirs:
        return None
    in_order, as_texts = sorted(ours), sorted(ours, key=str)  # 0, 1, 10, 11, 2: files listed by their names
    for rule in (dict(zip(in_order, as_texts, strict=True)), dict(zip(as_texts, in_order, strict=True))):
        if all(rule.get(block) == partner for block, partner in known.items()):
            return rule.get(number)
    return None


class Places:
    """Know which places of two models belong together."""

    def __init__(self, reference: Iterable[str], candidate: Iterable[str]) -> None:
        self._blocks: dict[str, dict[str, BlockPair]] = {}  # by the texts before the numbers of both sides
        self._parents: tuple[dict[str, set[str]], dict[str, set[str]]] = ({}, {})
        self._numbers: tuple[dict[str, set[int]], dict[str, set[int]]] = ({}, {})
        self._has_pairs = False
        for numbers, names in zip(self._numbers, (reference, candidate), strict=True):
            for name in names:
                for cut in cut_at_numbers(name):
                    numbers.setdefault(cut.before, set()).add(cut.number)

    def add_pair(self, reference: str, candidate: str) -> None:
        """Learn from a certain pair."""
        self._has_pairs = True
        self._add_parents(reference, candidate)
        for cut in cut_at_numbers(reference):
            for partner in cut_at_numbers(candidate):
                block = self._blocks.setdefault(cut.before, {}).setdefault(partner.before, BlockPair())
                block.add_pair(cut.number, partner.number, cut.after, partner.after)

    def add_neighbours(self, reference: str, candidate: str) -> None:
        """Learn from two tensors of which one is a part of the other: their blocks belong together."""
        for cut in cut_at_numbers(reference):
            for partner in cut_at_numbers(candidate):
                block = self._blocks.setdefault(cut.before, {}).setdefault(partner.before, BlockPair())
                block.add_numbers(cut.number, partner.number)

    def _add_parents(self, reference: str, candidate: str) -> None:
        parents = get_parent(reference), get_parent(candidate)
        if all(parents):
            self._parents[0].setdefault(parents[0], set()).add(parents[1])
            self._parents[1].setdefault(parents[1], set()).add(parents[0])

    def predict_names(self, name: str) -> set[str]:
        """Return what a tensor of the reference is called in the candidate, as other blocks show it."""
        predicted = set()
        for cut in cut_at_numbers(name):
            for before, pair in self._blocks.get(cut.before, {}).items():
                endings = pair.endings_of(cut.after, cut.number)
                number = self.predict_block(cut.before, before, cut.number) if len(endings) == 1 else None
                if number is not None:
                    predicted.add(f"{before}{number}{endings.pop()}")
        return predicted

    def predict_block(self, before: str, partner_before: str, number: int) -> int | None:
        """Return the number of the candidate's block that belongs to one of the reference's."""
        pair = self._blocks.get(before, {}).get(partner_before)
        if pair is None:
            return None
        ours, theirs = self._numbers[0].get(before, ()), self._numbers[1].get(partner_before, ())
        return predict_number(pair.numbers(), number, ours, theirs)

    def list_counted_alike(self) -> Iterator[tuple[str, str, Numbers]]:
        """Yield the texts before the numbers of blocks that belong together, all of both sides, and the numbers."""
        for before, pairs in self._blocks.items():
            for partner_before, pair in pairs.items():
                numbers = pair.numbers()
                covered = set(numbers), set(numbers.values())
                if covered == (self._numbers[0][before], self._numbers[1][partner_before]):
                    yield before, partner_before, numbers

    def numbers_of(self, before: str) -> list[int]:
        """Return the numbers of the reference's blocks of one kind, in order."""
        return sorted(self._numbers[0].get(before, ()))

    def regions(self) -> Iterator[tuple[str, str]]:
        """Yield the parts of both models that belong together, the innermost first and the whole models last."""
        regions: dict[tuple[str, str], None] = {}
        for parent, partners in self._parents[0].items():
            partner = next(iter(partners))
            if len(partners) == 1 and len(self._parents[1][partner]) == 1:
                regions[f"{parent}.", f"{partner}."] = None
        for before, pairs in self._blocks.items():
            for partner_before, pair in pairs.items():
                numbers = pair.numbers()
                if len(numbers) < min(_FEWEST_FOR_RULE, len(self._numbers[0][before])):
                    continue  # one pair says too little about which of its numbers count the same
                for number, partner_number in numbers.items():
                    regions[f"{before}{number}", f"{partner_before}{partner_number}"] = None
        yield from sorted(regions, key=lambda region: -len(region[0]))
        if self._has_pairs:
            yield "", ""


def learn_from_draft(draft: Draft) -> Places:
    """Return the places that the certain pairs and groups of a draft show."""
    places = Places(draft.reference, draft.candidate)
    for match in draft.matches.values():
        if match.certain:
            places.add_pair(match.reference, match.candidate)
    for group in draft.groups:
        for reference in group.reference:
            for candidate in group.candidate:
                places.add_neighbours(reference, candidate)
    return places
