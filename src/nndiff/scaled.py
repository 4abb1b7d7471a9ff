"""One factor by which gradients differ: a loss that is scaled, a mean against a sum, a gradient counted twice."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from nndiff.recorded import is_gradient
from nndiff.sites import SitePair
from nndiff.metrics import Metrics

_STRAIGHT = 1e-5  # how far a cosine may be from 1: what rounding leaves of two gradients that differ by a factor
_EQUAL = 2e-3  # how far apart, relatively, factors may be that are taken for one


class Reach(Enum):
    """Say which gradients a factor is found in."""

    ALL = "every gradient"
    PARAMETERS = "every gradient of a parameter"
    SOME = "every gradient that is out"


_MEANS = {
    Reach.ALL: "the loss is scaled, no layer is to blame",
    Reach.PARAMETERS: "those at outputs agree, so they were scaled after the backward pass, or added up over several",
    Reach.SOME: "a factor comes in at the first of them",
}


@dataclass(frozen=True)
class Factor:
    """Hold the factor that gradients of the candidate have against the reference's, and which have it."""

    value: float
    reach: Reach
    sites: Sequence[SitePair]

    @property
    def text(self) -> str:
        """Return the factor as people would write it."""
        for whole, form in ((self.value, "{}"), (1 / self.value, "1/{}")):
            if abs(whole - round(whole)) < _EQUAL * abs(whole) and abs(whole) > 0.5:
                return form.format(round(whole))
        return f"{self.value:.4g}"

    @property
    def meaning(self) -> str:
        """Return what the factor says."""
        return f"{self.reach.value} is {self.text} times the reference's: {_MEANS[self.reach]}"


def common_factor(sites: Iterable[SitePair]) -> Factor | None:
    """Return the one factor that all gradients have which are out, if it is one."""
    gradients = [site for site in sites if is_gradient(site.reference)]
    failing = [site for site in gradients if not site.passed]
    factors = [factor_of(site.pair.metrics) for site in failing]
    known = [factor for factor in factors if factor is not None]
    if not known or len(known) < len(failing) or max(known) - min(known) > _EQUAL * min(map(abs, known)):
        return None
    value = sorted(known)[len(known) // 2]
    unscaled = {site.slot for site in gradients if site.passed and _would_fail(site, value)}
    return Factor(value, _reach([site.slot for site in failing], unscaled), failing)


def factor_of(metrics: Metrics | None) -> float | None:
    """Return what the reference is multiplied with; None where the two are not one direction."""
    if metrics is None or metrics.nonfinite_ref or metrics.nonfinite_cand or not 1 - abs(metrics.cosine) < _STRAIGHT:
        return None
    one, other = math.hypot(metrics.ref_mean, metrics.ref_std), math.hypot(metrics.cand_mean, metrics.cand_std)
    return math.copysign(other / one, metrics.cosine) if one > 0 and other > 0 else None


def is_scaled(metrics: Metrics | None) -> bool:
    """Tell whether one side is a multiple of the other, and more than rounding away from it."""
    factor = factor_of(metrics)
    return factor is not None and abs(factor - 1) > _EQUAL


def _would_fail(site: SitePair, factor: float) -> bool:
    """Tell whether a gradient that passes would not, had it the factor too."""
    numbers = site.pair.metrics
    largest = max(abs(numbers.ref_min), abs(numbers.ref_max)) if numbers else 0.0
    return abs(factor - 1) * largest > site.pair.atol + site.pair.rtol * largest


def _reach(scaled: Sequence[str], unscaled: Collection[str]) -> Reach:
    if not unscaled:
        return Reach.ALL
    of_parameters = len(scaled) > 1 and set(scaled) == {"param_grad"} and "param_grad" not in unscaled
    return Reach.PARAMETERS if of_parameters else Reach.SOME
