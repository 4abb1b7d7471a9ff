"""One factor by which gradients differ: a loss that is scaled, a mean against a sum, a gradient counted twice."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from nndiff.diagnosis.site_pairs import SitePair
from nndiff.result import Pair
from nndiff.tensors import Slot
from nndiff.verdict import RelationKind

# How far apart, relatively, proven factors may be that are taken for one: rounding of short types, no other factor.
SAME_FACTOR = 2e-3


class Reach(Enum):
    """Say which gradients a factor is found in."""

    ALL = "every gradient"
    PARAMETERS = "every gradient of a parameter"
    SOME = "every gradient that is out of tolerance"


_MEANING = {
    Reach.ALL: "the loss is scaled, no layer is to blame",
    Reach.PARAMETERS: "gradients at outputs agree, so these were scaled after the backward pass, or accumulated",
    Reach.SOME: "the factor comes in at the first of them",
}


@dataclass(frozen=True)
class CommonFactor:
    """Hold the factor between the candidate's gradients and the reference's, and which gradients have it."""

    value: float
    reach: Reach
    sites: Sequence[SitePair]

    @property
    def text(self) -> str:
        """Return the factor as people would write it: `2`, `1/8`, `1.37`."""
        for number, form in ((self.value, "{}"), (1 / self.value, "1/{}")):
            if abs(number - round(number)) < SAME_FACTOR * abs(number) and abs(number) > 0.5:
                return form.format(round(number))
        return f"{self.value:.4g}"

    @property
    def meaning(self) -> str:
        """Return what the factor says."""
        return f"{self.reach.value} is {self.text} times the reference's: {_MEANING[self.reach]}"


def find_common_factor(pairs: Iterable[SitePair]) -> CommonFactor | None:
    """Return the one factor between the sides of all gradients that are out, if there is one."""
    gradients = [site for site in pairs if site.is_gradient]
    failing = [site for site in gradients if not site.passed]
    factors = []
    for site in failing:
        factor = read_factor(site.pair)
        if factor is None:
            return None
        factors.append(factor)
    if not factors or max(factors) - min(factors) > SAME_FACTOR * min(map(abs, factors)):
        return None
    value = sorted(factors)[len(factors) // 2]
    unscaled = {site.slot for site in gradients if site.passed and _would_fail_scaled(site.pair, value)}
    return CommonFactor(value, _find_reach([site.slot for site in failing], unscaled), failing)


def read_factor(pair: Pair) -> float | None:
    """Return what the reference is multiplied with to be the candidate; None unless that is a proven relation."""
    numbers = pair.stored
    if pair.related is None or pair.related.relation.kind is not RelationKind.SCALE or numbers is None:
        return None
    # every element has the factor, so the root mean squares have it too; the cosine knows its sign
    reference = math.hypot(numbers.ref_mean, numbers.ref_std)
    candidate = math.hypot(numbers.cand_mean, numbers.cand_std)
    return math.copysign(candidate / reference, numbers.cosine) if reference > 0 and candidate > 0 else None


def _would_fail_scaled(pair: Pair, factor: float) -> bool:
    """Return True if a gradient that passes would not pass had it the factor too."""
    numbers = pair.metrics
    largest = max(abs(numbers.ref_min), abs(numbers.ref_max)) if numbers else 0.0
    return abs(factor - 1) * largest > pair.atol + pair.rtol * largest


def _find_reach(scaled: Sequence[Slot], unscaled: Collection[Slot]) -> Reach:
    if not unscaled:
        return Reach.ALL
    only_parameters = len(scaled) > 1 and set(scaled) == {Slot.PARAM_GRAD} and Slot.PARAM_GRAD not in unscaled
    return Reach.PARAMETERS if only_parameters else Reach.SOME
