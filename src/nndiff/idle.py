"""Gradients inside that differ to no effect: all that they flow into agrees.

A mask may be put before a layer or after it, or at both places. What flows back at places that are masked is lost on
its way, so the gradient at an output in between may be anything there. It is known to have no effect where every
gradient that is kept agrees: those of all parameters and of the inputs. That proves something only if it is about
gradients that would show it: of what ran before, each module with parameters must have one that is more than noise.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from enum import Enum

from nndiff.result import Leftover, Pair
from nndiff.scaled import is_scaled

LEAVES = ("param_grad", "model_input_grad")
_FAR = 0.01  # relatively: a gradient that is farther off passes as noise, and proves nothing


class _Says(Enum):
    """Say what a gradient that passes proves."""

    MUCH = "it agrees, and would not had it been given something else"
    NOTHING = "zero on both sides: nothing comes to it"
    TOO_LITTLE = "noise, which passes whatever it is"


class Idle:
    """Know which gradients at outputs inside have no effect."""

    def __init__(self, pairs: Sequence[Pair], leftovers: Iterable[Leftover]) -> None:
        self._leaves = [pair for pair in pairs if pair.slot in LEAVES]
        self._outputs: dict[tuple[str, int], list[Pair]] = {}
        self._ran: dict[str, int] = {}  # order of the first output of each module
        for pair in pairs:
            if pair.slot == "output" and pair.site:
                module = pair.site.modules[0]
                self._outputs.setdefault(pair.site.called, []).append(pair)
                self._ran[module] = min(pair.order, self._ran.get(module, pair.order))
        self._whole = not any(_is_leaf(left) for left in leftovers)  # no gradient is lost on one side
        self._owners: dict[str, list[_Says]] = {}
        for pair in self._leaves:
            owner = pair.site.modules[0] if pair.site and pair.is_owned else pair.name
            self._owners.setdefault(owner, []).append(_says(pair))

    def explains(self, pair: Pair, failing: Container[int]) -> bool:
        """Tell whether a gradient that differs is one at an inner output, and nothing that it flows into differs."""
        if pair.slot != "grad_output" or not (pair.inside and pair.site and _may_be_masked(pair)):
            return False
        outputs = self._outputs.get(pair.site.called, [])
        forward = bool(outputs) and not any(each.order in failing for each in outputs)
        kept = self._whole and not any(leaf.order in failing for leaf in self._leaves)
        return forward and kept and self._is_proven(pair.site.modules[0], max(each.order for each in outputs))

    def _is_proven(self, module: str, made: int) -> bool:
        """Tell whether gradients of what ran up to here, in whatever it may flow into, say that it has no effect."""
        says = [said for owner, said in self._owners.items() if self._is_before(owner, module, made)]
        noise = any(_Says.MUCH not in said and _Says.TOO_LITTLE in said for said in says)
        return not noise and any(_Says.MUCH in said for said in says)

    def _is_before(self, owner: str, module: str, made: int) -> bool:
        """Tell whether a gradient may flow into what a module owns: it is around, ran before, or is never called."""
        around = f"{module}.".startswith(f"{owner}." if owner else "")
        return around or self._ran.get(owner, -1) <= made


def _is_leaf(left: Leftover) -> bool:
    return any(f":{slot}" in left.name for slot in LEAVES)


def _may_be_masked(pair: Pair) -> bool:
    """Tell whether two gradients may be the same but for some places: all numbers, and no factor in all of them."""
    return pair.metrics is not None and not pair.metrics.nonfinite_unequal and not is_scaled(pair.metrics)


def _says(pair: Pair) -> _Says:
    numbers = pair.metrics
    if numbers is None:
        return _Says.TOO_LITTLE
    sides = (numbers.ref_min, numbers.ref_max), (numbers.cand_min, numbers.cand_max)
    one, other = (max(map(abs, side)) for side in sides)
    if one == other == 0:
        return _Says.NOTHING
    return _Says.MUCH if one > 0 and numbers.rel_l2 <= _FAR else _Says.TOO_LITTLE
