"""Gradients that differ, are missing on one side, or differ by one factor."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from nndiff.diagnosis.common_factor import Reach, find_common_factor
from nndiff.diagnosis.missing_gradients import Unpaired, choose_first, list_missing
from nndiff.diagnosis.site_pairs import SitePair
from nndiff.findings.case import Case
from nndiff.findings.causes import Cause
from nndiff.findings.tied_weights import find_untied
from nndiff.relations import Relation
from nndiff.relations.fold_operations import TakeBehind
from nndiff.result import JOINT, SIDES, Finding, LeftoverReason, NoteSlug
from nndiff.tensors import Site, Slot, TensorRef
from nndiff.text import plural

_MOST_LISTED = 10

_REPAIR_OF_FACTOR = {
    Reach.ALL: "compare the reduction of the loss (mean or sum), its scaling, and the steps that are accumulated",
    Reach.PARAMETERS: "look for gradients that are accumulated, averaged over devices, clipped or not unscaled",
    Reach.SOME: "look for a factor in a custom backward, a gradient hook, or a tensor that is used twice",
}


def find_gradient_causes(case: Case, parameters_alone: Iterable[str]) -> Iterator[Finding]:
    """Yield what is wrong with the gradients, where outputs do not explain it.

    Parameters that only one side has, `parameters_alone`, have a finding of their own.
    """
    run = case.run
    meaningless = [site.pair.name for site in run.pairs if site.pair.has_note(NoteSlug.LOSS_NOT_FINITE)]
    if meaningless:
        yield Finding(
            Cause.LOSS_NOT_FINITE,
            tuple(meaningless[:_MOST_LISTED]),
            f"the loss is NaN or infinite on both sides: none of {plural(len(meaningless), 'gradient')} was compared",
            "use another loss, seed or input, or leave out the backward pass",
            1.0,
        )
        return
    outputs_agree = not run.failing_outputs
    untied = list(find_untied(run.evidence, run.unpaired_gradients)) if outputs_agree else []
    explained = {Site("", Slot.PARAM_GRAD, tensor=name).name for name in parameters_alone}
    explained |= set(list_folded_gradients(run.pairs, run.unpaired_gradients))
    for finding, names in untied:
        yield finding
        explained |= names
    for finding, missing in _find_missing_gradients(case, explained):
        yield finding
        explained |= missing
    if not outputs_agree:
        return
    yield from _find_unproven_gradients(case, explained)
    factor = find_common_factor(run.evidence)
    if factor is not None:
        scaled = tuple(site.pair.name for site in factor.sites[:_MOST_LISTED])
        yield Finding(Cause.GRADIENTS_SCALED, scaled, factor.meaning, _REPAIR_OF_FACTOR[factor.reach], 0.95)
    if factor is None or factor.reach is Reach.SOME:
        yield from _find_differing_gradients(case)


def list_folded_gradients(pairs: Iterable[SitePair], unpaired: Unpaired) -> Iterator[str]:
    """Yield the gradients of layers that the other side has folded into the layer before: they have no partner."""
    folded: tuple[set[str], set[str]] = set(), set()
    for site in pairs:
        relation = site.pair.related.relation if site.pair.related is not None else None
        if not isinstance(relation, Relation):
            continue
        for side, operations in enumerate((relation.reference, relation.candidate)):
            if any(isinstance(operation, TakeBehind) for operation in operations):
                behind = (site.pair.reference_name, site.pair.candidate_name)[side].split(JOINT)[1]
                folded[side].add(behind.partition(":")[0].partition("@")[0])
    for side, tensors in enumerate(unpaired):
        for tensor in tensors:
            if tensor.site.module in folded[side]:
                yield tensor.name


def _find_missing_gradients(case: Case, explained: Container[str]) -> Iterator[tuple[Finding, set[str]]]:
    """Yield the gradients that a side lacks, and why as far as that is known; and the names of all of them."""
    run = case.run
    for number, side in enumerate(SIDES):
        missing = []
        for gradient in list_missing(run.pairs, run.unpaired_gradients, side):
            if gradient.tensor.name not in explained:
                missing.append(gradient)
        names = dict.fromkeys(lost.tensor.name for lost in missing if not lost.tensor.site.is_inside)
        if not names:
            continue
        first = choose_first(missing, run.requests)
        repair = "look for detach(), .data, no_grad() and requires_grad"
        if _has_unpaired_parameters(case, SIDES[1 - number]) and _has_unpaired_parameters(case, side):
            repair += "; if parameters only have other names, pair them with --rename or --map"
        finding = Finding(
            Cause.GRADIENTS_MISSING,
            tuple(names)[:_MOST_LISTED],
            f"the {side} lacks {plural(len(names), 'gradient')} that the {SIDES[1 - number]} has, first "
            f"{first.tensor.name}: {first.explain(run.requests)}",
            repair,
            0.95,
        )
        yield finding, set(names)


def _find_unproven_gradients(case: Case, explained: Container[str]) -> Iterator[Finding]:
    """Yield parameter gradients that no gradient of the other side was proven to be, in any form."""
    unproven: list[TensorRef] = []
    sides = []
    for side, tensors in zip(SIDES, case.run.unpaired_gradients, strict=True):
        alone = [tensor for tensor in tensors if tensor.site.slot is Slot.PARAM_GRAD and tensor.name not in explained]
        if alone:
            unproven += alone
            sides.append(f"{plural(len(alone), 'parameter gradient')} of the {side}")
    if not unproven:
        return
    repair = "check the backward of these parameters; if they only have other names, pair them with --rename or --map"
    why = "equal to none of the other side, in no layout that is known"
    if any(tensor.missing for tensor in unproven):
        why, repair = "too little was kept to compare them", "record both sides again and keep these in full"
    names = tuple(tensor.name for tensor in unproven[:_MOST_LISTED])
    evidence = f"every output agrees, but {' and '.join(sides)} have no partner: {why}"
    yield Finding(Cause.GRADIENTS_ONLY, names, evidence, repair, 0.8)


def _has_unpaired_parameters(case: Case, side: str) -> bool:
    """Return True if a side has parameters, or gradients of them, whose names have no partner."""
    for leftover in case.leftovers:
        is_unpaired = leftover.side == side and leftover.reason is LeftoverReason.NO_PARTNER
        if is_unpaired and leftover.site is not None and leftover.site.slot.is_parameter:
            return True
    return False


def _find_differing_gradients(case: Case) -> Iterator[Finding]:
    outputs = [site for site in case.run.evidence if site.slot in (Slot.OUTPUT, Slot.LOSS)]
    differing = [site.pair.name for site in case.run.evidence if site.is_gradient and not site.passed]
    if differing and outputs and all(site.passed for site in outputs):
        does = "does" if len(differing) == 1 else "do"
        yield Finding(
            Cause.GRADIENTS_ONLY,
            tuple(differing[:_MOST_LISTED]),
            f"every output agrees, {plural(len(differing), 'gradient')} {does} not",
            "check the loss (reduction, scaling), custom backward functions and detached tensors",
            0.8,
        )
