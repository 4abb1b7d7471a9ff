"""How the two modules at which the runs part first differ: their classes and their settings."""

from __future__ import annotations

from collections.abc import Iterator

from nndiff.diagnosis.call_graph import is_inside
from nndiff.diagnosis.modules import depends_on_mode, get_class, has_weights, is_from_torch
from nndiff.findings.case import Case
from nndiff.findings.causes import Cause
from nndiff.findings.settings import Settings, compare_settings, is_known_setting
from nndiff.result import Finding, FirstDivergence, PartingReason
from nndiff.tensors import Slot


def compare_settings_at(case: Case, first: FirstDivergence) -> Settings:
    """Return the settings that differ in the modules to look in."""
    if first.reason is PartingReason.EXTRA_OUTPUT:
        return {}
    # a fused layer has another size, whatever is wrong with it
    if any(site.is_part and site.module == first.module for site in case.run.pairs):
        return {}
    return compare_settings(case.trees[0].get(first.module, {}), case.trees[1].get(first.candidate_module, {}))


def find_module_causes(case: Case, mode_is_blamed: bool) -> Iterator[Finding]:
    """Yield the class or the settings of the first diverging module that differ."""
    first = case.first
    # a gradient is made by other modules than the one it is taken at
    if first is None or first.is_part or first.slot not in (Slot.OUTPUT, Slot.BUFFER):
        return
    modules = case.trees[0].get(first.module, {}), case.trees[1].get(first.candidate_module, {})
    classes = get_class(modules[0]), get_class(modules[1])
    settings = compare_settings(*modules)
    if mode_is_blamed:
        settings.pop("training", None)
    if classes[0] != classes[1]:
        if _is_one_function(case, first.module, first.candidate_module):
            yield Finding(
                Cause.ANOTHER_CLASS,
                (first.pair.name,),
                f"where the runs part first the reference has {classes[0]}, the candidate {classes[1]}",
                "use the same one on both sides, then compare again",
                0.85,
            )
            return
        settings = {name: values for name, values in settings.items() if is_known_setting(name)}
    if settings:
        texts = [f"{name} {reference!r} against {candidate!r}" for name, (reference, candidate) in settings.items()]
        is_sure = set(settings) != {"training"} or depends_on_mode(modules[0])
        yield Finding(
            Cause.ATTRIBUTE,
            (first.pair.name,),
            f"the first diverging module, {first.reference.site.cls or classes[0] or 'of unknown class'}, "
            f"has {', '.join(texts)}",
            "make them equal, then compare again",
            0.9 if is_sure else 0.5,
        )


def _is_one_function(case: Case, reference: str, candidate: str) -> bool:
    """Return True if both modules are a function in themselves; what is built of others may have any class."""
    modules = []
    for path, tree in zip((reference, candidate), case.trees, strict=True):
        if path not in tree or any(is_inside(inner, path) for inner in tree):
            return False
        modules.append(tree[path])
    return all(map(is_from_torch, modules)) or not any(map(has_weights, modules))
