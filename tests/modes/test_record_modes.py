from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import mode_nets
from nndiff.errors import ModelError, UsageError
from nndiff.modes import library
from nndiff.modes.compare import compare_modes
from nndiff.modes.definition import Definition, SampleOptions, load_definition
from nndiff.modes.folder import list_modes, open_mode
from nndiff.modes.layers import choose_layers, find_blocks
from nndiff.modes.layouts import Layout, pool_shapes
from nndiff.modes.record import RecordSettings, record_modes
from nndiff.modes.selection import choose_modes

ALL_RECORDING = RecordSettings("all", Layout.RECORDING)


def define(tmp_path: Path, *parts: str, count: int = 2) -> Definition:
    return load_definition(mode_nets.write_net(tmp_path, "net", *parts), SampleOptions(count))


def run_layers(definition: Definition, mode: str) -> dict[str, list[np.ndarray]]:
    """Return the outputs of all modules, the truth: by hooks of the test's own."""
    samples = definition.make_samples()
    model = definition.build_mode(mode, samples)
    outputs: dict[str, list[np.ndarray]] = {}

    def keep(name: str) -> object:
        def hook(module: object, args: object, output: object) -> None:
            if isinstance(output, torch.Tensor):
                outputs.setdefault(f"{name}:output" if name else "(model):output", []).append(
                    output.detach().double().numpy().copy()
                )

        return hook

    for name, module in model.named_modules():
        module.register_forward_hook(keep(name))
    with torch.no_grad():
        for sample in samples:
            model(**sample) if isinstance(sample, dict) else model(sample.clone())
    return outputs


@pytest.mark.parametrize("net", ["MAMBA", "LLAMA", "CONVNET"])
@pytest.mark.parametrize("layout", Layout)
def test_ten_modes_of_three_nets(tmp_path: Path, net: str, layout: Layout) -> None:
    if layout is Layout.NPY and net != "LLAMA":
        pytest.skip("one net shows the other layout")
    definition = define(tmp_path, getattr(mode_nets, net), mode_nets.MODES)
    modes = choose_modes(definition, "fp32", (), None)
    assert len(modes) == 10
    folder = str(tmp_path / "out")
    done = record_modes(definition, "fp32", modes, folder, RecordSettings("all", layout))
    assert done.failed == {}
    comparison = compare_modes(folder, "fp32")
    assert comparison.modes is not None
    ranks = {mode.mode: mode.rank for mode in comparison.modes.modes}
    assert sorted(ranks.values()) == list(range(1, 11))
    assert ranks["fp16"] == 1
    assert ranks["2-1"] > ranks["0"]
    assert ranks["2-2"] > ranks["2-0"]
    assert all(mode.failed is None and mode.logits is not None for mode in comparison.modes.modes)
    layers = {pair.name for pair in comparison.pairs}
    for mode in modes:
        assert {pair.name for pair in comparison.pairs_of(mode)} == layers
    if layout is Layout.RECORDING:
        truth = run_layers(definition, "fp32")
        assert set(truth) <= layers
        mode_truth = run_layers(definition, "2-1")
        for name in truth:
            pair = next(pair for pair in comparison.pairs_of("2-1") if pair.name == name)
            reference = np.concatenate([part.ravel() for part in truth[name]])
            candidate = np.concatenate([part.ravel() for part in mode_truth[name]])
            assert pair.metrics is not None
            np.testing.assert_allclose(pair.metrics.mse, np.mean((candidate - reference) ** 2), rtol=1e-6)
            np.testing.assert_allclose(pair.metrics.ref_std, reference.std(), rtol=1e-6)


def test_every_run_gets_a_fresh_model_and_fresh_samples(tmp_path: Path) -> None:
    """The net doubles its input in place: were samples shared, the second mode would differ from the reference."""
    definition = define(tmp_path, mode_nets.BLOCKS)
    folder = str(tmp_path / "out")
    record_modes(definition, "fp32", ["small", "same"], folder, ALL_RECORDING)
    comparison = compare_modes(folder, "fp32")
    assert comparison.outcome_of("same").value == "identical"
    assert comparison.outcome_of("small").value == "different"


