"""The folder older scripts leave (input_data.pt, hook_data.pkl, ...) is a recording like any other."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from old_folders import INPUT, LENGTH, SETTINGS, WORDS, Speech, in_tuples, net, old_script, public_script
from torch import nn

import nndiff
from helpers import nndiff as run
from nndiff.models.inputs import load_inputs
from nndiff.result import NoteSlug

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")


@pytest.mark.parametrize("form", ["by direction", "by layer"])
def test_an_old_folder_is_compared_with_a_recording(tmp_path, form):
    old = old_script(net(), tmp_path / "old", form)
    new = tmp_path / "new.nnrec"
    nndiff.record(net(), {"input": INPUT}, path=new, backward=True, loss=lambda out: out.pow(2).sum())
    result = nndiff.compare(old, new, exclude=["*:model_input*", "*:loss", "*:param", "(model):grad_output"])
    assert result.kind == "recording"
    assert result.exit_code == 0, [(pair.name, pair.verdict) for pair in result.worst()] + list(result.leftovers)
    assert {pair.slot for pair in result.pairs} == {"output", "grad_output", "param_grad"}
    assert result.totals.pairs == 3 + 1 + 3 + 4


def test_two_old_folders_are_compared_and_a_fault_is_found(tmp_path):
    broken = net()
    with torch.no_grad():
        broken[2].weight.mul_(1.1)
    one, other = old_script(net(), tmp_path / "one", "by direction"), old_script(broken, tmp_path / "other", "by layer")
    assert nndiff.compare(one, one).verdict == "identical"
    result = nndiff.compare(one, other)
    assert result.exit_code == 1
    assert result.first_divergence.name == "2:output"


@pytest.mark.parametrize(("noted", "verdict"), [(2.5, "identical"), (2.5001, "different"), (float("nan"), "different")])
def test_a_loss_that_is_noted_as_a_number_is_compared(tmp_path, noted, verdict):
    folders = [old_script(net(), tmp_path / name, "by layer") for name in ("one", "other")]
    for folder, loss in zip(folders, (2.5, noted), strict=True):
        (folder / "metadata.pkl").write_bytes(pickle.dumps({"seed": 42, "loss": loss}))
    result = nndiff.compare(*folders)
    assert result.verdict == verdict
    assert [pair.dtype[0] for pair in result.pairs if pair.slot == "loss"] == ["float32"]


def test_what_one_side_was_recorded_without_is_told(tmp_path):
    one, other = (old_script(net(), tmp_path / name, "by layer") for name in ("one", "other"))
    (other / "parameter_gradients.pt").unlink()
    for sides, lacking in (((one, other), "candidate"), ((other, one), "reference")):
        (note,) = [note for note in nndiff.compare(*sides).notes if note.slug is NoteSlug.RECORDED_WITHOUT]
        assert f"the {lacking} does not hold 4 parameter gradients" in note.text
    runs = [nndiff.record(net(), INPUT, path=tmp_path / str(n), backward=bool(n)) for n in (0, 1)]
    (note,) = nndiff.compare(*runs).notes
    assert note.slug is NoteSlug.RECORDED_WITHOUT
    assert "the reference was recorded without --backward" in note.text
    assert "4 output gradients, 4 parameter gradients, the loss" in note.text


MODULES = 10  # of Speech: the stem, the head, the list's two blocks and three in each
SINGULAR = ("forward_input", "forward_output", "backward_input_grad", "backward_output_grad")
IN_TORCHS_WORDS = ("input", "output", "grad_input", "grad_output")


@pytest.mark.parametrize("by", ["module", "direction"])
@pytest.mark.parametrize("words", [WORDS, SINGULAR, IN_TORCHS_WORDS])
def test_a_fault_is_found_where_it_was_planted_and_backward_stands_beside_forward(tmp_path, words, by):
    one = public_script(Speech(), tmp_path / "one", words=words, by=by)
    other = public_script(Speech(1e-2), tmp_path / "other")
    assert nndiff.compare(one, public_script(Speech(), tmp_path / "same")).verdict == "identical"
    result = nndiff.compare(one, other)
    assert result.first_divergence.name == "blocks.1.norm:output"
    assert result.first_divergence.inputs == "in tolerance"
    slots = [pair.slot for pair in result.pairs]
    # the first layer's input asks for no gradient
    assert {slot: slots.count(slot) for slot in slots} == {
        "model_input": 2, "input": MODULES, "output": MODULES + 1, "grad_output": MODULES, "grad_input": MODULES - 1,
        "param_grad": 12,
    }  # fmt: skip
    assert result.leftovers == ()


@pytest.mark.parametrize("by", ["module", "direction"])
@pytest.mark.parametrize("style", ["public", "by direction", "by layer"])
def test_one_gradient_that_is_out_is_found(tmp_path, style, by):
    """The same model saved in another style, and run anew. Inside it is evidence; of a parameter it is a difference."""
    spoiled = public_script(Speech(), tmp_path / "spoiled", spoil="blocks.1.fc", by=by)
    other = tmp_path / "other"
    whole = public_script(Speech(), other) if style == "public" else in_tuples(public_script(Speech(), other), style)
    for result in (nndiff.compare(spoiled, whole), nndiff.compare(spoiled, Speech(), loss=lambda out: out.mean())):
        assert result.exit_code == 0
        assert [pair.name for pair in result.pairs if not pair.verdict.passed] == ["blocks.1.fc:grad_output"]
    gradients = torch.load(spoiled / "parameter_gradients.pt")
    gradients["blocks.1.fc.weight"] *= 1.5
    torch.save(gradients, spoiled / "parameter_gradients.pt")
    for result in (nndiff.compare(spoiled, whole), nndiff.compare(spoiled, Speech(), loss=lambda out: out.mean())):
        assert result.exit_code == 1
        assert result.first_divergence.name == "blocks.1.fc:grad_output"


MODEL = """
import sys
sys.path.insert(0, {here!r})
from old_folders import Speech
def model(): return Speech()
def broken(): return Speech(1e-2)
def loss(model, inputs, output): return output.mean()
"""


def flat(text):
    return " ".join(text.split())


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "port.py"
    path.write_text(MODEL.format(here=str(Path(__file__).parent)))
    return str(path)


def test_a_model_is_run_on_what_an_old_folder_saved(tmp_path, file):
    spoiled = public_script(Speech(), tmp_path / "spoiled", spoil="blocks.1.fc")
    done = run("diff", spoiled, file, f"{file}:broken", "--report", f"json:{tmp_path / 'r.json'}")
    assert done.returncode == 1, done.stdout + done.stderr
    text = flat(done.stdout)
    assert f"backward {MODULES - 1} of {MODULES} layers match" in text
    assert "the forward pass has no such argument: seed = 7, batch_size = 3, seq_len" in text
    sides = json.loads((tmp_path / "r.json").read_text())["candidates"]
    assert [side["verdict"] for side in sides] == ["identical", "different"]
    assert sides[1]["first_divergence"]["name"] == "blocks.1.norm:output"


@pytest.mark.parametrize("what", ["", "input_data.pt"])
def test_a_model_is_recorded_on_what_an_old_folder_saved(tmp_path, file, what):
    old = public_script(Speech(), tmp_path / "old")
    done = run("record", file, "--input", old / what, "--backward", "-o", tmp_path / "a.nnrec")
    assert done.returncode == 0, done.stderr
    recording = nndiff.recording.open_recording(tmp_path / "a.nnrec")
    assert recording.meta["seed"] == 7
    assert "not fed" in recording.warnings[0]
    assert sorted(recording.inputs()[1]) == ["audio_length", "audio_signal"]
    assert nndiff.compare(old, tmp_path / "a.nnrec").exit_code == 0
    done = run("record", file, "--input", old / what, "--seed", "5", "-o", tmp_path / "b.nnrec")
    assert nndiff.recording.open_recording(tmp_path / "b.nnrec").meta["seed"] == 5


class Renamed(Speech):
    def forward(self, input_signal, input_signal_length):
        return super().forward(input_signal, input_signal_length)


class Plain(Speech):
    def forward(self, x, audio_length=None, seq_len=None, **more):
        assert type(seq_len) is int
        assert not more
        return super().forward(x)


@pytest.mark.parametrize("kind", [Speech, Renamed])
def test_a_module_is_run_on_what_an_old_folder_saved(tmp_path, kind):
    """In the process itself, and where the forward pass has other names for what it is fed."""
    old = public_script(Speech(), tmp_path / "old")
    result = nndiff.compare(old, kind(), loss=lambda output: output.mean())
    assert result.exit_code == 0, [*result.leftovers]
    assert {pair.method.value for pair in result.pairs if pair.slot == "model_input"} == (
        {"name"} if kind is Speech else {"content"}
    )
    fed = [note for note in result.candidates[0].notes if "audio_signal as input_signal, audio_length as input" in note]
    assert len(fed) == (kind is Renamed)
    broken = kind(1e-2)
    assert nndiff.compare(old, broken, loss=lambda out: out.mean()).first_divergence.name == "blocks.1.norm:output"


def test_what_a_forward_pass_takes_is_fed_whatever_it_is_called(tmp_path):
    held = {"x": INPUT, "audio_length": LENGTH, **SETTINGS, "note": "text"}
    torch.save(held, tmp_path / "inputs.pt")
    found = load_inputs(str(tmp_path / "inputs.pt"), Plain())
    assert sorted(found.inputs.kwargs) == ["audio_length", "seq_len", "x"]
    assert found.inputs.kwargs["seq_len"] == 4
    settings, text = found.notes
    assert "not fed" in settings
    assert "no such argument: seed = 7, batch_size = 3 of /" in settings
    assert "not fed" in text
    assert "note = 'text'" in text
    torch.save({"signal": INPUT, "seed": 1}, tmp_path / "inputs.pt")
    assert sorted(load_inputs(str(tmp_path / "inputs.pt"), nn.Linear(4, 4)).inputs.kwargs) == ["input"]


def test_a_loss_that_a_folder_does_not_tell_is_told_where_it_cannot_be_the_same(tmp_path):
    old = public_script(Speech(), tmp_path / "old")
    assert "losses-differ" in {each.cause for each in nndiff.compare(old, Speech()).findings}
    told = nndiff.compare(old, Speech(), loss=lambda output: output.sum())
    assert "losses-differ" not in {each.cause for each in told.findings}
    assert "gradients-scaled" in {each.cause for each in told.findings}


def test_gradients_that_find_no_partner_at_all_are_told(tmp_path):
    one, other = public_script(Speech(), tmp_path / "one"), public_script(Speech(), tmp_path / "other")
    for folder, keep in ((one, "stem"), (other, "head")):
        held = pickle.loads((folder / "hook_data.pkl").read_bytes())
        for name, each in held.items():
            each.pop("backward_input_grads")
            each["backward_output_grads"] = each["backward_output_grads"] if name == keep else None
        (folder / "hook_data.pkl").write_bytes(pickle.dumps(held))
    (note,) = [note for note in nndiff.compare(one, other).notes if note.slug is NoteSlug.GRADIENTS_NOT_PAIRED]
    assert "output gradients were not compared: none of the reference's 1" in note.text
    assert NoteSlug.GRADIENTS_NOT_PAIRED not in {note.slug for note in nndiff.compare(one, one).notes}


def test_a_module_that_runs_twice_is_paired_with_the_call_that_was_saved(tmp_path):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.a, self.act, self.b = nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)

        def forward(self, audio_signal, audio_length=None):
            return self.act(self.b(self.act(self.a(audio_signal))))

    old = public_script(Twice(), tmp_path / "old")
    result = nndiff.compare(old, Twice(), loss=lambda output: output.mean())
    assert result.exit_code == 0, [(pair.name, pair.verdict) for pair in result.worst()]
    (saved,) = (pair for pair in result.pairs if pair.reference_name == "act:output")
    assert saved.candidate_name == "act@1:output"


def test_a_folder_without_inputs_says_so(tmp_path, file):
    old = public_script(Speech(), tmp_path / "old")
    (old / "input_data.pt").unlink()
    trouble = "holds no inputs to run a model with: it has neither input_data.pt nor batch.pt"
    for done in (run("diff", old, file), run("record", file, "--input", old, "-o", tmp_path / "a.nnrec")):
        assert done.returncode == 2
        assert flat(done.stderr) == f"nndiff: {old}: {trouble}"
