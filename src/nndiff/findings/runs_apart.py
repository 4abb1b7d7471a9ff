"""What the way two recordings differ says about the cause: the hints a person would be given."""

from __future__ import annotations

import operator
from collections.abc import Container, Iterator, Mapping
from typing import Any

from nndiff.divergence import Run, State
from nndiff.excuses import rearranged
from nndiff.findings.called import called_findings
from nndiff.findings.first_module import first_module_findings
from nndiff.findings.gradients import gradient_findings
from nndiff.findings.in_place import in_place_findings
from nndiff.findings.layout import Layout
from nndiff.findings.modules import Meta, has_weights, module_tree
from nndiff.findings.returned import returned_findings
from nndiff.findings.rounding import rounding_findings
from nndiff.findings.weights import weight_findings
from nndiff.names import ancestors
from nndiff.recorded import is_gradient, is_inner
from nndiff.recording.format.weights import WeightDifference
from nndiff.result import Finding, Pair
from nndiff.sites import SitePair, outside_agrees
from nndiff.tensors import TensorRef
from nndiff.text import plural
from nndiff.verdict import Verdict


def recording_findings(
    run: Run,
    first: SitePair | None,
    held: WeightDifference | None,
    reference: Meta,
    candidate: Meta,
    moved: Mapping[int, Layout],
) -> tuple[Finding, ...]:
    """Return the findings of two recordings, the most telling first; `held` is what the first module holds."""
    lost = any(run.alone) or any(not is_inner(tensor) for side in run.left for tensor in side)
    apart = lost or any(not site.passed for site in run.sites)
    found = [
        *_unstable(reference, candidate),
        *(_apart(run, first, held, reference, candidate, moved) if apart else _alike(run, reference, candidate)),
    ]
    return tuple(found)


def _alike(run: Run, reference: Meta, candidate: Meta) -> Iterator[Finding]:
    """Yield what is worth knowing of two runs that agree."""
    yield from called_findings(run, None, reference, candidate, harmless=True)


def _apart(
    run: Run,
    first: SitePair | None,
    held: WeightDifference | None,
    reference: Meta,
    candidate: Meta,
    moved: Mapping[int, Layout],
) -> Iterator[Finding]:
    yield from _inputs(run)
    yield from _losses(reference, candidate)
    yield from returned_findings(run, reference, candidate)
    rounded = list(rounding_findings(run, first))
    yield from rounded
    looks_like_rounding = any(each.cause == "rounding" for each in rounded)
    weights = list(weight_findings(held, reference, candidate))
    yield from weights
    modes = list(_modes(run, first, reference, candidate))
    yield from modes
    yield from first_module_findings(first, reference, candidate, known=("training",) if modes else ())
    yield from called_findings(run, first, reference, candidate, harmless=False)
    yield from in_place_findings(run, first)
    yield from _shapes(run, moved)
    yield from rearranged([site.pair for site in run.sites], moved, harmless=False)
    yield from _norms(run) if not looks_like_rounding else ()
    yield from _early(run, reference, candidate) if not looks_like_rounding else ()
    yield from gradient_findings(run, not_held={name for each in weights for name in each.where})
    yield from _inner(run)
    yield from _environment(reference, candidate)


def _inputs(run: Run) -> Iterator[Finding]:
    differing = tuple(site.pair.name for site in run.sites if site.slot == "model_input" and not site.passed)
    if differing:
        after = any(not site.passed for site in run.sites if site.slot != "model_input")
        lost = any(run.left) or any(run.alone)
        yield Finding(
            "inputs-differ",
            differing,
            "the two models were not fed the same"
            + (": everything after that is inherited" if after or lost else ", and yet all that was made of it agrees"),
            "feed the recorded input: nndiff diff REF.nnrec MODEL replays it; then look at preprocessing",
            1.0,
        )