def test_finished_modes_are_not_run_again(tmp_path: Path) -> None:
    definition = define(tmp_path, mode_nets.BLOCKS)
    runs = sys.modules[definition.modes["small"].__module__].RUNS
    folder = str(tmp_path / "out")
    record_modes(definition, "fp32", ["small", "broken"], folder, ALL_RECORDING)
    before = len(runs)
    done = record_modes(definition, "fp32", ["small"], folder, ALL_RECORDING)
    assert (done.ran, done.kept) == ((), ("fp32", "small"))
    assert len(runs) == before
    done = record_modes(definition, "fp32", ["small", "broken", "same"], folder, ALL_RECORDING)
    assert done.ran == ("same",)
    assert list(done.failed) == ["broken"]  # a mode that failed is tried again
    done = record_modes(definition, "fp32", ["small"], folder, ALL_RECORDING, overwrite=True)
    assert done.ran == ("fp32", "small")


def test_modes_that_were_recorded_otherwise_are_not_mixed(tmp_path: Path) -> None:
    folder = str(tmp_path / "out")
    record_modes(define(tmp_path, mode_nets.BLOCKS), "fp32", ["small"], folder, ALL_RECORDING)
    with pytest.raises(UsageError, match=r"samples 2, not 3.*--overwrite"):
        record_modes(define(tmp_path, mode_nets.BLOCKS, count=3), "fp32", ["same"], folder, ALL_RECORDING)
    settings = RecordSettings("first,last", Layout.RECORDING)
    with pytest.raises(UsageError, match="layers all, not first,last"):
        record_modes(define(tmp_path, mode_nets.BLOCKS), "fp32", ["same"], folder, settings)


def test_a_run_that_is_cut_off_leaves_no_half_mode(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    for layout in Layout:
        definition = define(tmp_path, mode_nets.BLOCKS)
        record_modes(definition, "fp32", ["late"], str(folder), RecordSettings("all", layout), overwrite=True)
        names = [path.name for path in folder.iterdir() if path.name.startswith("mode_late")]
        assert names == ["mode_late_stats.json"]
        assert "mat1 and mat2" in json.loads((folder / names[0]).read_text())["failed"]


def test_the_layouts_replace_each_other(tmp_path: Path) -> None:
    definition, folder = define(tmp_path, mode_nets.BLOCKS), tmp_path / "out"
    for layout in (Layout.NPY, Layout.RECORDING, Layout.NPY):
        record_modes(definition, "fp32", [], str(folder), RecordSettings("first,last", layout), overwrite=True)
        assert (folder / "mode_fp32").is_dir() == (layout is Layout.RECORDING)
        assert (folder / "mode_fp32_layer_0.npy").exists() == (layout is Layout.NPY)
        assert list_modes(str(folder)) == ["fp32"]
        assert len(open_mode(str(folder), "fp32").layers) == 3
    array = np.load(folder / "mode_fp32_layer_3.npy")
    assert array.shape == (11, 8)  # samples of 5 and 6 tokens, one after the other
    assert array.dtype == np.float32
    stats = json.loads((folder / "mode_fp32_stats.json").read_text())["layers"]["layer_3"]
    np.testing.assert_allclose([stats["mean"], stats["std"]], [array.mean(), array.std()], rtol=1e-5)


def test_ready_modes_on_a_hugging_face_folder(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=30, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
                         num_attention_heads=2, max_position_embeddings=64)  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    definition = load_definition(f"hf:{tmp_path / 'llama'}", SampleOptions(1))
    modes = choose_modes(definition, "fp32", (), "standard")
    assert modes == list(library.STANDARD)
    assert definition.make_samples()[0]["input_ids"].shape == (1, 64)  # 512, but no more than the model takes
    done = record_modes(
        definition, "fp32", modes, str(tmp_path / "out"), RecordSettings("first,last", Layout.RECORDING)
    )
    assert done.failed == {}


def test_layers_first_last_all_and_patterns(tmp_path: Path) -> None:
    blocks = define(tmp_path, mode_nets.BLOCKS).make_model()
    assert find_blocks(blocks, [name for name, _ in blocks.named_modules()]) == "layers"
    choice = choose_layers(blocks, "first,last")
    assert choice.names == ("layers.0", "layers.3")
    assert choice.numbers == (0, 3)
    everything = choose_layers(blocks, "all")
    assert set(everything.names) == {name for name, _ in blocks.named_modules() if name}
    assert (everything.first, everything.last) == ("layers.0", "layers.3")
    assert dict(zip(everything.names, everything.numbers, strict=True))["head"] == 3
    assert choose_layers(blocks, "*.fc").names == tuple(f"layers.{number}.fc" for number in range(4))
    with pytest.raises(UsageError, match=r"matches no module; did you mean layers\.0"):
        choose_layers(blocks, "layer.0")
    plain = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(2, 2), torch.nn.Tanh(), torch.nn.Conv1d(2, 2, 1))
    assert choose_layers(plain, "first,last").names == ("1", "3")  # no blocks: the ends that have parameters


