"""Conditions the two runs were made under: inputs, losses, modes, randomness, versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nndiff.diagnosis.modules import Meta, get_class, was_run_by_nndiff
from nndiff.findings.case import Case
from nndiff.findings.causes import Cause
from nndiff.result import SIDES, Finding
from nndiff.tensors import Slot
from nndiff.text import plural

_MOST_LISTED = 5
_MOST_VERSIONS = 8
# Modules that are blamed where they are in train mode on one side only, by the names of their classes.
_MODE_DEPENDENT = ("dropout", "batchnorm", "instancenorm", "batch_norm")

_LOSSES = {
    "given": "a loss of its file",
    "model": "the model's own loss",
    "projection": "nndiff's projection",
    "script": "a loss its folder does not name",
}


def find_differing_inputs(case: Case) -> Iterator[Finding]:
    """Yield the inputs of the model that differ."""
    differing, differs_later = [], bool(case.run.extra_outputs) or any(case.run.unpaired_gradients)
    for site in case.run.pairs:
        if not site.passed and site.slot is Slot.MODEL_INPUT:
            differing.append(site.pair.name)
        elif not site.passed:
            differs_later = True
    if differing:
        effect = ": everything after that is inherited" if differs_later else ", but everything made of them agrees"
        repair = "check the preprocessing"
        if was_run_by_nndiff(case.reference):
            repair = "replay the recorded inputs with nndiff diff REF.nnrec MODEL, then check the preprocessing"
        evidence = f"the two models were not given the same inputs{effect}"
        yield Finding(Cause.INPUTS_DIFFER, tuple(differing), evidence, repair, 1.0)


def find_differing_losses(case: Case) -> Iterator[Finding]:
    """Yield that the backward passes began with losses of different kinds."""
    losses = case.reference.get("loss"), case.candidate.get("loss")
    if not (isinstance(losses[0], str) and isinstance(losses[1], str)) or losses[0] == losses[1]:
        return
    if set(losses) == {"script", "given"}:
        return  # a script may well have gone backward from the loss that is given
    texts = [_LOSSES.get(loss, loss) for loss in losses if isinstance(loss, str)]
    yield Finding(
        Cause.LOSSES_DIFFER,
        (),
        f"the reference went backward from {texts[0]}, the candidate from {texts[1]}",
        "use the same loss on both sides: define loss(model, inputs, output) in both files, or in neither",
        1.0,
    )


def find_modes(case: Case) -> Iterator[Finding]:
    """Yield that train mode or dropout is why outputs differ."""
    if not case.run.failing_outputs:
        return
    eval_mode = "put both in eval mode, or both in train mode without dropout"
    if case.was_run_by_nndiff:
        eval_mode = "record both with --mode eval (or both in train mode with --dropout off)"
    modules = _list_modules_in_one_mode(case)
    if modules:
        yield Finding(
            Cause.TRAIN_MODE,
            tuple(modules[:_MOST_LISTED]),
            f"{plural(len(modules), 'module')} that behave differently in train mode are in it on one side only",
            eval_mode,
            0.95,
        )
    elif _only_training_side_draws(case):
        yield Finding(
            Cause.TRAIN_MODE,
            (),
            "one side is in train mode and draws random numbers, the other is not and draws none",
            eval_mode,
            0.9,
        )
    else:
        yield from _find_dropout(case)


def _list_modules_in_one_mode(case: Case) -> list[str]:
    """Return the paired modules that one side has in train mode, where that changes what they do."""
    modules: dict[str, None] = {}
    for site in case.run.pairs:
        reference = case.trees[0].get(site.module, {})
        candidate = case.trees[1].get(site.candidate_module, {})
        if not candidate or reference.get("training") == candidate.get("training"):
            continue
        name = get_class(reference if reference.get("training") else candidate).lower()
        if any(word in name for word in _MODE_DEPENDENT):
            modules[site.module] = None
    return list(modules)


def _only_training_side_draws(case: Case) -> bool:
    """Return True if only the side in train mode draws random numbers: functions drop where no module tells."""
    draws = {}
    for tree, meta in zip(case.trees, case.metas, strict=True):
        draws[tree.get("", {}).get("training") is True] = meta.get("draws")
    return draws == {True: True, False: False}


def _find_dropout(case: Case) -> Iterator[Finding]:
    dropping = case.reference.get("dropout_active") or case.candidate.get("dropout_active") or ()
    names = [str(name) for name in dropping]
    first = case.first
    # dropout draws the same numbers as long as the runs agree: blame it only where they part in it
    if first is not None and any(f"{name}.".startswith(f"{first.module}.".lstrip(".")) for name in names):
        repair = "record both with --dropout off, or with --mode eval" if case.was_run_by_nndiff else "turn dropout off"
        yield Finding(
            Cause.TRAIN_MODE,
            tuple(names[:_MOST_LISTED]),
            f"dropout was active in {plural(len(names), 'module')}: drawing in another order changes everything",
            repair,
            0.6,
        )


def find_unstable_sides(case: Case) -> Iterator[Finding]:
    """Yield the sides that do not agree with themselves from run to run."""
    for side, meta in zip(SIDES, case.metas, strict=True):
        agreement = meta.get("self_agreement")
        if not isinstance(agreement, Mapping) or agreement.get("agrees") is not False:
            continue
        names = agreement.get("names")
        yield Finding(
            Cause.UNSTABLE,
            tuple(str(name) for name in names[:_MOST_LISTED]) if isinstance(names, list) else (),
            f"the {side} differs from itself from run to run, at {agreement.get('disagreeing')} sites",
            "turn off its randomness (--dropout off, --deterministic) before comparing it with anything",
            0.9,
        )


def find_environment(case: Case) -> Iterator[Finding]:
    """Yield the versions and numeric flags that differ."""
    texts = []
    for read in (_read_versions, _read_flags):
        reference, candidate = read(case.reference), read(case.candidate)
        for name, value in reference.items():
            if name in candidate and candidate[name] != value:
                texts.append(f"{name} {value} against {candidate[name]}")
    if texts:
        evidence = ", ".join(texts[:_MOST_VERSIONS])
        yield Finding(Cause.ENVIRONMENT, (), evidence, "rule it out: record both with the same versions and flags", 0.2)


def _read_versions(meta: Meta) -> Mapping[str, Any]:
    environment = meta.get("environment")
    versions = environment.get("versions") if isinstance(environment, Mapping) else None
    return versions if isinstance(versions, Mapping) else {}


def _read_flags(meta: Meta) -> Mapping[str, Any]:
    flags = meta.get("flags")
    return flags if isinstance(flags, Mapping) else {}
