"""examples/mamba_modes: its mixer is transformers', its modes are what they say, and its scripts run from nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from environments import ROOT

from nndiff.modes import fp16

EXAMPLE = ROOT / "examples/mamba_modes"
sys.path.insert(0, str(EXAMPLE))

import mamba  # noqa: E402 -- the example is no installed package
from quantized_mamba.calibration import MixerScales, calibrate  # noqa: E402
from quantized_mamba.int8_parts import GridConv, GridScan, Handover, Int8Conv, Int8Scan  # noqa: E402
from quantized_mamba.mixer import CausalConv, Mixer, SelectiveScan, list_mixers  # noqa: E402
from quantized_mamba.modes import RECIPES, make_mode, quantize_mixer  # noqa: E402
from quantized_mamba.quantization import Int8Linear, Int8Tensor, find_limit, quantize, round_to_grid  # noqa: E402

from nndiff.models.huggingface import build_hugging_face_model  # noqa: E402
from nndiff.models.spec import BuildOptions  # noqa: E402
from nndiff.recording.environment.randomness import seed_everything  # noqa: E402

SAMPLES = 3
TOKENS = 40
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # as in an activated environment
    "CALIB_DATA_NUM": str(SAMPLES),
    "CALIB_SEQLEN": str(TOKENS),
    "PYTHONWARNINGS": "ignore",
    "OMP_NUM_THREADS": "1",  # the tensors are small: threads only wait for each other
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def samples():
    torch.manual_seed(0)
    return mamba.samples(2, TOKENS)


def make_model():
    torch.manual_seed(7)
    return mamba.model().eval()


def run_model(model, sample):
    with torch.no_grad():
        return model(**sample).logits


@pytest.mark.parametrize("cast", [lambda model: model, fp16], ids=["fp32", "fp16"])
def test_the_mixer_is_that_of_transformers_to_the_last_bit(cast, samples):
    torch.manual_seed(7)
    original = build_hugging_face_model(mamba.find_folder(), BuildOptions()).model
    ours = make_model()
    assert type(original.backbone.layers[0].mixer).__name__ == "MambaMixer"
    assert len(list_mixers(ours)) == 24
    for sample in samples:
        assert torch.equal(run_model(cast(ours), sample), run_model(cast(original), sample))


@pytest.fixture(scope="module")
def parts(samples) -> tuple[Mixer, MixerScales, torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return a mixer, its scales, and what its convolution and scan take on a sample."""
    model = make_model()
    scales = calibrate(model, samples)[0]
    mixer = list_mixers(model)[0]
    taken = {}
    handles = []
    for name in ("conv1d", "scan"):
        part = mixer.get_submodule(name)
        handles.append(part.register_forward_pre_hook(lambda _, args, name=name: taken.update({name: args})))
    run_model(model, samples[0])
    for handle in handles:
        handle.remove()
    return mixer, scales, taken["conv1d"][0], taken["scan"]


def test_codes_survive_being_dequantised_and_requantised():
    codes = torch.arange(-127, 128, dtype=torch.int8)
    for scale in (1e-6, 0.0123, 0.1, 3.7, 1e4):
        assert torch.equal(quantize(Int8Tensor(codes, scale).dequantize(), scale).codes, codes)


def test_a_limit_is_the_percentile_of_sizes():
    values = torch.arange(-9999.0, 1.0)
    assert find_limit(values, 0.9999) == 9998
    assert find_limit(values, 1.0) == 9999


def test_scales_end_at_the_percentile_of_a_sample_and_the_rest_is_clipped(samples):
    model = make_model()
    mixer = list_mixers(model)[0]
    assert isinstance(mixer.scan, SelectiveScan)
    limits = []
    for sample in samples:
        taken = []
        handle = mixer.scan.register_forward_pre_hook(lambda _, args, taken=taken: taken.append(args))
        run_model(model, sample)
        handle.remove()
        with torch.no_grad():
            states = torch.stack(list(mixer.scan.compute_states(*taken[0][:3]))).abs().flatten().sort().values
        limits.append(float(states[int(np.ceil(0.9999 * len(states))) - 1]))
        assert states[-1] > limits[-1]
    assert calibrate(model, samples)[0].state == max(limits) / 127


def test_an_int8_linear_sums_codes_without_rounding():
    generator = torch.Generator().manual_seed(0)
    weight, values = torch.randn(24, 96, generator=generator), torch.randn(2, 5, 96, generator=generator)
    layer = Int8Linear(weight, None, 0.03, None)
    codes = quantize(values, 0.03).codes.numpy().astype(np.int64)
    sums = codes @ layer.weight.numpy().astype(np.int64).T
    expected = sums * (layer.weight_scales.double().numpy() * 0.03)
    assert np.allclose(layer(values).numpy(), expected, rtol=1e-6, atol=0)
    assert not np.allclose(layer(values).numpy(), values.numpy() @ weight.numpy().T, rtol=1e-3, atol=1e-3)


