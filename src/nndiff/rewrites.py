"""What two implementations may do otherwise inside while all that goes in and comes out agrees.

What the recordings alone tell is looked up here: how tensors lie, and whether parameters without a partner are there in
another form. Which pairs are excused is decided by what a result keeps (see `excuses`), so that it can be judged again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nndiff.excuses import Excuses, Orders, Ruling, listed, told
from nndiff.findings.layout import Layout, layouts
from nndiff.judging import Scales, maybe_lying, smallest
from nndiff.laid import laid
from nndiff.recorded import is_owned
from nndiff.restructured import without_restructured
from nndiff.result import Finding, Leftover, Pair, PairSite, Rearranged
from nndiff.sites import SitePair
from nndiff.sources import Source
from nndiff.tolerance import DEFAULT_ATOL, DEFAULT_RTOL

Sources = tuple[Source, Source]


@dataclass(frozen=True)
class Standing:
    """Hold the judged pairs of one candidate, what has no partner, and what was found out about both."""

    sites: Sequence[SitePair]
    leftovers: Sequence[Leftover]
    layouts: Mapping[int, Layout]
    findings: tuple[Finding, ...] = ()
    moved: frozenset[int] = frozenset()  # orders of the pairs that agree once one side is rearranged
    aside: tuple[Pair, ...] = ()
    latent: tuple[Finding, ...] = ()  # what is to be told of leftovers where all else agrees


def without_rewrites(sites: Sequence[SitePair], leftovers: Sequence[Leftover], sources: Sources) -> Standing:
    """Return pairs and leftovers with those that a rewrite explains set aside."""
    found = lies(sites)
    sites = [_lying(site, found.get(site.pair.order)) for site in sites]
    failing = frozenset(site.pair.order for site in sites if not site.passed)
    excuses = _excuses(sites, leftovers)
    ruling = excuses.ruling(failing, found)
    findings = tuple(told(excuses, ruling, found))
    sites, least = _looked_ahead(sites, leftovers, sources)
    if not ruling.agreed:
        latent = () if least is None else _reformed(sites, leftovers, sources, least)
        return Standing(sites, leftovers, found, findings, ruling.moved, latent=latent)
    kept, left = _applied(sites, leftovers, ruling, found)
    left, restructured = without_restructured(kept, left, sources)
    aside = tuple(site.pair for site in sites if site.pair.order in ruling.aside)
    return Standing(kept, left, {}, (*findings, *restructured), aside=aside, latent=restructured)


def lies(sites: Sequence[SitePair]) -> dict[int, Layout]:
    """Return how tensors lie, by the order of the pair: what is known at a small tolerance is known at larger ones.

    There several ways may agree, and none of them is told from the others.
    """
    found: dict[int, Layout] = {}
    for times in _TIMES:
        there = [_tightly(site, times) for site in sites]
        found = layouts(there) | found
        tightened = (each for each, asked in zip(there, sites, strict=True) if each is not asked)
        if all(each.passed or each.pair.order in found for each in tightened):
            break
    return found


_TIMES = (1.0, 100.0, math.inf)  # the default tolerance; the last is what was asked for


def _tightly(site: SitePair, times: float) -> SitePair:
    """Return a pair at so many times the default tolerance where it was judged at a larger one."""
    pair = site.pair
    atol, rtol = min(pair.atol, times * DEFAULT_ATOL * pair.scale), min(pair.rtol, times * DEFAULT_RTOL)
    return site if (atol, rtol) == (pair.atol, pair.rtol) else replace(site, pair=replace(pair, atol=atol, rtol=rtol))


def _excuses(sites: Iterable[SitePair], leftovers: Iterable[Leftover]) -> Excuses:
    return Excuses((site.pair for site in sites), leftovers)


def _applied(
    sites: Sequence[SitePair], leftovers: Sequence[Leftover], ruling: Ruling, lying: Orders
) -> tuple[Sequence[SitePair], Sequence[Leftover]]:
    """Return sites and leftovers, with what a ruling sets aside among the leftovers."""
    aside = [site.pair for site in sites if site.pair.order in ruling.aside]
    kept = [site for site in sites if site.pair.order not in ruling.aside]
    return kept, (*leftovers, *listed(aside, ruling.idle, lying))


def _lying(site: SitePair, layout: Layout | None) -> SitePair:
    """Return a pair that keeps how one side of it lies, if it does, and the numbers it then has."""
    pair, before = site.pair, site.pair.site
    if layout is None or before is None:
        return site
    told_of = layout.cause, layout.how, layout.evidence, layout.repair, layout.confidence
    kept = Rearranged(*told_of, ((pair.atol, pair.rtol),), laid(site, layout))
    return replace(site, pair=replace(pair, site=replace(before, layout=kept)))


def _looked_ahead(
    sites: Sequence[SitePair], leftovers: Sequence[Leftover], sources: Sources
) -> tuple[Sequence[SitePair], float | None]:
    """Return the pairs with how they lie where a saved result may be asked, and the tolerance it was looked at.

    That is the smallest one, atol = rtol = t, at which nothing but what the recordings alone can tell would stand
    against a pass: how tensors lie, and which parameters are there in another form. At smaller ones neither matters.
    """
    counting = [left for left in leftovers if left.counts]
    turned = maybe_lying((site.pair, math.inf, math.inf) for site in sites)
    if not (counting or turned) or not all(_may_be_reformed(left, sources) for left in counting):
        return sites, None
    scales = Scales(_excuses(sites, leftovers), leftovers)
    beyond = (math.nextafter(max(pair.atol / pair.scale, pair.rtol), math.inf) for pair in scales.excuses.pairs)
    least = smallest(scales.may_agree, (*scales.values, *beyond))  # at what they were judged at, it is known
    if least is None:
        return sites, None
    known: dict[int, PairSite | None] = {}
    for t in (least, *(max(least, _SMALLEST) * factor for factor in _FACTORS)):
        unknown = (scales.failing(t) & scales.maybe_lying(t)) - known.keys()
        there = {site.pair.order: _at(site, t) for site in sites if site.pair.order in unknown}
        found = lies(list(there.values())) if there else {}
        known |= {order: _lying(there[order], layout).pair.site for order, layout in found.items()}
    return [_knowing(site, known) for site in sites], least


_SMALLEST, _FACTORS = 1e-8, (10.0, 100.0, 1000.0)  # what lies otherwise may be off by more than all else


def _knowing(site: SitePair, known: Mapping[int, PairSite | None]) -> SitePair:
    order = site.pair.order
    return replace(site, pair=replace(site.pair, site=known[order])) if order in known else site


def _may_be_reformed(left: Leftover, sources: Sources) -> bool:
    return not left.unreached and is_owned(sources[left.side == "candidate"].tensors[left.name])


def _at(site: SitePair, t: float) -> SitePair:
    pair = site.pair
    return replace(site, pair=replace(pair, atol=t * pair.scale, rtol=0.0 if pair.exact else t))


def _reformed(
    sites: Sequence[SitePair], leftovers: Sequence[Leftover], sources: Sources, t: float
) -> tuple[Finding, ...]:
    """Return what is told of parameters in another form if all else agrees at atol = rtol = t."""
    scales = Scales(_excuses(sites, leftovers), leftovers)
    lying = scales.lying(t)
    ruling = scales.excuses.ruling(scales.failing(t), lying)
    if not ruling.agreed:
        return ()
    _, findings = without_restructured(*_applied(sites, leftovers, ruling, lying), sources)
    return findings
