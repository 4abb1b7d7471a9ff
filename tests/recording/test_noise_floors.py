"""Noise floors of recordings: what they are, by a loop written by hand; and nothing of the model is changed."""

from __future__ import annotations

import copy
import json
import math
import random

import numpy as np
import pytest
import torch
from torch import nn

import nndiff
from nndiff.errors import SourceError, UsageError
from nndiff.recording.capture.inputs import as_inputs
from nndiff.recording.capture.perturbation import move_inputs, moved_weights
from nndiff.recording.format.layout import MANIFEST
from nndiff.recording.reader import open_recording

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.drop, self.b = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 4)
        self.register_buffer("table", torch.linspace(0.1, 0.9, 16))

    def forward(self, x):
        return self.b(self.drop(torch.relu(self.norm(self.a(x)))) * self.table)


def net(dtype=torch.float32):
    torch.manual_seed(0)
    return Net().to(dtype)


def inputs(dtype=torch.float32, rows=32):
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(1)).to(dtype)


def record(folder, model=None, given=None, **options):
    model, given = net() if model is None else model, inputs() if given is None else given
    return nndiff.record(model, given, path=folder / "a.nnrec", overwrite=True, **{"noise": 2, **options})


def floors(recording):
    return {name: tensor.trace.noise for name, tensor in recording.source().tensors.items()}


def bits(tensor):
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_move_by_one_step_half_of_the_time(dtype):
    layer = nn.Linear(1000, 50).to(dtype)
    before = layer.weight.detach().clone()
    with moved_weights(layer, torch.Generator().manual_seed(0)):
        after = layer.weight.detach().clone()
        up, down = (torch.nextafter(before.double().to(dtype), torch.tensor(end, dtype=dtype)) for end in (1e4, -1e4))
        shares = [float((after == side).double().mean()) for side in (before, up, down)]
    assert shares == pytest.approx([0.5, 0.25, 0.25], abs=0.01)
    assert torch.equal(bits(layer.weight), bits(before))


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_infinities_and_nan_stay_and_no_number_becomes_infinite(dtype):
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan], dtype=dtype)
    given = torch.cat([special, special.new_tensor([0.3, torch.finfo(dtype).max])])
    for seed in range(8):
        moved = move_inputs(as_inputs(given), torch.Generator().manual_seed(seed)).args[0]
        assert torch.equal(bits(moved[: len(special)]), bits(special))
        assert bool(torch.isfinite(moved[len(special) :]).all())


def test_masks_and_counts_do_not_move():
    mask = torch.tensor([[1.0, 1.0, 0.0]] * 50)
    assert torch.equal(move_inputs(as_inputs(mask), torch.Generator()).args[0], mask)


def test_tied_weights_move_once_and_overlapping_views_come_back():
    tied = nn.Module()
    tied.a = nn.Parameter(torch.rand(1000))
    tied.b = nn.Parameter(tied.a.data)  # another parameter, the same memory
    tied.c = nn.Parameter(tied.a.data[:10])
    before = tied.a.detach().clone()
    with moved_weights(tied, torch.Generator().manual_seed(0)):
        steps = tied.a.detach().view(torch.int32)[10:] - before.view(torch.int32)[10:]
        assert steps.abs().max() == 1
    assert torch.equal(tied.a, before)


def test_complex_and_expanded_tensors():
    layer = nn.Module()
    layer.spectrum = nn.Parameter(torch.randn(100, dtype=torch.complex64))
    layer.register_buffer("wide", torch.tensor([0.3]).expand(5))
    before = layer.spectrum.detach().clone()
    with moved_weights(layer, torch.Generator().manual_seed(0)):
        assert not torch.equal(layer.spectrum, before)
        assert 0 < (layer.spectrum - before).abs().max() < 1e-6
    assert torch.equal(layer.spectrum, before)


