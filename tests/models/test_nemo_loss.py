"""The losses of NeMo models, on models that declare what NeMo's do and are none of them."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from helpers import nndiff
from nndiff.errors import ModelError
from nndiff.models.nemo_inputs import accept_labels, accept_speakers, make_inputs
from nndiff.models.nemo_loss import TrainingLoss, count_up, find_loss
from nndiff.recording.record import record


class LabelsType: ...


class AudioSignal: ...


class LogitsType: ...


def declared(kind, *axes, optional=False):
    return SimpleNamespace(elements_type=kind(), axes=axes, optional=optional)


class Base(torch.nn.Module):
    """Train as a NeMo model does: with a trainer, an optimiser and a log."""

    automatic_optimization = True
    loss_types: dict = {}  # noqa: RUF012  # as NeMo has it

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)
        self.loss = torch.nn.Module()
        self.loss.input_types = self.loss_types
        self._trainer = self._optimizer = None
        self.forwards = 0

    def log(self, *args):
        raise RuntimeError("there is no log")

    def forward(self, input_signal, input_signal_length):
        self.forwards += 1
        return self.fc(input_signal), input_signal_length

    def training_step(self, batch, number):
        signal, lengths, self.targets, self.lengths, *self.more = batch
        output, _ = self.forward(input_signal=signal, input_signal_length=lengths)
        self.log("lr", self._optimizer.param_groups[0]["lr"] + self._trainer.global_step)
        return {"loss": output.sum()}


def step(model, **more):
    """Run a model and its loss; return the model."""
    fed = {"input_signal": torch.arange(8.0).reshape(2, 4), "input_signal_length": torch.tensor([4, 4]), **more}
    output = model(fed["input_signal"], fed["input_signal_length"])
    find_loss(model)(model, fed, output).backward()
    return model


def test_labels_count_up_along_every_axis():
    assert count_up(2, 4, classes=3).tolist() == [[0, 1, 2, 0], [1, 2, 0, 1]]
    assert count_up(3, classes=2).tolist() == [0, 1, 0]
    assert count_up(2, 1, 2, classes=2).tolist() == [[[0, 1]], [[1, 0]]]
    assert count_up(2, 2, classes=0).tolist() == [[0, 0], [0, 0]]


def test_the_training_step_runs_without_a_trainer_and_without_a_second_forward_pass():
    model = step(Base())
    assert model.forwards == 1
    assert model.fc.weight.grad is not None
    assert (model.targets, model.lengths) == (None, None), "no labels are declared"
    assert model._trainer is None
    assert model._optimizer is None
    assert not {"forward", "log", "log_dict"} & set(vars(model)), "nothing is left behind"


def test_a_recording_tells_that_the_loss_is_the_models_own(tmp_path):
    fed = {"input_signal": torch.arange(8.0).reshape(2, 4), "input_signal_length": torch.tensor([4, 4])}
    record(Base(), fed, path=tmp_path / "own.nnrec", backward=True, loss=find_loss(Base()))
    assert "(the model's own, from its training step)" in nndiff("show", tmp_path / "own.nnrec").stdout
    record(Base(), fed, path=tmp_path / "given.nnrec", backward=True, loss=lambda output: output[0].sum())
    assert "(the given loss function)" in nndiff("show", tmp_path / "given.nnrec").stdout


def test_a_model_that_listens_to_its_layers_runs_once_more():
    class Inner(Base):
        def is_interctc_enabled(self):
            return True

        def forward(self, input_signal, input_signal_length, processed_signal=None):
            self.processed = processed_signal
            return super().forward(input_signal, input_signal_length)

    model = step(Inner(), processed_signal="as it was fed", targets=torch.tensor([[1], [2]]))
    assert model.forwards == 2
    assert model.processed == "as it was fed"


def test_one_class_for_each_row():
    class Classes(Base):
        loss_types = {"logits": declared(LogitsType, "B", "D"), "labels": declared(LabelsType, "B")}  # noqa: RUF012

    model = step(Classes())
    assert model.targets.tolist() == [0, 1]
    assert model.lengths.tolist() == [1, 1]


def test_a_transcript_is_no_longer_than_the_frames_and_knows_no_blank():
    class Text(Base):
        loss_types = {  # noqa: RUF012
            "targets": declared(LabelsType, "B", "T"),
            "target_lengths": declared(LogitsType, "B"),
        }

        def __init__(self):
            super().__init__()
            self.decoder = torch.nn.Module()
            self.decoder.vocabulary = ["a", "b"]

    model = step(Text())
    assert model.targets.tolist() == [[0, 1, 0, 1], [1, 0, 1, 0]]
    assert model.lengths.tolist() == [4, 4]


def test_audio_that_becomes_audio_has_the_signal_backwards_as_its_target():
    class Enhancement(Base):
        output_types = {"output_signal": declared(AudioSignal, "B", "T")}  # noqa: RUF012

    assert step(Enhancement()).targets.tolist() == [[3, 2, 1, 0], [7, 6, 5, 4]]


def test_labels_that_are_given_are_taken_and_the_forward_pass_does_not_see_them():
    model = Base()
    accept_labels(model)
    targets, lengths = torch.tensor([[5], [6]]), torch.tensor([1, 0])
    model(input_signal=torch.zeros(2, 4), input_signal_length=torch.tensor([4, 4]), targets=targets)
    step(model, targets=targets, target_lengths=lengths)
    assert model.targets is targets
    assert model.lengths is lengths
    assert step(model, targets=targets).lengths.tolist() == [1, 1]


class Prompted(Base):
    input_types = {"prompt_indices": declared(LabelsType, "B")}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.tokenizer = SimpleNamespace(vocab_size=5)

    def forward(self, input_signal, input_signal_length, prompt_indices=None, transcript=None, transcript_length=None):
        return super().forward(input_signal[:, :4], input_signal_length)


def test_a_decoder_is_fed_all_labels_but_the_last_and_what_must_be_chosen_is_the_first():
    made = make_inputs(Prompted(), 2, 800, 42)
    assert made["transcript"].tolist() == [[0, 1, 2, 3, 4, 0, 1, 2], [1, 2, 3, 4, 0, 1, 2, 3]]
    assert made["transcript_length"].tolist() == [8, 8]
    assert made["prompt_indices"].tolist() == [0, 0]
    model = Prompted()
    TrainingLoss()(model, made, model(**made))
    assert model.targets.tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 3], [1, 2, 3, 4, 0, 1, 2, 3, 4]]
    assert model.lengths.tolist() == [9, 9]
    assert [each.tolist() for each in model.more] == [[0, 0]]


def test_a_batch_that_has_a_class_is_one():
    class Named(Base):
        oomptimizer_schema = {  # noqa: RUF012
            "cls": SimpleNamespace,
            "inputs": [{"name": name} for name in ("audio", "audio_lens", "text", "text_lens", "prompt")],
        }

        def training_step(self, batch, number):
            self.batch = batch
            return self.forward()[0].sum()

    batch = step(Named(), targets=torch.tensor([[1], [2]])).batch
    assert batch.audio.shape == (2, 4)
    assert batch.text.tolist() == [[1], [2]]
    assert batch.text_lens.tolist() == [1, 1]
    assert batch.prompt is None


@dataclass
class Batch:
    names: list | None = None
    audio: torch.Tensor | None = None
    audio_lens: torch.Tensor | None = None
    text: torch.Tensor | None = None
    text_lens: torch.Tensor | None = None
    more: torch.Tensor | None = None


def test_a_batch_that_is_annotated_as_a_class_is_one_and_its_tensors_are_told_by_their_order():
    class Annotated(Base):
        def training_step(self, batch: Batch, number):
            self.batch = batch
            return self.forward()[0].sum()

    batch = step(Annotated(), targets=torch.tensor([[1], [2]])).batch
    assert batch.audio.shape == (2, 4)
    assert batch.audio_lens.tolist() == [4, 4]
    assert batch.text.tolist() == [[1], [2]]
    assert batch.text_lens.tolist() == [1, 1]
    assert (batch.names, batch.more) == (None, None)


def test_a_signal_without_a_length_is_as_long_as_it_is():
    model = Base()
    fed = {"input_signal": torch.zeros(2, 4)}
    find_loss(model)(model, fed, (model.fc(fed["input_signal"]), None))
    assert (model.targets, model.lengths) == (None, None)


class Talkers(Base):
    """Be told who speaks by a method, as NeMo's model of many talkers is."""

    def set_speaker_targets(self, spk_targets=None, bg_spk_targets=None):
        self.told = [spk_targets, bg_spk_targets]

    def forward(self, input_signal, input_signal_length):
        return super().forward(input_signal[:, :4], input_signal_length)


