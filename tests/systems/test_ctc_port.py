"""A port of a NeMo model, with names of its own, against the recording NeMo left: as docs/nemo.md goes about it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from environments import run_in
from replaying import RENAMED, replay

PORT = Path(__file__).with_name("ctc_port.py")


@pytest.fixture
def diff(zoo, tmp_path, monkeypatch):
    """Feed the port what NeMo was fed, and compare, in an environment without NeMo."""
    monkeypatch.setenv("PORT_WEIGHTS", str(zoo.folder / "ctc.nemo"))

    def run(name, factory="model", **options):
        return replay(zoo.folder / f"{name}.nnrec", f"{PORT}:{factory}", tmp_path / f"{name}-{factory}", **options)

    return run


@pytest.mark.parametrize("name", ["ctc-eval", "ragged"])
def test_a_port_with_other_names_is_the_same_forward_and_backward(diff, name):
    result = diff(name, rename=RENAMED)
    assert result.exit_code == 0
    slots = [pair.slot for pair in result.pairs]
    assert slots.count("param_grad") == 84, "every parameter"
    assert slots.count("grad_output") > 50
    assert not [each for each in (*result.only_reference, *result.only_candidate) if "param_grad" in each]


def test_a_wrong_epsilon_is_found_at_its_norm_and_named(diff):
    result = diff("ctc-eval", "wrong_eps")
    assert result.exit_code == 1
    assert result.first_divergence.name == "encoder.layers.1.norm_conv:output"
    assert "eps" in str(result.first_divergence)


@pytest.mark.parametrize(
    ("name", "fault", "after", "before"),
    [
        ("ctc-eval", "no_scaling", "encoder.pre_encode", "encoder.pos_enc.dropout"),
        ("ctc-eval", "shifted", "encoder.layers.0.self_attn.linear_pos", "encoder.layers.0.self_attn.dropout"),
        ("ragged", "no_padding_mask", "encoder.layers.0.conv.pointwise_conv1", "encoder.layers.0.conv.depthwise_conv"),
    ],
)
def test_a_fault_between_modules_is_found_between_them(diff, name, fault, after, before):
    result = diff(name, fault)
    assert result.exit_code == 1
    told = str(result.first_divergence)
    assert f"{after}:output" in told
    assert f"{before}:output" in told


def test_a_missing_padding_mask_does_not_show_where_all_rows_are_of_one_length(diff):
    assert diff("ctc-eval", "no_padding_mask", rename=RENAMED).exit_code == 0


def test_the_recorded_inputs_are_replayed_by_one_command(zoo, monkeypatch):
    monkeypatch.setenv("PORT_WEIGHTS", str(zoo.folder / "ctc.nemo"))
    command = ("-m", "nndiff", "diff", zoo.folder / "ctc-eval.nnrec", PORT, "--rename", RENAMED)
    done = run_in(sys.executable, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "84 of 84 parameter gradients match" in done.stdout
