"""Convolutions, poolings and resizing: NumPy makes what torch makes, and the setting that differs is found."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from layer_trials import Code, draw, make_trial, name_cause, pair_of, prove
from torch import nn

from nndiff.findings.hypotheses.convolutions import CONVOLUTIONS
from nndiff.findings.hypotheses.spatial import RESIZES, Pool, Window, resize


@pytest.mark.parametrize("kind", ["max", "mean"])
@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 2, 1), (2, 2, 0), (3, 1, 1), (4, 3, 2)])
@pytest.mark.parametrize("size", [(7, 8), (11, 6)])
def test_pooling_is_that_of_torch(kind, ceil, kernel, stride, padding, size):
    x = draw(2, 3, *size)
    window = Window((kernel,) * 2, (stride,) * 2, ((padding, padding),) * 2, (1, 1))
    for counts in (True, False):
        made = Pool(kind, window, ceil, counts).run(x.double().numpy())
        if kind == "max":
            wanted = F.max_pool2d(x, kernel, stride, padding, ceil_mode=ceil)
        else:
            wanted = F.avg_pool2d(x, kernel, stride, padding, ceil_mode=ceil, count_include_pad=counts)
        np.testing.assert_allclose(made, wanted.numpy(), rtol=1e-5, atol=1e-6)


def resize_by_torch(x: torch.Tensor, size: tuple[int, int], kind: str) -> torch.Tensor:
    mode, _, aligned = kind.partition(", ")
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    return F.interpolate(x, size, mode=mode, align_corners=bool(aligned) if mode.startswith("bi") else None)


@pytest.mark.parametrize("kind", RESIZES)
@pytest.mark.parametrize("size", [(9, 13), (4, 3), (12, 12)])
def test_resizing_is_that_of_torch(kind, size):
    x = draw(2, 3, 6, 7)
    wanted = resize_by_torch(x, size, kind).numpy()
    np.testing.assert_allclose(resize(x.double().numpy(), size, kind), wanted, rtol=1e-4, atol=1e-5)


CONV = {
    "padding": [({"padding": 1}, {"padding": 0}), ({"padding": 1}, {"padding": 2})],
    "mode": [({"padding": 1}, {"padding": 1, "padding_mode": m}) for m in ("reflect", "replicate", "circular")],
    "stride": [({"stride": 2}, {"stride": 1}), ({"stride": 1, "padding": 1}, {"stride": 3, "padding": 1})],
    "dilation": [({"dilation": 2}, {"dilation": 1}), ({"padding": 1}, {"padding": 2, "dilation": 2})],
}
CAUSE = {"mode": "padding"}


@pytest.mark.parametrize("setting", CONV)
@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("groups", [1, 4])
def test_settings_of_convolutions(setting, rank, groups):
    cls = nn.Conv1d if rank == 1 else nn.Conv2d
    for ours, theirs in CONV[setting]:
        pair = pair_of(
            lambda o=ours: cls(4, 8, 3, groups=groups, **o), lambda t=theirs: cls(4, 8, 3, groups=groups, **t)
        )
        proof = prove(make_trial(*pair, draw(2, 4, *(11, 10)[:rank])))
        assert proof.cause == CAUSE.get(setting, setting)
        assert "settings are equal" not in proof.evidence


@pytest.mark.parametrize("kernel", [3, 5])
def test_code_that_does_not_follow_its_settings(kernel):
    def run(module, x, **options):
        return F.conv1d(x, module.weight, module.bias, **options)

    def causal(module, x):
        return run(module, F.pad(x, (kernel - 1, 0)))

    def flip(module, x):
        return F.conv1d(x, module.weight.flip(-1), module.bias, padding=kernel // 2)

    x = draw(2, 4, 12)
    for forward, cause, text in (
        (causal, "padding", f"padding is {kernel - 1} in front, 0 behind"),
        (lambda m, x: run(m, F.pad(x, (0, kernel - 1))), "padding", f"padding is 0 in front, {kernel - 1} behind"),
        (lambda m, x: run(m, x), "padding", "padding is 0"),
        (lambda m, x: run(m, x, padding=kernel // 2, stride=2), "stride", "stride is 2"),
        (flip, "rows-permuted", "the kernel is flipped"),
    ):
        ours, theirs = pair_of(lambda: nn.Conv1d(4, 6, kernel, padding=kernel // 2))
        theirs.forward = lambda x, forward=forward, theirs=theirs: forward(theirs, x)
        proof = prove(make_trial(ours, theirs, x))
        assert proof.cause == cause
        assert proof.evidence.startswith(f"{text} in the candidate")
        assert "the settings are equal, the candidate's code does not follow them" in proof.evidence


@pytest.mark.parametrize("size", [(8, 8), (10, 12)])
def test_same_padding_of_other_frameworks(size):
    ours, theirs = pair_of(lambda: nn.Conv2d(3, 6, 3, stride=2, padding=1))
    theirs.forward = lambda x: F.conv2d(F.pad(x, (0, 1, 0, 1)), theirs.weight, theirs.bias, stride=2)
    proof = prove(make_trial(ours, theirs, draw(2, 3, *size)))
    assert proof.cause == "padding"
    assert "0 in front, 1 behind" in proof.evidence


@pytest.mark.parametrize("size", [9, 12])
def test_poolings(size):
    x = draw(2, 4, size, size)

    def cause(ours, theirs):
        return name_cause(make_trial(ours, theirs, x))

    assert cause(nn.MaxPool2d(2), nn.AvgPool2d(2)) == "pooling"
    assert cause(nn.AvgPool2d(3, 2, 1), nn.AvgPool2d(3, 2, 1, count_include_pad=False)) == "pooling"
    assert cause(nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(3, 2, 0)) in ("padding", "pooling")
    assert cause(nn.MaxPool2d(3, 2), nn.MaxPool2d(3, 1)) == "stride"
    assert cause(nn.MaxPool2d(3, 1), nn.MaxPool2d(3, 1, dilation=2)) == "dilation"
    assert cause(nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1)) == "pooling"
    assert cause(nn.AdaptiveAvgPool2d(2), nn.AdaptiveMaxPool2d(2)) == "pooling"
    assert cause(nn.AdaptiveAvgPool2d(1), nn.AdaptiveMaxPool2d(1)) == "pooling"
    assert cause(Code(lambda x: F.avg_pool2d(x, 3, 1, 1)), Code(lambda x: F.max_pool2d(x, 3, 1, 1))) == "pooling"


@pytest.mark.parametrize("size", [8, 10])
def test_ceil_mode_changes_shapes(size):
    trial = make_trial(nn.MaxPool2d(3, 2), nn.MaxPool2d(3, 2, ceil_mode=True), draw(2, 4, size, size))
    assert trial.reference.shape != trial.candidate.shape
    assert (
        prove(trial).evidence
        == "sizes are rounded up (ceil_mode) in the candidate, sizes are rounded down in the reference"
    )


@pytest.mark.parametrize("theirs", RESIZES)
@pytest.mark.parametrize("size", [(9, 13), (4, 11)])
def test_resizing(theirs, size):
    for ours in ("linear", "nearest"):
        if ours == theirs:
            continue
        trial = make_trial(
            Code(lambda x, k=ours: resize_by_torch(x, size, k)), Code(lambda x: resize_by_torch(x, size, theirs)),
            draw(2, 3, 6, 7),
        )  # fmt: skip
        assert prove(trial).evidence == f"{theirs} in the candidate, {ours} in the reference"


@pytest.mark.parametrize("length", [6, 9])
def test_pooling_of_sequences(length):
    x, mask = draw(3, length, 8), torch.ones(3, length)
    mask[0, 4:] = 0
    mask[1, 2:] = 0
    first, mean = Code(lambda x, mask: x[:, 0]), Code(lambda x, mask: x.mean(1))
    masked = Code(lambda x, mask: (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
    last = Code(lambda x, mask: x[torch.arange(3), mask.sum(1).long() - 1])
    for ours, theirs, text in (
        (first, mean, "the mean over axis 1 in the candidate, the first place of axis 1 in the reference"),
        (masked, mean, "the mean over axis 1 in the candidate, the mean where `1` is set in the reference"),
        (last, Code(lambda x, mask: x[:, -1]), "the last place of axis 1 in the candidate, the last place where `1`"),
    ):
        proof = prove(make_trial(ours, theirs, x, mask.bool() if ours is first else mask))
        assert proof.cause == "pooling"
        assert proof.evidence.startswith(text)


@pytest.mark.parametrize("seed", range(3))
def test_other_faults_are_no_settings(seed):
    ours, theirs = pair_of(lambda: nn.Conv2d(3, 6, 3, padding=1))
    x = draw(2, 3, 8, 8)
    for change in (
        lambda y: y + 0.01 * draw(*y.shape, seed=seed),
        lambda y: y.flip(-1),
        lambda y: 1.1 * y,
        torch.tanh,
    ):
        theirs.forward = lambda x, change=change: change(ours(x))
        assert CONVOLUTIONS.prove(make_trial(ours, theirs, x)) is None
        pooled = Code(lambda x, change=change: change(F.avg_pool2d(x, 2)))
        assert CONVOLUTIONS.prove(make_trial(nn.AvgPool2d(2), pooled, x)) is None
    theirs.forward = lambda x: F.conv2d(x.double(), ours.weight.double(), ours.bias.double(), padding=1).float()
    assert CONVOLUTIONS.prove(make_trial(ours, theirs, x)) is None


@pytest.mark.parametrize(("kernel", "padding"), [(1, 0), (3, 1)])
def test_a_stride_that_begins_elsewhere(kernel, padding):
    ours, theirs = pair_of(lambda: nn.Conv2d(4, 6, kernel, stride=2, padding=padding))
    theirs.forward = lambda x: nn.functional.conv2d(x[..., 1:, 1:], theirs.weight, theirs.bias, 2, padding)
    proof = prove(make_trial(ours, theirs, draw(2, 4, 10, 12)))
    assert (proof.cause, "the first window begins at 1 in the candidate" in proof.evidence) == ("stride", True)
