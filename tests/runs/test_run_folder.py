"""The folder of a run: resumed, read while it is written, refused if it is something else or lies."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trainings import assert_same_runs, make_model, train, train_step

from nndiff.errors import DamagedError, NndiffError, SourceError, UsageError
from nndiff.runs.files import LAYOUTS, STEPS
from nndiff.runs.reader import is_run, open_run
from nndiff.runs.recorder import TrainingRecorder


def list_states(path: Path) -> list[str]:
    return sorted(file.name for file in path.glob("state-*"))


@pytest.mark.parametrize("keep", ["sketch", "full"])
def test_a_resumed_training_leaves_what_an_uninterrupted_one_leaves(keep: str, tmp_path: Path) -> None:
    train(tmp_path / "whole", range(10), keep=keep, every=2)
    saved: dict[str, Any] = {}

    def save(number: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if number == 3:
            torch.save((model.state_dict(), optimizer.state_dict()), tmp_path / "checkpoint.pt")

    train(tmp_path / "cut", range(7), after_step=save, keep=keep, every=2)
    model = make_model(seed=9)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    saved["model"], saved["optimizer"] = torch.load(tmp_path / "checkpoint.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    train(tmp_path / "cut", range(4, 10), model, optimizer, keep=keep, every=2)  # steps 4 to 6 are made again
    assert_same_runs(open_run(tmp_path / "whole"), open_run(tmp_path / "cut"))
    if keep == "sketch":  # in full, the steps made again have the bits that the replaced states hold
        assert len(list_states(tmp_path / "cut")) == len(list_states(tmp_path / "whole")), "replaced states are gone"


def test_whole_tensors_outlive_the_step_that_first_had_them(tmp_path: Path) -> None:
    """Step 1 refers to the tensors of step 0's file; step 0 is replaced, and step 1 can still be read."""
    model = make_model()
    with TrainingRecorder(tmp_path / "run", keep="full") as recorder:
        recorder.step(step=0, model=model)
        recorder.step(step=1, model=model)
        expected = model[0].weight.detach().clone()
        with torch.no_grad():
            for parameter in (*model.parameters(), *model.buffers()):
                parameter += 3  # such bits there were not
        recorder.step(step=0, model=model)
        run = open_run(tmp_path / "run")
        whole = run.read_tensors(1).whole(0)
        assert whole is not None
        assert np.array_equal(whole.numpy(), expected.numpy())
        assert len(list_states(tmp_path / "run")) == 3
        recorder.step(step=1, model=model)
    assert len(list_states(tmp_path / "run")) == 2, "nothing looks for the first file any more"
    assert_readable(tmp_path / "run")


def assert_readable(path: Path) -> None:
    """Read everything a run holds."""
    run = open_run(path)
    places: list[int | None] = [place for place, step in enumerate(run.steps) if step.has_tensors]
    for place in [None, *places] if run.has_initial else places:
        for tensor in run.read_tensors(place).tensors:
            if tensor is not None:
                tensor.numpy()


def test_repeated_steps_replace_earlier_ones(tmp_path: Path) -> None:
    with TrainingRecorder(tmp_path / "run") as recorder:
        numbers = [recorder.step(epoch=0, batch=batch, scalars={"try": 0}) for batch in range(5)]
        numbers += [recorder.step(epoch=0, batch=batch, scalars={"try": 1}) for batch in (2, 3)]
        numbers.append(recorder.step(epoch=1, batch=0, scalars={"try": 1}))  # the step after 3, whatever was there
    assert numbers == [0, 1, 2, 3, 4, 2, 3, 4]
    with TrainingRecorder(tmp_path / "run") as recorder:
        assert recorder.step(scalars={"try": 2}) == 5
        assert recorder.step(step=1, scalars={"try": 2}) == 1
    steps = open_run(tmp_path / "run").steps
    marks = [(step.number, step.epoch, step.batch, step.scalars["try"]) for step in steps]
    assert marks == [(0, 0, 0, 0), (1, None, None, 2), (2, 0, 2, 1), (3, 0, 3, 1), (4, 1, 0, 1), (5, None, None, 2)]


