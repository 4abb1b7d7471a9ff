"""A port of NEST, with names of its own, against the recordings NeMo left: the same if right, else found out where."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from environments import NEMO, run_in
from replaying import RENAMED, replay

PORT = Path(__file__).with_name("nest_port.py")


@pytest.fixture
def diff(nemo, tmp_path, monkeypatch):
    """Feed the port what NeMo was fed, and compare, in an environment without NeMo."""
    monkeypatch.setenv("PORT_WEIGHTS", str(nemo.folder / "tiny.nemo"))

    def run(name, factory="model"):
        out = tmp_path / f"{name}-{factory}"
        return replay(nemo.folder / f"{name}.nnrec", f"{PORT}:{factory}", out, rename=RENAMED)

    return run


def counted(result):
    return [pair.slot for pair in result.pairs]


@pytest.mark.parametrize("name", ["eval", "ragged", "pinned", "train"])
def test_a_right_port_is_identical_forward_and_backward(diff, name):
    result = diff(name)
    assert (result.exit_code, result.verdict) == (0, "identical")
    slots = counted(result)
    assert slots.count("param_grad") == 88, "every parameter that has a gradient"
    assert slots.count("grad_output") > 75
    assert slots.count("output") > 85
    assert slots.count("buffer") == (6 if name == "train" else 0)
    assert not [each for each in (*result.only_reference, *result.only_candidate) if "param_grad" in each]


def test_a_port_that_rounds_otherwise_is_close(diff):
    result = diff("eval", "rounds_otherwise")
    assert (result.exit_code, result.verdict) == (0, "close")
    assert result.totals.close > 100


def test_a_port_that_draws_another_mask_is_the_same_once_it_is_given_the_mask(diff):
    drawn = diff("eval", "draws_otherwise")
    assert drawn.first_divergence.name.startswith("mask_processor:output")
    assert diff("pinned", "draws_otherwise").verdict == "identical"


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ("wrong_normalisation", "preprocessor.featurizer:output.0"),
        ("wrong_distance", "quantizer:output.0"),
        ("axes_swapped", "encoder.pre_encode:output.0"),
        ("lengths_off", "encoder.pre_encode:output.1"),
        ("wrong_eps", "encoder.layers.0.norm_out:output"),
        ("padding_swapped", "encoder.layers.0.conv.pointwise_conv1:output"),
        ("judges_all_frames", "(model):loss"),
    ],
)
def test_a_fault_is_the_first_divergence(diff, fault, place):
    result = diff("eval", fault)
    assert result.exit_code == 1
    assert result.first_divergence.name == place


@pytest.mark.parametrize(
    ("name", "fault", "layer", "after", "before"),
    [
        ("eval", "wrong_attention_scale", "encoder.layers.1", "self_attn.linear_pos", "self_attn.dropout"),
        ("ragged", "wrong_attention_mask", "encoder.layers.0", "self_attn.linear_pos", "self_attn.dropout"),
        ("eval", "order_swapped", "encoder.layers.0", "dropout", "norm_self_att"),
    ],
)
def test_a_fault_between_modules_is_found_between_them(diff, name, fault, layer, after, before):
    result = diff(name, fault)
    assert result.exit_code == 1
    told = str(result.first_divergence)
    assert f"{layer}.{after}:output" in told
    assert f"{layer}.{before}:output" in told


@pytest.mark.parametrize(
    ("fault", "place", "differing"),
    [
        ("detached", "encoder.layers.1.conv", True),
        ("detached_positions", "encoder.layers.0.self_attn.linear_pos", False),
    ],
)
def test_a_branch_without_gradient_is_found_though_every_output_agrees(diff, fault, place, differing):
    result = diff("eval", fault)
    assert result.exit_code == 1
    assert result.first_divergence.name == f"{place}:grad_output"
    forward = [pair for pair in result.pairs if pair.slot in ("output", "loss")]
    assert {pair.verdict.value for pair in forward} == {"identical"}
    assert bool(result.totals.different) is differing, "of what has a gradient at all"


def test_a_dropout_too_many_shows_in_train_mode_alone(diff):
    assert diff("eval", "one_dropout_more").verdict == "identical"
    found = diff("train", "one_dropout_more").first_divergence
    assert (found.name, found.candidate_name) == ("decoder.decoder_layers:output", "head:output")
    assert (found.inputs.value, found.before) == ("in tolerance", "decoder.decoder_layers.0:output")


def test_all_in_one_command_each_side_in_its_own_environment_in_train_mode(nemo, tmp_path, monkeypatch):
    monkeypatch.setenv("PORT_WEIGHTS", str(nemo.folder / "tiny.nemo"))
    out = tmp_path / "result.json"
    done = run_in(
        sys.executable, "-m", "nndiff", "run", nemo.folder / "tiny.nemo", PORT, "--ref-python", NEMO, "--backward",
        "--mode", "train", "--seed", 3, "--rename", RENAMED, "--report", f"json:{out}",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(out.read_text())
    assert data["verdict"] == "identical"
    assert data["totals"]["pairs"] > 280


def test_a_fault_is_told_by_one_command_that_replays_the_recording_into_a_factory(nemo, monkeypatch):
    monkeypatch.setenv("PORT_WEIGHTS", str(nemo.folder / "tiny.nemo"))
    command = ("-m", "nndiff", "diff", nemo.folder / "eval.nnrec", f"{PORT}:wrong_eps", "--rename", RENAMED)
    done = run_in(sys.executable, *command)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "first divergence at encoder.layers.0.norm_out:output" in " ".join(done.stdout.split())
    assert "eps 1e-05 → 0.001" in done.stdout
