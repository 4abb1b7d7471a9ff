"""The demo: its checkpoints are real, and a step that ends otherwise is noticed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nndiff.demo.models import make_weights, write_checkpoints
from nndiff.demo.story import STEPS_WITH_FILES, STEPS_WITH_MODELS, play


def test_its_checkpoints_are_safetensors(tmp_path):
    write_checkpoints(tmp_path)
    reference, rounded = load_file(tmp_path / "ref.safetensors"), load_file(tmp_path / "bf16.safetensors")
    for name, values in make_weights().items():
        assert np.array_equal(reference[name].numpy(), values)
        assert torch.equal(rounded[name], reference[name].bfloat16()), "rounded as torch does"
    assert load_file(tmp_path / "tuned.safetensors").keys() == reference.keys() - {"head.bias"}


@pytest.mark.parametrize("wrong", [None, 3])
def test_it_fails_if_a_step_does(wrong, capsys):
    steps = [*STEPS_WITH_FILES, *STEPS_WITH_MODELS]
    commands = []

    def run_command(words):
        commands.append(" ".join(words))
        number = len(commands) - 1
        return 2 if number == wrong else steps[number].status

    assert play(run_command) is (wrong is None)
    assert commands == [step.command for step in steps]
    assert all(f"$ nndiff {command}\n" in capsys.readouterr().out for command in commands[:1])
