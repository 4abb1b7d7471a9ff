"""One tiny model of every class of NeMo: recorded there by the command line, compared here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import nndiff

_TREE = ast.parse(Path(__file__).with_name("nemo_zoo.py").read_text())
# read, not imported: what makes the models needs NeMo's environment
PLANTED, GENERAL = (
    next(
        ast.literal_eval(each.value)
        for each in _TREE.body
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == name
    )
    for name in ("PLANTED", "GENERAL")
)


def differing(recording, truth):
    """Return the names whose bytes are not those of the truth."""
    found = recording.source().tensors
    wrong = []
    for name, array in truth.items():
        kind, _, rest = name.partition(":")
        recorded = found[f"{rest}:param_grad" if kind == "grad" else f"(model):{name}"].numpy()
        same = recorded.dtype == array.dtype and recorded.shape == array.shape
        if not (same and recorded.tobytes() == array.tobytes()):
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("name", PLANTED)
def test_outputs_loss_and_gradients_are_those_of_a_run_without_nndiff_bit_for_bit(zoo, name, mode):
    assert zoo.facts[name][mode]["status"] == 0, zoo.facts[name][mode]["stderr"]
    recording, truth = zoo.recording(f"{name}-{mode}"), zoo.truth(f"{name}-{mode}")
    assert differing(recording, truth) == []
    assert recording.meta["loss"] == "given"
    gradients = {event.site.name for event in recording.tensors if event.site.slot == "param_grad"}
    assert len(gradients) == sum(each.startswith("grad:") for each in truth)
    assert len(gradients) > 3


@pytest.mark.parametrize("name", PLANTED)
def test_a_second_recording_is_identical_and_a_planted_fault_is_the_first_divergence(zoo, name):
    first, again, planted = (zoo.folder / f"{name}-{each}.nnrec" for each in ("eval", "again", "planted"))
    assert nndiff.compare(first, again).verdict == "identical"
    result = nndiff.compare(first, planted)
    assert result.verdict == "different"
    assert result.first_divergence is not None
    assert result.first_divergence.name.startswith(f"{PLANTED[name]}:output")


def test_losses_of_inner_layers_run_the_model_once_more(zoo):
    assert zoo.facts["inter_ctc"]["backward"]["status"] == 0
    recording = zoo.recording("inter_ctc-backward")
    assert [call.call for call in recording.calls if call.module == "encoder"] == [0, 1]
    assert any(event.site.slot == "param_grad" for event in recording.tensors)


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("name", GENERAL)
def test_models_without_a_loss_to_be_had_go_backward_from_the_projection(zoo, name, mode):
    assert zoo.facts[name][mode]["status"] == 0, zoo.facts[name][mode]["stderr"]
    recording = zoo.recording(f"{name}-{mode}")
    assert differing(recording, zoo.truth(f"{name}-{mode}")) == []
    assert recording.meta["loss"] == "projection"
    assert sum(event.site.slot == "param_grad" for event in recording.tensors) > 3


def test_a_loss_that_needs_cuda_says_so_and_the_forward_pass_needs_none(zoo):
    assert zoo.facts["tdt"]["forward"]["status"] == 0
    backward = zoo.facts["tdt"]["backward"]
    assert backward["status"] == 2
    assert backward["stderr"].count("\n") == 1
    assert "its loss needs CUDA: give --device cuda, drop --backward, or record a Python file" in backward["stderr"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "vocoder",
            "HifiGanModel takes no waveform but spec: give its inputs with --input, for example --input",
        ),
        (
            "speaking",
            "FastPitchModel takes no waveform but text, durs, pitch and may take 9 more: give its inputs",
        ),
        ("aligner", "AlignerModel takes no waveform but spec, spec_len, text, text_len, attn_prior: give its inputs"),
    ],
)
def test_a_model_without_a_waveform_says_what_it_takes(zoo, name, said):
    forward = zoo.facts[name]["forward"]
    assert forward["status"] == 2
    assert said in forward["stderr"]


def test_what_the_messages_advise_works(zoo):
    assert {name: done["status"] for name, done in zoo.facts["ways_out"].items()} == dict.fromkeys(
        ("ragged", "file", "example", "spec", "labels"), 0
    )
    assert {"encoder", "decoder", "joint"} <= {call.module for call in zoo.recording("file").calls}
    for name in ("file", "example", "spec"):
        assert any(event.site.slot == "param_grad" for event in zoo.recording(name).tensors)


def test_labels_that_are_given_are_those_of_the_loss_and_stay_with_the_inputs(zoo):
    given, made = zoo.recording("labels"), zoo.recording("ctc-eval")
    assert given.inputs()[1]["targets"].shape == (2, 3)
    found = [recording.source().tensors for recording in (given, made)]
    outputs = [each["(model):output.0"].numpy().tobytes() for each in found]
    losses = [each["(model):loss"].numpy().item() for each in found]
    assert outputs[0] == outputs[1]
    assert losses[0] != losses[1]
