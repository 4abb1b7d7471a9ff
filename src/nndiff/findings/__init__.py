"""Findings: causes with evidence and, where possible, the repair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nndiff.diagnosis.first_divergence import build_run, describe_divergence, find_first_divergence
from nndiff.diagnosis.site_pairs import SitePair
from nndiff.findings.calls import find_call_causes
from nndiff.findings.case import Case
from nndiff.findings.causes import Cause
from nndiff.findings.conditions import (
    find_differing_inputs,
    find_differing_losses,
    find_environment,
    find_modes,
    find_unstable_sides,
)
from nndiff.findings.first_module import compare_settings_at, find_module_causes
from nndiff.findings.gradients import find_gradient_causes
from nndiff.findings.in_place import find_overwrites
from nndiff.findings.masked_positions import find_masked_positions
from nndiff.findings.outputs import find_missing_outputs, note_output_form
from nndiff.findings.patterns import (
    find_dtypes,
    find_early_divergence,
    find_inner_only,
    find_norms_only,
    find_shapes,
)
from nndiff.findings.relations import find_fused_layers, find_layout_change, find_relations
from nndiff.findings.rounding import find_rounding, find_undecidable, note_noise
from nndiff.findings.settings import note_settings_without_effect
from nndiff.findings.weights import compare_weights_at_first, find_swapped_weights, find_weight_causes
from nndiff.result import (
    Finding,
    FirstDivergence,
    Judgement,
    Leftover,
    Note,
    NoteSlug,
    Rules,
    WeightsAtSite,
)
from nndiff.sources.source import Source
from nndiff.verdict import EXTRA_OUTPUTS

__all__ = ["Cause", "Explanation", "explain_candidate"]

GRADIENT_SCALE = Note(
    NoteSlug.GRADIENT_SCALE, "gradients are judged on their own scale: atol times their largest value, where below 1"
)


@dataclass(frozen=True)
class Explanation:
    """Hold what the pairs of one candidate say together; it changes no verdict."""

    first: FirstDivergence | None
    findings: tuple[Finding, ...]
    notes: tuple[Note, ...]


def explain_candidate(
    reference: Source,
    candidate: Source,
    pairs: Sequence[SitePair],
    leftovers: Sequence[Leftover],
    judgement: Judgement,
    rules: Rules,
    label: str,
    against_names: Sequence[tuple[str, str]] = (),
) -> Explanation:
    """Return where a candidate parts from the reference, why, and what else is worth knowing.

    `pairs` and `leftovers` are those of this candidate. `against_names` are modules of reference and candidate that
    hold the same weights and were paired by them although their names say otherwise.
    """
    run = build_run(reference, candidate, pairs, leftovers)
    if EXTRA_OUTPUTS in rules.accept:
        run.extra_outputs = ()
    case = Case(run, reference.meta, candidate.meta, judgement, leftovers=leftovers)
    if not case.passed:
        case = replace(case, place=find_first_divergence(run))
    weights = compare_weights_at_first(case, against_names)
    first = None
    if case.place is not None:
        first = describe_divergence(run, case.place, case.trees, label)
        first = replace(first, settings=compare_settings_at(case, first), weights=weights)
    findings = _find_agreement_facts(case) if case.passed else _find_causes(case, weights, against_names)
    notes = [*note_output_form(case), *note_settings_without_effect(case), *note_noise(case)]
    if any(site.is_gradient and site.pair.scale != 1.0 for site in pairs):
        notes.insert(0, GRADIENT_SCALE)
    return Explanation(first, tuple(replace(finding, candidate=label) for finding in findings), tuple(notes))


def _find_agreement_facts(case: Case) -> Iterator[Finding]:
    """Yield what is worth knowing of two runs that agree."""
    yield from find_unstable_sides(case)
    yield from find_relations(case)
    yield from find_fused_layers(case)
    yield from find_call_causes(case)
    yield from find_inner_only(case)
    yield from find_undecidable(case)


def _find_causes(
    case: Case, weights: WeightsAtSite | None, against_names: Sequence[tuple[str, str]]
) -> Iterator[Finding]:
    """Yield why two runs differ, the most telling first."""
    yield from find_unstable_sides(case)
    yield from find_differing_inputs(case)
    yield from find_differing_losses(case)
    yield from find_missing_outputs(case)
    yield from find_dtypes(case)
    rounding = list(find_rounding(case))
    yield from rounding
    yield from find_weight_causes(case, weights)
    yield from find_swapped_weights(case, against_names)
    modes = list(find_modes(case))
    yield from modes
    yield from find_module_causes(case, mode_is_blamed=bool(modes))
    yield from find_call_causes(case)
    yield from find_overwrites(case)
    yield from find_shapes(case)
    yield from find_relations(case)
    yield from find_fused_layers(case)
    yield from find_layout_change(case)
    if not any(finding.cause in (Cause.ROUNDING, Cause.LOW_PRECISION) for finding in rounding):
        yield from find_norms_only(case)
        yield from find_early_divergence(case)
    alone = (*weights.only_reference, *weights.only_candidate) if weights else ()
    yield from find_gradient_causes(case, parameters_alone=alone)
    yield from find_inner_only(case)
    yield from find_masked_positions(case)
    yield from find_undecidable(case)
    yield from find_environment(case)