def test_an_error_in_the_model_leaves_the_weights_as_they_were():
    model = net()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ZeroDivisionError), moved_weights(model, torch.Generator()):
        raise ZeroDivisionError
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_nothing_of_the_model_is_changed(mode, tmp_path):
    model, given = net(), inputs().requires_grad_()
    model(given).sum().backward()
    state = copy.deepcopy(model.state_dict())
    gradients = {name: (parameter.grad, parameter.grad.clone()) for name, parameter in model.named_parameters()}
    versions = {name: parameter._version for name, parameter in model.named_parameters()}
    randomness = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    was_training, before = model.training, given.detach().clone()
    record(tmp_path, model, given, backward=True, mode=mode, params=True, inputs_kept=True, repeat=2)
    assert all(torch.equal(bits(state[name]), bits(tensor)) for name, tensor in model.state_dict().items())
    for name, parameter in model.named_parameters():
        assert parameter.grad is gradients[name][0]
        assert torch.equal(parameter.grad, gradients[name][1])
        assert parameter._version == versions[name]
    assert model.training is was_training
    assert torch.equal(given, before)
    assert random.getstate() == randomness[0]
    assert np.array_equal(np.random.get_state()[1], randomness[1])
    assert torch.equal(torch.get_rng_state(), randomness[2])


def test_what_is_recorded_is_the_same_with_and_without_noise(tmp_path):
    digests = {}
    for noise in (0, 2):
        recording = record(tmp_path, backward=True, inputs_kept=True, noise=noise)
        digests[noise] = {event.site.name: event.digest for event in recording.tensors}
        assert (None in floors(recording).values()) is (noise == 0)
    assert digests[0] == digests[2]


