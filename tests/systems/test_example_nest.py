"""examples/nest against real NeMo: bit-identical everywhere, files that go both ways, tools, and broken ports."""

from __future__ import annotations

import functools
import json
import os
import pickle
import re
import shlex
import subprocess
import sys

import pytest
import torch
from environments import NEMO, NemoSide, run_in
from nest_example_cases import CASES, EXAMPLE, ROOT, STEPS, read_screens, record_case, train

import nndiff

sys.path.append(str(EXAMPLE))
import nest_ssl

LARGEST = "large.nemo"


@pytest.fixture(scope="session")
def nest(tmp_path_factory):
    """Run NeMo's side once."""
    folder = tmp_path_factory.mktemp("nest")
    done = run_in(NEMO, ROOT / "tests/systems/nest_example_side.py", folder)
    assert done.returncode == 0, done.stderr[-4000:]
    yield NemoSide(folder, json.loads((folder / "facts.json").read_text()), done.stdout)
    (folder / LARGEST).unlink()  # half a gigabyte


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_port_is_bit_identical_to_nemo(nest, tmp_path, case):
    port = nest_ssl.load(nest.folder / case.checkpoint)
    record_case(port, case, tmp_path)
    result = nndiff.compare(nest.folder / f"{case.name}.nnrec", tmp_path / f"{case.name}.nnrec")
    assert result.verdict == "identical"
    assert result.totals.identical == result.totals.pairs
    assert not [leftover for leftover in result.leftovers if leftover.counts]
    slots = [pair.slot.value for pair in result.pairs]
    trainable = [parameter for parameter in port.parameters() if parameter.requires_grad]
    assert slots.count("param_grad") == len(trainable) > 60
    assert slots.count("loss") == 1
    assert slots.count("output") > 90
    assert slots.count("grad_output") > 80
    assert slots.count("buffer") >= (3 * len(port.encoder.layers) if case.mode == "train" else 0)


def test_a_training_stays_bit_identical_step_by_step(nest, tmp_path):
    port = nest_ssl.load(nest.folder / "tiny.nemo")
    train(port, tmp_path / "training")
    # a buffer of NeMo without elements, by which it knows its dtype
    result = nndiff.compare(nest.folder / "training", tmp_path / "training", exclude="*.dtype_sentinel_tensor")
    assert result.verdict == "identical"
    assert len(result.to_dict()["steps"]) == STEPS
    trained = nest_ssl.load(nest.folder / "trained.nemo").state_dict()
    assert all(torch.equal(trained[name], value) for name, value in port.state_dict().items())
    moved = nest_ssl.load(nest.folder / "tiny.nemo").state_dict()
    assert sum(not torch.equal(trained[name], moved[name]) for name in moved) > 80, "the training did nothing"


def test_nemo_restores_what_the_port_saves(nest):
    assert nest.facts["restored"] == {".nemo": 99, ".ckpt": 99}


def squeeze(text):
    """Return a text without the width of its columns, and without numbers that depend on the machine."""
    return " ".join(re.sub(r"\d+\.\d+e[-+]\d+", "#", text).split())


@functools.cache
def run_in_folder(folder, command):
    """Run a command of the README once, whoever looks at what it prints; results go to result.json as well."""
    program, *words = shlex.split(command)
    if program == "nndiff":
        words = ["-m", "nndiff", *words, "--report", f"json:{name_result(folder, command)}"]
    env = {**os.environ, "COLUMNS": "100"}
    return subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, check=False)


def name_result(folder, command):
    return folder / f"{re.sub(r'[^a-z]+', '-', command)}.json"


def run_in_example(nest, command):
    return run_in_folder(nest.folder / "example", command)


@pytest.mark.parametrize(("shell", "command", "shown"), read_screens(), ids=[screen[1] for screen in read_screens()])
def test_the_screens_of_the_readme_are_real(nest, shell, command, shown):
    if shell == "nemo":
        done = nest.facts["commands"][command]
        status, stdout = done["status"], done["stdout"]
    else:
        process = run_in_example(nest, command)
        status, stdout = process.returncode, process.stdout
    statuses = re.findall(r"\(exit (\d)\)", " ".join(shown)) or ["0"]
    assert [str(status)] == statuses
    printed = squeeze(stdout)
    for line in shown:
        assert squeeze(line) in printed, f"{command} does not print {line!r}"


def test_the_intermediate_tool_finds_other_weights(nest):
    command = next(command for command in nest.facts["commands"] if "../trained.nemo" in command)
    done = nest.facts["commands"][command]
    assert done["status"] == 1
    assert "Final output match: False" in done["stdout"]
    assert "Mismatched Layers Details" in done["stdout"]
    assert "weights-differ" in done["stdout"]


def test_saved_outputs_of_other_weights_do_not_match(nest):
    folder = nest.folder / "example/saved_nemo_outputs"
    names = ["forward_output.pt", "hook_data.pkl", "input_data.pt", "metadata.pkl", "parameter_gradients.pt"]
    assert sorted(os.listdir(folder)) == names
    metadata = pickle.loads((folder / "metadata.pkl").read_bytes())
    assert (metadata["mode"], metadata["seed"], metadata["seq_len"]) == ("train", 43, 16000)
    command = "python tools/compare_with_saved_outputs.py --ckpt_path ../trained.nemo --saved_outputs_dir"
    done = run_in_example(nest, f"{command} saved_nemo_outputs")
    assert done.returncode == 1
    assert done.stdout.endswith("✗ Some outputs do not match!\n")


def test_a_lightning_checkpoint_goes_both_ways(nest):
    done = run_in(NEMO, EXAMPLE / "tools/verify_checkpoint_compatibility.py", "--ckpt_path", nest.folder / "tiny.ckpt")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("✓ SUCCESS: Checkpoints are fully compatible!\n")


FEED_FORWARD = [f"encoder.layers.{layer}.feed_forward{part}" for layer in (0, 1) for part in (1, 2)]
LAYERS = ["encoder.layers.0", "encoder.layers.1"]
FAULTS = {
    "axes_swapped": ("nemo", ["encoder.pre_encode"], "flatten-order"),
    "order_swapped": ("nemo", LAYERS, "block-order"),
    "padding_unmasked": ("nemo", ["encoder"], "padding-mask"),
    "wrong_eps": ("nemo", [f"{layer}.conv.batch_norm" for layer in LAYERS], "norm-eps"),
    "extra_dropout": ("train", FEED_FORWARD, "dropout"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_port_is_found_out_with_place_and_cause(nest, fault):
    name, places, cause = FAULTS[fault]
    command = f"nndiff diff {name}.nnrec broken.py:{fault}"
    assert command in [screen[1] for screen in read_screens()]
    done = run_in_example(nest, command)
    assert done.returncode == 1, done.stderr
    data = json.loads(name_result(nest.folder / "example", command).read_text())
    errors = data["own_errors"]
    assert [error["module"] for error in errors] == places
    assert data["first_divergence"]["name"].startswith(places[0])
    for error in errors:
        assert next(finding["cause"] for finding in data["findings"] if error["name"] in finding["where"]) == cause
