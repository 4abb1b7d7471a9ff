"""Folders of checkpoints as training runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from planted_trainings import build_model, train
from safetensors.torch import save_file

import nndiff
from nndiff.errors import NndiffError
from nndiff.runs.dumps import find_dumps, open_dumps
from nndiff.runs.opening import are_trainings, is_training
from nndiff.runs.run import TensorKey, TensorKind


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (["batch_dumps/epoch_001/batch_0010.pt", "batch_dumps/epoch_000/batch_0000.pt"], [(0, 0), (1, 10)]),
        (["epoch_002/batch_0001.pt", "epoch_002/batch_0000.pt"], [(2, 0), (2, 1)]),
        (["epoch=3-step=120.ckpt", "epoch=0-step=40.ckpt", "last.ckpt"], [40, 120]),
        (["step_100.pt", "step_20.pt"], [20, 100]),
        (["checkpoint-500/model.safetensors", "checkpoint-1000/model.safetensors"], [500, 1000]),
        (["model_iter_10.pth", "model_iter_9.pth"], [9, 10]),
        (["epoch_1.pt", "epoch_2.pt"], [1, 2]),
        (["model-00001-of-00002.safetensors", "best.pt", "notes.txt"], []),
        (["model.safetensors", "checkpoint-500/model.safetensors"], []),  # the model itself, its training beside it
    ],
)
def test_the_step_is_in_the_name(tmp_path, names, steps):
    found = find_dumps(str(touch(tmp_path, *names)))
    assert [(dump.epoch, dump.batch) if dump.number is None else dump.number for dump in found] == steps
    assert is_training(tmp_path) is bool(steps)


def test_states_have_the_names_of_their_parameters(tmp_path):
    run = open_dumps(str(train(tmp_path / "dumps", dump=True)))
    tensors = run.read_tensors(3)
    truth = torch.load(tmp_path / "dumps/epoch_000/batch_0003.pt")
    names = [name for name, _ in build_model().named_parameters()]
    for number, name in enumerate(names):
        row = tensors.rows[TensorKey(TensorKind.STATE, name, "exp_avg")]
        expected = truth["optimizer_state_dict"]["state"][number]["exp_avg"].numpy()
        assert np.array_equal(tensors.whole(row).numpy(), expected)
        assert tensors.statistics[row][0] == pytest.approx(np.linalg.norm(expected.astype(float)))
    buffer = tensors.rows[TensorKey(TensorKind.BUFFER, "1.running_mean")]
    assert np.array_equal(tensors.whole(buffer).numpy(), truth["model_state_dict"]["1.running_mean"].numpy())
    scalars = run.steps[3].scalars
    assert (scalars["loss"], scalars["lr/0"], scalars["betas.1/0"]) == (truth["loss"], 0.01, 0.999)


def test_states_that_fit_no_parameter_keep_their_number(tmp_path):
    model = build_model()
    optimizer = torch.optim.Adam([model[3].weight, model[0].weight])
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    state = {"model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
    torch.save(state, tmp_path / "step_1.pt")
    keys = open_dumps(str(tmp_path)).read_tensors(0).keys
    assert {key.name for key in keys if key.kind is TensorKind.STATE} == {"parameter 0", "parameter 1"}


def test_checkpoints_of_transformers_bring_their_log(tmp_path):
    for step in (10, 20):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        save_file({"weight": torch.full((3,), float(step))}, folder / "model.safetensors")
        history = [{"step": 10, "loss": 0.5, "epoch": 1}, {"step": 20, "loss": 0.25}]
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": history[: step // 10]}))
    run = open_dumps(str(tmp_path))
    assert [step.scalars["loss"] for step in run.steps] == [0.5, 0.25]
    assert [step.number for step in run.steps] == [10, 20]


def test_what_has_no_step_in_its_name_is_said(tmp_path):
    torch.save({"weight": torch.zeros(2)}, tmp_path / "step_1.pt")
    torch.save({"weight": torch.zeros(2)}, tmp_path / "last.pt")
    assert "last.pt" in open_dumps(str(tmp_path)).description.notes[-1]


def test_a_pickle_is_not_executed_and_damage_is_one_sentence(tmp_path):
    (tmp_path / "step_1.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(NndiffError):
        open_dumps(str(tmp_path)).read_tensors(0)


def test_a_run_and_a_checkpoint_cannot_be_compared(tmp_path):
    touch(tmp_path, "runs/step_1.pt", "model.pt")
    with pytest.raises(NndiffError, match="is a training run and"):
        are_trainings([str(tmp_path / "runs"), str(tmp_path / "model.pt")])


def test_a_bare_state_dict_keeps_its_counters(tmp_path):
    torch.save(build_model().state_dict(), tmp_path / "step_1.pt")
    run = open_dumps(str(tmp_path))
    assert TensorKey(TensorKind.BUFFER, "1.num_batches_tracked") in run.read_tensors(0).keys
    assert not run.steps[0].scalars


def test_checkpoints_are_named_by_completed_steps_and_recorders_count_from_0(tmp_path):
    recorded = train(tmp_path / "recorded", epochs=1)
    dumped = train(tmp_path / "dumped", epochs=1, dump=True)
    for number in range(5):
        state = torch.load(dumped / f"epoch_000/batch_{number:04d}.pt")["model_state_dict"]
        folder = tmp_path / f"named/checkpoint-{number + 1}"
        folder.mkdir(parents=True)
        save_file(state, folder / "model.safetensors")
    result = nndiff.compare(tmp_path / "named", recorded)
    assert (result.verdict, result.totals.pairs) == ("identical", 5)
    assert nndiff.compare(recorded, tmp_path / "named").verdict == "identical"
    assert nndiff.compare(tmp_path / "named", tmp_path / "named").totals.pairs == 5
