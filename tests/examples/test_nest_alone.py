"""examples/nest without NeMo: it loads, saves, refuses and runs, and its tools say what is missing."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch

import nndiff

sys.path.append(str(Path(__file__).parents[2] / "examples/nest"))
import nest_ssl
from nest_ssl.checkpoint import CheckpointError, read_archive

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/nest"
ARCHIVE, LIGHTNING = ROOT / "tests/fixtures/tiny_nest.nemo", ROOT / "tests/fixtures/tiny_nest_pl.ckpt"


def run(*words):
    env = {**os.environ, "NEST_CHECKPOINT": str(ARCHIVE)}
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, env=env, check=False)


def make_inputs():
    torch.manual_seed(0)
    signal, lengths = 0.1 * torch.randn(2, 20000), torch.tensor([20000, 14000])
    return {
        "input_signal": signal,
        "input_signal_length": lengths,
        "noisy_input_signal": signal,
        "noisy_input_signal_length": lengths,
        "apply_mask": True,
    }


def same_bits(one, other):
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("path", [ARCHIVE, LIGHTNING], ids=["archive", "lightning"])
@pytest.mark.parametrize("suffix", [".nemo", ".ckpt"])
def test_what_is_saved_is_what_was_loaded(tmp_path, path, suffix):
    model = nest_ssl.load(path)
    nest_ssl.save(model, tmp_path / f"saved{suffix}")
    again = nest_ssl.load(tmp_path / f"saved{suffix}")
    assert same_bits(model.state_dict(), again.state_dict())
    assert len(again.state_dict()) == 99
    assert [item.name for item in tmp_path.iterdir()] == [f"saved{suffix}"], "nothing unfinished is left"


def test_it_trains():
    model = nest_ssl.load(ARCHIVE).train()
    inputs = make_inputs()
    signal = inputs["input_signal"].clone()
    log_probs, lengths, masks, tokens = output = model(**inputs)
    assert log_probs.shape == (2, 16, 64, 1)
    assert lengths.tolist() == [16, 11]
    assert masks.any()
    assert tokens.shape == (2, 16, 1)
    model.compute_loss(output).backward()
    trained = [name for name, parameter in model.named_parameters() if parameter.grad is not None]
    assert len(trained) == 88
    assert torch.equal(inputs["input_signal"], signal), "the caller's audio is not written to"


def test_a_fresh_model_of_the_large_config_has_its_size():
    with torch.device("meta"):
        model = nest_ssl.Nest(nest_ssl.read_config(EXAMPLE / "config/nest_fast-conformer.yaml"))
    assert round(sum(parameter.numel() for parameter in model.parameters()) / 1e6) == 113


@pytest.mark.parametrize(
    ("section", "option", "value", "message"),
    [
        ("encoder", "self_attention_model", "abs_pos", "in the port it must be 'rel_pos'"),
        ("encoder", "stochastic_depth_drop_prob", 0.1, "in the port it must be 0.0"),
        ("encoder", "new_option", 1, "new_option is 1, and in the port it is not known"),
        ("quantizer", "dist_fn", "cosine", "the port has 'l2'"),
        ("masking", "_target_", "nemo.collections.asr.modules.Other", "asks for nemo.collections.asr.modules.Other"),
    ],
)
def test_an_option_that_the_port_does_not_have_is_refused(section, option, value, message):
    config, _ = read_archive(ARCHIVE)
    config[section][option] = value
    with pytest.raises(nest_ssl.ConfigError, match=message):
        nest_ssl.Nest(config)


class Attack:
    def __reduce__(self):
        return os.mkdir, (str(Path(os.environ["NEST_ATTACK"])),)


def test_nothing_in_a_lightning_checkpoint_is_executed(tmp_path, monkeypatch):
    monkeypatch.setenv("NEST_ATTACK", str(tmp_path / "made"))
    torch.save({"state_dict": {}, "hyper_parameters": Attack()}, tmp_path / "bad.ckpt")
    with pytest.raises(nest_ssl.ConfigError, match="no config"):
        nest_ssl.load(tmp_path / "bad.ckpt")
    assert not (tmp_path / "made").exists()
    pickle.loads(pickle.dumps(Attack()))
    assert (tmp_path / "made").exists(), "the attack works"


def test_other_files_are_refused(tmp_path):
    torch.save([1], tmp_path / "list.ckpt")
    with pytest.raises(CheckpointError, match="no state_dict"):
        nest_ssl.load(tmp_path / "list.ckpt")
    with tarfile.open(tmp_path / "empty.nemo", "w"):
        pass
    with pytest.raises(CheckpointError, match=r"no model_config\.yaml"):
        nest_ssl.load(tmp_path / "empty.nemo")


def test_a_checkpoint_of_another_size_is_refused_with_what_does_not_fit():
    with pytest.raises(CheckpointError) as caught:
        nest_ssl.load(ARCHIVE, EXAMPLE / "config/nest_fast-conformer.yaml")
    assert "does not fit the config" in str(caught.value)
    assert "600 missing (encoder.layers.2.norm_feed_forward1.weight, ...)" in str(caught.value)
    assert "93 of another shape (quantizer.codebooks [1, 64, 16] for [1, 8192, 16], ...)" in str(caught.value)


def test_a_broken_port_differs_from_the_port():
    done = run("-m", "nndiff", "run", EXAMPLE / "port.py", f"{EXAMPLE / 'broken.py'}:padding_unmasked")
    assert done.returncode == 1, done.stderr
    text = " ".join(done.stdout.split())
    assert "before encoder.layers.0:input.att_mask, which does not" in text
    assert "cause padding-mask (98% sure): the candidate ignores the padding mask" in text


LAYERS = ["encoder.layers.0", "encoder.layers.1"]
CAUSES = {
    "axes_swapped": ("flatten-order", ["encoder.pre_encode"], "eval"),
    "order_swapped": ("block-order", LAYERS, "eval"),
    "padding_unmasked": ("padding-mask", ["encoder"], "eval"),
    "wrong_eps": ("norm-eps", [f"{layer}.conv.batch_norm" for layer in LAYERS], "eval"),
    "extra_dropout": ("dropout", [f"{layer}.feed_forward{part}" for layer in LAYERS for part in (1, 2)], "train"),
}


@pytest.mark.parametrize("fault", CAUSES)
def test_each_broken_port_is_explained(monkeypatch, fault):
    monkeypatch.setenv("NEST_CHECKPOINT", str(ARCHIVE))
    import broken

    cause, places, mode = CAUSES[fault]
    port, wrong = broken.model(), getattr(broken, fault)()
    result = nndiff.compare(port, wrong, inputs=make_inputs(), mode=mode, seed=3)
    assert [error.module for error in result.own_errors] == places
    for error in result.own_errors:
        assert cause in [finding.cause for finding in result.findings if error.name in finding.where]


def test_a_dropout_too_many_changes_nothing_in_eval_mode(monkeypatch):
    monkeypatch.setenv("NEST_CHECKPOINT", str(ARCHIVE))
    import broken

    assert nndiff.compare(broken.model(), broken.extra_dropout(), inputs=make_inputs()).verdict == "identical"


@pytest.mark.parametrize(
    ("tool", "options"),
    [
        ("compare_intermediate_outputs.py", ("--nemo_ckpt_path", ARCHIVE)),
        ("save_nemo_outputs.py", ("--output_dir", "never_made")),
        ("verify_checkpoint_compatibility.py", ("--direction", "local_to_nemo")),
    ],
)
def test_a_tool_that_needs_nemo_says_how_to_get_it(tool, options):
    done = run(EXAMPLE / "tools" / tool, "--ckpt_path", ARCHIVE, *options)
    assert done.returncode == 2
    assert "NeMo is not available" in done.stderr
    assert 'pip install "nemo_toolkit[asr]"' in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_checkpoint_is_verified_as_far_as_it_can_be():
    done = run(EXAMPLE / "tools/verify_checkpoint_compatibility.py", "--ckpt_path", ARCHIVE)
    assert done.returncode == 0, done.stderr
    assert "NeMo available: False" in done.stdout
    assert 'NOT TESTED: NeMo is not available: pip install "nemo_toolkit[asr]"' in done.stdout
    assert done.stdout.endswith("✓ SUCCESS: what was tested is compatible; NeMo was not tested\n")


@pytest.mark.parametrize("folder", ["nowhere", EXAMPLE])
def test_a_folder_without_saved_outputs_is_refused(folder):
    done = run(EXAMPLE / "tools/compare_with_saved_outputs.py", "--ckpt_path", ARCHIVE, "--saved_outputs_dir", folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{folder}: has no input_data.pt: give a folder that save_nemo_outputs.py wrote" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_reader_that_leaves_is_no_traceback():
    program = (
        f"import sys; sys.path.insert(0, {str(EXAMPLE / 'tools')!r})\n"
        "from argparse import ArgumentParser\n"
        "from common import run_tool\n"
        "sys.exit(run_tool(lambda args: print('x\\n' * 1_000_000) or 0, ArgumentParser()))"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tool:
        tool.stdout.close()
        assert tool.stderr.read() == b""
    assert tool.returncode == 2


def test_a_missing_checkpoint_is_one_sentence(tmp_path):
    done = run(
        EXAMPLE / "tools/compare_with_saved_outputs.py", "--ckpt_path", "x.nemo", "--saved_outputs_dir", tmp_path
    )
    assert done.returncode == 2
    assert "x.nemo" in done.stderr
    assert done.stderr.count("\n") == 1
