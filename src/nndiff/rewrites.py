"""What two implementations may do otherwise inside while all that goes in and comes out agrees.

Layers are cut, named, laid out and parametrised in many ways. Where every input, output, loss and gradient at
the outside agrees, a disagreement inside that such a rewrite explains is listed and told, and is no difference.
Nothing is excused while anything else differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nndiff.align.sites import GUESSED
from nndiff.findings.layout import Layout, layout_findings, layouts
from nndiff.recorded import is_inner, is_owned
from nndiff.restructured import without_restructured
from nndiff.result import Finding, Leftover
from nndiff.sites import SitePair, outside_agrees
from nndiff.sources import Source
from nndiff.verdict import Verdict


@dataclass(frozen=True)
class Standing:
    """Hold the judged pairs of one candidate, what has no partner, and what was found out about both."""

    sites: Sequence[SitePair]
    leftovers: Sequence[Leftover]
    layouts: Mapping[int, Layout]
    findings: tuple[Finding, ...] = ()
    moved: frozenset[int] = frozenset()  # orders of the pairs that agree once one side is rearranged


def without_rewrites(
    sites: Sequence[SitePair], leftovers: Sequence[Leftover], sources: tuple[Source, Source]
) -> Standing:
    """Return pairs and leftovers with those that a rewrite explains set aside."""
    standing = _without_moved(Standing(sites, leftovers, layouts(sites)), sources)
    findings = (*standing.findings, *_fused(standing.sites))
    if not (outside_agrees(standing.sites) and all(site.passed for site in standing.sites)):
        return replace(standing, findings=findings)
    left, told = without_restructured(standing.sites, standing.leftovers, sources)
    return replace(standing, leftovers=left, findings=(*findings, *told))


def _without_moved(standing: Standing, sources: tuple[Source, Source]) -> Standing:
    """Set aside what only lies otherwise, and take back guessed pairs that do not agree.

    Calls paired by their order, or parts laid beside a larger layer, may simply not belong together; if all
    that is certain agrees, a disagreement of two guessed partners says that the guess was wrong.
    """
    failing = [site for site in standing.sites if not site.passed]
    known = _Known(standing)
    moved = frozenset(site.pair.order for site in failing if known.lies_otherwise(site))
    if not (failing and outside_agrees(standing.sites) and all(map(known.explains, failing))):
        return replace(standing, moved=moved)
    gone = [site for site in standing.sites if not site.passed or _fused_layer(site) in known.doubtful]
    found = (left for site in gone for left in _both_left(site, standing.layouts.get(site.pair.order), sources))
    aside = {_place(left): left for left in found}  # a layer laid beside several parts is left over once
    kept = [site for site in standing.sites if site.passed and _fused_layer(site) not in known.doubtful]
    told = tuple(layout_findings(gone, standing.layouts, harmless=True))
    return Standing(kept, (*standing.leftovers, *sorted(aside.values(), key=_place)), {}, (*standing.findings, *told))


class _Known:
    """Know what the pairs that agree say about those that do not."""

    def __init__(self, standing: Standing) -> None:
        outputs = [site for site in standing.sites if site.slot == "output"]
        failing = [site for site in outputs if not site.passed]
        apart = {site.call for site in failing if site.pair.order not in standing.layouts}
        self._layouts = standing.layouts
        self._agreeing = {site.call for site in outputs if site.passed} - apart
        self._confirmed = {_modules(site) for site in outputs if site.call in self._agreeing}
        self._classes = {_modules(site): _classes(site) for site in outputs}
        self.doubtful = {_fused_layer(site) for site in failing} - {""}

    def explains(self, site: SitePair) -> bool:
        """Tell whether a pair that does not agree is none, or lies otherwise."""
        guessed = GUESSED in site.pair.matched_by and not (is_owned(site.reference) and self._belong(site))
        # a mask of truths or of numbers, of most inputs only a few elements: what their module makes of them tells
        in_another_form = site.slot == "input" and site.call in self._agreeing
        wrong_guess = guessed or _fused_layer(site) in self.doubtful
        return site.inside and (wrong_guess or in_another_form or self.lies_otherwise(site))

    def _belong(self, site: SitePair) -> bool:
        """Tell whether two modules return the same, or what is around one of them does: so what they hold belongs."""
        one, other = _modules(site)
        return any(
            (one == here and f"{other}.".startswith(f"{there}."))
            or (other == there and f"{one}.".startswith(f"{here}."))
            for here, there in self._confirmed
        )

    def lies_otherwise(self, site: SitePair) -> bool:
        """Tell whether a pair agrees once one side is rearranged, and may."""
        return site.inside and site.pair.order in self._layouts and not self._held_alike(site)

    def _held_alike(self, site: SitePair) -> bool:
        """Tell whether two modules of one class hold a parameter of one shape: then it lies in both the same way."""
        one, other = self._classes.get(_modules(site), ("", "?"))
        return is_owned(site.reference) and one == other and site.reference.shape == site.candidate.shape


def _modules(site: SitePair) -> tuple[str, str]:
    return site.module, str(site.candidate.meta["module"])


def _classes(site: SitePair) -> tuple[str, str]:
    return str(site.reference.meta.get("class")), str(site.candidate.meta.get("class"))


def _place(left: Leftover) -> tuple[str, str]:
    return left.side, left.name


def _fused_layer(site: SitePair) -> str:
    """Return the name of the larger layer a pair is part of, or nothing."""
    if not site.part:
        return ""
    whole = site.reference if site.reference.name.endswith("]") else site.candidate  # a stretch: `a.qkv:output.[q]`
    return str(whole.meta["module"] or whole.meta["tensor"])


def _both_left(site: SitePair, layout: Layout | None, sources: tuple[Source, Source]) -> Iterable[Leftover]:
    names = site.pair.reference_name, site.pair.candidate_name
    for side, source, name, other in zip(("reference", "candidate"), sources, names, names[::-1], strict=True):
        tensor = source.tensors[name] if name in source.tensors else source.tensors[name.rpartition(".[")[0]]
        hint = f"agrees with {other!r} after {layout.how}" if layout else _hint(site)
        counts = layout is None and not is_inner(tensor)
        yield Leftover(site.pair.candidate, side, tensor.name, tensor.shape, tensor.dtype.name, hint, counts)


def _hint(site: SitePair) -> str:
    if site.slot == "input":
        kind = "of another shape" if site.pair.verdict is Verdict.SHAPE else "not the same"
        return f"{kind} on the other side; what its module makes of it agrees"
    return "laid beside another by guess, and not equal"


def _fused(sites: Iterable[SitePair]) -> Iterable[Finding]:
    layers = dict.fromkeys(layer for layer in map(_fused_layer, sites) if layer)
    if layers:
        places = "" if len(layers) == 1 else f", in {len(layers):,} places"
        evidence = f"one layer does the work of several of the other side{places}; compared part by part"
        yield Finding("fused", tuple(layers), evidence, "", 1.0, harmless=True)
