"""The order of the passes for files: the user's rules, names, and the only array of files without names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nndiff.align.alignment import Alignment, Draft, Tensors
from nndiff.align.by_name import Spelling, pair_by_name, pair_nameless
from nndiff.align.by_rule import Rename, pair_by_map
from nndiff.align.hints import file_hints


def align(
    reference: Tensors,
    candidate: Tensors,
    renames: Sequence[Rename] = (),
    mapping: Mapping[str, str] | None = None,
    nameless: bool = False,
) -> Alignment:
    """Pair the tensors of two files by name, reading nothing; `nameless`: both hold one array without a name."""
    draft = Draft(reference, candidate)
    pair_by_map(draft, mapping or {})
    notes = pair_by_name(draft, renames, Spelling(renames, mapping))
    if nameless:
        pair_nameless(draft)
    return Alignment(
        draft.matches_in_order(),
        only_reference=file_hints(draft, is_candidate=False),
        only_candidate=file_hints(draft, is_candidate=True),
        notes=notes,
    )
