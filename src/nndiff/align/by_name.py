"""Pairing by names: as written, without wrappers, behind one common prefix."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from nndiff.align.alignment import Draft, GroupMatch
from nndiff.align.by_rule import Rename, apply_renames, is_inside, rename_all
from nndiff.names import natural_key, strip_wrappers
from nndiff.result import Method, Note, NoteSlug
from nndiff.tensors import Site, Slot

_SHARD = re.compile(r"(.+)\[[0-9]+\]")  # as sources/shards.py names tensors that are split among files
_FEWEST_BY_PREFIX = 2  # names a common prefix must pair: one may go by another's name by chance


class Spelling:
    """Spell the names of both sides alike: the user's rules applied, wrappers and the common prefix left out."""

    def __init__(self, renames: Sequence[Rename] = (), mapping: Mapping[str, str] | None = None) -> None:
        self.prefix = ""  # known once names were paired by it
        self._renames = renames
        longest_first = sorted((mapping or {}).items(), key=lambda entry: -len(entry[1]))
        self._mapping = [(candidate, reference) for reference, candidate in longest_first]

    def of_reference(self, name: str) -> str:
        """Return how a tensor of the reference is spelt."""
        return strip_wrappers(name).removeprefix(self.prefix)

    def of_candidate(self, name: str) -> str:
        """Return how a tensor of the candidate is spelt."""
        for module, partner in self._mapping:
            if is_inside(name, module):
                return self.of_reference(partner + name[len(module) :])
        return self.of_reference(apply_renames(name, self._renames))

    def of_module(self, module: str, is_candidate: bool) -> str:
        """Return how a module is spelt, by what its output would be called; "" is the model itself."""
        if not module:
            return ""
        name = Site(module, Slot.OUTPUT).name
        spelt = self.of_candidate(name) if is_candidate else self.of_reference(name)
        return spelt.partition(":")[0]


NamePairs = list[tuple[str, str]]
ChoosePairs = Callable[[Draft, Sequence[NamePairs]], int | None]  # the place of those that belong together, if one does


def pair_by_name(
    draft: Draft, renames: Sequence[Rename], spelling: Spelling, choose_pairs: ChoosePairs | None = None
) -> tuple[Note, ...]:
    """Run all passes that go by names alone; return notes on rules and prefixes that did nothing.

    Where two prefixes do equally well, `choose_pairs` may look at the tensors.
    """
    candidates = list(draft.free_candidate)
    new_names, without_effect = rename_all(candidates, renames)
    changed_names = {name for name, new_name in new_names.items() if new_name != name}
    draft.pair_equal_keys({name: name for name in draft.free_reference}, new_names, Method.NAME, changed_names)
    if renames:  # rules may be written for names without their wrappers
        rewritten = {name: apply_renames(strip_wrappers(name), renames) for name in draft.free_candidate}
        draft.pair_equal_keys({name: strip_wrappers(name) for name in draft.free_reference}, rewritten, Method.RENAME)
        bare_names = {strip_wrappers(name) for name in candidates}
        without_effect = [rule for rule in without_effect if all(rule.apply(name) == name for name in bare_names)]
    draft.pair_equal_keys(
        {name: strip_wrappers(name) for name in draft.free_reference},
        {name: strip_wrappers(name) for name in draft.free_candidate},
        Method.PREFIX,
    )
    notes = list(_pair_by_common_prefix(draft, spelling, choose_pairs))
    for rule in without_effect:
        text = f"--rename {rule.pattern.pattern!r} changed no name of the candidate"
        notes.append(Note(NoteSlug.RULE_WITHOUT_EFFECT, text))
    return tuple(notes)


