"""What is unlike about the two modules at which the runs part first: their classes and their settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nndiff.divergence import attribute_changes, heeds_mode
from nndiff.findings.modules import Meta, Module, has_weights, module_tree
from nndiff.handed import is_inside
from nndiff.result import Finding
from nndiff.sites import SitePair


def first_module_findings(
    first: SitePair | None, reference: Meta, candidate: Meta, known: tuple[str, ...]
) -> Iterator[Finding]:
    """Yield the classes and settings that differ; `known` are settings that were told already."""
    # a fused layer is of another size, whatever is wrong; a gradient is made by others than the module it is taken at
    if first is None or first.part or first.slot not in ("output", "buffer"):
        return
    trees = module_tree(reference), module_tree(candidate)
    here, there = trees[0].get(first.reference.site.module, {}), trees[1].get(first.candidate.site.module, {})
    if here.get("class") != there.get("class"):
        yield from _classes(first, (here, there), trees)
        return
    changes = {name: both for name, both in attribute_changes(here, there).items() if name not in known}
    if changes:
        told = ", ".join(f"{name} {one!r} against {other!r}" for name, (one, other) in changes.items())
        yield Finding(
            "attribute",
            (first.pair.name,),
            f"{first.reference.site.cls or here.get('class') or 'the module'} that diverges first has {told}",
            "make them equal, then compare again",
            0.9 if set(changes) != {"training"} or heeds_mode(here) else 0.5,
        )


_Trees = tuple[Mapping[str, Any], Mapping[str, Any]]


def _classes(first: SitePair, modules: tuple[Module, Module], trees: _Trees) -> Iterator[Finding]:
    """Tell that one function stands in place of another; what is built of others may have any class."""
    names = first.module, str(first.candidate.site.module)
    built = any(is_inside(each, name) for name, tree in zip(names, trees, strict=True) for each in tree)
    own = all(str(module.get("type", "")).startswith("torch.nn.") for module in modules)
    if built or not all(modules) or not (own or not any(map(has_weights, modules))):
        return
    one, other = (str(module.get("class", "")) for module in modules)
    yield Finding(
        "another-class",
        (first.pair.name,),
        f"where the runs part first the reference has {one} and the candidate {other}",
        "put the same there, then compare again",
        0.85,
    )