def test_presets(tmp_path: Path) -> None:
    definition = define(tmp_path, mode_nets.CONVNET, mode_nets.MODES)
    assert choose_modes(definition, "fp32", (), "essential") == ["0", "2-1", "2-2", "2-4"]
    assert choose_modes(definition, "fp32", (), "fp_only") == []
    assert choose_modes(definition, "fp32", (), "quant_only") == [
        "fp8",
        "0",
        "2-0",
        "2-1",
        "2-2",
        "2-3",
        "2-4",
        "3_dyn",
    ]
    assert choose_modes(definition, "fp16", (), "all")[:2] == ["fp32", "bf16"]
    assert choose_modes(definition, "fp32", ["int4-group", "0"], None) == ["int4-group", "0"]  # a ready mode by name
    with pytest.raises(UsageError, match="no mode '2-5'; did you mean '2-4'"):
        choose_modes(definition, "fp32", ["2-5"], None)
    with pytest.raises(UsageError, match="no preset 'esential'; did you mean 'essential'"):
        choose_modes(definition, "fp32", (), "esential")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("modes = {'a/b': lambda model: model}", "cannot name a mode"),
        ("modes = {'a': 3}", "must be a dict of names and functions"),
        ("presets = {'a': 'b'}", "must be a dict of names and lists"),
        ("def samples(): return []", "returned nothing"),
        ("def samples(): return torch.ones(2)", "must return a list"),
        ("def samples(width): return []", "cannot be called without width"),
        ("def samples(): raise OSError('no data')", r"samples\(\) failed at .*net.py:\d+: OSError: no data"),
        ("modes = {'a': lambda model: 3}", "mode 'a' returned a int"),
        ("model = torch.nn.Linear(2, 2)", "define a function that makes a fresh one"),
    ],
)
def test_what_a_file_may_get_wrong(tmp_path: Path, code: str, message: str) -> None:
    def use_file() -> None:
        definition = define(tmp_path, mode_nets.CONVNET, code)
        definition.build_mode("a", definition.make_samples())

    with pytest.raises(ModelError, match=message):
        use_file()


def test_shapes_are_pooled_along_the_first_axis_else_as_rows_else_flat() -> None:
    assert pool_shapes([(2, 3, 4)]) == (2, 3, 4)
    assert pool_shapes([(2, 3, 4), (1, 3, 4)]) == (3, 3, 4)
    assert pool_shapes([(1, 3, 4), (1, 5, 4)]) == (8, 4)
    assert pool_shapes([(1, 3), (2, 5)]) == (13,)
    assert pool_shapes([(), ()]) == (2,)
