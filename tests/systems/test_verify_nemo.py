"""nndiff verify with NeMo itself and a port: checkpoints go both ways with the same bits, and faults are found out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import nest_checkpoints
import torch
from environments import NEMO, ROOT, run_in
from safetensors.torch import save_file

PORT = Path(nest_checkpoints.__file__)
ARCHIVE, LIGHTNING = ROOT / "tests/fixtures/tiny_nest.nemo", ROOT / "tests/fixtures/tiny_nest_pl.ckpt"
CLASS = "EncDecDenoiseMaskedTokenPredModel"
IN_NEMO = ("--into", "nemo", "--python", NEMO)


def verify(tmp_path, *words, python=sys.executable):
    out = tmp_path / "result.json"
    done = run_in(python, "-m", "nndiff", "verify", *words, "--report", f"json:{out}")
    assert out.exists(), done.stderr
    document = json.loads(out.read_text())
    assert done.returncode == document["exit_code"]
    assert (done.returncode == 0) == ("✓ SUCCESS: Checkpoints are fully compatible!" in done.stdout)
    return done.returncode, document


def get_results(document):
    return [(check["kind"], check["reference"], check["candidate"], check["result"]) for check in document["checks"]]


BOTH_WAYS = [
    ("checkpoint", "checkpoint", "Local Model", "passed"),
    ("checkpoint", "checkpoint", "NeMo Model", "passed"),
    ("state dicts", "NeMo Model", "Local Model", "passed"),
    ("round trip", "NeMo Model", "Local Model", "passed"),
    ("round trip", "Local Model", "NeMo Model", "passed"),
]


def test_an_archive_goes_both_ways_and_both_compute_the_same(tmp_path):
    status, document = verify(tmp_path, ARCHIVE, "--into", PORT, *IN_NEMO, "--forward")
    assert status == 0
    assert get_results(document) == [*BOTH_WAYS, ("forward", "NeMo Model", "Local Model", "passed")]
    assert {check["common"] for check in document["checks"][:5]} == {99}
    assert document["checks"][-1]["comparison"]["verdict"] == "identical"
    assert document["nemo_available"] is True
    for side, name in zip(document["sides"], ("Port", CLASS), strict=True):
        assert (side["class"], side["parameters"], side["trainable"]) == (name, 240_976, 229_632)


def test_a_lightning_checkpoint_goes_both_ways_where_nemo_is_the_other_side_by_default(tmp_path):
    """The port has no loader here: its load_state_dict translates the names."""
    status, document = verify(tmp_path, LIGHTNING, "--into", f"{PORT}:Port", python=NEMO)
    assert (status, get_results(document)) == (0, BOTH_WAYS)


def test_a_port_that_computes_something_else_is_found_by_its_outputs_alone(tmp_path):
    status, document = verify(tmp_path, ARCHIVE, "--into", f"{PORT}:load_wrong_eps", *IN_NEMO, "--forward")
    assert (status, get_results(document)[:5]) == (1, BOTH_WAYS)
    first = document["checks"][5]["comparison"]["first_divergence"]
    assert first["name"] == "encoder.layers.0.norm_out:output"


def test_a_port_that_transposes_a_weight_is_found_and_so_is_what_it_saves(tmp_path):
    status, document = verify(tmp_path, ARCHIVE, "--into", f"{PORT}:load_transposed", *IN_NEMO)
    assert status == 1
    assert [check["result"] for check in document["checks"]] == ["failed", "passed", "failed", "passed", "failed"]
    for number in (0, 2, 4):
        assert document["checks"][number]["value_mismatches"] == ["encoder.layers.0.self_attn.linear_q.weight"]


def test_nemo_alone_loads_what_the_port_saved_as_an_archive_and_as_plain_tensors(tmp_path):
    port = nest_checkpoints.load(str(ARCHIVE))
    nest_checkpoints.save(port, str(tmp_path / "ours.nemo"))
    state = {name: value.contiguous() for name, value in port.state_dict().items()}
    save_file(state, tmp_path / "ours.safetensors")
    del state["decoder.decoder_layers.0.bias"]
    torch.save(state, tmp_path / "short.pt")
    direction = ("--direction", "local_to_nemo")
    assert verify(tmp_path, tmp_path / "ours.nemo", *IN_NEMO, *direction)[0] == 0
    into_archive = ("--into", ARCHIVE, "--python", NEMO, *direction)  # NeMo with the config in this archive
    status, document = verify(tmp_path, tmp_path / "ours.safetensors", *into_archive)
    assert (status, document["sides"][0]["class"]) == (0, CLASS)
    status, document = verify(tmp_path, tmp_path / "short.pt", *into_archive)
    assert status == 1
    assert document["checks"][0]["only_candidate"] == ["decoder.decoder_layers.0.bias"]


def test_an_archive_that_nemo_does_not_restore_is_not_compatible(tmp_path):
    port = nest_checkpoints.load(str(ARCHIVE))
    port.state_dict = lambda: {"decoder.decoder_layers.0.bias": torch.zeros(64)}
    nest_checkpoints.save(port, str(tmp_path / "short.nemo"))
    status, document = verify(tmp_path, tmp_path / "short.nemo", *IN_NEMO, "--direction", "local_to_nemo")
    assert status == 1
    assert "NeMo cannot restore it" in document["sides"][0]["failure"]
