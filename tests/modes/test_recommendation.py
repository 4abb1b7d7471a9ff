"""Recommendations: verified by a run that exchanges nothing, and as small as they can be."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from nndiff.errors import UsageError  # noqa: E402
from nndiff.facts.modes import BlamedLayer  # noqa: E402
from nndiff.modes.blame import blame_layers  # noqa: E402
from nndiff.modes.recommendation import Recommendation, make_snippet, recommend_layers  # noqa: E402
from quantised_nets import (  # noqa: E402
    compute_mse,
    list_layers,
    make_net,
    make_samples,
    replace_linears,
    round_weights,
    run_net,
)


def measure(kind: str, mode: Any, kept: tuple[str, ...], metric: str) -> float:
    """Return a metric, in NumPy, of the mode applied to all layers but those kept."""
    samples = make_samples(kind)
    layers = [name for name in list_layers(make_net(kind)) if name not in kept]
    reference, candidate = run_net(make_net(kind), samples), run_net(mode(make_net(kind), layers), samples)
    if metric == "top1":
        agreements = [(a.argmax(-1) == b.argmax(-1)).ravel() for a, b in zip(reference, candidate, strict=True)]
        return float(np.mean(np.concatenate(agreements)))
    mse = compute_mse(reference, candidate)
    signal = compute_mse(reference, [np.zeros_like(output) for output in reference])
    return mse if metric == "mse" else 10 * math.log10(signal / mse)


def recommend(kind: str, mode: Any, metric: str, target: float) -> Recommendation:
    layers = list_layers(make_net(kind))
    makers = (partial(make_net, kind), lambda: mode(make_net(kind), layers))
    samples = make_samples(kind)
    return recommend_layers(*makers, samples, (metric, target), blame_layers(*makers, samples))


INT4 = partial(round_weights, bits=4)
W6A6 = partial(replace_linears, bits=6)


@pytest.mark.parametrize(
    ("kind", "mode", "metric", "gain"),
    [
        ("mlp", INT4, "sqnr", 6.0),
        ("conv", INT4, "sqnr", 8.0),
        ("transformer", W6A6, "sqnr", 5.0),
        ("llama", INT4, "mse", 0.3),
        ("mamba", INT4, "mse", 0.2),
        ("gpt2", INT4, "top1", 0.05),
    ],
)
def test_the_layers_kept_meet_the_target_and_none_is_superfluous(kind, mode, metric, gain):
    now = measure(kind, mode, (), metric)
    target = now * gain if metric == "mse" else now + gain
    advice = recommend(kind, mode, metric, target)
    assert (advice.metric, advice.target, advice.is_met) == (metric, target, True)
    assert 0 < len(advice.keep) < len(list_layers(make_net(kind)))
    assert advice.verified == pytest.approx(measure(kind, mode, advice.keep, metric), rel=1e-5)
    meets = (lambda value: value <= target) if metric == "mse" else (lambda value: value >= target)
    assert meets(advice.verified)
    for name in advice.keep:
        fewer = tuple(kept for kept in advice.keep if kept != name)
        assert not meets(measure(kind, mode, fewer, metric)), f"{name} is superfluous"
    # the shares predict what the run gives: within 3 dB, half of the error, a tenth of the choices
    assert metric != "sqnr" or advice.predicted == pytest.approx(advice.verified, abs=3)
    assert metric != "mse" or advice.predicted == pytest.approx(advice.verified, rel=0.5)
    assert metric != "top1" or advice.predicted == pytest.approx(advice.verified, abs=0.1)


def test_no_smaller_set_meets_the_target():
    target = measure("conv", INT4, (), "sqnr") + 8
    advice = recommend("conv", INT4, "sqnr", target)
    layers = list_layers(make_net("conv"))
    for smaller in itertools.combinations(layers, len(advice.keep) - 1):
        assert measure("conv", INT4, smaller, "sqnr") < target


def test_nothing_is_kept_where_the_target_is_met_already():
    now = measure("mlp", INT4, (), "sqnr")
    advice = recommend("mlp", INT4, "sqnr", now - 1)
    assert advice.keep == ()
    assert advice.verified == advice.predicted == pytest.approx(now)
    assert make_snippet(advice) == "exclude = []\n"


def cast_inside(net: nn.Module) -> nn.Module:
    net.half().register_forward_pre_hook(lambda module, args: tuple(argument.half() for argument in args))
    net.register_forward_hook(lambda module, args, output: output.float())
    return net


def test_a_target_that_cannot_be_met_keeps_all_and_says_so():
    makers = (partial(make_net, "conv"), lambda: cast_inside(make_net("conv")))
    samples = make_samples("conv")
    blame = blame_layers(*makers, samples)
    advice = recommend_layers(*makers, samples, ("sqnr", 200.0), blame)
    assert set(advice.keep) == {layer.name for layer in blame}
    assert not advice.is_met
    assert math.isfinite(advice.verified)
    assert advice.verified < 200


def test_wrong_shares_cost_layers_but_never_the_target():
    # the blame is turned around: the worst layers come last
    layers = list_layers(make_net("conv"))
    makers = (partial(make_net, "conv"), lambda: INT4(make_net("conv"), layers))
    samples = make_samples("conv")
    blame = blame_layers(*makers, samples)
    shares = sorted(layer.share for layer in blame)
    turned = [BlamedLayer(layer.name, 0.0, 0.0, share) for layer, share in zip(blame, shares, strict=True)]
    target = measure("conv", INT4, (), "sqnr") + 8
    advice = recommend_layers(*makers, samples, ("sqnr", target), turned)
    assert advice.is_met
    assert advice.verified == pytest.approx(measure("conv", INT4, advice.keep, "sqnr"), rel=1e-5)


def test_a_snippet_can_be_pasted_into_python():
    advice = Recommendation(("blocks.0.conv1", "head"), 30.0, 31.0, 30.0, "sqnr")
    namespace: dict[str, Any] = {}
    exec(make_snippet(advice), namespace)
    assert namespace["exclude"] == ["blocks.0.conv1", "head"]


def test_an_unknown_target_is_a_usage_error():
    with pytest.raises(UsageError, match="unknown target 'psnr'; the targets are sqnr, mse, top1"):
        recommend_layers(partial(make_net, "mlp"), partial(make_net, "mlp"), make_samples("mlp"), ("psnr", 3.0), [])


def test_choices_are_those_of_the_output_not_of_a_loss_before_it():
    class WithLoss(nn.Module):
        def __init__(self, sign: float) -> None:
            super().__init__()
            self.scale = nn.Linear(4, 4, bias=False)
            self.scale.weight = nn.Parameter(sign * torch.eye(4))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            scores = self.scale(x)
            return scores.sum(), scores

    makers = (lambda: WithLoss(1.0), lambda: WithLoss(-1.0))
    samples = [torch.arange(12.0).reshape(3, 4)]
    advice = recommend_layers(*makers, samples, ("top1", 1.0), blame_layers(*makers, samples))
    assert advice.keep == ("scale",)  # every choice changes without it
