"""Which layer is to blame for the output error of a mode."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nndiff.facts.modes import BlamedLayer

if TYPE_CHECKING:
    import torch

Progress = Callable[[int, int | None], None]

_KEPT_LAYERS = 8  # layers whose outputs are in memory at the same time
_MOST_RUNS = 1000  # two for each layer and sample: a model of many layers is judged by its first samples


@dataclass
class _Error:
    """Add up a squared error over samples."""

    total: float = 0.0
    count: int = 0

    def add(self, reference: list[torch.Tensor], candidate: list[torch.Tensor]) -> None:
        from nndiff.modes.layer_swap import compute_squared_error

        error, count = compute_squared_error(reference, candidate)
        self.total += error
        self.count += count

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0


@dataclass
class _LayerErrors:
    """Hold the errors of one layer: at its output, and of the final output in two experiments."""

    own: _Error = field(default_factory=_Error)
    cumulative: _Error = field(default_factory=_Error)
    alone: _Error = field(default_factory=_Error)  # this layer as in the candidate, all others as in the reference
    restored: _Error = field(default_factory=_Error)  # this layer as in the reference, all others as in the candidate

    def compute_share(self, whole: float) -> float:
        """Return the share of the whole output error that the layer causes.

        It is the mean of the error it makes alone and of the error that goes away with it. Were the network linear,
        this would be the projection of its part of the output error on the whole, and parts add up to the whole.
        """
        if not math.isfinite(whole):  # the question is who makes it infinite
            return (float(not math.isfinite(self.alone.total)) + float(math.isfinite(self.restored.total))) / 2
        return (self.alone.total + whole - self.restored.total) / 2 / whole if whole else 0.0


def blame_layers(
    make_reference: Callable[[], torch.nn.Module],
    make_candidate: Callable[[], torch.nn.Module],
    samples: Sequence[Any],
    *,
    progress: Progress | None = None,
) -> list[BlamedLayer]:
    """Return every layer that a mode changed, ranked by its share of the final output error.

    Shares are measured, layer by layer, with two runs for each sample, and add up to one. A model of many layers is
    judged by its first samples.
    """
    from nndiff.modes.changed_layers import find_changed_layers
    from nndiff.modes.layer_swap import ModelPair, Side

    show = progress or (lambda done, total: None)
    pair = ModelPair(make_reference, make_candidate, samples)
    layers = find_changed_layers(pair, samples[0], lambda tried: show(tried, None))
    used_samples = samples[: max(1, _MOST_RUNS // (2 * len(layers)))] if layers else []
    whole = _Error()
    errors = {layer.name: _LayerErrors() for layer in layers}
    for number, sample in enumerate(used_samples):
        outputs = pair.run(Side.REFERENCE, (), sample).outputs
        whole.add(outputs, pair.run(Side.CANDIDATE, (), sample).outputs)
        for start in range(0, len(layers), _KEPT_LAYERS):
            group = layers[start : start + _KEPT_LAYERS]
            sites = {layer.site for layer in group}
            reference = pair.run(Side.REFERENCE, (), sample, sites).at_modules
            candidate = pair.run(Side.CANDIDATE, (), sample, sites).at_modules
            for position, layer in enumerate(group, start):
                show(number * len(layers) + position + 1, len(used_samples) * len(layers))
                error = errors[layer.name]
                alone = pair.run(Side.REFERENCE, layer.parts, sample, [layer.site])
                error.own.add(reference[layer.site], alone.at_modules[layer.site])
                error.cumulative.add(reference[layer.site], candidate[layer.site])
                error.alone.add(outputs, alone.outputs)
                error.restored.add(outputs, pair.run(Side.CANDIDATE, layer.parts, sample).outputs)
    # A layer whose error only makes those of others smaller has no share. What layers do to each other's errors, and
    # what arithmetic between them adds (sums in float16), is shared out in proportion.
    shares = {name: max(0.0, error.compute_share(whole.total)) for name, error in errors.items()}
    total_share = math.fsum(shares.values()) or 1.0
    blame = []
    for layer in layers:
        error = errors[layer.name]
        share = shares[layer.name] / total_share
        blame.append(BlamedLayer(layer.name, error.own.mean, error.cumulative.mean, share, layer.together))
    return sorted(blame, key=lambda entry: -entry.share)