def test_the_initial_state_is_the_original_one(tmp_path: Path) -> None:
    train(tmp_path / "run", range(3))
    before = open_run(tmp_path / "run").read_tensors(None).digests
    train(tmp_path / "run", range(3), make_model(seed=5))
    assert np.array_equal(open_run(tmp_path / "run").read_tensors(None).digests, before)


def test_a_run_is_resumed_with_its_own_settings(tmp_path: Path) -> None:
    train(tmp_path / "run", range(1))
    for settings in ({"keep": "full"}, {"seed": 1}):
        with pytest.raises(UsageError, match="holds a run with keep='sketch' and seed=0; resume it with the same"):
            TrainingRecorder(tmp_path / "run", **settings)
    TrainingRecorder(tmp_path / "run").close()


@pytest.mark.parametrize("name", [STEPS, LAYOUTS])
@pytest.mark.parametrize("cut", [1, 30])
def test_a_torn_last_line_is_ignored_and_cut_off(name: str, cut: int, tmp_path: Path) -> None:
    train(tmp_path / "run", range(4))
    path = tmp_path / "run" / name
    with open(path, "ab") as file:
        file.write(path.read_bytes().splitlines(keepends=True)[-1][:-cut])
    assert len(open_run(tmp_path / "run").steps) == 4
    train(tmp_path / "run", range(4, 6))
    for line in path.read_bytes().splitlines():
        json.loads(line)
    run = open_run(tmp_path / "run")
    assert [step.number for step in run.steps] == list(range(6))
    assert_readable(tmp_path / "run")


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    train(tmp_path / "run", range(2))
    before = list_states(tmp_path / "run")
    shutil.copy(tmp_path / "run" / before[-1], tmp_path / "run" / "state-000077.safetensors")
    (tmp_path / "run" / "state-000078.safetensors.part").write_bytes(b"half")
    train(tmp_path / "run", range(2, 3))
    assert list_states(tmp_path / "run") == [*before, "state-000079.safetensors"]


