"""What gradients say that are out, lost, or out by one factor."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from nndiff.divergence import Run
from nndiff.endless import ENDLESS
from nndiff.findings.tied import untied
from nndiff.lost import SIDES, foremost, lost_in, lost_why
from nndiff.recorded import is_gradient, is_inner
from nndiff.result import Finding
from nndiff.scaled import Factor, Reach, common_factor
from nndiff.text import plural

_LISTED = 10


def gradient_findings(run: Run, not_held: Iterable[str]) -> Iterator[Finding]:
    """Yield what is wrong with the gradients, where outputs do not explain it.

    Of parameters `not_held` by one side there is none: that was told.
    """
    meaningless = tuple(site.pair.name for site in run.sites if site.pair.note == ENDLESS)
    if meaningless:
        yield Finding(
            "loss-not-finite",
            meaningless[:_LISTED],
            f"{ENDLESS}: none of {plural(len(meaningless), 'gradient')} was compared",
            "give another loss, seed or inputs, or leave out --backward (backward=True)",
            1.0,
        )
        return
    outputs_agree = all(site.passed for site in run.telling if site.slot == "output")
    tied = list(untied(run.telling, run.left)) if outputs_agree else []
    yield from (finding for finding, _ in tied)
    explained = {name for _, names in tied for name in names} | {f"{name}:param_grad" for name in not_held}
    yield from _missing(run, explained)
    if outputs_agree:
        factor = common_factor(run.telling)
        yield from _scaled(factor)
        if factor is None or factor.reach is Reach.SOME:
            yield from _alone(run)


def _missing(run: Run, explained: Container[str]) -> Iterator[Finding]:
    """Tell which gradients a side lacks, and why as far as that is known."""
    for number, side in enumerate(SIDES):
        found = lost_in(run.sites, run.left, 1 - number)
        lost = [each for each in found if each.tensor.name not in explained]
        names = tuple(dict.fromkeys(each.tensor.name for each in lost if not is_inner(each.tensor)))
        if names:
            first = foremost(lost, run.asking)
            yield Finding(
                "gradients-missing",
                names[:_LISTED],
                f"the {side} lacks {plural(len(names), 'gradient')} that the {SIDES[1 - number]} has, first "
                f"{first.tensor.name}: {lost_why(first, run.asking)}",
                "look for detach(), .data, no_grad() and requires_grad; parameters of other names need --rename",
                0.95,
            )


_REPAIR = {
    Reach.ALL: "compare the reduction of the loss (mean against sum), its scaling, and the steps that are accumulated",
    Reach.PARAMETERS: "look for gradients that are accumulated, averaged over devices, clipped or not unscaled",
    Reach.SOME: "look for a factor in a custom backward, a gradient hook, or a tensor that is used twice",
}


def _scaled(factor: Factor | None) -> Iterator[Finding]:
    if factor is not None:
        names = tuple(site.pair.name for site in factor.sites[:_LISTED])
        yield Finding("gradients-scaled", names, factor.meaning, _REPAIR[factor.reach], 0.95)


def _alone(run: Run) -> Iterator[Finding]:
    outputs = [site for site in run.telling if site.slot in ("output", "loss")]
    failing = [site for site in run.telling if is_gradient(site.reference) and not site.passed]
    if failing and outputs and all(site.passed for site in outputs):
        yield Finding(
            "gradients-only",
            tuple(site.pair.name for site in failing[:_LISTED]),
            f"every output agrees, {plural(len(failing), 'gradient')} {'does' if len(failing) == 1 else 'do'} not",
            "check that the loss is the same (reduction, scaling), custom backward functions, detached tensors",
            0.8,
        )
