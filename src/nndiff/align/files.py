"""The order of the passes for files: the user's rules, names, the only array of files without names, then values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nndiff.align.alignment import Alignment, Draft, Tensors
from nndiff.align.by_name import NamePairs, Spelling, pair_by_name, pair_nameless, pair_shards
from nndiff.align.by_rule import Rename, pair_by_map
from nndiff.align.hints import file_hints


def choose_equal_pairs(draft: Draft, choices: Sequence[NamePairs]) -> int | None:
    """Return which of several sets of pairs holds the most equal tensors; None if no other has fewer."""
    from nndiff.align.contents import Contents  # what only content needs

    contents = Contents()
    scores = []
    for pairs in choices:
        tensors = [(draft.reference[name], draft.candidate[partner]) for name, partner in pairs]
        scores.append(sum(contents.are_equal(tensor, partner) for tensor, partner in tensors))
    best = max(scores)
    return scores.index(best) if scores.count(best) == 1 else None


def align(
    reference: Tensors,
    candidate: Tensors,
    renames: Sequence[Rename] = (),
    mapping: Mapping[str, str] | None = None,
    nameless: bool = False,
    content: bool = False,
) -> Alignment:
    """Pair the tensors of two files by name and, if asked, by content; reads tensors only for the latter.

    `nameless`: both hold one array without a name.
    """
    draft = Draft(reference, candidate)
    pair_by_map(draft, mapping or {})
    notes = pair_by_name(draft, renames, Spelling(renames, mapping), choose_equal_pairs if content else None)
    if nameless:
        pair_nameless(draft)
    pair_shards(draft)
    equal: list[tuple[list[str], list[str]]] = []
    if content and draft.free_reference and draft.free_candidate:
        from nndiff.align.by_values import note_ambiguous, pair_by_values  # what only leftovers need

        equal = pair_by_values(draft)
        notes = (*notes, *note_ambiguous(equal))
    for group in draft.groups:  # until someone proves them
        draft.give_back((set(group.reference), set(group.candidate)))
    hints = file_hints(draft, is_candidate=False), file_hints(draft, is_candidate=True)
    for names in equal:
        for side in (0, 1):
            for name in names[side]:
                hints[side][name] = replace(hints[side][name], partners=tuple(names[1 - side]))
    return Alignment(
        draft.matches_in_order(),
        groups=tuple(draft.groups),
        only_reference=hints[0],
        only_candidate=hints[1],
        notes=notes,
    )
