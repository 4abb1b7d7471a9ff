"""What the places that differ have in common: shapes, norms, early layers, only the inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator

from nndiff.diagnosis.call_graph import Tensors
from nndiff.diagnosis.modules import has_weights
from nndiff.diagnosis.site_pairs import outside_agrees
from nndiff.findings.case import Case
from nndiff.findings.causes import Cause
from nndiff.names import ancestors
from nndiff.result import Finding, InputState
from nndiff.tensors import Slot
from nndiff.text import plural
from nndiff.verdict import Verdict

_MOST_LISTED = 10


def find_shapes(case: Case) -> Iterator[Finding]:
    """Yield the paired sites of different shapes that no relation explains."""
    names = []
    for site in case.run.evidence:
        if site.pair.verdict is not Verdict.SHAPE or site.pair.related is not None or not site.pair.certain:
            continue
        # a parameter may have its axes in another order
        is_transposed = site.slot.is_parameter and sorted(site.reference.shape) == sorted(site.candidate.shape)
        if not is_transposed:
            names.append(site.pair.name)
    if names:
        yield Finding(
            Cause.SHAPES_DIFFER,
            tuple(names[:_MOST_LISTED]),
            f"{plural(len(names), 'paired site')} of different shapes",
            "check that both models have the same architecture and layout (channels last, time first)",
            0.8,
        )


def find_dtypes(case: Case) -> Iterator[Finding]:
    """Yield the pairs that are different only because their dtypes are and that was forbidden."""
    dtypes: Counter[tuple[str, str]] = Counter()
    names = []
    for site in case.run.pairs:
        if site.pair.differs_only_in_dtype:
            dtypes[site.pair.dtype] += 1
            names.append(site.pair.name)
    if names:
        (reference, candidate), _ = dtypes.most_common(1)[0]
        yield Finding(
            Cause.DTYPES_DIFFER,
            tuple(names[:_MOST_LISTED]),
            f"the values of {plural(len(names), 'tensor')} agree, the dtypes do not: {reference} against {candidate}",
            "convert one side, or leave out --strict-dtype",
            1.0,
        )


def find_norms_only(case: Case) -> Iterator[Finding]:
    """Yield that only normalisation layers diverge on their own."""
    run = case.run
    holders: set[str] = set()  # a composite that holds a differing module does not diverge on its own
    for site in run.failing_outputs:
        holders.update(ancestors(site.module))
    diverging = []
    for site in run.failing_outputs:
        if site.module not in holders and run.get_input_state(site) is InputState.AGREE:
            diverging.append(site)
    if diverging and all(site.is_norm for site in diverging):
        yield Finding(
            Cause.NORMS_ONLY,
            tuple(site.pair.name for site in diverging[:_MOST_LISTED]),
            "every module that diverges on its own is a normalisation layer",
            "compare eps, weights, running statistics, train or eval mode, and whether eps is inside the square root",
            0.8,
        )


def find_early_divergence(case: Case) -> Iterator[Finding]:
    """Yield that the runs part before the first module with weights, though their inputs are the same."""
    run = case.run
    inputs_agree = all(site.passed for site in run.evidence if site.slot is Slot.MODEL_INPUT)
    if not inputs_agree or not run.failing_outputs:
        return
    weighted = _list_weighted_modules(case, 0), _list_weighted_modules(case, 1)
    begin = _find_first_use(run.reference, weighted[0]), _find_first_use(run.candidate, weighted[1])
    early = None
    for site in run.outputs:
        is_before = site.orders[0] < begin[0] and site.orders[1] < begin[1]
        if is_before and not site.passed:
            early = site
            break
    for site in run.outputs if early is None else ():
        if site.orders == begin and site.module in weighted[0] and run.get_input_state(site) is InputState.DIFFER:
            early = site
            break
    if early is not None:
        yield Finding(
            Cause.EARLY_LAYERS,
            (early.pair.name,),
            "the runs part before the first module with weights",
            "check preprocessing: configuration, normalisation of the input, feature extraction",
            0.7,
        )


def _list_weighted_modules(case: Case, side: int) -> set[str]:
    """Return the modules of a side that hold parameters; frozen ones have no gradient and only the tree lists them."""
    modules = {name for name, module in case.trees[side].items() if has_weights(module)}
    for site in case.run.pairs:
        if site.slot.is_parameter:
            modules.add(site.tensors[side].site.module)
    return modules


def _find_first_use(tensors: Tensors, weighted: Container[str]) -> int:
    """Return the order of the first output that weights had a part in, of a module with a partner or without."""
    first = -1
    for tensor in tensors.values():
        if tensor.site.slot is not Slot.OUTPUT or 0 <= first <= tensor.trace.order:
            continue
        # what the model itself holds, a token or an average, need not be used first
        if any(module and module in weighted for module in (tensor.site.module, *ancestors(tensor.site.module))):
            first = tensor.trace.order
    return first


def find_inner_only(case: Case) -> Iterator[Finding]:
    """Yield that modules inside differ while everything that goes in and comes out agrees."""
    run = case.run
    failing = run.failing_outputs
    if not failing or not outside_agrees(run.pairs):
        return
    count = "1 output inside differs" if len(failing) == 1 else f"{len(failing):,} outputs inside differ"
    gradients = sum(site.is_gradient and not site.passed for site in run.evidence)
    also = f"; so {'does' if gradients == 1 else 'do'} {plural(gradients, 'gradient')} inside" if gradients else ""
    yield Finding(
        Cause.INNER_ONLY,
        tuple(site.pair.name for site in failing[:_MOST_LISTED]),
        f"{count}, everything that goes in and comes out of the model agrees{also}",
        ""
        if case.passed
        else "a rewrite that cancels out (a folded norm, a moved scale), or a fault these inputs hide",
        0.7,
        harmless=case.passed,
    )
