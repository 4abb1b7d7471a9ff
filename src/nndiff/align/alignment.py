"""The result of pairing two sources, and the draft in which the passes make it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from nndiff.result import CANDIDATE, REFERENCE, Method, Note
from nndiff.tensors import Shape, TensorRef

Tensors = Mapping[str, TensorRef]
HeldWeights = Mapping[str, str]  # {name of a parameter or buffer: digest}; empty where nobody told


@dataclass(frozen=True)
class Match:
    """Say that two tensors belong together, how that was found, and whether it is certain."""

    reference: str
    candidate: str
    method: Method
    certain: bool


@dataclass(frozen=True)
class FusedMatch:
    """Say that one tensor of a side may hold several of the other; where they lie in it is proven elsewhere."""

    whole: str
    parts: tuple[str, ...]
    whole_is_reference: bool
    axis: int  # along which the parts add up to the whole
    turned: bool = False  # the two axes of each part are exchanged, as far as shapes tell
    group: str = ""  # the call of the fused layer: its output, gradients and parameters share it; "" without a call
    labels: tuple[str, ...] = ()  # short names of the parts


@dataclass(frozen=True)
class GroupMatch:
    """Say that several tensors of one side hold the values of one of the other; the layout is proven elsewhere."""

    reference: tuple[str, ...]
    candidate: tuple[str, ...]
    method: Method
    certain: bool = True


@dataclass(frozen=True)
class Hint:
    """Say what a tensor without a partner may be."""

    near: str = ""  # a leftover of the other side that may have been meant
    near_shape: Shape | None = None  # its shape, where that is another one
    same_as: str = ""  # a paired tensor of its own side that holds the very same values
    partners: tuple[
        str, ...
    ] = ()  # tensors of the other side with its values, where nothing tells which is its partner


@dataclass(frozen=True)
class Alignment:
    """Hold the pairs in the reference's order, and the leftovers of both sides."""

    matches: tuple[Match, ...]
    fused: tuple[FusedMatch, ...] = ()  # of recordings
    groups: tuple[GroupMatch, ...] = ()  # of files; until someone proves them, their tensors are leftovers too
    only_reference: Mapping[str, Hint] = field(default_factory=dict)
    only_candidate: Mapping[str, Hint] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)  # of recordings: reference's module to candidate's
    against_names: tuple[tuple[str, str], ...] = ()  # modules paired by their weights though their names say otherwise

    def list_grouped(self) -> set[tuple[str, str]]:
        """Return side and name of the tensors that belong to a group."""
        grouped: set[tuple[str, str]] = set()
        for group in self.groups:
            grouped.update((REFERENCE, name) for name in group.reference)
            grouped.update((CANDIDATE, name) for name in group.candidate)
        return grouped