def test_floors_are_repeatable_and_belong_to_the_seed(tmp_path):
    first, again, other = (floors(record(tmp_path, backward=True, mode="eval", seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_floors_equal_a_loop_written_by_hand_in_float64(tmp_path):
    """Weights moved by the same steps, everything computed in float64: the movement is that of the weights alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).double()
    given = inputs(torch.float64)
    found = floors(record(tmp_path, model, given, noise=3, seed=7))
    expected: dict[str, float] = {}
    weights = [parameter.detach().numpy().copy() for parameter in model.parameters()]

    def run(x, w0, b0, w1, b1):
        hidden = x @ w0.T + b0
        return {"0:output": hidden, "1:output": np.tanh(hidden), "2:output": np.tanh(hidden) @ w1.T + b1}

    plain = run(given.numpy(), *weights)
    for draw in range(3):
        generator = torch.Generator().manual_seed((7 + 1 + draw) * 0x9E3779B97F4A7C15 % (1 << 63))
        moved = []
        for array in (*weights, given.numpy()):  # parameters first, then the inputs
            drawn = torch.randint(0, 4, array.shape, generator=generator, dtype=torch.int8).numpy()
            towards = np.where(drawn == 0, np.sign(array) * np.inf, np.where(drawn == 1, 0.0, array))
            moved.append(np.nextafter(array, towards))
        for name, value in run(moved[-1], *moved[:-1]).items():
            expected[name] = max(expected.get(name, 0.0), np.abs(value - plain[name]).max())
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=0.25), name  # torch and NumPy round their sums differently


def test_floors_scale_with_the_unit_of_rounding(tmp_path):
    """Linear: the floor of a long type times the ratio of their units is that of a short one."""
    given = inputs(torch.float64, 256)
    by_dtype = {}
    for dtype in DTYPES:
        torch.manual_seed(0)
        smooth = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 4)).to(dtype)
        found = floors(record(tmp_path, smooth, given.to(dtype), backward=True, noise=4))
        by_dtype[dtype] = {name: floor / torch.finfo(dtype).eps for name, floor in found.items() if floor}
    for name in ("0:output", "1:output", "2:output", "(model):output", "0:grad_output", "0.weight:param_grad"):
        ratios = [by_dtype[dtype][name] / by_dtype[torch.float64][name] for dtype in DTYPES]
        assert all(0.4 < ratio < 2.5 for ratio in ratios), (name, ratios)


def test_a_floor_is_half_a_unit_of_the_largest_value_at_least(tmp_path):
    class Constant(nn.Module):
        def forward(self, x):
            return torch.full((3,), 5.0), torch.zeros(3), torch.arange(3), 0.7

    found = floors(record(tmp_path, Constant(), inputs()))
    assert found["(model):output.0"] == 4 * 2.0**-24  # 5 lies between 4 and 8
    assert found["(model):output.1"] == found["(model):output.2"] == 0.0
    assert found["(model):output.3"] == 0.5 * 2.0**-53


def test_weights_and_inputs_have_one_rounding_each(tmp_path):
    recording = record(tmp_path, params=True)
    for name in ("a.weight:param", "(model):model_input.0"):
        tensor = recording.source().tensors[name]
        assert tensor.trace.noise == tensor.dtype.half_ulp(tensor.trace.stats.abs_max)


def test_integers_have_their_movement(tmp_path):
    class Ranks(nn.Module):
        def forward(self, x):
            return (x.flatten() + 1.0).sort().values.double() * 0 + 1, (x * 0 + 1.1).argsort(-1), (x > 0)

    found = floors(record(tmp_path, Ranks(), inputs()))
    assert found["(model):output.2"] == 0.0


@pytest.mark.parametrize("change", ["shape", "nan", "gone"])
def test_where_shapes_change_or_numbers_are_lost_the_floor_is_infinite(change, tmp_path):
    class Unsteady(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.inner = nn.Parameter(torch.full((64,), 0.3)), nn.Identity()

        def forward(self, x):
            is_moved = bool((self.weight != 0.3).any())
            if change == "gone":
                return x if is_moved else self.inner(x)
            if is_moved:
                x = x[1:] if change == "shape" else x * math.nan
            return self.inner(x)

    recording = record(tmp_path, Unsteady())
    assert floors(recording)["inner:output"] == math.inf
    meta = json.loads((tmp_path / "a.nnrec" / MANIFEST).read_text())["meta"]
    assert meta["noise"]["floors"]["inner:output"] == "inf"


def test_a_model_that_fails_when_it_is_moved_is_recorded_all_the_same(tmp_path):
    class Strict(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((64,), 0.3))

        def forward(self, x):
            assert bool((self.weight == 0.3).all()), "these are not my weights"
            return x * 2

    model = Strict()
    recording = record(tmp_path, model)
    assert recording.complete
    assert any(
        "noise floor was not measured" in warning and "not my weights" in warning for warning in recording.warnings
    )
    assert set(floors(recording).values()) == {None}
    assert bool((model.weight == 0.3).all())


def test_only_tensors_kept_in_full_have_a_floor(tmp_path):
    found = floors(record(tmp_path, keep=["full:a", "stats"]))
    assert found["a:output"] > 0
    assert found["b:output"] is None


def test_the_number_of_draws_is_checked(tmp_path):
    with pytest.raises(UsageError, match="0 or more draws"):
        record(tmp_path, noise=-1)


@pytest.mark.parametrize(
    "noise",
    [
        [],
        {"draws": 0, "floors": {}},
        {"draws": True, "floors": {}},
        {"draws": 2},
        {"draws": 2, "floors": []},
        {"draws": 2, "floors": {"a:output": -1.0}},
        {"draws": 2, "floors": {"a:output": "nan"}},
        {"draws": 2, "floors": {"a:output": None}},
        {"draws": 2, "floors": {"a:output": True}},
    ],
)
def test_floors_that_are_none_are_refused(noise, tmp_path):
    record(tmp_path)
    path = tmp_path / "a.nnrec" / MANIFEST
    manifest = json.loads(path.read_text())
    manifest["meta"]["noise"] = noise
    path.write_text(json.dumps(manifest))
    with pytest.raises(SourceError, match="noise"):
        open_recording(tmp_path / "a.nnrec")
