"""Real NeMo: recorded there by the command line, compared here without NeMo and without torch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from environments import NEMO, diff_without_torch, run_in

NO_GRADIENT = {"mask_processor.mask_embedding", "quantizer.codebooks", "quantizer.proj.weight"}


def values(recording, name):
    return recording.source().tensors[name].numpy()


def same_bits(one, other):
    """Tell whether two arrays hold the same bytes; NaN and the sign of zero count."""
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def named_as(recording, truth):
    """Yield the truth's name and array with the recorded one."""
    changed = {event.site.name for event in recording.tensors if event.site.slot == "buffer"}
    for name, array in truth.items():
        kind, _, rest = name.partition(":")
        if kind == "grad":
            yield name, array, values(recording, f"{rest}:param_grad")
        elif kind == "buffer":
            if f"{rest}:buffer" in changed:
                yield name, array, values(recording, f"{rest}:buffer")
        else:
            yield name, array, values(recording, f"(model):{name}")


def digests(recording):
    return {event.site.name: event.digest for event in recording.tensors}


def calls_of(recording):
    return Counter(call.module for call in recording.calls)


@pytest.mark.parametrize("name", ["eval", "train", "later", "ckpt", "ragged"])
def test_outputs_loss_gradients_and_buffers_are_those_of_a_run_without_nndiff_bit_for_bit(nemo, name):
    pairs = list(named_as(nemo.recording(name), nemo.truth(name)))
    assert [found for found, truth, recorded in pairs if not same_bits(truth, recorded)] == []
    kinds = Counter(found.partition(":")[0].partition(".")[0] for found, _, _ in pairs)
    assert kinds["output"] == 4
    assert kinds["loss"] == 1
    assert kinds["grad"] == 88
    # batch norm of two layers writes its mean, variance and counter in train mode, and nothing is written in eval mode
    assert kinds["buffer"] == (6 if name == "train" else 0)


def test_the_check_of_bits_can_fail(nemo):
    pairs = list(named_as(nemo.recording("eval"), nemo.truth("later")))
    assert sum(not same_bits(truth, recorded) for _, truth, recorded in pairs) > 80


def test_the_truth_is_worth_comparing_with(nemo):
    for name in ("eval", "train", "later", "ckpt", "ragged"):
        truth = nemo.truth(name)
        assert np.isfinite(truth["loss"])
        assert truth["output.2"].any(), "no frame was masked"
        assert np.abs(truth["grad:encoder.pre_encode.conv.0.weight"]).max() > 0


@pytest.mark.parametrize(("first", "second"), [("eval", "again"), ("train", "train_again")])
def test_a_second_recording_with_the_same_seed_is_identical(nemo, first, second):
    assert digests(nemo.recording(first)) == digests(nemo.recording(second))
    status, data = diff_without_torch(nemo.folder / f"{first}.nnrec", nemo.folder / f"{second}.nnrec")
    assert status == 0
    assert data["verdict"] == "identical"
    assert data["totals"]["pairs"] == data["totals"]["identical"] == len(nemo.recording(first).tensors)


def test_two_optimiser_steps_later_it_is_different_and_the_report_says_where(nemo):
    status, data = diff_without_torch(nemo.folder / "eval.nnrec", nemo.folder / "later.nnrec")
    assert status == 1
    verdicts = {pair["name"]: pair["verdict"] for pair in data["pairs"]}
    # What has no trained weights before it is the same: features, tokens, mask. The first layer with weights is not.
    same = ("preprocessor:output.0", "preprocessor@1:output.0", "quantizer:output.1", "mask_processor:output.0")
    assert {verdicts[name] for name in same} == {"identical"}
    assert data["first_divergence"]["name"] == "encoder.pre_encode.conv.0:output"
    assert verdicts["(model):output.0"] == verdicts["(model):loss"] == "different"
    assert data["only_reference"] == data["only_candidate"] == []


def test_a_lightning_checkpoint_gives_the_same_with_its_own_config_and_with_one_given(nemo):
    assert digests(nemo.recording("ckpt")) == digests(nemo.recording("ckpt_config"))