class Draft:
    """Hold what is paired so far and what is still free."""

    def __init__(self, reference: Tensors, candidate: Tensors) -> None:
        self.reference, self.candidate = reference, candidate
        self.free_reference = dict.fromkeys(reference)  # names, in order
        self.free_candidate = dict.fromkeys(candidate)
        self.matches: dict[str, Match] = {}  # by the reference's name
        self.fused: list[FusedMatch] = []
        self.groups: list[GroupMatch] = []

    def tensors_of(self, is_candidate: bool) -> Tensors:
        """Return all tensors of a side."""
        return self.candidate if is_candidate else self.reference

    def free_names(self, is_candidate: bool) -> dict[str, None]:
        """Return the free names of a side, in order."""
        return self.free_candidate if is_candidate else self.free_reference

    def free_tensors(self, is_candidate: bool) -> list[TensorRef]:
        """Return the free tensors of a side, in order."""
        tensors = self.tensors_of(is_candidate)
        return [tensors[name] for name in self.free_names(is_candidate)]

    def have_same_shape(self, reference_name: str, candidate_name: str) -> bool:
        """Return True if two tensors have the same shape."""
        return self.reference[reference_name].shape == self.candidate[candidate_name].shape

    def pair(self, reference_name: str, candidate_name: str, method: Method, certain: bool = True) -> None:
        """Pair two free tensors."""
        del self.free_reference[reference_name], self.free_candidate[candidate_name]
        self.matches[reference_name] = Match(reference_name, candidate_name, method, certain)

    def unpair(self, reference_names: Iterable[str]) -> None:
        """Make the tensors of some pairs free again."""
        matches = [self.matches.pop(name) for name in reference_names]
        self.give_back(({match.reference for match in matches}, {match.candidate for match in matches}))

    def pair_fused(self, fused: FusedMatch) -> None:
        """Pair a free tensor of one side with several free ones of the other."""
        del self.free_names(not fused.whole_is_reference)[fused.whole]
        for part in fused.parts:
            del self.free_names(fused.whole_is_reference)[part]
        self.fused.append(fused)

    def pair_group(self, group: GroupMatch) -> None:
        """Pair several free tensors of one side with one of the other."""
        for name in group.reference:
            del self.free_reference[name]
        for name in group.candidate:
            del self.free_candidate[name]
        self.groups.append(group)

    def pair_equal_keys(
        self,
        reference_keys: Mapping[str, str],
        candidate_keys: Mapping[str, str],
        method: Method,
        changed_names: Container[str] = (),
    ) -> None:
        """Pair free names whose keys are equal; a key shared by two names of a side pairs nothing.

        Candidates whose names were changed by the user's rules are paired by `rename`.
        """
        name_of_key = _unique_keys(candidate_keys, self.free_candidate)
        for key, reference_name in _unique_keys(reference_keys, self.free_reference).items():
            candidate_name = name_of_key.get(key)
            if candidate_name is not None:
                renamed = candidate_name in changed_names
                self.pair(reference_name, candidate_name, Method.RENAME if renamed else method)

    def hold_back(
        self, reference_modules: Container[str], candidate_modules: Container[str]
    ) -> tuple[set[str], set[str]]:
        """Set aside the free tensors of these modules for now; return their names on both sides."""
        held_back: tuple[set[str], set[str]] = set(), set()
        for is_candidate, modules in enumerate((reference_modules, candidate_modules)):
            tensors, free = self.tensors_of(bool(is_candidate)), self.free_names(bool(is_candidate))
            held_back[is_candidate].update(name for name in free if tensors[name].site.module in modules)
            for name in held_back[is_candidate]:
                del free[name]
        return held_back

    def give_back(self, held_back: tuple[set[str], set[str]]) -> None:
        """Make tensors that were set aside free again, each at its place in the order."""
        if not any(held_back):
            return
        reference_names = held_back[0] | self.free_reference.keys()
        candidate_names = held_back[1] | self.free_candidate.keys()
        self.free_reference = {name: None for name in self.reference if name in reference_names}
        self.free_candidate = {name: None for name in self.candidate if name in candidate_names}

    def matches_in_order(self) -> tuple[Match, ...]:
        """Return the pairs in the reference's order."""
        return tuple(self.matches[name] for name in self.reference if name in self.matches)

    def paired_tensors(self, is_candidate: bool) -> dict[str, TensorRef]:
        """Return the tensors of a side that have a partner, parts of fused layers included."""
        names = [match.candidate if is_candidate else match.reference for match in self.matches_in_order()]
        for fused in self.fused:
            names += fused.parts if fused.whole_is_reference is is_candidate else (fused.whole,)
        tensors = self.tensors_of(is_candidate)
        return {name: tensors[name] for name in names}


def _unique_keys(keys: Mapping[str, str], free: Iterable[str]) -> dict[str, str]:
    """Return {key: name} of the keys that stand for one free name only."""
    free_keys = {name: keys[name] for name in free if name in keys}
    counts = Counter(free_keys.values())
    return {key: name for name, key in free_keys.items() if counts[key] == 1}