def test_the_grid_in_fp32_is_int8_dequantised(parts):
    mixer, scales, conv_input, (u, dt, b, c) = parts
    assert isinstance(mixer.conv1d, CausalConv)
    assert isinstance(mixer.scan, SelectiveScan)
    codes = Int8Conv(mixer.conv1d, scales, Handover.CODES)(conv_input)
    assert isinstance(codes, Int8Tensor)
    assert torch.equal(codes.dequantize(), Int8Conv(mixer.conv1d, scales, Handover.GRID)(conv_input))
    # sums of products are rounded in FP32 and exact in int32: a value half-way may fall to the other side
    steps = (codes.dequantize() - GridConv(mixer.conv1d, scales)(conv_input)).abs() / scales.conv_output
    assert steps.max() < 1.001
    assert (steps > 0.5).float().mean() < 1e-3
    with torch.no_grad():
        in_int8, on_grid = (kind(mixer.scan, scales)(u, dt, b, c) for kind in (Int8Scan, GridScan))
        exact = mixer.scan(u, dt, b, c)
    error = (in_int8 - on_grid).abs().mean()
    assert error < 1e-4 * (in_int8 - exact).abs().mean(), "far nearer to each other than to FP32"
    assert torch.equal(Int8Scan(mixer.scan, scales)(quantize(u, scales.conv_output), dt, b, c), in_int8)


def test_an_int8_scan_agrees_with_numpy_in_float64(parts):
    mixer, scales, _, (u, dt, b, c) = parts
    assert isinstance(mixer.scan, SelectiveScan)
    scan = GridScan(mixer.scan, scales)
    u = round_to_grid(u, scales.conv_output).double().numpy()[0]
    dt = round_to_grid(dt, scales.dt_proj_output).double().numpy()[0]
    b, c = (round_to_grid(values, scales.x_proj_output).double().numpy()[0] for values in (b, c))
    step = np.log1p(np.exp(dt + scan.dt_bias.double().numpy()[:, None]))
    state = np.zeros((u.shape[0], b.shape[1]))
    outputs = []
    for time in range(u.shape[1]):
        state = np.exp(scan.a.double().numpy() * step[:, time, None]) * state
        state += step[:, time, None] * b[time] * u[:, time, None]
        read = np.clip(np.round(state / scales.state), -127, 127) * scales.state
        outputs.append(read @ c[time] + u[:, time] * scan.d.double().numpy())
    expected = np.stack(outputs, -1)
    in_int8 = Int8Scan(mixer.scan, scales)(*parts[3])[0].numpy()
    off = np.abs(in_int8 - expected)
    assert np.quantile(off, 0.99) < 1e-5 * np.abs(expected).max()
    assert off.max() < 2 * scales.state * np.abs(c).max(), "a state that is read one step off, at most"


def test_modes_relate_as_they_are_defined(samples):
    outputs = {"fp32": run_model(make_model(), samples[0])}
    for name, recipe in RECIPES.items():
        outputs[name] = run_model(make_mode(recipe)(make_model(), samples), samples[0])
    assert torch.equal(outputs["0"], outputs["2-0"]), "requantising with the same scale loses nothing"
    assert torch.equal(outputs["0"], outputs["2-1"])
    errors = {name: float((output - outputs["fp32"]).square().mean()) for name, output in outputs.items()}
    assert errors["2-2"] == pytest.approx(errors["0"], rel=0.05)
    assert 0 < errors["3"] < errors["2-4"] < min(errors["0"], errors["2-3"])


def test_convolution_and_scan_of_2_4_are_those_of_fp32(samples):
    model = make_model()
    scales = calibrate(model, samples)[0]
    mixer = list_mixers(model)[0]
    conv, scan = mixer.conv1d, mixer.scan
    quantize_mixer(mixer, scales, RECIPES["2-4"])
    assert mixer.conv1d is conv
    assert mixer.scan is scan
    assert isinstance(mixer.in_proj, Int8Linear)
    assert mixer.in_proj.output_scale == scales.in_proj_output
    fresh = list_mixers(make_model())[0]
    quantize_mixer(fresh, scales, RECIPES["3"])
    assert isinstance(fresh.in_proj, Int8Linear)
    assert fresh.in_proj.output_scale is None