def _pair_by_common_prefix(draft: Draft, spelling: Spelling, choose_pairs: ChoosePairs | None) -> tuple[Note, ...]:
    """Pair what is left if one side's names are the other's behind one and the same prefix.

    A guess by nature, so it asks for much: the prefix must pair at least two names, at least half of
    the side that lacks it, each with the same shape, and no other prefix may do as well.
    """
    choices: list[tuple[str, bool, NamePairs]] = []
    for prefix_in_reference in (False, True):
        without_prefix = draft.free_names(is_candidate=prefix_in_reference)
        for prefix, pairs in _pairs_by_prefix(draft, prefix_in_reference).items():
            if len(pairs) >= _FEWEST_BY_PREFIX and 2 * len(pairs) >= len(without_prefix):
                choices.append((prefix, prefix_in_reference, pairs))
    most = max((len(pairs) for _, _, pairs in choices), default=0)
    choices = [choice for choice in choices if len(choice[2]) == most]
    chosen = 0 if len(choices) == 1 else None
    if len(choices) > 1 and choose_pairs is not None:
        chosen = choose_pairs(draft, [pairs for _, _, pairs in choices])
    if chosen is not None:
        spelling.prefix, _, pairs = choices[chosen]
        for reference_name, candidate_name in pairs:
            draft.pair(reference_name, candidate_name, Method.PREFIX)
    elif choices:
        return (_note_ambiguous_prefix(choices[0][0], choices[1][0], choices[0][1]),)
    return ()


def _note_ambiguous_prefix(prefix: str, rival: str, in_reference: bool) -> Note:
    """Return the note on two prefixes that do equally well, with the options that decide."""
    option = f"::{prefix.rstrip('.')} after the reference's path"
    if not in_reference:
        option = f"::{prefix.rstrip('.')} after the candidate's path, or --rename '^{re.escape(prefix)}=>'"
    text = f"the prefixes {prefix!r} and {rival!r} pair equally many names, so neither was used; choose one: {option}"
    return Note(NoteSlug.AMBIGUOUS_PREFIX, text)


def _pairs_by_prefix(draft: Draft, prefix_in_reference: bool) -> dict[str, list[tuple[str, str]]]:
    """Return the pairs (reference, candidate) that each prefix would make."""
    short_names = draft.free_names(is_candidate=prefix_in_reference)
    pairs_of_prefix: dict[str, list[tuple[str, str]]] = {}
    for long_name in draft.free_names(is_candidate=not prefix_in_reference):
        start = long_name.find(".") + 1
        while start:
            short_name = long_name[start:]
            pair = (long_name, short_name) if prefix_in_reference else (short_name, long_name)
            if short_name in short_names and draft.have_same_shape(*pair):
                pairs_of_prefix.setdefault(long_name[:start], []).append(pair)
            start = long_name.find(".", start) + 1
    return pairs_of_prefix


def pair_nameless(draft: Draft) -> None:
    """Pair the one array of two files that give it no name."""
    if len(draft.reference) == len(draft.candidate) == 1 and draft.free_reference and draft.free_candidate:
        (reference_name,), (candidate_name,) = draft.free_reference, draft.free_candidate
        if draft.have_same_shape(reference_name, candidate_name):
            draft.pair(reference_name, candidate_name, Method.ONLY)


def pair_shards(draft: Draft) -> None:
    """Pair a tensor with the shards of its name, `name[0]` and `name[1]`, if they have as many elements together."""
    for whole_side in (0, 1):
        shards: dict[str, list[str]] = {}
        for name in draft.free_names(not whole_side):
            found = _SHARD.fullmatch(name)
            if found:
                shards.setdefault(strip_wrappers(found[1]), []).append(name)
        wholes, parts = draft.tensors_of(bool(whole_side)), draft.tensors_of(not whole_side)
        for name in list(draft.free_names(bool(whole_side))):
            names = tuple(sorted(shards.get(strip_wrappers(name), ()), key=natural_key))
            if names and sum(parts[shard].count for shard in names) == wholes[name].count:
                sides = ((name,), names) if whole_side == 0 else (names, (name,))
                draft.pair_group(GroupMatch(sides[0], sides[1], Method.NAME))
                del shards[strip_wrappers(name)]
