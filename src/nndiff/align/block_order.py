"""Layers run in the order of their numbers: where contents pair them in disorder, they are paired in order again.

A number is no mere name. Layers that a conversion wrote in the order of their numbers read as text (0, 1, 10, 2) have
equal contents under other numbers, and make another network. Numbers that count down may be a convention.
"""

from __future__ import annotations

from itertools import pairwise

from nndiff.align.alignment import Draft
from nndiff.align.name_parts import cut_at_numbers
from nndiff.align.places import Numbers, learn_from_draft
from nndiff.result import Method

FEWEST_ORDERED = 3  # blocks: two that are exchanged count down


def restore_block_order(draft: Draft) -> None:
    """Pair the tensors of blocks that contents pair in disorder by the order of the blocks' numbers."""
    for before, partner_before, numbers in list(learn_from_draft(draft).list_counted_alike()):
        if is_monotone(numbers):
            continue
        in_order = dict(zip(sorted(numbers), sorted(numbers.values()), strict=True))
        moved: dict[str, str] = {}
        for match in draft.matches.values():
            for cut in cut_at_numbers(match.reference) if match.method.is_by_content else ():
                for partner in cut_at_numbers(match.candidate):
                    if cut.before == before and partner.before == partner_before:
                        moved[match.reference] = f"{partner_before}{in_order[cut.number]}{partner.after}"
        partners = {draft.matches[name].candidate for name in moved}
        if set(moved.values()) != partners or not all(draft.have_same_shape(*names) for names in moved.items()):
            continue  # the blocks are not alike
        draft.unpair(moved)
        for name, partner_name in moved.items():
            draft.pair(name, partner_name, Method.BLOCK)


def is_monotone(numbers: Numbers) -> bool:
    """Return True if blocks follow one another on both sides alike, or in reverse."""
    partners = [numbers[number] for number in sorted(numbers)]
    steps = {after > before for before, after in pairwise(partners)}
    return len(numbers) < FEWEST_ORDERED or len(steps) == 1
