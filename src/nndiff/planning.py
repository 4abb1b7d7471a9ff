"""What will be compared with what: sources opened, names paired, nothing measured yet."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nndiff.align import Alignment, Match, Rename, align
from nndiff.errors import ModelError, UsageError
from nndiff.measuring import Row
from nndiff.names import matches_any, natural_key, selected
from nndiff.recorded import is_gradient, is_inner, not_asked_for, reached, was_cut_off
from nndiff.result import Leftover, not_recorded
from nndiff.sources import Source, open_source
from nndiff.tensors import TensorRef
from nndiff.text import plural


@dataclass(frozen=True)
class Rules:
    """Say how names are paired and which of them count."""

    renames: tuple[Rename, ...] = ()
    mapping: Mapping[str, str] = field(default_factory=dict)
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    groups: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Hold what will be compared with what: one reference against one candidate."""

    label: str
    reference: Source
    candidate: Source
    alignment: Alignment
    notes: tuple[str, ...] = ()
    pieces: Mapping[str, TensorRef] = field(default_factory=dict)  # stretches that were cut out already

    @property
    def recorded(self) -> bool:
        """Tell whether both sides are recordings."""
        return self.reference.kind == self.candidate.kind == "recording"

    def pairs(self) -> Iterator[tuple[Match, TensorRef, TensorRef]]:
        """Yield the pairs: of recordings in order of execution, else in natural order of their names."""
        matches = self.alignment.matches  # in the reference's order already
        for match in matches if self.recorded else sorted(matches, key=lambda each: natural_key(each.reference)):
            yield match, self._tensor(self.reference, match.reference), self._tensor(self.candidate, match.candidate)

    def _tensor(self, source: Source, name: str) -> TensorRef:
        piece = self.alignment.slices.get(name)
        if piece is None:
            return source.tensors[name]
        from nndiff.parts import cut

        return self.pieces.get(name) or cut(source.tensors[piece.of], piece)

    def rows(self) -> Iterator[Row]:
        """Yield the pairs, ready to be measured."""
        return (Row(self.label, *pair) for pair in self.pairs())

    def leftovers(self) -> Iterator[Leftover]:
        """Yield the tensors without a partner, in natural order."""
        whole, matches = self.alignment.whole, self.alignment.matches
        left, right = [whole(each.reference) for each in matches], [whole(each.candidate) for each in matches]
        yield from self._left("reference", self.reference, self.candidate, self.alignment.only_reference, left)
        yield from self._left("candidate", self.candidate, self.reference, self.alignment.only_candidate, right)

    def _left(
        self, side: str, source: Source, other: Source, names: Mapping[str, str], paired: Iterable[str]
    ) -> Iterator[Leftover]:
        end = reached(source.tensors, paired, other.meta) if self.recorded else math.inf
        for name in sorted(names, key=natural_key):
            tensor = source.tensors[name]
            unreached = tensor.trace.order > end
            idle = self.recorded and (is_inner(tensor) or not_asked_for(tensor, other.meta)) and not unreached
            yield Leftover(self.label, side, name, tensor.shape, tensor.dtype.name, names[name], not idle, unreached)


def plan(reference: Any, candidates: Sequence[Any], rules: Rules) -> list[Plan]:
    """Open the sources and pair their tensors, reading no data."""
    if not candidates:
        raise UsageError("a comparison needs a reference and at least one candidate")
    opened = _counting(open_source(reference, "reference"), rules)
    plans: list[Plan] = []
    for number, candidate in enumerate(candidates, 1):
        role = "candidate" if len(candidates) == 1 else f"candidate {number}"
        source = _counting(open_source(candidate, role), rules)
        label = _free_label(source.label, [each.label for each in plans])
        both_recorded = opened.kind == source.kind == "recording"
        if _without_gradients(opened) and _without_gradients(source):
            raise ModelError(
                "neither the reference nor the candidate has a gradient though both went backward: nothing in their "
                "outputs asks for one (frozen, detached, no_grad); leave out --backward (backward=True)"
            )
        full = _pairing(both_recorded)(opened.tensors, source.tensors, rules.renames, rules.mapping)
        kept, notes = filtered(full, rules)
        apart = (*_gradients_apart(opened, source, kept), *_one_sided(opened, source, kept)) if both_recorded else ()
        plans.append(Plan(label, opened, source, kept, (*notes, *apart)))
    return plans


def _one_sided(reference: Source, candidate: Source, found: Alignment) -> Iterator[str]:
    """Yield what of a backward pass one side was recorded without: no difference, but not compared either."""
    sides = (("reference", reference, found.only_reference), ("candidate", candidate, found.only_candidate))
    for (side, source, names), (other, missing, _) in (sides, sides[::-1]):
        unasked = [name for name in names if not_asked_for(source.tensors[name], missing.meta)]
        slots = _slots(source, unasked)
        told = [_many(slots[slot], what) for slot, what in _KINDS.items() if slots[slot] and slot != "grad_input"]
        told += ["the loss"] if slots["loss"] else []
        if told:
            yield f"not compared: {', '.join(told)} of the {side}; the {other} was recorded without"