def test_a_recording_says_how_it_was_made(nemo):
    meta = nemo.recording("eval").meta
    assert meta["mode"] == "eval"
    assert meta["seed"] == 42
    assert meta["loss"] == "given"
    assert meta["label"] == "tiny.nemo"
    assert meta["model"]["class"] == "EncDecDenoiseMaskedTokenPredModel"
    assert meta["model"]["parameters"] == nemo.facts["parameters"] == 240_976
    assert meta["environment"]["versions"]["nemo"] == "3.0.0"
    assert nemo.recording("train").meta["mode"] == "train"
    assert str(nemo.folder) not in (nemo.folder / "eval.nnrec/manifest.json").read_text()


def test_the_inputs_are_those_the_docs_state(nemo):
    _, inputs = nemo.recording("eval").inputs()
    assert list(inputs) == [
        "input_signal",
        "input_signal_length",
        "noisy_input_signal",
        "noisy_input_signal_length",
        "apply_mask",
    ]
    assert inputs["input_signal"].shape == inputs["noisy_input_signal"].shape == (2, 16000)
    assert inputs["input_signal_length"].numpy().tolist() == [16000, 16000]
    assert inputs["apply_mask"] is True
    assert 0.09 < inputs["input_signal"].numpy().std() < 0.11
    _, longer = nemo.recording("long").inputs()
    assert longer["input_signal"].shape == (3, 24000)


def test_dither_wrote_to_its_own_copy_of_the_inputs(nemo):
    _, first = nemo.recording("train").inputs()
    _, second = nemo.recording("train_again").inputs()
    assert same_bits(first["input_signal"].numpy(), second["input_signal"].numpy())


def test_every_call_is_there_and_shared_modules_are_numbered(nemo):
    recording = nemo.recording("eval")
    calls = calls_of(recording)
    assert calls.total() == 94
    assert len(recording.meta["modules"]) == 83
    assert calls["preprocessor"] == calls["preprocessor.featurizer"] == 2
    assert calls["encoder.pre_encode.conv.1"] == 3, "one ReLU under three names"
    assert calls["encoder.layers.0.feed_forward1.activation"] == 4, "one Swish under four names"
    assert calls["encoder.layers.0.dropout"] == calls["encoder.layers.1.dropout"] == 4
    assert recording.meta["shared"]["encoder.pre_encode.conv.1"] == [
        "encoder.pre_encode.conv.4",
        "encoder.pre_encode.conv.7",
    ]
    assert recording.meta["never_called"] == ["spec_augmentation"]
    names = set(digests(recording))
    assert {f"encoder.pre_encode.conv.1{call}:output" for call in ("", "@1", "@2")} <= names


def test_modules_called_with_keywords_only_have_their_inputs(nemo):
    recording = nemo.recording("eval")
    keywords = {
        call.module
        for call in recording.calls
        if call.inputs and not any(link.path.split(".")[0].isdigit() for link in call.inputs)
    }
    assert len(keywords) == 14
    encoder = next(call for call in recording.calls if call.module == "encoder")
    assert [link.path for link in encoder.inputs] == ["audio_signal", "length"]


def test_tensors_keep_their_own_types(nemo):
    outputs = {event.site.name: event.dtype for event in nemo.recording("eval").tensors if event.site.slot == "output"}
    assert outputs["encoder.pre_encode:output.1"] == "int64"
    assert outputs["quantizer:output.1"] == "int64"
    assert [name for name, dtype in outputs.items() if dtype == "float64"] == ["quantizer:output.0"]


def test_three_parameters_get_no_gradient(nemo):
    recorded = {
        f"{e.site.module}.{e.site.tensor}" for e in nemo.recording("eval").tensors if e.site.slot == "param_grad"
    }
    assert set(nemo.facts["named_parameters"]) - recorded == NO_GRADIENT


def test_the_gradient_of_a_key_bias_is_noise_beside_the_others(nemo):
    recording = nemo.recording("eval")
    noise = np.abs(values(recording, "encoder.layers.0.self_attn.linear_k.bias:param_grad")).max()
    other = np.abs(values(recording, "encoder.layers.0.self_attn.linear_q.weight:param_grad")).max()
    assert 0 < noise < 1e-7
    assert other > 1000 * noise


