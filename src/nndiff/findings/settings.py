"""Settings of modules: what differs under one name or under names of one meaning, with effect and without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nndiff.diagnosis.modules import Module, depends_on_mode, get_class, get_settings, is_from_torch
from nndiff.findings.case import Case
from nndiff.result import Note, NoteSlug
from nndiff.tensors import Slot
from nndiff.text import counted, first_few
from nndiff.verdict import Verdict

# Names that implementations give to one setting.
SYNONYMS: tuple[frozenset[str], ...] = (
    frozenset(
        (
            *("eps", "epsilon", "variance_epsilon", "norm_eps", "layer_norm_eps", "layer_norm_epsilon"),
            *("layernorm_eps", "layernorm_epsilon", "rms_norm_eps", "ln_eps"),
        )
    ),
    frozenset(("p", "dropout", "dropout_p", "dropout_prob", "drop_prob", "dropout_rate", "drop")),
    frozenset(("negative_slope", "alpha")),
    frozenset(("num_heads", "n_heads", "n_head", "nhead", "num_attention_heads")),
    frozenset(("num_key_value_heads", "num_kv_heads", "n_kv_heads")),
    frozenset(("head_dim", "head_size", "d_head", "d_kv")),
    frozenset(("scale", "scaling", "softmax_scale")),
    frozenset(("rope_theta", "rope_base", "theta")),
)
_NO_SETTINGS = ("name", "path", "label", "version", "training")  # in names of attributes; modes have their own finding

Settings = dict[str, tuple[Any, Any]]  # by the reference's name, `eps / epsilon` where the candidate has another


def compare_settings(reference: Module, candidate: Module) -> Settings:
    """Return the plain attributes that differ and that both modules have, under one name or names of one meaning."""
    ours, theirs = get_settings(reference), get_settings(candidate)
    changes: Settings = {}
    for name, value in ours.items():
        partner = name if name in theirs else _find_synonym(name, ours, theirs)
        if partner and theirs[partner] != value:
            changes[name if partner == name else f"{name} / {partner}"] = (value, theirs[partner])
    modes = reference.get("training"), candidate.get("training")
    if reference and candidate and modes[0] != modes[1] and _may_depend_on_mode(reference, candidate):
        changes["training"] = modes
    return changes


def _find_synonym(name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Return the one name by which the other module may have a setting; "" where there is none, or several."""
    for names in SYNONYMS:
        if name in names:
            partners = [partner for partner in theirs if partner in names and partner not in ours]
            rivals = [rival for rival in ours if rival in names and rival not in theirs]
            return partners[0] if len(partners) == 1 and len(rivals) == 1 else ""
    return ""


def is_known_setting(name: str) -> bool:
    """Return True for settings whose meaning is known whatever the class of their module."""
    return any(name.partition(" / ")[0] in names for names in SYNONYMS)


def _may_depend_on_mode(reference: Module, candidate: Module) -> bool:
    """Return True if the mode may be why two modules differ; nobody knows that of a class that is not torch's own."""
    is_unknown = get_class(reference) == get_class(candidate) and not is_from_torch(reference)
    return is_unknown or depends_on_mode(reference) or depends_on_mode(candidate)


def note_settings_without_effect(case: Case) -> Iterator[Note]:
    """Yield a note on settings that differ in modules all of whose tensors agree: other inputs may show them."""
    modules_by_change: dict[tuple[str, str, str], list[str]] = {}
    for module, name, reference, candidate in _list_changes_without_effect(case):
        modules_by_change.setdefault((name, str(reference), str(candidate)), []).append(module)
    texts, concerned = [], set()
    for (name, reference, candidate), modules in modules_by_change.items():
        concerned.update(modules)
        if len(modules) == 1:
            texts.append(f"{modules[0]}.{name}".lstrip(".") + f" {reference} against {candidate}")
        else:
            texts.append(f"{name} {reference} against {candidate} in {counted(modules, 'module')}")
    if texts:
        verdicts = {site.pair.verdict for site in case.run.pairs if site.module in concerned}
        effect = "without effect here" if verdicts == {Verdict.IDENTICAL} else "with no effect out of tolerance"
        yield Note(NoteSlug.SETTINGS_WITHOUT_EFFECT, f"settings that differ, {effect}: {first_few(texts)}")


def _list_changes_without_effect(case: Case) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield module, setting and both values, of paired modules in which nothing differs."""
    differing = {site.module for site in case.run.pairs if not site.passed}
    seen = set()
    for site in case.run.pairs:
        modules = site.module, site.candidate_module
        if site.slot is not Slot.OUTPUT or site.is_part or modules in seen or site.module in differing:
            continue
        seen.add(modules)
        reference, candidate = case.trees[0].get(modules[0], {}), case.trees[1].get(modules[1], {})
        same_class = get_class(reference) == get_class(candidate)
        for name, values in compare_settings(reference, candidate).items():
            if (same_class or is_known_setting(name)) and _is_setting(name, values):
                yield site.module, name, *values


def _is_setting(name: str, values: tuple[Any, Any]) -> bool:
    """Return True if an attribute may change what a module does; a function inside another has no telling name."""
    is_local = any("<locals>" in str(value) for value in values)
    return not is_local and not any(word in name for word in _NO_SETTINGS)
