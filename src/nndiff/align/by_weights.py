"""Pairing modules by the weights they hold, whatever they are called, and finding names that mislead.

A recording tells a digest of every parameter and buffer. The digests of what a module holds, itself and inside, are
its fingerprint. One that stands for a single module on each side pairs these two. Where such a pair contradicts
the names (an Identity was put in front of a Sequential, a list was reversed), no name inside the container
around the two counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from nndiff.align.alignment import HeldWeights, Tensors
from nndiff.align.by_name import Spelling
from nndiff.align.calls import Call, CallPairs, group_calls
from nndiff.names import ancestors
from nndiff.result import Method, Note, NoteSlug
from nndiff.text import first_few, plural

Fingerprint = tuple[str, ...]  # digests, sorted


class ModuleWeights:
    """Know the fingerprints of the modules of one recording."""

    def __init__(self, weights: HeldWeights, tensors: Tensors, calls: Iterable[Call]) -> None:
        self.tensors: dict[str, dict[str, str]] = {}  # {module: {name in the module: digest}}
        for name, digest in weights.items():
            module, _, tensor = name.rpartition(".")
            self.tensors.setdefault(module, {})[tensor] = digest
        self.called = {call.module for call in calls}
        self._recorded = {tensor.site.module for tensor in tensors.values()}
        self.own: dict[str, Fingerprint] = {}  # of what a module holds itself
        for module, digests in self.tensors.items():
            self.own[module] = tuple(sorted(digests.values()))
        if not weights:  # whoever wrote the recording may tell it with the calls alone
            self.own = {call.module: call.outputs[0].trace.weights for call in calls if call.outputs[0].trace.weights}
        digests_inside: dict[str, list[str]] = {}
        for module, fingerprint in self.own.items():
            for outer in (module, *ancestors(module)):
                digests_inside.setdefault(outer, []).extend(fingerprint)
        self.subtree = {module: tuple(sorted(digests)) for module, digests in digests_inside.items()}

    @cached_property
    def modules(self) -> set[str]:
        """Return all known modules: those recorded, those with weights, and their ancestors."""
        inner = self._recorded | self.own.keys()
        return inner.union(*map(ancestors, inner))

    @cached_property
    def chains(self) -> dict[Fingerprint, list[str]]:
        """Return the modules of each fingerprint, outermost first, if they are wrappers of one another."""
        groups: dict[Fingerprint, list[str]] = {}
        for module, fingerprint in self.subtree.items():
            if module and (module in self.called or module in self.own):
                groups.setdefault(fingerprint, []).append(module)
        chains: dict[Fingerprint, list[str]] = {}
        for fingerprint, group in groups.items():
            group.sort(key=len)
            if all(outer in ancestors(inner) for outer, inner in pairwise(group)):
                chains[fingerprint] = group
        return chains

    @cached_property
    def unique_own(self) -> dict[tuple[Fingerprint, bool], str]:
        """Return the only module that holds these weights itself, by fingerprint and whether its children hold more."""
        counts = Counter(self.own.values())
        return {
            (fingerprint, self.subtree[module] != fingerprint): module
            for module, fingerprint in self.own.items()
            if module and counts[fingerprint] == 1
        }


@dataclass(frozen=True)
class WeightPairs:
    """Hold the modules that are paired by their weights, and where names mislead."""

    modules: Mapping[str, str]  # from the reference's modules to the candidate's
    against_names: tuple[tuple[str, str], ...]
    misled_reference: frozenset[str]  # modules whose names count for nothing
    misled_candidate: frozenset[str]

    @property
    def notes(self) -> tuple[Note, ...]:
        """Return a note on modules that were paired against their names."""
        if not self.against_names:
            return ()
        examples = first_few([f"{module} with {partner}" for module, partner in self.against_names])
        count = plural(len(self.against_names), "module")
        text = f"names mislead, so {count} were paired by the weights they hold: {examples}"
        return (Note(NoteSlug.PAIRED_BY_WEIGHTS, text.replace("module were", "module was")),)


def find_weight_pairs(
    reference: ModuleWeights, candidate: ModuleWeights, spelling: Spelling, mapped: tuple[set[str], set[str]]
) -> WeightPairs:
    """Find the modules that hold the same weights, and the names that contradict them.

    Modules that the user `mapped` belong where the map says, whatever they hold.
    """
    modules: dict[str, str] = {}
    for module, partner in _pairs_of_same_weights(reference, candidate).items():
        if module not in mapped[0] and partner not in mapped[1]:
            modules[module] = partner
    names = _ModuleNames(reference, candidate, spelling)
    containers = {names.container_of(pair) for pair in modules.items() if names.contradict(pair)}
    misled_reference = {module for module in reference.modules if names.is_inside(module, containers, False)}
    misled_candidate = {module for module in candidate.modules if names.is_inside(module, containers, True)}
    against_names = tuple(
        (module, partner)
        for module, partner in modules.items()
        if module in misled_reference and not names.are_same(module, partner)
    )
    return WeightPairs(modules, against_names, frozenset(misled_reference), frozenset(misled_candidate))


def _pairs_of_same_weights(reference: ModuleWeights, candidate: ModuleWeights) -> dict[str, str]:
    """Return the modules of both sides whose fingerprint stands for them alone."""
    modules: dict[str, str] = {}
    for fingerprint, chain in reference.chains.items():
        partners = candidate.chains.get(fingerprint, [])
        if not partners:
            continue
        # The innermost may hold the weights itself, and then does on both sides what a layer does; wrappers around
        # it may do more. Weights tell which of these belong together only where both sides have as many.
        chain, partners = list(chain), list(partners)
        if chain[-1] in reference.own and partners[-1] in candidate.own:
            modules[chain.pop()] = partners.pop()
        if len(chain) == len(partners):
            modules.update(zip(chain, partners, strict=True))
    taken = set(modules.values())
    for key, module in reference.unique_own.items():
        partner = candidate.unique_own.get(key)
        if partner is not None and module not in modules and partner not in taken:
            modules[module] = partner
            taken.add(partner)
    return modules


class _ModuleNames:
    """Compare what names say of modules with what their weights say."""

    def __init__(self, reference: ModuleWeights, candidate: ModuleWeights, spelling: Spelling) -> None:
        self._weights = reference, candidate
        self._spelt: tuple[dict[str, str], dict[str, str]] = {}, {}
        self._modules: tuple[dict[str, str], dict[str, str]] = {}, {}
        for is_candidate, weights in enumerate(self._weights):
            for module in sorted(weights.modules):
                spelt = spelling.of_module(module, bool(is_candidate))
                self._spelt[is_candidate][module] = spelt
                self._modules[is_candidate].setdefault(spelt, module)

    def are_same(self, module: str, partner: str) -> bool:
        """Return True if two modules go by one name."""
        return self._spelt[0][module] == self._spelt[1][partner]

    def contradict(self, pair: tuple[str, str]) -> bool:
        """Return True if two modules hold the same weights and their names pair them with other modules.

        A name of its own says nothing, nor does that of a wrapper that holds the very same weights.
        """
        module, partner = pair
        reference, candidate = self._weights
        named_candidate = self._modules[1].get(self._spelt[0][module])  # what goes by the reference's name
        named_reference = self._modules[0].get(self._spelt[1][partner])
        if self.are_same(module, partner):
            return False
        if named_candidate is not None and candidate.subtree.get(named_candidate) == reference.subtree[module]:
            return False
        if named_reference is not None and reference.subtree.get(named_reference) == reference.subtree[module]:
            return False
        if named_candidate is not None and named_reference is not None:
            return True
        if named_candidate is not None:
            weights_there = candidate.subtree.get(named_candidate, ())
            return not weights_there or weights_there in reference.chains or weights_there == reference.subtree.get("")
        if named_reference is not None:
            weights_there = reference.subtree.get(named_reference, ())
            return not weights_there or weights_there in candidate.chains or weights_there == candidate.subtree.get("")
        return False

    def container_of(self, pair: tuple[str, str]) -> str:
        """Return the innermost container around both modules, by the spelling the sides have in common."""
        paths = [self._spelt[0][pair[0]], self._spelt[1][pair[1]]]
        outer_modules = set(ancestors(paths[0]))
        return next(outer for outer in ancestors(paths[1]) if outer in outer_modules)

    def is_inside(self, module: str, containers: set[str], is_candidate: bool) -> bool:
        """Return True if a module is inside one of the containers."""
        return any(outer in containers for outer in ancestors(self._spelt[is_candidate][module]))


def pair_by_weights(pairs: CallPairs, modules: Mapping[str, str]) -> None:
    """Pair the free calls of modules that hold the same weights, each with the one of its number.

    Where one side calls its module more often, only calls that return the same shapes.
    """
    reference_free, candidate_free = pairs.free()
    counts = Counter(call.module for call in pairs.reference), Counter(call.module for call in pairs.candidate)
    candidate_calls = group_calls(candidate_free, lambda call: call.key)
    for call in reference_free:
        partner = modules.get(call.module)
        for partner_call in candidate_calls.get((partner, call.number), []):
            if counts[0][call.module] == counts[1][partner_call.module] or call.shapes == partner_call.shapes:
                pairs.pair(call, partner_call, Method.WEIGHTS, certain=True)


def same_tensors(
    modules: Mapping[str, str], reference: ModuleWeights, candidate: ModuleWeights
) -> dict[tuple[str, str], tuple[str, str]]:
    """Return the parameters and buffers of the same digest in modules that hold the same weights.

    By (module, name in the module); a digest that stands for two tensors of a module decides nothing.
    """
    tensors: dict[tuple[str, str], tuple[str, str]] = {}
    for module, partner in modules.items():
        own, partner_own = reference.tensors.get(module, {}), candidate.tensors.get(partner, {})
        counts, partner_counts = Counter(own.values()), Counter(partner_own.values())
        name_of_digest = {digest: name for name, digest in partner_own.items()}
        for name, digest in own.items():
            if counts[digest] == partner_counts[digest] == 1:
                tensors[module, name] = partner, name_of_digest[digest]
    return tensors