def _gradients_apart(reference: Source, candidate: Source, found: Alignment) -> Iterator[str]:
    """Yield that gradients of one kind, which both sides have, were not compared at all."""
    paired = {reference.tensors[found.whole(match.reference)].site.slot for match in found.matches}
    left = (_slots(reference, found.only_reference), _slots(candidate, found.only_candidate))
    for slot, what in _KINDS.items():
        if slot not in paired and all(each[slot] for each in left):
            yield (
                f"{what} were not compared: the reference has {left[0][slot]:,}, the candidate {left[1][slot]:,}, and "
                "none of them found a partner; --map and --rename tell which belong together"
            )


_KINDS = {
    "grad_output": "gradients at outputs",
    "grad_input": "gradients at inputs",
    "param_grad": "gradients of parameters",
}


def _many(count: int, what: str) -> str:
    return f"1 {what.replace('gradients', 'gradient', 1)}" if count == 1 else f"{count:,} {what}"


def _slots(source: Source, names: Iterable[str]) -> Counter[str]:
    return Counter(str(source.tensors[name].site.slot) for name in names)


def _counting(source: Source, rules: Rules) -> Source:
    """Return a source whose outputs that could not be recorded are those the rules let in."""
    unread = not_recorded(source.meta)
    if not unread:
        return source
    counting = {name: what for name, what in unread.items() if _counts(rules, name)}
    return replace(source, meta={**source.meta, "not_recorded": counting})


def _without_gradients(source: Source) -> bool:
    """Tell whether a recording was to hold gradients, came to its end and has none."""
    asked = source.meta.get("backward") is True and not was_cut_off(source.meta)
    return asked and not any(is_gradient(tensor) for tensor in source.tensors.values())


def _pairing(recorded: bool) -> Callable[..., Alignment]:
    """Return the way names are paired; what only recordings need is imported only for them."""
    if not recorded:
        return align
    from nndiff.align.sites import align_sites

    return align_sites


def _free_label(label: str, taken: Iterable[str]) -> str:
    free, number = label, 2
    while free in taken:
        free, number = f"{label} ({number})", number + 1
    return free


def filtered(full: Alignment, rules: Rules) -> tuple[Alignment, tuple[str, ...]]:
    """Return the alignment of the names that count, and notes on what does not."""
    if not (rules.include or rules.exclude):
        return full, (*full.notes, *_idle_groups(full, rules))
    matches = tuple(match for match in full.matches if _counts(rules, match.reference, match.candidate))
    only_reference = {name: hint for name, hint in full.only_reference.items() if _counts(rules, name)}
    only_candidate = {name: hint for name, hint in full.only_candidate.items() if _counts(rules, name)}
    kept = Alignment(matches, only_reference, only_candidate, slices=full.slices)
    before = len(full.matches) + len(full.only_reference) + len(full.only_candidate)
    dropped = before - len(matches) - len(only_reference) - len(only_candidate)
    left_out = f"left out by --include/--exclude: {dropped:,} of {plural(before, 'name')}"
    return kept, (*full.notes, left_out, *_idle(full, rules), *_idle_groups(kept, rules))


def _counts(rules: Rules, *names: str) -> bool:
    """Tell whether a pair counts: let in by either name, shut out by none."""
    return any(selected(name, rules.include, ()) for name in names) and all(
        selected(name, (), rules.exclude) for name in names
    )


def _idle(full: Alignment, rules: Rules) -> Iterator[str]:
    names = [name for match in full.matches for name in (match.reference, match.candidate)]
    names += [*full.only_reference, *full.only_candidate]
    for pattern in (*rules.include, *rules.exclude):
        if not any(matches_any(name, (pattern,)) for name in names):
            yield f"the pattern {pattern!r} names no tensor"


def _idle_groups(compared: Alignment, rules: Rules) -> Iterator[str]:
    names = [*(match.reference for match in compared.matches), *compared.only_reference, *compared.only_candidate]
    for group, pattern in rules.groups.items():
        if not any(matches_any(name, (pattern,)) for name in names):
            yield f"the group {group!r} is empty: its pattern {pattern!r} names no tensor that is compared"


def settled(plan: Plan) -> Plan:
    """Return the plan with the stretches of fused layers cut out."""
    if not plan.alignment.slices:
        return plan
    from nndiff.parts import settle

    found = settle(plan.alignment, plan.reference.tensors, plan.candidate.tensors)
    return replace(plan, alignment=found.alignment, pieces=found.pieces)
