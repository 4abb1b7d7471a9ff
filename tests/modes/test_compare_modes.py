"""Numbers against NumPy in float64; folders as other scripts write them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from nndiff.errors import SourceError, UsageError
from nndiff.facts.modes import Direction, RatingLimits, Threshold
from nndiff.modes.compare import ModeRules, compare_modes
from nndiff.modes.folder import LayerOutput, list_modes, open_mode
from nndiff.modes.logits import compare_logits
from nndiff.modes.places import find_places
from nndiff.modes.thresholds import parse_limits, parse_threshold
from nndiff.recording.writer import Writer
from nndiff.result import Comparison, Pair
from nndiff.sources import open_source
from nndiff.sources.mode_files import find_mode_files
from nndiff.stats import Job
from nndiff.stats.engine import get_engine
from nndiff.tensors import Site, Slot, TensorRef
from nndiff.verdict import Verdict

RANDOM = np.random.default_rng(3)


def save(folder: Path, mode: str, **layers: np.ndarray) -> None:
    """Write a mode as the scripts do that people have."""
    folder.mkdir(exist_ok=True)
    for layer, array in layers.items():
        np.save(folder / f"mode_{mode}_{layer}.npy", array)
    (folder / f"mode_{mode}_stats.json").write_text(json.dumps({"layer_0": {"mean": 0.0}}))


def make_layers(noise: float = 0.0, dtype: str = "float32") -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    layers = {}
    for number in (0, 23, 9):
        values = random.normal(size=(2, 7, 5)) + number
        error = noise * np.random.default_rng(number).normal(size=values.shape)
        layers[f"layer_{number}"] = (values + error).astype(dtype)
    return layers


def get_pair(comparison: Comparison, mode: str, name: str) -> Pair:
    return next(pair for pair in comparison.pairs_of(mode) if pair.name == name)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_all_numbers_are_those_of_numpy(tmp_path: Path, dtype: str) -> None:
    save(tmp_path, "fp32", **make_layers())
    save(tmp_path, "2-1", **make_layers(0.05, dtype))
    comparison = compare_modes(str(tmp_path), "fp32")
    for name, reference in make_layers().items():
        ref, cand = reference.astype(np.float64), make_layers(0.05, dtype)[name].astype(np.float64)
        diff = cand - ref
        expected = {
            "ref_mean": ref.mean(), "ref_std": ref.std(), "ref_min": ref.min(), "ref_max": ref.max(),
            "cand_mean": cand.mean(), "cand_std": cand.std(), "cand_min": cand.min(), "cand_max": cand.max(),
            "diff_mean": diff.mean(), "diff_std": diff.std(), "mean_abs": np.abs(diff).mean(),
            "max_abs": np.abs(diff).max(), "mse": (diff**2).mean(), "rmse": np.sqrt((diff**2).mean()),
            "rel_mse": (diff**2).sum() / (ref**2).sum(), "rel_mae": np.abs(diff).sum() / np.abs(ref).sum(),
            "correlation": np.corrcoef(ref.ravel(), cand.ravel())[0, 1],
            "cosine": (ref * cand).sum() / np.sqrt((ref**2).sum() * (cand**2).sum()),
            "sqnr_db": 10 * np.log10((ref**2).sum() / (diff**2).sum()),
        }  # fmt: skip
        for percent in (50, 90, 95, 99):
            expected[f"p{percent}"] = np.percentile(np.abs(diff), percent)
        metrics = get_pair(comparison, "2-1", name).metrics
        for key, value in expected.items():
            np.testing.assert_allclose(getattr(metrics, key), value, rtol=1e-6, err_msg=key)
        assert comparison.modes is not None
        facts = comparison.modes.layers["2-1", name]
        channels, tokens = (diff**2).mean(axis=(0, 1)), (diff**2).mean(axis=2)
        assert facts.worst_channel is not None
        assert facts.worst_token is not None
        assert facts.worst_channel.index == (int(channels.argmax()),)
        np.testing.assert_allclose(facts.worst_channel.mse, channels.max(), rtol=1e-6)
        assert facts.worst_token.index == np.unravel_index(tokens.argmax(), tokens.shape)
        np.testing.assert_allclose(facts.worst_token.mse, tokens.max(), rtol=1e-6)
    assert (comparison.modes.first, comparison.modes.last) == ("layer_0", "layer_23")
    assert comparison.modes.modes[0].output == "layer_23"
    np.testing.assert_allclose(comparison.modes.modes[0].error, get_pair(comparison, "2-1", "layer_23").metrics.mse)


def test_samples_are_pooled_whatever_their_shapes(tmp_path: Path) -> None:
    samples = [RANDOM.normal(size=(1, length, 4)).astype(np.float32) for length in (3, 5, 2)]
    noises = [RANDOM.normal(size=sample.shape).astype(np.float32) for sample in samples]
    for mode, scale in (("fp32", 0.0), ("a", 0.1)):
        with Writer(tmp_path / f"mode_{mode}") as writer:
            for sample, noise in zip(samples, noises, strict=True):
                writer.add("layers.0", "output", sample + np.float32(scale) * noise)
    pair = compare_modes(str(tmp_path), "fp32").pairs[0]
    assert pair.name == "layers.0:output"
    assert pair.shape[0] == (10, 4)
    ref = np.concatenate([sample.ravel() for sample in samples]).astype(np.float64)
    diffs = [
        (np.float32(0.1) * noise + sample).astype(np.float64) - sample
        for sample, noise in zip(samples, noises, strict=True)
    ]
    diff = np.concatenate([part.ravel() for part in diffs])
    assert pair.metrics is not None
    np.testing.assert_allclose(pair.metrics.mse, (diff**2).mean(), rtol=1e-6)
    np.testing.assert_allclose(pair.metrics.ref_mean, ref.mean(), rtol=1e-6)
    np.testing.assert_allclose(pair.metrics.p99, np.percentile(np.abs(diff), 99), rtol=1e-6)
    facts = compare_modes(str(tmp_path), "fp32").modes.layers["a", "layers.0:output"]
    tokens = [(part**2).mean(axis=2)[0] for part in diffs]
    sample = max(range(3), key=lambda number: tokens[number].max())
    assert (facts.worst_token.sample, facts.worst_token.index) == (sample, (0, int(tokens[sample].argmax())))
    channels = np.concatenate([part.reshape(-1, 4) for part in diffs])
    assert facts.worst_channel.index == (int((channels**2).mean(axis=0).argmax()),)


def make_output(*arrays: np.ndarray, cls: str = "") -> LayerOutput:
    parts = []
    for array in arrays:
        tensor = open_source({"x": array}).tensors["x"]
        parts.append(TensorRef("x", tensor.shape, tensor.dtype, tensor.data, site=Site("x", Slot.OUTPUT, cls=cls)))
    return LayerOutput("x", tuple(parts))


def measure(reference: LayerOutput, candidate: LayerOutput):
    return next(iter(get_engine().measure([Job(reference.pool(), candidate.pool(), 0.0, 0.0)])))


@pytest.mark.parametrize("engine", ["native", "numpy"])
def test_places_in_images_and_clipped_values(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    monkeypatch.setenv("NNDIFF_ENGINE", engine)
    images = RANDOM.normal(size=(3, 4, 600, 5)).astype(np.float32)
    changed = np.clip(images, -1.5, np.float32(1.25))
    changed[1, 2, 4, 3] = np.nan
    reference, candidate = make_output(images), make_output(changed)
    places = find_places(reference, candidate, measure(reference, candidate))
    squares = np.nan_to_num((changed.astype(np.float64) - images) ** 2)
    assert places.channel is not None
    assert places.token is not None
    assert places.channel.index == (int(squares.mean(axis=(0, 2, 3)).argmax()),)
    tokens = squares.mean(axis=1)
    assert places.token.index == np.unravel_index(tokens.argmax(), tokens.shape)
    np.testing.assert_allclose(places.token.mse, tokens.max(), rtol=1e-6)
    np.testing.assert_allclose(places.clipped, ((images > 1.25) | (images < -1.5)).mean(), atol=1.1 / images.size)
    untouched = find_places(reference, make_output(images + np.float32(0.01)), measure(reference, reference))
    assert untouched.clipped == 0


def test_channels_of_a_convolution_are_its_second_axis() -> None:
    values = np.zeros((2, 6, 9), np.float32)
    changed = values.copy()
    changed[1, 4, 7] = 1.0
    for cls, channel, token in (("Conv1d", 4, (1, 7)), ("Linear", 7, (1, 4))):
        reference, candidate = make_output(values, cls=cls), make_output(changed, cls=cls)
        places = find_places(reference, candidate, measure(reference, candidate))
        assert places.channel is not None
        assert places.token is not None
        assert (places.channel.index, places.token.index) == ((channel,), token)


def test_logits_are_those_of_numpy() -> None:
    ref = RANDOM.normal(size=(2, 3000, 9)) * 2
    cand = ref + RANDOM.normal(size=ref.shape)
    facts = compare_logits(make_output(*ref), make_output(*cand))
    log_p, log_q = (rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True)) for rows in (ref, cand))
    np.testing.assert_allclose(facts.kl, (np.exp(log_p) * (log_p - log_q)).sum(axis=-1).mean(), rtol=1e-9)
    assert facts.top1 == (ref.argmax(-1) == cand.argmax(-1)).mean()
    best = np.argsort(-cand, axis=-1)[..., :5]
    assert facts.top5 == (best == ref.argmax(-1)[..., None]).any(-1).mean()
    cand[0, :100, 3] = np.nan  # chooses nothing
    assert compare_logits(make_output(*ref), make_output(*cand)).top1 < facts.top1
    assert math.isnan(compare_logits(make_output(ref[..., :4]), make_output(ref[..., :4])).top5)


@pytest.mark.parametrize(
    ("mse", "rating"),
    [(0.9e-4, "very close"), (1.1e-4, "good"), (1.1e-3, "fair"), (1.1e-2, "large"), (math.nan, "large")],
)
def test_ratings_of_mse(mse: float, rating: str) -> None:
    assert RatingLimits().rate(make_metrics(mse=mse)).mse.value == rating


@pytest.mark.parametrize(
    ("correlation", "rating"),
    [(0.99995, "near perfect"), (0.9999, "excellent"), (0.999, "good"), (0.99, "needs attention"),
     (math.nan, "needs attention")],
)  # fmt: skip
def test_ratings_of_correlation(correlation: float, rating: str) -> None:
    assert RatingLimits().rate(make_metrics(correlation=correlation)).correlation.value == rating


def make_metrics(**numbers: float):
    from dataclasses import replace

    return replace(measure(make_output(np.ones(3)), make_output(np.ones(3))), **numbers)


def test_ratings_can_be_changed() -> None:
    limits = parse_limits(["mse=1,2,3"])
    assert limits.rate(make_metrics(mse=1.5)).mse.value == "good"
    assert limits.correlation == RatingLimits().correlation
    for text in ("mse=3,2,1", "mse=1,2", "correlation=0.9,0.99,0.999", "mae=1,2,3", "mse"):
        with pytest.raises(UsageError, match="--rate"):
            parse_limits([text])


def test_thresholds_decide_the_outcome(tmp_path: Path) -> None:
    save(tmp_path, "fp32", **make_layers())
    save(tmp_path, "near", **make_layers(0.001))
    save(tmp_path, "far", **make_layers(3.0))

    def judge(*thresholds: Threshold) -> tuple[int, list[str]]:
        comparison = compare_modes(str(tmp_path), "fp32", (), ModeRules(thresholds=thresholds))
        return comparison.exit_code, [mode.mode for mode in comparison.modes.modes if mode.unmet]

    assert judge() == (1, [])
    assert judge(parse_threshold("sqnr=10", Direction.UNDER)) == (0, [])
    assert judge(parse_threshold("sqnr=20", Direction.UNDER)) == (1, ["far"])
    assert judge(parse_threshold("mse=1e-3", Direction.OVER)) == (1, ["far"])
    assert judge(parse_threshold("sqnr=999", Direction.UNDER)) == (1, ["near", "far"])
    with pytest.raises(UsageError, match="top1 needs outputs that are logits"):
        judge(parse_threshold("top1=0.9", Direction.UNDER))
    for text in ("sqnr", "sqnr=x", "psnr=3"):
        with pytest.raises(UsageError, match="is not METRIC=NUMBER"):
            parse_threshold(text, Direction.UNDER)


# -- folders of other scripts -----------------------------------------------------------------------------------------


def test_names_of_modes_and_layers(tmp_path: Path) -> None:
    names = ["mode_2-1_layer_0.npy", "mode_my_mode_layer_10_x_proj.npy", "mode_my_mode_layer_9.npy",
             "mode_a_layer_1_layer_0.npy", "mode_a_layer_1_stats.json", "mode_my_output_layer_0.npy",
             "mode_fp32_output.npy", "other.npy", "mode_.npy", "mode_x_layer_y.npy"]  # fmt: skip
    for name in names:
        (tmp_path / name).touch()
    found = {mode: list(files.arrays) for mode, files in find_mode_files(str(tmp_path)).items()}
    assert found == {
        "a_layer_1": ["layer_0"],
        "2-1": ["layer_0"],
        "fp32": ["output"],
        "my_mode": ["layer_9", "layer_10_x_proj"],
        "my_output": ["layer_0"],
    }
    assert list_modes(str(tmp_path)) == ["2-1", "a_layer_1", "fp32", "my_mode", "my_output"]


def test_missing_layers_other_shapes_and_damaged_files(tmp_path: Path) -> None:
    layers = make_layers()
    save(tmp_path, "fp32", **layers)
    save(tmp_path, "good", **make_layers(0.01, "float16"))
    save(tmp_path, "partial", layer_0=layers["layer_0"])
    save(tmp_path, "middle", layer_0=layers["layer_0"], layer_23=layers["layer_23"])
    save(tmp_path, "shape", **{**layers, "layer_23": layers["layer_23"][:1]})
    save(tmp_path, "nan", **{**layers, "layer_9": layers["layer_9"] * np.nan})
    save(tmp_path, "pickled", **layers)
    np.save(tmp_path / "mode_pickled_layer_23.npy", np.array([{"a": 1}], object), allow_pickle=True)
    save(tmp_path, "torn", **layers)
    torn = tmp_path / "mode_torn_layer_9.npy"
    torn.write_bytes(torn.read_bytes()[:-40])
    (tmp_path / "mode_torn_stats.json").write_text("{")
    comparison = compare_modes(str(tmp_path), "fp32")
    assert comparison.modes is not None
    ranked = [mode.mode for mode in comparison.modes.modes]
    assert set(ranked[:2]) == {"good", "middle"}
    failed = {mode.mode: mode.failed for mode in comparison.modes.modes if mode.failed}
    assert set(failed) == {"partial", "shape", "nan", "pickled", "torn"}
    assert failed["partial"] == "layer_23 is missing"
    assert failed["shape"] == "another shape in 1 of 3 layers: layer_23 is [1, 7, 5] instead of [2, 7, 5]"
    assert failed["nan"] == "NaN or inf in 1 of 3 layers, first in layer_9"
    assert "pickled objects are not read" in failed["pickled"]
    assert "needs 280 bytes, the file holds 240" in " ".join(comparison.side_of("torn").notes)
    assert get_pair(comparison, "shape", "layer_23").verdict is Verdict.SHAPE
    assert [leftover.name for leftover in comparison.leftovers_of("middle")] == ["layer_9"]
    assert get_pair(comparison, "good", "layer_0").dtype == ("float32", "float16")
    assert {pair.name for pair in comparison.pairs_of("torn")} == {"layer_0", "layer_23"}
    assert comparison.exit_code == 1


def test_a_damaged_reference_leaves_its_other_layers(tmp_path: Path) -> None:
    save(tmp_path, "fp32", **make_layers())
    save(tmp_path, "a", **make_layers(0.1))
    (tmp_path / "mode_fp32_layer_9.npy").write_bytes(b"junk")
    comparison = compare_modes(str(tmp_path), "fp32")
    assert {pair.name for pair in comparison.pairs} == {"layer_0", "layer_23"}
    assert "mode_fp32_layer_9.npy: not a .npy file" in comparison.notes[0].text


def test_a_missing_reference_names_the_command_that_makes_it(tmp_path: Path) -> None:
    save(tmp_path, "0", **make_layers())
    with pytest.raises(SourceError) as trouble:
        compare_modes(str(tmp_path), "fp32")
    assert str(trouble.value) == (
        f"{tmp_path}: there is no mode 'fp32'; record the reference with `nndiff modes FILE.py -o {tmp_path} --only "
        "fp32`, or choose another with --reference (there are 0)"
    )
    with pytest.raises(UsageError, match="there is no mode 'x'"):
        compare_modes(str(tmp_path), "0", ["x"])
    with pytest.raises(UsageError, match="it is alone"):
        compare_modes(str(tmp_path), "0")
    with pytest.raises(SourceError, match="no such folder"):
        compare_modes(str(tmp_path / "none"), "0")


def test_a_damaged_recording_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    for mode in ("fp32", "a", "b"):
        with Writer(tmp_path / f"mode_{mode}") as writer:
            writer.add("fc", "output", np.arange(6.0) + (mode == "b"))
    shard = next((tmp_path / "mode_a").glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-3] ^= 0xFF
    shard.write_bytes(bytes(data))
    comparison = compare_modes(str(tmp_path), "fp32")
    assert comparison.modes is not None
    assert [mode.mode for mode in comparison.modes.modes] == ["b", "a"]
    assert "digest" in (comparison.modes.get_mode("a").failed or "")
    assert open_mode(str(tmp_path), "b").failed is None
