"""A loss that is no finite number on either side: gradients of it are NaN whatever the models do, and prove nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nndiff.recorded import is_gradient
from nndiff.result import Leftover
from nndiff.sites import SitePair
from nndiff.tensors import TensorRef
from nndiff.verdict import Verdict

ENDLESS = "the loss is no finite number on either side, so no gradient means anything"

Meta = Mapping[str, Any]


def without_meaning(
    sites: Sequence[SitePair], leftovers: Sequence[Leftover], reference: Meta, candidate: Meta
) -> Sequence[SitePair]:
    """Return the pairs, gradients not compared where they mean nothing; a model against itself stays identical."""
    if not any(_is_endless(site.reference) and _is_endless(site.candidate) for site in sites if site.slot == "loss"):
        return sites
    same_model = all(reference.get(told) == candidate.get(told) for told in ("modules", "held"))
    if same_model and not leftovers and all(site.pair.verdict is Verdict.IDENTICAL for site in sites):
        return sites
    return [_not_compared(site) if is_gradient(site.reference) else site for site in sites]


def _is_endless(loss: TensorRef) -> bool:
    stats = loss.meta.get("stats")
    return stats is not None and stats.nonfinite > 0


def _not_compared(site: SitePair) -> SitePair:
    return replace(site, pair=replace(site.pair, verdict=Verdict.NOT_COMPARED, metrics=None, note=ENDLESS))