def test_a_model_of_many_talkers_is_told_who_speaks_by_keywords_and_again_in_its_training_step():
    made = make_inputs(Talkers(), 2, 480, 42)
    assert made["spk_targets"].tolist() == [[0, 1, 0], [1, 0, 1]]
    assert made["bg_spk_targets"].tolist() == [[1, 0, 1], [0, 1, 0]]
    model = Talkers()
    accept_speakers(model)
    output = model(**made)
    assert model.told == [made["spk_targets"], made["bg_spk_targets"]]
    TrainingLoss()(model, made, output)
    assert model.more == model.told
    model.told = []
    fed = {name: made[name] for name in ("input_signal", "input_signal_length")}
    TrainingLoss()(model, fed, model(**fed))
    assert model.told == [], "who is not given is not told"
    assert model.more == [None, None]


def test_models_that_run_their_optimisers_themselves_have_no_loss():
    class Manual(Base):
        automatic_optimization = False

    assert find_loss(Manual()) is None


@pytest.mark.parametrize(
    ("error", "said", "advice"),
    [
        (ValueError, "no such label", "`targets` and `target_lengths` in --input"),
        (ValueError, "TDT needs CUDA", "its loss needs CUDA: give --device"),
        (NotImplementedError, "not implemented for 'Half'", "drop --dtype or --backward"),
    ],
)
def test_a_training_step_that_fails_is_told_with_the_way_out(error, said, advice):
    class Failing(Base):
        def training_step(self, batch, number):
            raise error(said)

    model = Failing()
    with pytest.raises(ModelError, match=rf"training step of Failing failed \({error.__name__}: {said}\)") as told:
        step(model)
    assert advice in str(told.value)
    assert "loss(model, inputs, output)" in str(told.value)
    assert "forward" not in vars(model)
