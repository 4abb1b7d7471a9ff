"""Settings of modules that differ and change nothing here: told in a note, for another input or mode may show them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nndiff.divergence import Run, attribute_changes
from nndiff.findings.modules import Meta, module_tree
from nndiff.judging import WITHOUT_EFFECT
from nndiff.text import counted, first_few
from nndiff.verdict import Verdict

_NO_SETTINGS = ("name", "path", "label", "version", "training")  # in their names; of modes others tell


def idle_settings(run: Run, reference: Meta, candidate: Meta) -> Iterator[str]:
    """Yield a note on the settings that differ in modules of one class all of whose tensors agree."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for module, name, (one, other) in _changes(run, reference, candidate):
        found.setdefault((name, str(one), str(other)), []).append(module)
    told = [_told(name, one, other, modules) for (name, one, other), modules in found.items()]
    if told:
        effect = "here" if _identical(run, {each for some in found.values() for each in some}) else "out of tolerance"
        yield f"{WITHOUT_EFFECT} {effect}: {first_few(told)}"


def _changes(run: Run, reference: Meta, candidate: Meta) -> Iterator[tuple[str, str, list[Any]]]:
    """Yield module, name and both values."""
    trees = module_tree(reference), module_tree(candidate)
    apart = {site.module for site in run.sites if not site.passed}
    outputs = [site for site in run.sites if site.slot == "output" and not site.part]
    for one, other in dict.fromkeys((site.module, str(site.candidate.site.module)) for site in outputs):
        here, there = trees[0].get(one, {}), trees[1].get(other, {})
        if one not in apart and here.get("class") == there.get("class"):
            changes = attribute_changes(here, there)
            yield from ((one, name, both) for name, both in changes.items() if _is_setting(name, both))


def _is_setting(name: str, both: list[Any]) -> bool:
    """Tell whether an attribute may change what a module does; a function inside another has no name that tells."""
    return not any(word in name for word in _NO_SETTINGS) and not any("<locals>" in str(each) for each in both)


def _told(name: str, one: str, other: str, modules: list[str]) -> str:
    if len(modules) == 1:
        return f"{modules[0]}.{name}".lstrip(".") + f" {one} against {other}"
    return f"{name} {one} against {other} in {counted(modules, 'module')}"


def _identical(run: Run, modules: set[str]) -> bool:
    return all(site.pair.verdict is Verdict.IDENTICAL for site in run.sites if site.module in modules)