def test_a_run_is_read_while_it_is_written(tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with TrainingRecorder(tmp_path / "run", model, optimizer, keep="full") as recorder:
        assert open_run(tmp_path / "run").has_initial
        for number in range(5):
            train_step(model, optimizer, number)
            recorder.step(epoch=0, batch=number)
            run = open_run(tmp_path / "run")
            assert [step.number for step in run.steps] == list(range(number + 1))
            whole = run.read_tensors(number).whole(0)
            assert whole is not None
            assert np.array_equal(whole.numpy(), model[0].weight.detach().numpy())


def test_two_writers_are_refused(tmp_path: Path) -> None:
    with TrainingRecorder(tmp_path / "run"):
        with pytest.raises(SourceError, match="another recorder of this process; close that one first"):
            TrainingRecorder(tmp_path / "run")
        program = "import sys; from nndiff.runs.writer import RunWriter; RunWriter(sys.argv[1])"
        command = [sys.executable, "-c", program, str(tmp_path / "run")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "is being written by another process; give each process (each rank) a folder of its own" in done.stderr
    assert subprocess.run(command, check=False).returncode == 0


def test_other_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("dear reader")
    with pytest.raises(SourceError, match=r"not a training run \(chapter.tex\); give another path"):
        TrainingRecorder(tmp_path / "thesis")
    assert [file.name for file in (tmp_path / "thesis").iterdir()] == ["chapter.tex"]
    with pytest.raises(SourceError, match="exists and is not a folder"):
        TrainingRecorder(tmp_path / "thesis" / "chapter.tex")
    (tmp_path / "empty").mkdir()
    TrainingRecorder(tmp_path / "empty").close()
    assert is_run(tmp_path / "empty")
    assert not is_run(tmp_path / "thesis")
    assert not is_run(tmp_path / "nowhere")


def test_a_run_can_be_moved(tmp_path: Path) -> None:
    train(tmp_path / "run", keep="full")
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    assert_readable(tmp_path / "elsewhere")
    for file in (tmp_path / "elsewhere").iterdir():
        assert str(tmp_path).encode() not in file.read_bytes()


def test_a_full_disk_is_one_sentence_and_loses_no_finished_step(tmp_path: Path) -> None:
    program = """
import resource, sys
from nndiff.errors import NndiffError
sys.path.insert(0, sys.argv[2])
from trainings import *

def limit(number, model, optimizer):
    if number == 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

try:
    train(Path(sys.argv[1]), after_step=limit)
except NndiffError as error:
    sys.stderr.write(str(error))
"""
    command = [sys.executable, "-c", program, str(tmp_path / "run"), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "cannot be written: a file grew beyond the size limit" in done.stderr
    assert "Traceback" not in done.stderr
    assert [step.number for step in open_run(tmp_path / "run").steps] == [0, 1, 2]
    assert not list((tmp_path / "run").glob("*.part"))


def edit_json(path: Path, change: Callable[[Any], Any]) -> None:
    """Change the JSON of a file, or of its last line."""
    *lines, last = path.read_bytes().splitlines(keepends=True)
    if path.suffix == ".json":
        lines, last = [], path.read_bytes()
    body = json.loads(last)
    path.write_bytes(b"".join(lines) + json.dumps(change(body)).encode() + b"\n")


def set_item(*keys: Any) -> Callable[[Any], Any]:
    """Return a change of one item of a JSON value: all but the last of the keys lead to it."""

    def change(body: Any) -> Any:
        target = body
        for key in keys[:-2]:
            target = target[key]
        target[keys[-2]] = keys[-1]
        return body

    return change


LIES: list[tuple[str, Callable[[Any], Any], str]] = [
    ("run.json", set_item("version", 99), "update nndiff"),
    ("run.json", set_item("version", "x"), "the version is not a whole number"),
    ("run.json", set_item("keep", "everything"), "'keep' is not one of"),
    ("run.json", set_item("seed", -1), "'seed' is not a whole number"),
    ("run.json", set_item("param_groups", [[1]]), "'param_groups' is not a list of texts"),
    ("run.json", set_item("trainable", "all"), "'trainable' is not a list of texts"),
    ("run.json", set_item("environment", []), "'environment' is not an object"),
    ("steps.jsonl", lambda body: [body], "not a JSON object"),
    ("steps.jsonl", set_item("step", -1), "'step' of a step is not a whole number"),
    ("steps.jsonl", set_item("step", 1 << 70), "'step' of a step is not a whole number"),
    ("steps.jsonl", set_item("epoch", "one"), "'epoch' of a step is not a whole number"),
    ("steps.jsonl", set_item("scalars", "loss", [1]), "'loss' of an event is not a number"),
    ("steps.jsonl", set_item("scalars", []), "'scalars' of a step is not an object"),
    ("steps.jsonl", set_item("random", "torch", "../x"), "'torch' of an event is not of the form"),
    ("steps.jsonl", set_item("data", {}), "'data' of a step is not a list"),
    ("steps.jsonl", set_item("data", 0, "samples", "AAAA"), "8 bytes for each sample"),
    ("steps.jsonl", set_item("data", 0, "samples", "&"), "'samples' of a step is not base64"),
    ("steps.jsonl", set_item("data", 0, "shape", [-1]), "'shape' of a step is not a list of whole numbers"),
    ("steps.jsonl", set_item("layout", 7), "refers to layout 7 of 2"),
    ("steps.jsonl", set_item("layout", None), "not given together"),
    ("steps.jsonl", set_item("state", "../../etc/passwd"), "'state' of a step is not a whole number"),
    ("steps.jsonl", set_item("state", 12345), "state-012345.safetensors: no such file"),
    ("steps.jsonl", set_item("layout", 0), "is not an array of float64"),
    ("layouts.jsonl", set_item("tensors", 3), "'tensors' is not a list"),
    ("layouts.jsonl", set_item("tensors", 0, ["weight"]), "kind, name, state, shape, dtype and width"),
    ("layouts.jsonl", set_item("tensors", 0, 0, "soul"), "no kind of docs/run-format.md"),
    ("layouts.jsonl", set_item("tensors", 0, 3, [1 << 59, 1 << 59]), "numbers kept for a shape"),
    ("layouts.jsonl", set_item("tensors", 0, 3, [2.5]), "sizes that are not whole numbers"),
    ("layouts.jsonl", set_item("tensors", 0, 5, 1 << 59), "numbers kept for a shape"),
    ("layouts.jsonl", set_item("tensors", 0, 5, 3), "is not an array of float32"),
    ("layouts.jsonl", set_item("tensors", 0, ["weight", "a", "", [1 << 40], "float32", 1 << 39]), "more than"),
    ("layouts.jsonl", lambda body: {"tensors": body["tensors"] + body["tensors"][:1]}, "lists a tensor twice"),
]


@pytest.mark.parametrize(("name", "change", "message"), LIES)
def test_a_run_that_lies_is_refused(name: str, change: Callable[[Any], Any], message: str, tmp_path: Path) -> None:
    train(tmp_path / "run", range(2))
    edit_json(tmp_path / "run" / name, change)
    with pytest.raises(NndiffError) as caught:
        assert_readable(tmp_path / "run")
    assert message in str(caught.value)


def test_whole_tensors_must_be_where_they_are_said_to_be(tmp_path: Path) -> None:
    train(tmp_path / "run", range(2), keep="full")
    for file in list_states(tmp_path / "run")[:2]:
        data = (tmp_path / "run" / file).read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        renamed = {name if len(name) < 32 else name[::-1]: entry for name, entry in header.items()}
        text = json.dumps(renamed).encode()
        (tmp_path / "run" / file).write_bytes(len(text).to_bytes(8, "little") + text + data[start:])
    with pytest.raises(SourceError, match=r"does not hold '0.weight', which another state looks for here"):
        open_run(tmp_path / "run").read_tensors(0)


@pytest.mark.parametrize("name", ["run.json", STEPS, LAYOUTS, "state-000001.safetensors"])
def test_a_pipe_in_place_of_a_file_does_not_hang(name: str, tmp_path: Path) -> None:
    train(tmp_path / "run", range(2))
    (tmp_path / "run" / name).unlink()
    os.mkfifo(tmp_path / "run" / name)
    with pytest.raises(SourceError, match="not a regular file but a named pipe"):
        assert_readable(tmp_path / "run")


def test_files_that_end_early_are_refused(tmp_path: Path) -> None:
    train(tmp_path / "run", range(1))
    path = tmp_path / "run" / "state-000001.safetensors"
    data = path.read_bytes()
    for size in (0, 7, 100, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(SourceError):
            assert_readable(tmp_path / "run")
    path.unlink()
    with pytest.raises(SourceError, match="no such file"):
        assert_readable(tmp_path / "run")


def read_everything(path: Path, place: int) -> list[bytes]:
    """Return all that a step holds, as bytes."""
    tensors = open_run(path).read_tensors(place)
    arrays = [tensors.statistics, tensors.digests, tensors.sketches]
    arrays += [tensor.numpy() for tensor in tensors.tensors if tensor is not None]
    return [array.tobytes() for array in arrays]


def flip_byte(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("keep", ["stats", "sketch", "full"])
def test_a_flipped_byte_is_noticed_when_it_is_read(keep: str, tmp_path: Path) -> None:
    train(tmp_path / "run", range(1), keep=keep)
    expected = read_everything(tmp_path / "run", 0)
    state = tmp_path / "run" / "state-000001.safetensors"
    for position in range(0, state.stat().st_size, 197):
        flip_byte(state, position)
        with contextlib.suppress(SourceError):
            assert read_everything(tmp_path / "run", 0) == expected, f"byte {position} was flipped in silence"
        flip_byte(state, position)
    flip_byte(state, state.stat().st_size - 1)
    with pytest.raises(DamagedError, match=r"is damaged: its .* copy or record"):
        read_everything(tmp_path / "run", 0)


def test_runs_from_before_there_were_checksums_are_read(tmp_path: Path) -> None:
    train(tmp_path / "run", range(2))
    expected = read_everything(tmp_path / "run", 1)
    lines = [json.loads(line) for line in (tmp_path / "run" / STEPS).read_text().splitlines()]
    assert all(line.pop("crc") >= 0 for line in lines)
    (tmp_path / "run" / STEPS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_everything(tmp_path / "run", 1) == expected
    flip_byte(tmp_path / "run" / "state-000002.safetensors", -1)
    assert read_everything(tmp_path / "run", 1) != expected, "without a checksum nobody notices"


def test_what_is_no_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file or directory"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(SourceError, match=r"it has no run.json of the format nndiff.run"):
        open_run(tmp_path)
    (tmp_path / "run.json").write_text('{"format": "nndiff.run"')
    with pytest.raises(SourceError, match="not valid JSON"):
        open_run(tmp_path)