def _modes(run: Run, first: SitePair | None, reference: Meta, candidate: Meta) -> Iterator[Finding]:
    if all(site.passed for site in run.telling if site.slot == "output"):
        return
    apart = _in_other_modes(run, reference, candidate)
    if apart:
        yield Finding(
            "train-mode",
            tuple(apart[:5]),
            f"in train mode on one side only: {plural(len(apart), 'module')} of a kind that behaves otherwise there",
            "record both with --mode eval (or both in train mode with --dropout off)",
            0.95,
        )
        return
    if _draws_alone(reference, candidate):
        yield Finding(
            "train-mode",
            (),
            "one side is in train mode and draws random numbers, the other is not and draws none",
            "record both with --mode eval (or both in train mode with --dropout off)",
            0.9,
        )
        return
    dropping = [str(name) for name in reference.get("dropout_active") or candidate.get("dropout_active") or ()]
    # dropout draws alike where what comes before it is alike: it is to blame only where the runs part in it
    if first is not None and any(f"{name}.".startswith(f"{first.module}.".lstrip(".")) for name in dropping):
        yield Finding(
            "train-mode",
            tuple(dropping[:5]),
            f"dropout was at work in {plural(len(dropping), 'module')}: who draws in another order differs everywhere",
            "record both with --dropout off, or with --mode eval",
            0.6,
        )


def _draws_alone(reference: Meta, candidate: Meta) -> bool:
    """Tell whether only the side in train mode draws: functions drop where no module tells."""
    draws = {_is_training(meta): meta.get("draws") for meta in (reference, candidate)}
    return draws == {True: True, False: False}


def _is_training(meta: Meta) -> bool:
    return module_tree(meta).get("", {}).get("training") is True


_MODE_DEPENDENT = ("dropout", "batchnorm", "instancenorm", "batch_norm")


def _in_other_modes(run: Run, reference: Meta, candidate: Meta) -> list[str]:
    """Return the paired modules that know training and are in it on one side only."""
    trees = module_tree(reference), module_tree(candidate)
    found: dict[str, None] = {}
    for site in run.sites:
        here = trees[0].get(site.reference.site.module, {})
        there = trees[1].get(site.candidate.site.module, {})
        knows = any(word in str(here.get("class", "")).lower() for word in _MODE_DEPENDENT)
        if knows and there and here.get("training") != there.get("training"):
            found[site.reference.site.module] = None
    return list(found)


def _unstable(reference: Meta, candidate: Meta) -> Iterator[Finding]:
    for side, meta in (("reference", reference), ("candidate", candidate)):
        agreement = meta.get("self_agreement")
        if isinstance(agreement, Mapping) and agreement.get("agrees") is False:
            names = agreement.get("names")
            yield Finding(
                "unstable",
                tuple(str(name) for name in names[:5]) if isinstance(names, list) else (),
                f"the {side} differs from itself from run to run; sites that differ: {agreement.get('disagreeing')}",
                "turn off its randomness (--dropout off, --deterministic) before comparing it with anything",
                0.9,
            )


def _shapes(run: Run, moved: Container[int]) -> Iterator[Finding]:
    others = [site.pair for site in run.sites if site.pair.verdict is Verdict.SHAPE and site.pair.order not in moved]
    misfits = tuple(pair.name for pair in others if not _is_turned_weight(pair))
    if misfits:
        yield Finding(
            "shapes-differ",
            misfits[:10],
            f"of other shapes on the two sides: {plural(len(misfits), 'paired site')}",
            "check that both models have the same architecture, and the layout (channels last, time first)",
            0.8,
        )


def _is_turned_weight(pair: Pair) -> bool:
    """Tell whether a parameter, or its gradient, has the axes of the other in another order."""
    return pair.is_owned and sorted(pair.shape[0]) == sorted(pair.shape[1])


def _norms(run: Run) -> Iterator[Finding]:
    failing = [site for site in run.telling if site.slot == "output" and not site.passed]
    outer = {around for site in failing for around in ancestors(site.module)}
    # a composite that holds a failing module does not diverge on its own
    own = [site for site in failing if site.module not in outer and run.inputs_of(site) is State.IN]
    if own and all(site.is_norm for site in own):
        yield Finding(
            "norms-only",
            tuple(site.pair.name for site in own[:10]),
            "every module that diverges on its own is a normalisation layer",
            "compare eps, weights, running statistics, train or eval mode, and the order of eps and square root",
            0.8,
        )


