"""What will be compared with what: sources opened, names paired, nothing measured yet."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from nndiff.align import Alignment, Hint, Match, Rename, align
from nndiff.conversion import ConversionMap, convert_source, list_unmentioned
from nndiff.errors import ModelError, UsageError
from nndiff.files import unchanged
from nndiff.names import matches_any, natural_key, selected
from nndiff.relations.buffers import is_derived
from nndiff.result import CANDIDATE, REFERENCE, Leftover, LeftoverReason, Note, NoteSlug, SettingDifference
from nndiff.settings import compare_settings, note_harmless_settings
from nndiff.sources import Source, open_source
from nndiff.tensors import Slot, TensorRef
from nndiff.text import counted, plural, printable

_LARGEST_COMPUTED = 1 << 22  # elements of a buffer that are read to see whether it is computed: masks of 2,048 x 2,048


@dataclass(frozen=True)
class PairingRules:
    """Say how names are paired and which of them count."""

    renames: tuple[Rename, ...] = ()
    mapping: Mapping[str, str] = field(default_factory=dict)
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    groups: Mapping[str, str] = field(default_factory=dict)
    conversion: ConversionMap | None = None  # turns the reference into the candidate's names and layout first
    content: bool = True  # tensors of checkpoints that names leave over are paired by what they hold

    def selects(self, *names: str) -> bool:
        """Return True if a pair counts: included by one of its names, excluded by none."""
        included = any(selected(name, self.include, ()) for name in names)
        return included and all(selected(name, (), self.exclude) for name in names)


@dataclass(frozen=True)
class Plan:
    """Hold what will be compared with what: one reference against one candidate."""

    label: str
    reference: Source
    candidate: Source
    alignment: Alignment
    notes: tuple[Note, ...] = ()
    settings: tuple[SettingDifference, ...] = ()  # of folders: what differs beside the weights

    @property
    def recorded(self) -> bool:
        """Return True if both sides are recordings."""
        return self.reference.kind == self.candidate.kind == "recording"

    def pairs(self) -> Iterator[tuple[Match, TensorRef, TensorRef]]:
        """Yield the pairs: of recordings in order of execution, else in natural order of their names."""
        matches: Iterable[Match] = self.alignment.matches  # in the reference's order already
        if not self.recorded:
            matches = sorted(matches, key=lambda match: natural_key(match.reference))
        for match in matches:
            yield match, self.reference.tensors[match.reference], self.candidate.tensors[match.candidate]

    def leftovers(self) -> list[Leftover]:
        """Return the tensors without a partner of their own, in natural order, each with the reason."""
        whole_names: tuple[set[str], set[str]] = (set(), set())
        for match in self.alignment.matches:
            whole_names[0].add(match.reference)
            whole_names[1].add(match.candidate)
        sides = (
            (REFERENCE, self.reference, self.candidate, self.alignment.only_reference, whole_names[0]),
            (CANDIDATE, self.candidate, self.reference, self.alignment.only_candidate, whole_names[1]),
        )
        leftovers = []
        for side, source, other, hints, paired in sides:
            finder = _ReasonFinder(source, other, paired) if self.recorded else None
            for name in sorted(hints, key=natural_key):
                tensor, hint = source.tensors[name], hints[name]
                if finder:
                    reason = finder.find_reason(tensor)
                elif is_derived(tensor):
                    reason = LeftoverReason.COMPUTED
                else:
                    reason = LeftoverReason.AMBIGUOUS if hint.partners else LeftoverReason.NO_PARTNER
                leftovers.append(_make_leftover(self.label, side, tensor, hint, reason))
        return leftovers


def _make_leftover(label: str, side: str, tensor: TensorRef, hint: Hint, reason: LeftoverReason) -> Leftover:
    return Leftover(
        candidate=label,
        side=side,
        name=tensor.name,
        shape=tensor.shape,
        dtype=tensor.dtype.name,
        reason=reason,
        site=tensor.site if tensor.recorded else None,
        near=hint.near,
        near_shape=hint.near_shape,
        same_as=hint.same_as,
    )


class _ReasonFinder:
    """Find why tensors of one recording have no partner in the other."""

    def __init__(self, source: Source, other: Source, paired: set[str]) -> None:
        self._other = other
        self._paired_outputs: set[tuple[int, str]] = set()  # call and path of those of the model itself
        for name in paired:
            site = source.tensors[name].site
            if site.is_final_output:
                self._paired_outputs.add((site.call, site.path))
        self._last_reached = math.inf
        if other.meta.get("complete") is False:  # it was cut off: nothing after its last event can have a partner
            self._last_reached = max((source.tensors[name].trace.order for name in paired), default=-1)

    def find_reason(self, tensor: TensorRef) -> LeftoverReason:
        """Return why a tensor has no partner."""
        site = tensor.site
        if tensor.trace.order > self._last_reached:
            return LeftoverReason.UNREACHED
        if was_recorded_without(tensor, self._other.meta):
            return LeftoverReason.NOT_RECORDED
        if site.is_inside:
            return LeftoverReason.INNER
        if not site.module and site.slot in (Slot.OUTPUT, Slot.GRAD_OUTPUT) and self._paired_outputs:
            only_gradient_is_missing = (site.call, site.path) in self._paired_outputs
            return LeftoverReason.NO_PARTNER if only_gradient_is_missing else LeftoverReason.EXTRA_OUTPUT
        if site.slot.is_buffer and is_computed_buffer(tensor):
            return LeftoverReason.COMPUTED
        return LeftoverReason.NO_PARTNER


def was_recorded_without(tensor: TensorRef, other: Mapping[str, Any]) -> bool:
    """Return True if the other recording was made without this kind of tensor: no difference of the models."""
    slot = tensor.site.slot
    if slot is Slot.GRAD_INPUT:  # nndiff record takes none
        return True
    holds = other.get("holds")  # of a layout that has no place for some
    at_model = slot in (Slot.INPUT, Slot.GRAD_OUTPUT) and not tensor.site.module
    if isinstance(holds, list) and (slot.value not in holds or at_model):
        return True
    if other.get("backward") is False and (slot.is_gradient or slot is Slot.LOSS):
        return True
    if other.get("inputs_kept") is False and slot is Slot.INPUT and not tensor.site.module:
        return True
    return other.get("params") is False and slot is Slot.PARAM


def is_computed_buffer(tensor: TensorRef) -> bool:
    """Return True if the elements of a buffer follow from its shape: positions, masks, rotary frequencies, counters."""
    if tensor.missing or tensor.count > _LARGEST_COMPUTED:
        return False
    array = tensor.numpy()
    if array.ndim == 0:
        return array.dtype.kind in "iub"
    if array.size < 2 or array.dtype.kind not in "iubf":
        return False
    numbers = array.astype(np.float64)
    rows = numbers.reshape(-1, numbers.shape[-1])
    if np.all(rows == rows[0]) and rows.shape[1] > 2:
        row = rows[0]
        steps = np.diff(row)
        if np.all(steps == steps[0]) and (steps[0] != 0 or array.dtype.kind in "iub"):  # positions, token types
            return True
        if array.dtype.kind == "f" and np.all(row > 0):  # 1 / theta ** (2 i / d): a geometric row
            ratios = row[1:] / row[:-1]
            return bool(np.allclose(ratios, ratios[0], rtol=1e-4))
        return False
    square = array.ndim >= 2 and array.shape[-1] == array.shape[-2]
    if not square:
        return False
    masks = numbers.reshape(-1, *numbers.shape[-2:])
    lower = np.tril(np.ones(masks.shape[1:], bool))
    inside, outside = masks[:, lower], masks[:, ~lower]
    return bool(np.all(inside == inside.flat[0]) and np.all(outside == outside.flat[0]))


def plan_comparison(reference: Any, candidates: Sequence[Any], rules: PairingRules) -> list[Plan]:
    """Open the sources and pair their tensors; data is read only to pair by content what names leave over."""
    if not candidates:
        raise UsageError("a comparison needs a reference and at least one candidate")
    opened = _drop_unselected_outputs(open_source(reference, REFERENCE), rules)
    if rules.conversion is not None:
        opened = _convert_reference(opened, rules.conversion)
    plans: list[Plan] = []
    for number, candidate in enumerate(candidates, 1):
        role = CANDIDATE if len(candidates) == 1 else f"candidate {number}"
        source = _drop_unselected_outputs(open_source(candidate, role), rules)
        label = _choose_free_label(source.label, [plan.label for plan in plans])
        if opened.kind == source.kind == "recording":
            plans.append(_plan_recordings(label, opened, source, rules))
        else:
            nameless = opened.kind == source.kind and opened.kind in ("array", "npy")
            mapping = dict(rules.mapping)
            if rules.conversion is not None:
                mapping = {name: name for name in opened.tensors if name in source.tensors}
            with unchanged():
                full = align(opened.tensors, source.tensors, rules.renames, mapping, nameless, content=rules.content)
            differing, setting_notes = compare_settings(opened, source, label)
            settings = tuple(setting for setting in differing if rules.selects(setting.name))
            alignment, notes = filter_alignment(full, rules, [setting.name for setting in differing])
            notes = (*notes, *setting_notes, *note_harmless_settings(settings))
            plans.append(Plan(label, opened, source, alignment, notes, settings))
    return plans


def _convert_reference(source: Source, conversion: ConversionMap) -> Source:
    """Return the reference as the map makes it, with the tensors that the map knows nothing of as they are."""
    converted = convert_source(source, conversion)
    tensors = {name: source.tensors[name] for name in list_unmentioned(source, conversion)}
    notes = [*converted.notes, f"converted by the map, {plural(len(conversion.entries), 'tensor')}"]
    unused = [name for name in conversion.unused if name in source.tensors]
    if unused:
        notes.append(f"the map makes no use of {counted([printable(name) for name in unused], 'tensor')}")
    return replace(converted, tensors={**tensors, **converted.tensors}, notes=tuple(notes))


def _plan_recordings(label: str, reference: Source, candidate: Source, rules: PairingRules) -> Plan:
    from nndiff.align.recordings import align_recordings  # what only recordings need
    from nndiff.recording.format.weights import read_held_tensors

    if _lacks_gradients(reference) and _lacks_gradients(candidate):
        raise ModelError(
            "neither the reference nor the candidate has a gradient though both ran backward: nothing in their outputs "
            "requires one (frozen, detached, no_grad); leave out --backward (backward=True)"
        )
    weights = _read_digests(read_held_tensors(reference.meta)), _read_digests(read_held_tensors(candidate.meta))
    full = align_recordings(reference.tensors, candidate.tensors, rules.renames, rules.mapping, weights)
    alignment, notes = filter_alignment(full, rules)
    notes = (*notes, *_note_unpaired_gradients(reference, candidate, alignment))
    notes = (*notes, *_note_recorded_without(reference, candidate, alignment))
    return Plan(label, reference, candidate, alignment, notes)


def _read_digests(held: Mapping[str, Any]) -> dict[str, str]:
    # a counter (num_batches_tracked) says nothing about which module it is
    return {name: tensor.digest for name, tensor in held.items() if tensor.shape}


def _lacks_gradients(source: Source) -> bool:
    """Return True if a recording was to hold gradients, came to its end and has none."""
    if source.meta.get("backward") is not True or source.meta.get("complete") is False:
        return False
    return not any(tensor.site.slot.is_gradient for tensor in source.tensors.values())


_GRADIENT_WORDS = {
    Slot.GRAD_OUTPUT: "output gradient",
    Slot.GRAD_INPUT: "input gradient",
    Slot.PARAM_GRAD: "parameter gradient",
}


def _count_slots(source: Source, names: Iterable[str]) -> Counter[Slot]:
    return Counter(source.tensors[name].site.slot for name in names)


def _note_recorded_without(reference: Source, candidate: Source, alignment: Alignment) -> Iterator[Note]:
    """Yield what one side was recorded without: no difference, but not compared either."""
    sides = (
        (reference, alignment.only_reference, CANDIDATE, candidate),
        (candidate, alignment.only_candidate, REFERENCE, reference),
    )
    for source, names, other_side, other in sides:
        unasked = [name for name in names if was_recorded_without(source.tensors[name], other.meta)]
        slots = _count_slots(source, unasked)
        counted = []
        for slot in (Slot.GRAD_OUTPUT, Slot.PARAM_GRAD):
            if slots[slot]:
                counted.append(plural(slots[slot], _GRADIENT_WORDS[slot]))
        if slots[Slot.LOSS]:
            counted.append("the loss")
        if counted and other.meta.get("backward") is False:
            text = f"the {other_side} was recorded without --backward, so {', '.join(counted)} were not compared"
            yield Note(NoteSlug.RECORDED_WITHOUT, text)
        elif counted:
            yield Note(NoteSlug.RECORDED_WITHOUT, f"the {other_side} does not hold {', '.join(counted)}: not compared")


def _note_unpaired_gradients(reference: Source, candidate: Source, alignment: Alignment) -> Iterator[Note]:
    """Yield that gradients of one kind, which both sides have, were not compared at all."""
    paired = {reference.tensors[match.reference].site.slot for match in alignment.matches}
    for fused in alignment.fused:
        source = reference if fused.whole_is_reference else candidate
        paired.add(source.tensors[fused.whole].site.slot)
    ref_slots = _count_slots(reference, alignment.only_reference)
    cand_slots = _count_slots(candidate, alignment.only_candidate)
    for slot, word in _GRADIENT_WORDS.items():
        if slot not in paired and ref_slots[slot] and cand_slots[slot]:
            text = (
                f"{word}s were not compared: none of the reference's {ref_slots[slot]:,} found a partner among the "
                f"candidate's {cand_slots[slot]:,}; pair them with --map or --rename"
            )
            yield Note(NoteSlug.GRADIENTS_NOT_PAIRED, text)


def _drop_unselected_outputs(source: Source, rules: PairingRules) -> Source:
    """Return a source whose outputs that could not be recorded are those the rules let in."""
    unread = source.meta.get("not_recorded")
    if not isinstance(unread, Mapping) or not unread:
        return source
    counting = {name: what for name, what in unread.items() if rules.selects(str(name))}
    return replace(source, meta={**source.meta, "not_recorded": counting})


def _choose_free_label(label: str, taken: Iterable[str]) -> str:
    free, number = label, 2
    while free in taken:
        free, number = f"{label} ({number})", number + 1
    return free


def filter_alignment(
    full: Alignment, rules: PairingRules, settings: Sequence[str] = ()
) -> tuple[Alignment, tuple[Note, ...]]:
    """Return the alignment of the names that count, and notes on what does not; patterns may also name settings."""
    if not (rules.include or rules.exclude):
        return full, (*full.notes, *_note_empty_groups(full, rules))
    kept = replace(
        full,
        matches=tuple(match for match in full.matches if rules.selects(match.reference, match.candidate)),
        fused=tuple(fused for fused in full.fused if rules.selects(fused.whole, *fused.parts)),
        groups=tuple(group for group in full.groups if rules.selects(*group.reference, *group.candidate)),
        only_reference={name: hint for name, hint in full.only_reference.items() if rules.selects(name)},
        only_candidate={name: hint for name, hint in full.only_candidate.items() if rules.selects(name)},
    )
    names = [*_names_of(full), *settings]
    before = len(full.matches) + len(full.only_reference) + len(full.only_candidate)
    after = len(kept.matches) + len(kept.only_reference) + len(kept.only_candidate)
    text = f"--include/--exclude left out {before - after:,} of {plural(before, 'name')}"
    notes = [*full.notes, Note(NoteSlug.LEFT_OUT, text)]
    for pattern in (*rules.include, *rules.exclude):
        if not any(matches_any(name, (pattern,)) for name in names):
            notes.append(Note(NoteSlug.RULE_WITHOUT_EFFECT, f"the pattern {pattern!r} matches no tensor"))
    return kept, (*notes, *_note_empty_groups(kept, rules))


def _names_of(alignment: Alignment) -> list[str]:
    names = [*alignment.only_reference, *alignment.only_candidate]
    for match in alignment.matches:
        names += [match.reference, match.candidate]
    for fused in alignment.fused:
        names += [fused.whole, *fused.parts]
    return names


def _note_empty_groups(compared: Alignment, rules: PairingRules) -> Iterator[Note]:
    names = _names_of(compared) if rules.groups else []
    for group, pattern in rules.groups.items():
        if not any(matches_any(name, (pattern,)) for name in names):
            text = f"the group {group!r} is empty: its pattern {pattern!r} matches no compared tensor"
            yield Note(NoteSlug.RULE_WITHOUT_EFFECT, text)
