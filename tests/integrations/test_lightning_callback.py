"""The Lightning callback records what a loop written by hand records."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nndiff.runs.reader import open_run
from nndiff.runs.recorder import TrainingRecorder
from nndiff.runs.run import BatchPart, Run, TensorKind

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what importing it warns of is not ours
    pl = pytest.importorskip("lightning.pytorch")
    from nndiff.integrations.lightning import RecorderCallback

pytestmark = pytest.mark.filterwarnings("ignore")
EPOCHS, BATCHES = 2, 5


def make_loader() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(4 * BATCHES, 6, generator=generator), torch.randint(0, 2, (4 * BATCHES,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=4)


class Classifier(pl.LightningModule):
    """A small classifier whose learning rate changes at every step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, torch.Tensor]:
        x, y = batch
        output = self.layers(x)
        self.log("accuracy", (output.argmax(1) == y).float().mean())
        return {"loss": nn.functional.cross_entropy(output, y), "mean": output.mean().detach()}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", nn.functional.cross_entropy(self.layers(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def fit(path: Path, accumulate: int = 1, **settings: Any) -> Classifier:
    model = Classifier()
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accumulate_grad_batches=accumulate,
        callbacks=[RecorderCallback(path, **settings)],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, make_loader(), make_loader())
    return model


def fit_by_hand(path: Path, accumulate: int = 1, **settings: Any) -> Classifier:
    """Do what the Trainer does; validation is left out, which changes no weight."""
    model = Classifier()
    model.log = lambda *args: None  # type: ignore[method-assign]
    configured = model.configure_optimizers()
    optimizer, scheduler = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    model.train()
    with TrainingRecorder(path, model, optimizer, **settings) as recorder:
        for epoch in range(EPOCHS):
            batches: list[Any] = []
            losses: list[torch.Tensor] = []
            for index, batch in enumerate(make_loader()):
                outputs = model.training_step(batch, index)
                (outputs["loss"] / accumulate).backward()
                batches.append(batch)
                losses.append(outputs["loss"].detach())
                if (index + 1) % accumulate and index + 1 < BATCHES:
                    continue
                optimizer.step()
                data = batches[0] if len(batches) == 1 else batches
                scalars = {"loss": torch.stack(losses).mean(), "mean": outputs["mean"]}
                recorder.step(epoch=epoch, batch=index, data=data, scalars=scalars)
                scheduler.step()
                optimizer.zero_grad()
                batches, losses = [], []
    return model


def assert_equal_runs(recorded: Run, expected: Run) -> None:
    assert [(step.number, step.epoch, step.batch) for step in recorded.steps] == [
        (step.number, step.epoch, step.batch) for step in expected.steps
    ]
    for place, (step, expected_step) in enumerate(zip(recorded.steps, expected.steps, strict=True)):
        assert step.data == expected_step.data
        assert {name: step.scalars[name] for name in expected_step.scalars} == dict(expected_step.scalars)
        if expected_step.has_tensors:
            tensors, expected_tensors = recorded.read_tensors(place), expected.read_tensors(place)
            assert tensors.keys == expected_tensors.keys
            assert np.array_equal(tensors.digests, expected_tensors.digests)
    assert np.array_equal(recorded.read_tensors(None).digests, expected.read_tensors(None).digests)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_it_records_what_a_loop_by_hand_records(accumulate: int, tmp_path: Path) -> None:
    trained = fit(tmp_path / "lightning", accumulate, every=2)
    by_hand = fit_by_hand(tmp_path / "hand", accumulate, every=2)
    for one, two in zip(trained.state_dict().values(), by_hand.state_dict().values(), strict=True):
        assert torch.equal(one, two)
    run = open_run(tmp_path / "lightning")
    assert_equal_runs(run, open_run(tmp_path / "hand"))
    assert len(run.steps) == (10 if accumulate == 1 else 6)
    assert run.steps[1].scalars["lr/0"] == 0.05, "the rate that the step was made with"
    assert "accuracy" in run.steps[-1].scalars
    assert "val_loss" not in run.steps[-1].scalars
    assert run.description.optimizer == "AdamW"
    assert {key.kind for key in run.read_tensors(0).keys} == set(TensorKind)
    assert all(isinstance(part, BatchPart) for part in run.steps[0].data or ())


def test_recording_changes_nothing(tmp_path: Path) -> None:
    recorded = fit(tmp_path / "run", keep="full")
    model = Classifier()
    trainer = pl.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(model, make_loader())
    for one, two in zip(recorded.state_dict().values(), model.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_a_training_that_fails_leaves_its_steps_and_the_folder_free(tmp_path: Path) -> None:
    class Fails(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> dict[str, torch.Tensor]:
            if batch_idx == 3:
                raise ValueError("stop")
            return super().training_step(batch, batch_idx)

    trainer = pl.Trainer(
        max_epochs=1,
        callbacks=[RecorderCallback(tmp_path / "run")],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    with pytest.raises(ValueError, match="stop"):
        trainer.fit(Fails(), make_loader())
    assert len(open_run(tmp_path / "run").steps) == 3
    fit(tmp_path / "run")
    assert len(open_run(tmp_path / "run").steps) == 10
