from __future__ import annotations

import numpy as np
import pytest
import torch

import nndiff.modes
from nndiff.errors import UsageError
from nndiff.modes import library


def round_in_numpy(values: np.ndarray, scale: np.ndarray, bits: int) -> np.ndarray:
    largest = 2 ** (bits - 1) - 1
    return np.clip(np.round(values / scale), -largest - 1, largest) * scale


@pytest.mark.parametrize("bits", [8, 4])
def test_weights_are_rounded_per_tensor_channel_and_group(bits: int) -> None:
    weight = torch.randn(6, 20)
    rows = weight.double().numpy()
    largest = 2 ** (bits - 1) - 1
    by_tensor = round_in_numpy(rows, np.abs(rows).max() / largest, bits)
    by_channel = round_in_numpy(rows, np.abs(rows).max(axis=1, keepdims=True) / largest, bits)
    groups = [round_in_numpy(part, np.abs(part).max(axis=1, keepdims=True) / largest, bits)
              for part in (rows[:, :8], rows[:, 8:16], rows[:, 16:])]  # fmt: skip
    for granularity, expected in (("tensor", by_tensor), ("channel", by_channel), ("group", np.hstack(groups))):
        rounded = library.round_weight(weight, 0, bits, granularity, 8)
        np.testing.assert_allclose(rounded.numpy(), expected, rtol=1e-5, atol=1e-6)
    by_second_axis = library.round_weight(weight.T.contiguous(), 1, bits, "channel")
    np.testing.assert_allclose(by_second_axis.numpy().T, by_channel, rtol=1e-5, atol=1e-6)


def test_weights_of_layers_that_are_never_called_are_rounded_and_embeddings_are_not() -> None:
    net = torch.nn.ModuleDict({
        "attention": torch.nn.MultiheadAttention(8, 2),
        "lookup": torch.nn.Embedding(5, 8),
        "head": torch.nn.Linear(8, 5),
        "norm": torch.nn.LayerNorm(8),
        "up": torch.nn.ConvTranspose1d(4, 6, 3),
    })  # fmt: skip
    net["head"].weight = net["lookup"].weight  # tied
    found = {name: axis for name, _, axis in library.list_weights(net)}
    assert found == {"attention.in_proj_weight": 0, "attention.out_proj.weight": 0, "up.weight": 1}


def test_a_cast_mode_casts_float_inputs_wherever_they_are() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 4)

        def forward(self, pair: dict[str, torch.Tensor], scale: torch.Tensor) -> torch.Tensor:
            return self.fc(pair["x"]) * scale

    out = nndiff.modes.bf16(Net())({"x": torch.randn(2, 4)}, scale=torch.ones(()))
    assert out.dtype is torch.bfloat16


def test_static_scales_come_from_the_samples_and_clip() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False))
    net[0].weight.data.fill_(1.0)
    calibrated = nndiff.modes.w8a8_static(100.0)(net, [torch.tensor([[0.5]]), torch.tensor([[-2.0]])])
    inputs = torch.tensor([[1.0], [7.0], [-0.01]])
    step = 2.0 / 127
    expected = [round(1.0 / step) * step, 2.0, -round(0.01 / step) * step]
    np.testing.assert_allclose(calibrated(inputs).detach().ravel(), expected, rtol=1e-5)
    fresh = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False))
    fresh[0].weight.data.fill_(1.0)
    clipped = nndiff.modes.w8a8_static(50.0)(fresh, [torch.tensor([[1.0], [3.0], [9.0]])])
    np.testing.assert_allclose(clipped(torch.tensor([[9.0], [-9.0]])).detach().ravel(), [3.0, -3 * 128 / 127])


def test_dynamic_scales_are_per_token() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False))
    net[0].weight.data = torch.eye(2)
    rows = torch.tensor([[100.0, 0.3], [1.0, 0.3]])
    out = nndiff.modes.w8a8_dynamic()(net)(rows).detach().numpy()
    steps = np.array([[100 / 127], [1 / 127]])
    np.testing.assert_allclose(out, np.round(rows.numpy() / steps) * steps, rtol=1e-5)


def test_fp8_keeps_what_float8_can_hold() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 1, bias=False))
    net[0].weight.data = torch.tensor([[448.0, 2.0, -0.5, 3.1]])
    nndiff.modes.fp8("e4m3")(net)
    assert net[0].weight.tolist() == [[448.0, 2.0, -0.5, 3.0]]


@pytest.mark.parametrize(
    "make",
    [
        lambda: nndiff.modes.fp8("e3m4"),
        lambda: nndiff.modes.weight_only(1),
        lambda: nndiff.modes.weight_only(8, "row"),
        lambda: nndiff.modes.w8a8_static(0.0),
        lambda: nndiff.modes.w8a8_dynamic(100.1),
    ],
)
def test_impossible_modes_are_refused(make: object) -> None:
    with pytest.raises(UsageError):
        make()  # type: ignore[operator]


def test_the_public_modes() -> None:
    for name in nndiff.modes.__all__:
        assert callable(getattr(nndiff.modes, name))
    with pytest.raises(AttributeError, match="int3"):
        _ = nndiff.modes.int3


@pytest.mark.filterwarnings("ignore")  # torchao's own
@pytest.mark.parametrize("name", ["torchao-int8", "torchao-int8-dynamic"])
def test_the_real_torchao(name: str) -> None:
    pytest.importorskip("torchao")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).eval()
    inputs = torch.randn(16, 64)
    expected = net(inputs).detach()
    quantised = library.READY_MODES[name]()(net)
    assert "torchao" in type(quantised[0].weight.data).__module__ or "torchao" in type(quantised[0].weight).__module__
    noise = (quantised(inputs).detach() - expected).square().mean() / expected.square().mean()
    assert 1e-9 < float(noise) < 1e-2
