"""A loss that is no finite number on either side: gradients of it are NaN whatever the models do, and prove nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nndiff.findings.modules import Meta, module_tree
from nndiff.recorded import is_gradient
from nndiff.recording.format.weights import read_held_tensors
from nndiff.result import Leftover
from nndiff.sites import SitePair
from nndiff.tensors import TensorRef
from nndiff.verdict import Verdict

ENDLESS = "the loss is no finite number on either side, so no gradient means anything"


def without_meaning(
    sites: Sequence[SitePair], leftovers: Sequence[Leftover], reference: Meta, candidate: Meta
) -> Sequence[SitePair]:
    """Return the pairs, gradients not compared where they mean nothing; a model against itself stays identical."""
    if not any(_is_endless(site.reference) and _is_endless(site.candidate) for site in sites if site.slot == "loss"):
        return sites
    if (
        _is_same(reference, candidate)
        and not leftovers
        and all(site.pair.verdict is Verdict.IDENTICAL for site in sites)
    ):
        return sites
    return [_not_compared(site) if is_gradient(site.reference) else site for site in sites]


def _is_same(reference: Meta, candidate: Meta) -> bool:
    """Tell whether two recordings are of the same classes, settings and weights."""
    return _classes(reference) == _classes(candidate) and read_held_tensors(reference) == read_held_tensors(candidate)


def _classes(meta: Meta) -> list[tuple[str, Any, Any]]:
    tree = module_tree(meta)
    return [(name, each.get("type"), _settings(each.get("attributes"))) for name, each in tree.items()]


def _settings(attributes: Any) -> Any:
    """Return the settings of a module and the forward it was given itself; other texts may be made anew each time."""
    held = attributes if isinstance(attributes, Mapping) else {}
    return {name: value for name, value in held.items() if name == "forward" or not isinstance(value, str)}


def _is_endless(loss: TensorRef) -> bool:
    stats = loss.trace.stats
    return stats is not None and stats.nonfinite > 0


def _not_compared(site: SitePair) -> SitePair:
    return replace(site, pair=replace(site.pair, verdict=Verdict.NOT_COMPARED, metrics=None, note=ENDLESS))