def test_inputs_of_an_in_place_module_are_taken_before_it_ran(nemo):
    recording = nemo.recording("inputs")
    before, after = (values(recording, f"encoder.pre_encode.conv.1:{slot}") for slot in ("input.0", "output"))
    assert (before < 0).any()
    assert np.array_equal(after, np.maximum(before, 0))


def test_execution_decides_the_order_not_registration(nemo):
    recording = nemo.recording("eval")
    order = {call.module: call.order for call in recording.calls}
    registered = [module["name"] for module in recording.meta["modules"]]
    conv, attention = "encoder.layers.0.conv", "encoder.layers.0.self_attn"
    assert registered.index(conv) < registered.index(attention)
    assert order[attention] < order[conv]


def test_a_mask_that_is_given_is_the_one_that_is_used(nemo):
    recording, truth = nemo.recording("pinned"), nemo.truth("pinned")
    for number in range(4):
        assert same_bits(values(recording, f"(model):output.{number}"), truth[f"output.{number}"])
    masks = values(recording, "(model):output.2")
    assert masks[0, 0, 8:48].all()
    assert masks[1, 0, 30:70].all()
    assert masks.sum() == 80 * 80
    _, inputs = recording.inputs()
    assert inputs["masks"].shape == (2, 112), "a port that is fed this recording's inputs gets the mask too"


def test_the_mask_of_a_recording_pins_another_run_whatever_its_seed(nemo):
    drawn, pinned = digests(nemo.recording("eval")), digests(nemo.recording("pinned_again"))
    assert {name for name in drawn if drawn[name] != pinned[name]} == set()
    assert set(pinned) - set(drawn) == {"(model):model_input.masks", "(model):model_input.apply_mask"}
    assert nemo.recording("pinned_again").meta["seed"] == 0


def test_where_nothing_is_masked_the_run_stays_as_it_is_and_a_warning_says_why(nemo):
    recording = nemo.recording("nothing_masked")
    assert np.isnan(values(recording, "(model):loss"))
    assert not values(recording, "(model):output.2").any()
    assert any("masking hides no frame" in warning and "--seed" in warning for warning in recording.warnings)


def test_a_model_of_another_kind_runs_with_its_own_loss(nemo):
    recording = nemo.recording("ctc")
    assert recording.meta["model"]["class"] == "EncDecCTCModel"
    assert recording.meta["loss"] == "given"
    assert list(recording.inputs()[1]) == ["input_signal", "input_signal_length"]
    assert {"decoder:output", "encoder:output.0"} <= set(digests(recording))


def test_trouble_ends_with_status_two_and_one_sentence(nemo):
    commands = nemo.facts["commands"]
    for name, said in (
        ("no_class", "add `target: nemo.collections...` to --config"),
        ("wrong", "does not fit the model: 81 with another shape"),
        ("broken", "NeMo cannot restore it"),
    ):
        assert commands[name]["status"] == 2
        assert said in commands[name]["stderr"]
        assert commands[name]["stderr"].count("\n") == 1
        assert not (nemo.folder / f"{name}.nnrec").exists()


def test_the_command_itself_writes_nothing_but_its_own_lines_to_stdout(nemo):
    out = nemo.folder / "command.nnrec"
    done = run_in(NEMO, "-m", "nndiff", "record", nemo.folder / "tiny.nemo", "--backward", "-o", out)
    assert done.returncode == 0, done.stderr
    first, counts, never, warning = done.stdout.splitlines()
    assert first == f"{out}: tiny.nemo, 240,976 parameters, eval mode, seed 42"
    assert "94 calls" in counts
    assert never.startswith("  never called: ")  # what only training needs
    assert "draws random numbers" in warning  # the masks, in eval mode too
    status, data = diff_without_torch(nemo.folder / "eval.nnrec", out)
    assert (status, data["verdict"]) == (0, "identical")
