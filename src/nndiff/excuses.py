"""Which pairs that differ are excused: decided by what a result holds, so that a saved one is judged alike.

Layers are cut, named and laid out in many ways. Where every input, output, loss and gradient at the outside agrees, a
disagreement inside that such a rewrite explains is set aside: listed and told, and no difference. Nothing is excused
while anything else differs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from nndiff.align.fused import PART
from nndiff.align.sites import GUESSED
from nndiff.idle import Idle
from nndiff.recorded import is_inner_slot
from nndiff.result import Finding, Leftover, Pair, Rearranged
from nndiff.text import plural
from nndiff.verdict import Verdict

Orders = Collection[int]  # of pairs

RESTRUCTURED = "restructured"
IN_ANOTHER_FORM = "in another form on the other side; not compared"  # the hint of what counts no longer


@dataclass(frozen=True)
class Ruling:
    """Say which pairs are set aside and how those that are left stand."""

    agreed: bool  # all that is left passes, the final output among it
    moved: frozenset[int] = frozenset()  # those that agree once one side is rearranged, excused or not
    aside: frozenset[int] = frozenset()
    idle: frozenset[int] = frozenset()  # of those aside: gradients without effect


class Excuses:
    """Know the pairs of one candidate, and which of those that differ are excused."""

    def __init__(self, pairs: Iterable[Pair], leftovers: Iterable[Leftover]) -> None:
        self.pairs = list(pairs)
        self.idle = Idle(self.pairs, leftovers)
        self.outside = [pair for pair in self.pairs if not pair.inside]
        self.outputs = [(pair, pair.site) for pair in self.pairs if pair.slot == "output" and pair.site]
        self.classes = {site.modules: site.classes for _, site in self.outputs}

    def outside_agrees(self, failing: Orders) -> bool:
        """Tell whether all that goes in and comes out agrees, the final output among it."""
        final = any(pair.is_final for pair in self.outside)
        return final and not any(pair.order in failing for pair in self.outside)

    def ruling(self, failing: Orders, lying: Orders) -> Ruling:
        """Rule on the pairs: on those that fail, some of which lie otherwise and else agree."""
        differing = [pair for pair in self.pairs if pair.order in failing]
        known = _Known(self, failing, lying)
        moved = frozenset(pair.order for pair in differing if known.lies_otherwise(pair))
        if not self.outside_agrees(failing):
            return Ruling(False, moved)
        if not all(map(known.explains, differing)):
            return Ruling(False, moved)
        idle = frozenset(pair.order for pair in differing if known.only_idle(pair))
        doubted = (pair.order for pair in self.pairs if fused_layer(pair) in known.doubtful) if known.doubtful else ()
        return Ruling(True, moved, frozenset((*(pair.order for pair in differing), *doubted)), idle)


class _Known:
    """Know what the pairs that agree say about those that do not."""

    def __init__(self, excuses: Excuses, failing: Orders, lying: Orders) -> None:
        out = [(pair, site) for pair, site in excuses.outputs if pair.order in failing]
        apart = {site.called for pair, site in out if pair.order not in lying}
        agreeing = {site.called for _, site in excuses.outputs} - apart  # what only lies otherwise agrees
        self._excuses, self._failing, self._lying, self._agreeing = excuses, failing, lying, agreeing
        self._confirmed = {site.modules for _, site in excuses.outputs if site.called in agreeing}
        self.doubtful = {fused_layer(pair) for pair, _ in out} - {""}

    def explains(self, pair: Pair) -> bool:
        """Tell whether a pair that does not agree is none, lies otherwise, or has no effect."""
        return pair.inside and (self._is_no_pair(pair) or self._idle(pair))

    def only_idle(self, pair: Pair) -> bool:
        """Tell whether a pair is excused for having no effect alone."""
        return not self._is_no_pair(pair)

    def _idle(self, pair: Pair) -> bool:
        return self._excuses.idle.explains(pair, self._failing)

    def _is_no_pair(self, pair: Pair) -> bool:
        """Tell whether two tensors are in no way to be compared as they are.

        Calls paired by their order, or parts laid beside a larger layer, may simply not belong together; if all
        that is certain agrees, a disagreement of two guessed partners says that the guess was wrong.
        """
        guessed = GUESSED in pair.matched_by and not (pair.is_owned and self._belong(pair))
        # a mask of truths or of numbers, of most inputs only a few elements: what their module makes of them tells
        in_another_form = pair.slot == "input" and pair.site is not None and pair.site.called in self._agreeing
        wrong_guess = guessed or fused_layer(pair) in self.doubtful
        return wrong_guess or in_another_form or self.lies_otherwise(pair)

    def _belong(self, pair: Pair) -> bool:
        """Tell whether two modules return the same, or what is around one of them does: so what they hold belongs."""
        one, other = _modules(pair)
        return any(
            (one == here and f"{other}.".startswith(f"{there}."))
            or (other == there and f"{one}.".startswith(f"{here}."))
            for here, there in self._confirmed
        )

    def lies_otherwise(self, pair: Pair) -> bool:
        """Tell whether a pair agrees once one side is rearranged, and may."""
        return pair.inside and pair.order in self._lying and not self._held_alike(pair)

    def _held_alike(self, pair: Pair) -> bool:
        """Tell whether two modules of one class hold a parameter of one shape: then it lies in both the same way."""
        one, other = self._excuses.classes.get(_modules(pair), ("", "?"))
        return pair.is_owned and one == other and pair.shape[0] == pair.shape[1]


def _modules(pair: Pair) -> tuple[str, str]:
    return pair.site.modules if pair.site else ("", "")


def fused_layer(pair: Pair) -> str:
    """Return the name of the larger layer a pair is part of, or nothing."""
    if not pair.matched_by.startswith(PART):
        return ""
    candidates = not pair.reference_name.endswith("]")  # a stretch: `a.qkv:output.[q]`
    name = pair.candidate_name if candidates else pair.reference_name
    return _modules(pair)[candidates] or name.partition(":")[0]


def listed(aside: Iterable[Pair], idle: Orders, lying: Orders) -> list[Leftover]:
    """Return both sides of pairs that were set aside, as what has no partner."""
    found = (left for pair in aside for left in _both(pair, idle, lying))
    unique = {(left.side, left.name): left for left in found}  # a layer laid beside several parts is left over once
    return [unique[place] for place in sorted(unique)]


def _both(pair: Pair, idle: Orders, lying: Orders) -> Iterator[Leftover]:
    names = pair.reference_name, pair.candidate_name
    layout = _layout(pair, lying)
    for number, side in enumerate(("reference", "candidate")):
        name, shape, inner = _whole(pair, names[number], number)
        hint = f"agrees with {names[1 - number]!r} after {layout.how}" if layout else _hint(pair, idle)
        counts = layout is None and not inner
        yield Leftover(pair.candidate, side, name, shape, pair.dtype[number], hint, counts, aside=True)


def _whole(pair: Pair, name: str, number: int) -> tuple[str, tuple[int, ...], bool]:
    """Return name and shape of a tensor, of a stretch those of the whole; and whether it is inside the model."""
    if pair.site is None:
        return name, pair.shape[number], False
    inner = is_inner_slot(pair.site.slots[number], pair.site.modules[number])
    stretch = fused_layer(pair) and name.endswith("]")
    return name.rpartition(".[")[0] if stretch else name, pair.site.wholes[number], inner


def _layout(pair: Pair, lying: Orders) -> Rearranged | None:
    return pair.site.layout if pair.site and pair.order in lying else None


def _hint(pair: Pair, idle: Orders) -> str:
    if pair.order in idle:
        return "not the same on the other side; every gradient that it flows into agrees"
    if pair.slot == "input":
        kind = "of another shape" if pair.verdict is Verdict.SHAPE else "not the same"
        return f"{kind} on the other side; what its module makes of it agrees"
    return "laid beside another by guess, and not equal"


def told(excuses: Excuses, ruling: Ruling, lying: Orders) -> Iterator[Finding]:
    """Yield what is to be told of a ruling: what was set aside and why, and layers compared part by part."""
    aside = [pair for pair in excuses.pairs if pair.order in ruling.aside]
    yield from rearranged(aside, lying, harmless=True)
    yield from _without_effect([pair for pair in aside if pair.order in ruling.idle])
    yield from _fused([pair for pair in excuses.pairs if pair.order not in ruling.aside])


def rearranged(pairs: Sequence[Pair], lying: Orders, harmless: bool) -> Iterator[Finding]:
    """Yield one finding for each way of rearranging, with all the places it is needed at."""
    grouped: dict[tuple[str, str], list[Pair]] = {}
    ways: dict[tuple[str, str], Rearranged] = {}
    for pair in pairs:
        layout = _layout(pair, lying)
        if layout is not None:
            key = layout.cause, layout.how
            grouped.setdefault(key, []).append(pair)
            ways.setdefault(key, layout)
    for key, way in ways.items():
        where = tuple(pair.name for pair in grouped[key])
        yield Finding(way.cause, where, way.evidence, "" if harmless else way.repair, way.confidence, harmless)


IDLE = "gradients-idle"


def _without_effect(pairs: Sequence[Pair]) -> Iterator[Finding]:
    if pairs:
        many = f"{plural(len(pairs), 'gradient')} inside {'differs' if len(pairs) == 1 else 'differ'}"
        evidence = f"{many} to no effect: all gradients that are kept agree, of parameters and inputs, and every output"
        yield Finding(IDLE, tuple(pair.name for pair in pairs), evidence, "", 0.9, harmless=True)


FUSED = "fused"


def _fused(pairs: Sequence[Pair]) -> Iterator[Finding]:
    """Tell of layers compared part by part; where parts of all of them differ, nobody knows that they are fused."""
    failing = {fused_layer(pair) for pair in pairs if pair.slot == "output" and not pair.verdict.passed}
    layers = dict.fromkeys(layer for layer in map(fused_layer, pairs) if layer and layer not in failing)
    if layers:
        places = "" if len(layers) == 1 else f", in {len(layers):,} places"
        evidence = f"one layer does the work of several of the other side{places}; compared part by part"
        yield Finding(FUSED, tuple(layers), evidence, "", 1.0, harmless=True)
