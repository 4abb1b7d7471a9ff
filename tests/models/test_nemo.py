"""NeMo models where NeMo is not installed: what is said, and everything that can be known without it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from nndiff.errors import ModelError, NndiffError, SourceError
from nndiff.models import BuildOptions, build_model, nemo
from nndiff.models.nemo import MissingNemoError
from nndiff.models.nemo_config import is_checkpoint, read_own_config
from nndiff.models.nemo_inputs import accept_masks, make_inputs
from nndiff.models.nemo_loss import MaskedTokenLoss, find_loss

FIXTURES = Path(__file__).parents[1] / "fixtures"
NEMO, LIGHTNING = FIXTURES / "tiny_nest.nemo", FIXTURES / "tiny_nest_pl.ckpt"
INSTALL = 'pip install "nemo_toolkit[asr]"'


def record(out, model, *arguments, before=""):
    """Run `nndiff record` in a process of its own, after a line of Python."""
    program = f"import sys\n{before}\nfrom nndiff.commands import main\nsys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "record", str(model), "-o", str(out), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("model", [NEMO, LIGHTNING], ids=["nemo", "ckpt"])
def test_without_nemo_the_command_ends_with_two_and_says_what_to_install(tmp_path, model):
    done = record(tmp_path / "x.nnrec", model)
    assert done.returncode == 2
    assert done.stdout == ""
    assert INSTALL in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_without_torch_likewise(tmp_path):
    done = record(tmp_path / "x.nnrec", NEMO, before="sys.modules['torch'] = None")
    assert done.returncode == 2
    assert (
        done.stderr.strip()
        == "nndiff: torch is needed to run a model and is not installed: pip install 'nndiff[torch]'"
    )


def test_a_part_of_nemo_that_is_missing_is_named():
    error = MissingNemoError("x.nemo", "lhotse")
    assert error.exit_code == 2
    assert error.package == "nemo_toolkit"
    assert "'lhotse' is not installed" in str(error)
    assert INSTALL in str(error)


@pytest.mark.parametrize(
    ("target", "missing", "said"),
    [
        ("nemo.collections.speechlm2.models.SALM", "peft", 'not installed: pip install "nemo_toolkit[speechlm2]"'),
        ("nemo.core.classes.Model", "lhotse", "'lhotse' is not installed: pip install \"nemo_toolkit[asr]\""),
        (
            "nemo.collections.nlp.Bert",
            "nemo.collections.nlp",
            "this version of NeMo has no nemo.collections.nlp: install another",
        ),
        ("json.Nothing", "", "this version of NeMo has no class json.Nothing: install another version"),
    ],
)
def test_a_class_that_cannot_be_had_is_told_with_the_way_to_it(monkeypatch, target, missing, said):
    def importing(name):
        if missing:
            raise ModuleNotFoundError(name=missing)
        return importlib.import_module(name)

    monkeypatch.setattr(nemo, "import_module", importing)
    with pytest.raises(NndiffError) as told:
        nemo.import_class("x.nemo", target)
    assert said in str(told.value)
    assert str(told.value).startswith("x.nemo: ")
    assert told.value.exit_code == 2


@pytest.mark.parametrize("name", ["gone.nemo", "gone.ckpt"])
def test_a_file_that_is_not_there_is_named_before_nemo_is_asked_for(tmp_path, name):
    with pytest.raises(SourceError, match=rf"{name}: no such file"):
        build_model(str(tmp_path / name), BuildOptions())


def test_archives_and_checkpoints_are_told_apart_by_what_they_hold(tmp_path):
    swapped = tmp_path / "really_an_archive.ckpt"
    swapped.write_bytes(NEMO.read_bytes())
    assert is_checkpoint(str(LIGHTNING))
    assert not is_checkpoint(str(NEMO))
    assert not is_checkpoint(str(swapped))


def test_a_lightning_checkpoint_carries_its_config_readable_without_omegaconf():
    config = read_own_config(str(LIGHTNING))
    assert config["target"] == "nemo.collections.asr.models.ssl_models.EncDecDenoiseMaskedTokenPredModel"
    assert config["encoder"]["d_model"] == 64
    assert config["encoder"]["att_context_size"] == [-1, -1]
    assert config["encoder"]["xscaling"] is True
    assert config["encoder"]["conv_context_size"] is None
    assert config["preprocessor"]["dither"] == 1e-5


def test_a_checkpoint_of_something_else_carries_none(tmp_path):
    torch.save({"state_dict": {}, "hyper_parameters": {"lr": 1}}, tmp_path / "a.ckpt")
    torch.save({"w": torch.zeros(2)}, tmp_path / "b.ckpt")
    assert read_own_config(str(tmp_path / "a.ckpt")) == {"lr": 1}
    assert read_own_config(str(tmp_path / "b.ckpt")) is None


class Audio(torch.nn.Module):
    def forward(self, input_signal=None, input_signal_length=None, processed_signal=None): ...


class Nest(torch.nn.Module):
    """Have NEST's signature, masking and loss, and nothing else of it."""

    class Masking(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mask_embedding = torch.nn.Parameter(torch.full((3,), 7.0))

        def forward(self, input_feats, input_lengths):
            drawn = torch.rand(input_feats.shape[::2]).unsqueeze(1).expand_as(input_feats) < 0.5
            return torch.where(drawn, self.mask_embedding.view(1, -1, 1), input_feats), drawn.float()

    class Loss(torch.nn.Module):
        def forward(self, decoder_outputs, targets, decoder_lengths=None, masks=None):
            return (decoder_outputs - targets).sum() + decoder_lengths + masks

    def __init__(self):
        super().__init__()
        self.mask_processor = self.Masking()
        self.loss = self.Loss()

    def forward(
        self,
        input_signal=None,
        input_signal_length=None,
        noisy_input_signal=None,
        noisy_input_signal_length=None,
        apply_mask=False,
    ):
        if apply_mask is True:
            return self.mask_processor(input_feats=noisy_input_signal, input_lengths=noisy_input_signal_length)
        return noisy_input_signal, None


def test_audio_models_get_a_waveform_and_its_lengths():
    made = make_inputs(Audio(), 3, 800, 42)
    assert list(made) == ["input_signal", "input_signal_length"]
    assert made["input_signal"].shape == (3, 800)
    assert made["input_signal_length"].tolist() == [800, 800, 800]


def test_inputs_depend_on_the_seed_alone():
    torch.manual_seed(1)
    first = make_inputs(Audio(), 2, 800, 42)["input_signal"]
    torch.manual_seed(2)
    assert torch.equal(first, make_inputs(Audio(), 2, 800, 42)["input_signal"])
    assert not torch.equal(first, make_inputs(Audio(), 2, 800, 43)["input_signal"])


def test_nest_gets_the_noisy_twin_and_a_mask():
    made = make_inputs(Nest(), 2, 800, 42)
    assert list(made) == [
        "input_signal",
        "input_signal_length",
        "noisy_input_signal",
        "noisy_input_signal_length",
        "apply_mask",
    ]
    assert made["apply_mask"] is True
    noise = made["noisy_input_signal"] - made["input_signal"]
    assert 0.005 < noise.std() < 0.02
    assert made["input_signal_length"] is not made["noisy_input_signal_length"]


def test_a_signal_of_channels_gets_an_axis_for_them():
    class Enhancement(torch.nn.Module):
        class Kind:
            axes = ("B", "C", "T")

        input_types = {"input_signal": Kind()}  # noqa: RUF012  # as NeMo has it

        def forward(self, input_signal, input_length=None): ...

    made = make_inputs(Enhancement(), 2, 800, 42)
    assert made["input_signal"].shape == (2, 1, 800)
    assert made["input_length"].tolist() == [800, 800]


def test_models_that_need_more_say_what():
    class Text(torch.nn.Module):
        def forward(self, text, speaker=None): ...

    class Prompted(torch.nn.Module):
        def forward(self, input_signal, input_signal_length, prompt): ...

    with pytest.raises(ModelError, match="Text takes no waveform but text, speaker: give its inputs with --input"):
        make_inputs(Text(), 2, 800, 42)
    with pytest.raises(ModelError, match="Prompted also needs prompt: give all its inputs with --input"):
        make_inputs(Prompted(), 2, 800, 42)


def declared(kind, *axes, optional=False):
    return SimpleNamespace(elements_type=type(kind, (), {})(), axes=axes, optional=optional)


def test_what_a_model_without_a_waveform_declares_is_shown_by_an_example():
    class Vocoder(torch.nn.Module):
        input_types = {"spec": declared("MelSpectrogramType", "B", "D", "T")}  # noqa: RUF012

        def forward(self, spec): ...

    class Speaking(torch.nn.Module):
        def forward(self, text, durs=None, pitch=None, spec=None): ...

    class Check:
        input_override = True
        input_types = {  # noqa: RUF012
            "text": declared("TokenIndex", "B", "T"),
            "pitch": declared("RegressionValuesType", "B", "T"),
            "spec": declared("MelSpectrogramType", "B", "D", "T", optional=True),
        }

        def called(self): ...

    Speaking.forward._self_wrapper = Check().called  # where NeMo's decorator keeps what it checks
    with pytest.raises(ModelError, match=r"but spec: give its inputs with --input, for example --input 'spec=flo"):
        make_inputs(Vocoder(), 2, 800, 42)
    with pytest.raises(ModelError, match="but text, pitch and may take 2 more: give its inputs with --input") as told:
        make_inputs(Speaking(), 2, 800, 42)
    assert "--input 'text=int64[2,8]:1..8' --input 'pitch=float32[2,8]' or from a file" in str(told.value)


def test_one_label_for_a_row_is_chosen_though_it_is_optional():
    class Prompted(torch.nn.Module):
        input_types = {  # noqa: RUF012
            "prompt": declared("LabelsType", "B", "T", "D", optional=True),
            "prompt_indices": declared("LabelsType", "B", optional=True),
        }

        def forward(self, input_signal=None, input_signal_length=None, prompt=None, prompt_indices=None): ...

    made = make_inputs(Prompted(), 2, 800, 42)
    assert list(made) == ["input_signal", "input_signal_length", "prompt_indices"]
    assert made["prompt_indices"].tolist() == [0, 0]


def test_a_masked_token_model_has_its_own_loss_and_others_have_none():
    loss = find_loss(Nest())
    assert isinstance(loss, MaskedTokenLoss)
    one, two, three, four = (torch.tensor(float(number)) for number in (10, 2, 3, 4))
    assert loss(Nest(), {}, (one, two, three, four)) == 10 - 4 + 2 + 3
    assert "--seed" in loss.if_not_finite
    assert loss.origin == "the model's own"
    assert find_loss(Audio()) is None
    assert find_loss(torch.nn.Sequential(torch.nn.MSELoss())) is None


def fed(**more):
    return {"noisy_input_signal": torch.zeros(2, 3, 4), "noisy_input_signal_length": torch.tensor([4, 4]), **more}


@pytest.mark.parametrize("shape", [(2, 4), (2, 1, 4), (2, 3, 4)])
def test_a_mask_that_is_given_replaces_the_drawn_one(shape):
    model = Nest()
    accept_masks(model)
    masks = torch.zeros(shape)
    masks[0, ..., 1] = 1
    features, used = model(**fed(masks=masks))
    assert used.shape == (2, 3, 4)
    assert used.nonzero().tolist() == [[0, 0, 1], [0, 1, 1], [0, 2, 1]]
    assert torch.equal(features, used * 7)


def test_without_a_mask_the_model_draws_as_it_would_alone():
    plain, model = Nest(), Nest()
    accept_masks(model)
    results = []
    for each in (plain, model):
        torch.manual_seed(0)
        results.append((*each(**fed(apply_mask=True)), torch.rand(1)))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    model(**fed(masks=torch.ones(2, 4)))
    torch.manual_seed(0)
    assert torch.equal(model(**fed(apply_mask=True))[1], results[0][1]), "a mask holds for one call"


def test_a_given_mask_leaves_the_random_numbers_after_it_in_step():
    model = Nest()
    accept_masks(model)
    after = []
    for more in ({"apply_mask": True}, {"masks": torch.ones(2, 4)}):
        torch.manual_seed(0)
        model(**fed(**more))
        after.append(torch.rand(1))
    assert torch.equal(*after)


def test_a_saved_apply_mask_is_a_tensor_and_means_the_same():
    model = Nest()
    accept_masks(model)
    assert model(**fed(apply_mask=torch.tensor(True)))[1] is not None
    assert model(**fed(apply_mask=torch.tensor(False)))[1] is None
    assert model(**fed())[1] is None


def test_a_mask_of_another_length_is_refused():
    model = Nest()
    accept_masks(model)
    with pytest.raises(ModelError, match=r"masks of shape \(2, 5\) do not fit features of shape \(2, 3, 4\)"):
        model(**fed(masks=torch.ones(2, 5)))