def run_script(folder: Path, *words: str, status: int = 0) -> str:
    done = subprocess.run(
        [str(EXAMPLE / words[0]), *words[1:]], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mamba")
    run_script(folder, "save_all_modes.sh", "fp_only")
    assert sorted(path.name for path in (folder / "layer_outputs").iterdir()) == [
        "mode_fp32_layer_0.npy",
        "mode_fp32_layer_23.npy",
        "mode_fp32_output.npy",
        "mode_fp32_stats.json",
    ]
    run_script(folder, "save_all_modes.sh", "quant_only")
    return folder


def test_one_mode_is_shown_in_the_sections_of_the_document(saved):
    text = run_script(saved, "comparewithfp", "2-1", status=1)
    titles = (
        "Layer 0 - Comparison Results",
        "Layer 23 - Comparison Results",
        "📊 FP32 Reference Statistics:",
        "📊 Mode Output Statistics:",
        "📏 Difference (Mode - FP32):",
        "❌ Error Metrics:",
        "📈 Relative Metrics:",
        "📊 Absolute Difference Percentiles:",
    )
    for title in titles:
        assert title in text
    reference, mode = (
        np.load(saved / f"layer_outputs/mode_{name}_layer_0.npy").astype(np.float64) for name in ("fp32", "2-1")
    )
    assert reference.shape == (SAMPLES, TOKENS, 64)
    assert f"MSE:               {np.mean((mode - reference) ** 2):.6e}" in text


def test_all_modes_are_ranked_in_a_table_and_in_files(saved):
    text = run_script(saved, "compare_all_modes.sh", status=1)
    assert "SUMMARY TABLE - All Modes vs fp32" in text
    for title in ("Layer 0 MSE", "Layer 0 MAE", "Last Layer MSE", "Last Layer MAE", "Avg Corr"):
        assert title in text
    comparisons = saved / "comparisons"
    result = json.loads((comparisons / "summary_vs_fp32.json").read_text())
    ranking = [mode["mode"] for mode in sorted(result["modes"], key=lambda mode: mode["rank"])]
    assert set(ranking) == set(RECIPES)
    assert ranking[:2] == ["3", "2-4"]
    assert not (saved / "layer_outputs/comparisons").exists()
    for name in ("summary_vs_fp32.png", "summary_vs_fp32.md", "summary_vs_fp32.csv", "mode_2-1_vs_fp32.json"):
        assert (comparisons / name).stat().st_size


def test_another_reference_and_a_saved_comparison(saved):
    run_script(saved, "save_layer_outputs.py", "mamba-small", "--mode", "fp16", "--calib_data_num", str(SAMPLES),
               "--calib_seqlen", str(TOKENS))  # fmt: skip
    text = run_script(saved, "compare_with_fp.py", "2-1", "--reference", "fp16", "--save_comparison",
                      "results/mode_2-1_comparison.json", status=1)  # fmt: skip
    assert "SUMMARY TABLE - All Modes vs fp16" in text
    assert json.loads((saved / "results/mode_2-1_comparison.json").read_text())["kind"] == "modes"


def test_the_users_weights_are_taken_and_never_mixed_with_others(saved, tmp_path):
    torch.manual_seed(99)
    trained = build_hugging_face_model(mamba.find_folder(), BuildOptions()).model
    trained.save_pretrained(tmp_path / "weights")
    words = ["save_layer_outputs.py", "mamba-small", "--pretrained_dir", str(tmp_path / "weights"), "--mode", "fp32"]
    words += ["--calib_data_num", str(SAMPLES), "--calib_seqlen", str(TOKENS)]
    assert "was recorded with model mamba-small, not weights" in run_script(saved, *words, status=2)
    run_script(tmp_path, *words)
    returned = []
    trained.backbone.layers[23].register_forward_hook(lambda module, args, output: returned.append(output))
    seed_everything(42)
    for sample in mamba.samples(SAMPLES, TOKENS):
        run_model(trained, sample)
    recorded = np.load(tmp_path / "layer_outputs/mode_fp32_layer_23.npy")
    assert np.allclose(recorded, torch.cat(returned).numpy(), rtol=1e-5, atol=1e-6)  # other threads, other sums
    assert not np.allclose(recorded, np.load(saved / "layer_outputs/mode_fp32_layer_23.npy"), atol=0.1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--mode", "2-1"), "mode 2-1 is quantised: add --quantize"),
        (("--mode", "2-5", "--quantize"), "mamba-small has no mode '2-5'; did you mean '2-4'?"),
        (("--mode", "0", "--quantize", "--pretrained_dir", "nowhere"), "nowhere has no config.json"),
        (("--mode", "0", "--quantize", "--calib_seqlen", "7"), "was recorded with samples"),
    ],
)
def test_mistakes_are_named(saved, words, message):
    assert message in run_script(saved, "save_layer_outputs.py", "mamba-small", *words, status=2)


@pytest.mark.parametrize("page", ["README.md", "README.zh.md"])
def test_the_readme_names_what_there_is(page):
    """Hold the two languages to the same commands, files and numbers."""
    text, original = (EXAMPLE / page).read_text(), (EXAMPLE / "README.md").read_text()
    script, comparing = ((EXAMPLE / name).read_text() for name in ("save_layer_outputs.py", "compare_with_fp.py"))
    for command in re.findall(r"^(?:\./|python3 )\S.*", text, re.MULTILINE):
        words = command.split("#")[0].split()
        name = words[1] if words[0] == "python3" else words[0]
        assert os.access(EXAMPLE / name, os.X_OK), command
        for option in re.findall(r"--\w+", command):
            assert f'"{option}"' in script + comparing, command
    outputs = [
        re.findall(r"^(?:SUMMARY|Which layers).*?```", words, re.DOTALL | re.MULTILINE) for words in (text, original)
    ]
    assert len(outputs[0]) == 2
    assert outputs[0] == outputs[1]
    assert (EXAMPLE / "heatmap.png").stat().st_size < 150_000
