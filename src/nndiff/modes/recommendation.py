"""Which layers to keep at reference precision, so that a mode meets a target."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nndiff.errors import UsageError
from nndiff.facts.modes import BlamedLayer
from nndiff.modes.blame import Progress
from nndiff.modes.thresholds import TARGET_METRICS

if TYPE_CHECKING:
    import torch

    from nndiff.modes.layer_swap import ModelPair


@dataclass(frozen=True)
class Recommendation:
    """Name the layers to keep, with what the shares predict of it and what a run gave; `verified` may miss `target`."""

    keep: tuple[str, ...]
    predicted: float
    verified: float
    target: float
    metric: str

    @property
    def is_met(self) -> bool:
        """Return True if the run with these layers kept met the target."""
        return _meets(self.metric, self.verified, self.target)


@dataclass
class _Fidelity:
    """Add up over samples how near an output is to the reference's."""

    error: float = 0.0
    signal: float = 0.0
    count: int = 0
    agreeing: int = 0
    positions: int = 0

    def add(self, reference: list[torch.Tensor], candidate: list[torch.Tensor]) -> None:
        """Take in one output; the choice of a position is the largest number on the last axis of the first tensor."""
        from nndiff.modes.layer_swap import compute_squared_error, split_blocks

        error, count = compute_squared_error(reference, candidate)
        self.error += error
        self.count += count
        for tensor in reference:
            self.signal += sum(float(block.square().sum()) for block in split_blocks(tensor))
        choices = [tensors[0].argmax(-1) for tensors in (reference, candidate)]
        self.agreeing += int((choices[0] == choices[1]).sum())
        self.positions += choices[0].numel()

    def get_metric(self, metric: str, error_share: float = 1.0) -> float:
        """Return a metric, of an error that is only a share of this one."""
        error = self.error * error_share
        if metric == "mse":
            return error / self.count if self.count else 0.0
        if metric == "top1":
            # near a tie margins are spread evenly: as many choices change as the error is large, not its square
            return 1 - (1 - self.agreeing / self.positions) * math.sqrt(error_share) if self.positions else 1.0
        if not self.signal:
            return math.inf if not error else -math.inf
        return 10 * math.log10(self.signal / error) if error else math.inf


def recommend_layers(
    make_reference: Callable[[], torch.nn.Module],
    make_candidate: Callable[[], torch.nn.Module],
    samples: Sequence[Any],
    target: tuple[str, float],
    blame: Sequence[BlamedLayer],
    *,
    progress: Progress | None = None,
) -> Recommendation:
    """Return the smallest set of layers to keep at reference precision that meets a target such as ("sqnr", 30.0).

    The shares say which layers and about how many; runs say how many really, and that none of them is superfluous.
    """
    from nndiff.modes.layer_swap import ModelPair

    metric, wanted = target
    if metric not in TARGET_METRICS:
        raise UsageError(f"unknown target {metric!r}; the targets are {', '.join(TARGET_METRICS)}, as in sqnr=30")
    pair = ModelPair(make_reference, make_candidate, samples)
    ranked = sorted(blame, key=lambda layer: -layer.share)
    unkept, all_kept = _measure(pair, [], samples), _measure(pair, ranked, samples)
    runs = 0

    def measure(kept: Sequence[BlamedLayer]) -> float:
        nonlocal runs
        runs += 1
        if progress:
            progress(runs, None)
        return _measure(pair, kept, samples).get_metric(metric)

    def report(kept: Sequence[BlamedLayer], verified: float) -> Recommendation:
        names = tuple(layer.name for layer in kept)
        return Recommendation(names, _predict(unkept, all_kept, kept, metric), verified, wanted, metric)

    def is_met(value: float) -> bool:
        return _meets(metric, value, wanted)

    if not ranked or is_met(unkept.get_metric(metric)):
        return report([], unkept.get_metric(metric))
    verified = all_kept.get_metric(metric)
    if not is_met(verified):
        return report(ranked, verified)
    # so many of the first are too few, and so many are enough
    too_few, enough = 0, len(ranked)
    guess = 1
    while guess < enough and not is_met(_predict(unkept, all_kept, ranked[:guess], metric)):
        guess += 1
    while enough - too_few > 1:
        count = min(max(guess, too_few + 1), enough - 1)
        result = measure(ranked[:count])
        if is_met(result):
            enough, verified = count, result
            guess = count - 1
        else:
            too_few = count
            guess = (too_few + enough) // 2
    return report(*_drop_superfluous(ranked[:enough], verified, measure, is_met))


def make_snippet(recommendation: Recommendation) -> str:
    """Return a line of Python with the names of the layers to leave out when quantising."""
    return f"exclude = {json.dumps(list(recommendation.keep))}\n"


def _drop_superfluous(
    kept: list[BlamedLayer],
    verified: float,
    measure: Callable[[Sequence[BlamedLayer]], float],
    is_enough: Callable[[float], bool],
) -> tuple[list[BlamedLayer], float]:
    """Return the layers without those that the target does not need, and what a run with them gave."""
    for layer in reversed(kept[:-1]):  # without the last they are too few
        rest = [kept_layer for kept_layer in kept if kept_layer is not layer]
        result = measure(rest)
        if is_enough(result):
            kept, verified = rest, result
    return kept, verified


def _predict(unkept: _Fidelity, all_kept: _Fidelity, kept: Sequence[BlamedLayer], metric: str) -> float:
    """Return a metric with some layers kept: their shares go from the error without any to the error with all kept."""
    kept_share = min(1.0, math.fsum(layer.share for layer in kept))
    rest = min(1.0, all_kept.error / unkept.error) if 0 < unkept.error < math.inf else 0.0
    return unkept.get_metric(metric, 1 - kept_share * (1 - rest))


def _measure(pair: ModelPair, kept: Sequence[BlamedLayer], samples: Sequence[Any]) -> _Fidelity:
    """Return how near the candidate is to the reference with some of its layers kept."""
    from nndiff.modes.layer_swap import Side

    parts = []
    for layer in kept:
        parts += [layer.name, *layer.together]
    fidelity = _Fidelity()
    for sample in samples:
        reference = pair.run(Side.REFERENCE, (), sample)
        fidelity.add(reference.outputs, pair.run(Side.CANDIDATE, parts, sample).outputs)
    return fidelity


def _meets(metric: str, value: float, target: float) -> bool:
    return value <= target if metric == "mse" else value >= target
