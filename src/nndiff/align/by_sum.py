"""Several tensors that together hold the values of one: fused, stacked, split among files. Their hashes add up.

The sum of the hashes of the parts is that of the whole, whatever the layout. Parts are looked for among tensors that
differ in one number of their names (experts, shards, stacked layers), then among any two to four. What other layers
or tensors of the same modules show is followed for constants, which fit everywhere, and for values that changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from nndiff.align.alignment import Draft, GroupMatch
from nndiff.align.contents import Contents, Hashes
from nndiff.align.name_parts import cut_at_numbers, get_parent
from nndiff.align.places import Places, learn_from_draft
from nndiff.names import natural_key, without_numbers
from nndiff.result import Method
from nndiff.stats.content_hashes import ALL_BITS, ContentHash

_MOST_PARTS = 1000  # tensors among which any two or three are tried: half a million sums
_MOST_FOR_FOUR = 250  # tensors among which any four are tried
_MOST_JOINED = 3  # families of parts in one whole: the gate and up projections of all experts
_MOST_FAMILIES = 12  # families of the same numbers among which some are joined

Key = tuple[int, int]
Names = tuple[str, ...]


def pair_groups(
    draft: Draft, contents: Contents, reference: Hashes, candidate: Hashes, follow_only: bool = False
) -> None:
    """Pair single tensors of one side with several of the other by the hashes given, and by what such groups show."""
    for whole_side in (0, 1) if not follow_only else ():
        hashes = (reference, candidate) if whole_side == 0 else (candidate, reference)
        telling: list[Hashes] = []
        for side, side_hashes in zip((whole_side, 1 - whole_side), hashes, strict=True):
            tensors = draft.tensors_of(bool(side))
            free = [name for name in draft.free_names(bool(side)) if name in side_hashes]
            telling.append({name: side_hashes[name] for name in free if contents.is_varied(tensors[name])})
        for list_parts in (list_families, list_small_sums):
            _pair_found(draft, whole_side, list_parts(telling[0], telling[1]))
    _follow_groups(draft, reference, candidate, by_place=follow_only)


def _pair_found(draft: Draft, whole_side: int, found: Iterator[tuple[str, Names]]) -> None:
    """Pair wholes with parts where there is one way to do it."""
    choices: dict[str, set[Names]] = {}
    for whole, parts in found:
        choices.setdefault(whole, set()).add(tuple(sorted(parts, key=natural_key)))
    owners: dict[str, set[str]] = {}
    for whole, ways in choices.items():
        for parts in ways:
            for part in parts:
                owners.setdefault(part, set()).add(whole)
    for whole, ways in choices.items():
        parts = next(iter(ways))
        if len(ways) > 1 or any(len(owners[part]) > 1 for part in parts):
            continue
        if is_free(draft, whole_side, whole, parts):
            names = ((whole,), parts) if whole_side == 0 else (parts, (whole,))
            draft.pair_group(GroupMatch(names[0], names[1], Method.GROUP))


def is_free(draft: Draft, whole_side: int, whole: str, parts: Names) -> bool:
    """Return True if none of these tensors has a partner."""
    part_names = draft.free_names(not whole_side)
    return whole in draft.free_names(bool(whole_side)) and all(part in part_names for part in parts)


def add_hashes(hashes: Sequence[ContentHash]) -> Key:
    """Return the key of what several tensors hold together."""
    return sum(content.values for content in hashes) & ALL_BITS, sum(content.count for content in hashes)


def list_families(wholes: Hashes, parts: Hashes) -> Iterator[tuple[str, Names]]:
    """Yield wholes with the parts whose names differ in one number, or in all; also some such families joined."""
    names_of_key: dict[Key, list[str]] = {}
    for name, content in wholes.items():
        names_of_key.setdefault(content.key, []).append(name)
    families: dict[str, dict[str, dict[int, str]]] = {}  # by the texts before and after the number
    all_numbers: dict[str, list[str]] = {}
    for name in parts:
        for cut in cut_at_numbers(name):
            families.setdefault(cut.before, {}).setdefault(cut.after, {})[cut.number] = name
        all_numbers.setdefault(without_numbers(name), []).append(name)
    choices: list[Names] = [tuple(names) for names in all_numbers.values()]
    for siblings in families.values():
        by_numbers: dict[frozenset[int], list[Names]] = {}
        for members in siblings.values():
            by_numbers.setdefault(frozenset(members), []).append(tuple(members.values()))
        for alike in by_numbers.values():
            choices += alike
            for size in range(2, _MOST_JOINED + 1):
                for joined in combinations(alike[:_MOST_FAMILIES], size):
                    choices.append(tuple(name for names in joined for name in names))
    for names in choices:
        if len(names) > 1:
            for whole in names_of_key.get(add_hashes([parts[name] for name in names]), ()):
                yield whole, names


def list_small_sums(wholes: Hashes, parts: Hashes) -> Iterator[tuple[str, Names]]:
    """Yield wholes with any two, three or four parts that add up to them; neighbours only where parts are many."""
    largest = max((content.count for content in wholes.values()), default=0)
    names = sorted((name for name, content in parts.items() if content.count < largest), key=natural_key)
    if len(names) > _MOST_PARTS:
        yield from _list_neighbours(wholes, parts, names)
        return
    if len(names) < 2:
        return
    hashes = np.array([parts[name].values for name in names], np.uint64)
    pairs = np.stack(np.triu_indices(len(names), 1), axis=1)
    sums = hashes[pairs[:, 0]] + hashes[pairs[:, 1]]
    order = np.argsort(sums, kind="stable")
    sorted_sums = sums[order]
    singles = np.arange(len(names)).reshape(-1, 1)
    for whole, content in wholes.items():
        target = np.uint64(content.values)
        choices = {tuple(pairs[place].tolist()) for place in _find_sum(sorted_sums, order, target)}
        for firsts, values in ((singles, hashes), (pairs, sums if len(names) <= _MOST_FOR_FOUR else sums[:0])):
            rests = target - values
            nearest = np.minimum(np.searchsorted(sorted_sums, rests), len(sums) - 1)
            for index in np.nonzero(sorted_sums[nearest] == rests)[0]:
                for place in _find_sum(sorted_sums, order, rests[index]):
                    choices.add(tuple(sorted({*firsts[index].tolist(), *pairs[place].tolist()})))
        for choice in choices:
            chosen = tuple(names[index] for index in choice)
            if add_hashes([parts[name] for name in chosen]) == content.key:
                yield whole, chosen


def _find_sum(sorted_sums: NDArray[np.uint64], order: NDArray[np.intp], target: np.uint64) -> NDArray[np.intp]:
    """Return the places of a sum before it was sorted."""
    start, stop = np.searchsorted(sorted_sums, target), np.searchsorted(sorted_sums, target, side="right")
    return order[start:stop]


def _list_neighbours(wholes: Hashes, parts: Hashes, names: Sequence[str]) -> Iterator[tuple[str, Names]]:
    """Yield wholes with two to four parts that follow one another in natural order."""
    names_of_key: dict[Key, list[str]] = {}
    for name, content in wholes.items():
        names_of_key.setdefault(content.key, []).append(name)
    for start in range(len(names)):
        for size in (2, 3, 4):
            chosen = tuple(names[start : start + size])
            for whole in names_of_key.get(add_hashes([parts[name] for name in chosen]), ()):
                yield whole, chosen


def _follow_groups(draft: Draft, reference: Hashes, candidate: Hashes, by_place: bool) -> None:
    """Pair the tensors that lie beside a known group as that one does: in the same modules, or in other layers.

    Their hashes must add up, unless they are paired by place alone.
    """
    pending = [group for group in draft.groups if group.certain]
    while pending:
        places = learn_from_draft(draft)
        known, pending = pending, []
        for group in known:
            for names in (*_list_siblings(draft, group), *_list_layers(group, places)):
                if not _fits(draft, names):
                    continue
                is_equal = _add_up(names[0], reference) == _add_up(names[1], candidate) is not None
                if is_equal or by_place:
                    following = GroupMatch(names[0], names[1], Method.GROUP if is_equal else Method.BLOCK)
                    draft.pair_group(following)
                    pending.append(following)


def _add_up(names: Names, hashes: Hashes) -> Key | None:
    """Return the key of what tensors hold together; None if one was not hashed."""
    if any(name not in hashes for name in names):
        return None
    return add_hashes([hashes[name] for name in names])


def _fits(draft: Draft, names: tuple[Names, Names]) -> bool:
    """Return True if all these tensors are free and both sides have equally many elements."""
    counts = []
    for side, side_names in enumerate(names):
        free, tensors = draft.free_names(bool(side)), draft.tensors_of(bool(side))
        if any(name not in free for name in side_names):
            return False
        counts.append(sum(tensors[name].count for name in side_names))
    return counts[0] == counts[1]


def _list_siblings(draft: Draft, group: GroupMatch) -> Iterator[tuple[Names, Names]]:
    """Yield the groups that other tensors of the same modules would make: biases beside weights."""
    parents = [[get_parent(name) for name in names] for names in (group.reference, group.candidate)]
    for name in list(draft.free_reference):
        if name not in group.reference and get_parent(name) == parents[0][0]:
            leaf = name.rpartition(".")[2]
            yield tuple(f"{parent}.{leaf}" for parent in parents[0]), tuple(f"{parent}.{leaf}" for parent in parents[1])


def _list_layers(group: GroupMatch, places: Places) -> Iterator[tuple[Names, Names]]:
    """Yield the groups that tensors of the same names in other layers would make."""
    for before, number, endings in _cut_together(group.reference):
        for partner_before, partner_number, partner_endings in _cut_together(group.candidate):
            if places.predict_block(before, partner_before, number) != partner_number:
                continue
            for layer in places.numbers_of(before):
                partner_layer = places.predict_block(before, partner_before, layer)
                if layer != number and partner_layer is not None:
                    names = tuple(f"{before}{layer}{ending}" for ending in endings)
                    yield names, tuple(f"{partner_before}{partner_layer}{ending}" for ending in partner_endings)


def _cut_together(names: Names) -> Iterator[tuple[str, int, Names]]:
    """Yield the blocks that several tensors lie in, with what follows in each name."""
    for cut in cut_at_numbers(names[0]):
        if all(name.startswith(cut.block) for name in names):
            yield cut.before, cut.number, tuple(name[len(cut.block) :] for name in names)
