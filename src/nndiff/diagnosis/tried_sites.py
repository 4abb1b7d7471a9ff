"""The sites of a replay: what the candidate made there of the reference's tensors, beside what the reference made."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from nndiff.diagnosis.replay_calls import Key
from nndiff.diagnosis.replay_partners import Partner
from nndiff.metrics import Metrics
from nndiff.stats import Job
from nndiff.stats.engine import get_engine
from nndiff.stats.shortcuts import judge_unmeasured
from nndiff.tensors import Site, TensorRef
from nndiff.tolerance import NOISE_FACTOR
from nndiff.verdict import Verdict


@dataclass
class TriedSite:
    """Hold a site of the replay beside the reference's, and how far they are apart."""

    partner: Partner
    reference: TensorRef
    candidate: TensorRef  # as recorded in the replay, in the reference's shape
    atol: float
    rtol: float
    is_replaced: bool  # what came after it was given the reference's bytes
    inherited: float | None  # max abs in the ordinary run
    has_shape_error: bool = False  # another shape is an error like others: the models do not agree
    metrics: Metrics | None = None
    verdict: Verdict | None = None

    @property
    def site(self) -> Site:
        """Return where it is, by the candidate."""
        return self.candidate.site

    @property
    def key(self) -> Key:
        """Return the call it belongs to, by the candidate."""
        return self.site.module, self.site.call

    @property
    def order(self) -> int:
        """Return when it was taken, as the candidate counts."""
        return self.candidate.trace.order

    @property
    def own(self) -> float | None:
        """Return the largest difference; infinite where one side alone is not finite; None where nothing tells."""
        if self.verdict is Verdict.NOT_FINITE:
            return math.inf
        return self.metrics.max_abs if self.metrics is not None and not math.isnan(self.metrics.max_abs) else None

    @property
    def floor(self) -> float | None:
        """Return the noise floor; None where it was not measured, or is infinite: that says nothing."""
        noise = self.reference.trace.noise
        return noise if noise is not None and math.isfinite(noise) else None

    @property
    def is_out(self) -> bool:
        """Return True for what is out of tolerance and more than noise, as far as the noise floor is known."""
        if self.verdict is Verdict.SHAPE:
            return self.has_shape_error
        if self.verdict is None or self.verdict.passed or self.verdict is Verdict.NOT_COMPARED:
            return False
        if self.floor is None or self.own is None or math.isinf(self.own):
            return True
        return self.own > NOISE_FACTOR * self.floor

    @property
    def is_known_equal(self) -> bool:
        """Return True if it was compared and is not out."""
        return self.verdict not in (None, Verdict.NOT_COMPARED, Verdict.SHAPE) and not self.is_out


def measure_sites(sites: Iterable[TriedSite]) -> None:
    """Measure every site, all in one pass over the engine."""
    waiting: list[TriedSite] = []
    for site in sites:
        known = judge_unmeasured(site.reference, site.candidate, site.atol, site.rtol)
        if known is None:
            waiting.append(site)
        else:
            site.verdict, site.metrics = known.verdict, known.metrics
    jobs = [Job(site.reference, site.candidate, site.atol, site.rtol) for site in waiting]
    for site, metrics in zip(waiting, get_engine().measure(jobs, None), strict=True):
        site.metrics = metrics
        site.verdict = metrics.judge(site.reference.dtype == site.candidate.dtype)
