"""The callback for transformers' Trainer records what a loop written by hand records."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from nndiff.runs.reader import open_run
from nndiff.runs.recorder import TrainingRecorder
from nndiff.runs.run import TensorKind

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from nndiff.integrations.transformers import RecorderCallback

pytestmark = pytest.mark.filterwarnings("ignore")
SAMPLES, BATCH = 20, 4


class Words(Dataset[Any]):
    """Rows of random words with the label of each row."""

    def __init__(self, count: int = SAMPLES) -> None:
        generator = torch.Generator().manual_seed(1)
        self.words = torch.randint(0, 50, (count, 7), generator=generator)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.words[index], "labels": self.words[index].sum() % 2}


def make_model() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def make_trainer(folder: Path, callbacks: list[Any], accumulate: int = 1) -> Any:
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=accumulate,
        num_train_epochs=2,
        learning_rate=0.01,
        lr_scheduler_type="linear",
        max_grad_norm=0.5,
        save_strategy="steps",
        save_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
        train_sampling_strategy="sequential",
    )
    return transformers.Trainer(make_model(), arguments, train_dataset=Words(), callbacks=callbacks)


def fit(path: Path, folder: Path, accumulate: int = 1, **settings: Any) -> Any:
    trainer = make_trainer(folder, [RecorderCallback(path, **settings)], accumulate)
    trainer.train()
    return trainer.model


def fit_by_hand(path: Path, accumulate: int = 1, **settings: Any) -> Any:
    """Do what the Trainer does with these arguments."""
    model, words = make_model(), Words()
    decayed = [p for name, p in model.named_parameters() if "bias" not in name and "LayerNorm" not in name]
    others = [p for name, p in model.named_parameters() if "bias" in name or "LayerNorm" in name]
    groups = [{"params": decayed, "weight_decay": 0.0}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.999), eps=1e-8, fused=True)
    batches = SAMPLES // BATCH
    updates = 2 * -(-batches // accumulate)
    scheduler = transformers.get_linear_schedule_with_warmup(optimizer, 0, updates)
    model.train()
    with TrainingRecorder(path, model, optimizer, **settings) as recorder:
        for epoch in range(2):
            for update, first in enumerate(range(0, batches, accumulate)):
                inputs, losses = [], []
                for batch in range(first, min(first + accumulate, batches)):
                    rows = [words[index] for index in range(batch * BATCH, (batch + 1) * BATCH)]
                    inputs.append({name: torch.stack([row[name] for row in rows]) for name in rows[0]})
                for batch_inputs in inputs:
                    # not divided: the Trainer leaves that to models that take any argument, and this one does not
                    loss = model(**batch_inputs).loss
                    loss.backward()
                    losses.append(loss.detach())
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                data = inputs[0] if len(inputs) == 1 else inputs
                recorder.step(epoch=epoch, batch=update, data=data, scalars={"loss": torch.stack(losses).sum()})
                scheduler.step()
                model.zero_grad()
    return model


@pytest.mark.parametrize("accumulate", [1, 2])
def test_it_records_what_a_loop_by_hand_records(accumulate: int, tmp_path: Path) -> None:
    trained = fit(tmp_path / "trainer", tmp_path / "out", accumulate, every=2)
    by_hand = fit_by_hand(tmp_path / "hand", accumulate, every=2)
    for (name, one), two in zip(trained.state_dict().items(), by_hand.state_dict().values(), strict=True):
        assert torch.equal(one, two), name
    run, expected = open_run(tmp_path / "trainer"), open_run(tmp_path / "hand")
    assert len(run.steps) == (10 if accumulate == 1 else 6)
    for place, (step, expected_step) in enumerate(zip(run.steps, expected.steps, strict=True)):
        assert (step.number, step.epoch, step.batch) == (place, expected_step.epoch, expected_step.batch)
        assert step.scalars["lr/0"] == expected_step.scalars["lr/0"], "the rate that the step was made with"
        assert step.scalars["loss"] == pytest.approx(expected_step.scalars["loss"], rel=1e-6)
        parts = {part.path: part for part in step.data or ()}
        for part in expected_step.data or ():
            assert parts[part.path] == part
        if expected_step.has_tensors:
            tensors, expected_tensors = run.read_tensors(place), expected.read_tensors(place)
            assert set(tensors.keys) == set(expected_tensors.keys)
            for key in tensors.keys:
                row, expected_row = tensors.rows[key], expected_tensors.rows[key]
                assert np.array_equal(tensors.digests[row], expected_tensors.digests[expected_row]), key
    assert np.array_equal(run.read_tensors(None).digests, expected.read_tensors(None).digests)
    assert {key.kind for key in run.read_tensors(0).keys} >= {TensorKind.GRADIENT, TensorKind.STATE}
    assert run.description.optimizer == "AdamW"


def test_a_training_that_is_resumed_goes_on_in_the_same_run(tmp_path: Path) -> None:
    class Stop(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 7:
                raise KeyboardInterrupt

    fit(tmp_path / "whole", tmp_path / "out")
    callback = RecorderCallback(tmp_path / "cut")
    with pytest.raises(KeyboardInterrupt):
        make_trainer(tmp_path / "cut-out", [callback, Stop()]).train()
    assert len(open_run(tmp_path / "cut").steps) == 7
    # its last checkpoint is that of step 6, in the middle of an epoch
    trainer = make_trainer(tmp_path / "cut-out", [callback])
    trainer.train(resume_from_checkpoint=True)
    run, expected = open_run(tmp_path / "cut"), open_run(tmp_path / "whole")
    marks = [(step.number, step.epoch, step.batch) for step in run.steps]
    assert marks == [(step.number, step.epoch, step.batch) for step in expected.steps]
    for place in range(10):
        one, two = run.read_tensors(place), expected.read_tensors(place)
        assert np.array_equal(one.digests, two.digests), place