def _early(run: Run, reference: Meta, candidate: Meta) -> Iterator[Finding]:
    """Tell when the two runs part before the first module that has weights, though they were fed the same."""
    if not all(site.passed for site in run.telling if site.slot == "model_input"):
        return
    outputs = [site for site in run.telling if site.slot == "output"]
    weighted = _with_weights(run, reference, 0), _with_weights(run, candidate, 1)
    begun = _first_weights(run.reference, weighted[0]), _first_weights(run.candidate, weighted[1])
    before = [site for site in outputs if all(map(operator.lt, site.orders, begun)) and not site.passed]
    first = [site for site in outputs if site.orders == begun and site.module in weighted[0]]
    early = before or [site for site in first if run.inputs_of(site) is State.OUT]
    if early:
        yield Finding(
            "early-layers",
            (early[0].pair.name,),
            "the runs part before the first module with weights",
            "check preprocessing: configuration, normalisation of the input, feature extraction",
            0.7,
        )


def _first_weights(tensors: Mapping[int, TensorRef], weighted: Container[str]) -> int:
    """Return the order of the first output that weights had a part in, be it of a module with a partner or not."""
    outputs = [tensor for tensor in tensors.values() if tensor.site.slot == "output"]
    made = (
        tensor.trace.order
        for tensor in outputs
        # what the model itself holds, a token or an average, need not be used first
        if any(module in weighted for module in (tensor.site.module, *ancestors(tensor.site.module)) if module)
    )
    return min(made, default=-1)


def _with_weights(run: Run, meta: Meta, number: int) -> set[str]:
    """Return the modules of a side that hold parameters; of those that are frozen only the modules themselves tell."""
    owned = (site for site in run.sites if site.slot in ("param", "param_grad"))
    owners = {str((site.reference, site.candidate)[number].site.module) for site in owned}
    return owners | {name for name, module in module_tree(meta).items() if has_weights(module)}


def _inner(run: Run) -> Iterator[Finding]:
    """Tell when what differs inside is made good before it comes out."""
    failing = [site for site in run.telling if site.slot == "output" and not site.passed]
    if failing and outside_agrees(run.telling):
        gradients = sum(is_gradient(site.reference) and not site.passed for site in run.telling)
        but = f"; {plural(gradients, 'gradient')} inside {'does' if gradients == 1 else 'do'} not" if gradients else ""
        many = "1 output inside differs" if len(failing) == 1 else f"{len(failing):,} outputs inside differ"
        yield Finding(
            "inner-only",
            tuple(site.pair.name for site in failing[:10]),
            f"{many}, and all that goes in and comes out of the model agrees{but}",
            "a rewrite that cancels out (a norm folded away, a scale moved), or a fault that these inputs do not show",
            0.7,
        )


_LOSSES = {
    "given": "a loss of its file",
    "model": "the model's own loss",
    "projection": "nndiff's projection",
    "script": "a loss that its folder does not tell",
}


def _losses(reference: Meta, candidate: Meta) -> Iterator[Finding]:
    one, other = reference.get("loss"), candidate.get("loss")
    if not (isinstance(one, str) and isinstance(other, str)) or {one, other} == {"script", "given"}:
        return  # a script may well have gone backward from the loss that is given
    if one != other:
        yield Finding(
            "losses-differ",
            (),
            f"the reference went backward from {_LOSSES.get(one, one)}, the candidate from {_LOSSES.get(other, other)}",
            "give both the same loss: define loss(model, inputs, output) in both files, or in neither",
            1.0,
        )


def _environment(reference: Meta, candidate: Meta) -> Iterator[Finding]:
    changes = {
        **_changes(_versions(reference), _versions(candidate)),
        **_changes(reference.get("flags"), candidate.get("flags")),
    }
    if changes:
        told = ", ".join(f"{name} {one} against {other}" for name, (one, other) in list(changes.items())[:8])
        yield Finding("environment", (), told, "rule it out: record both with the same versions and flags", 0.2)


def _versions(meta: Meta) -> Any:
    environment = meta.get("environment")
    return environment.get("versions") if isinstance(environment, Mapping) else None


def _changes(one: Any, other: Any) -> dict[str, tuple[Any, Any]]:
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        return {}
    return {str(name): (one[name], other[name]) for name in one if name in other and one[name] != other[name]}
