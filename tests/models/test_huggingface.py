"""hf:DIR: what the folder holds decides the model, its inputs and what is told of its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

import nndiff
from helpers import Done, get_zygote
from nndiff.errors import UsageError
from nndiff.models import BuildOptions, build_model
from nndiff.recording import open_recording

TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
TEXT = {**TINY, "vocab_size": 50, "max_position_embeddings": 32, "bos_token_id": 48, "eos_token_id": 49}
IMAGE = {**TINY, "image_size": 16, "patch_size": 8}


def record(model: Path, out: Path, *options: object) -> Done:
    """Run `nndiff record` in a process of its own, in which transformers is imported already."""
    zygote = get_zygote("torch", "transformers.models.bert.modeling_bert", "nndiff.recording.record")
    return zygote.run("record", f"hf:{model}", "-o", out, *options)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hf") / "bert"
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**TINY, vocab_size=50)).save_pretrained(folder)
    return folder


def changed(bert: Path, folder: Path, drop: str = "", **values: torch.Tensor) -> Path:
    """Return another folder of the model with some of its weights taken away or replaced."""
    folder.mkdir()
    (folder / "config.json").write_bytes((bert / "config.json").read_bytes())
    held = safetensors.torch.load_file(bert / "model.safetensors") | values
    held.pop(drop, None)
    safetensors.torch.save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("weights", [True, False])
def test_a_model_is_in_eval_mode_with_or_without_weights(weights: bool, bert: Path, tmp_path: Path) -> None:
    folder = bert
    if not weights:
        folder = changed(bert, tmp_path / "none")
        (folder / "model.safetensors").unlink()
    spec = build_model(f"hf:{folder}")
    assert not spec.model.training
    assert spec.notes == (() if weights else ("the folder holds no weights: they were drawn from the seed",))


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (
            {"drop": "pooler.dense.weight"},
            "1 weight missing from the folder and drawn from the seed (pooler.dense.weight)",
        ),
        ({"other": torch.ones(2)}, "1 weight in the folder but not used (other)"),
    ],
)
def test_weights_that_do_not_fit_are_told_in_the_recording(
    change: dict[str, Any], note: str, bert: Path, tmp_path: Path
) -> None:
    folder, out = changed(bert, tmp_path / "part", **change), tmp_path / "a.nnrec"
    done = record(folder, out)
    assert done.stderr == "", "no bars and reports of transformers"
    assert f"  warning: {note}\n" in done.stdout
    assert open_recording(out).warnings == (note,)
    assert str(tmp_path) not in (out / "manifest.json").read_text()
    assert record(bert, tmp_path / "b.nnrec").returncode == 0
    result = nndiff.compare(out, tmp_path / "b.nnrec")
    assert result.exit_code == (1 if "drop" in change else 0)
    assert note in result.reference.notes


def test_a_folder_is_compared_with_another_and_with_a_checkpoint(bert: Path, tmp_path: Path) -> None:
    other = changed(bert, tmp_path / "other", **{"pooler.dense.bias": torch.ones(16)})
    size = ("--batch-size", 3, "--seq-len", 5)
    for name, folder, options in (
        ("bert", bert, size),
        ("other", other, size),
        ("by file", bert, (*size, "--ckpt", other / "model.safetensors")),
        ("by folder", other, (*size, "--ckpt", bert)),
    ):
        assert record(folder, tmp_path / f"{name}.nnrec", *options).returncode == 0
    result = nndiff.compare(tmp_path / "bert.nnrec", tmp_path / "other.nnrec")
    assert result.first_divergence.name == "pooler.dense:output"
    assert {pair.shape[0] for pair in result.pairs if pair.slot == "model_input"} == {(3, 5)}
    assert nndiff.compare(tmp_path / "other.nnrec", tmp_path / "by file.nnrec").verdict == "identical"
    assert nndiff.compare(tmp_path / "bert.nnrec", tmp_path / "by folder.nnrec").verdict == "identical"


def test_a_model_of_text_and_images_is_fed_both(tmp_path: Path) -> None:
    config = transformers.CLIPConfig(text_config=TEXT, vision_config=IMAGE, projection_dim=8)
    config.architectures = ["CLIPModel"]
    config.save_pretrained(tmp_path)
    spec = build_model(f"hf:{tmp_path}", BuildOptions(batch_size=3, seq_len=7))
    made = spec.inputs()
    assert {name: tuple(each.shape) for name, each in made.items()} == {
        "input_ids": (3, 7),
        "pixel_values": (3, 3, 16, 16),
    }
    spec.model(**made)


@pytest.mark.parametrize("wish", [{"config": "x.yaml"}, {"variant": "int8"}])
def test_what_would_not_be_heeded_is_refused(wish: dict[str, str], bert: Path) -> None:
    with pytest.raises(UsageError, match=f"--{next(iter(wish))} is for"):
        build_model(f"hf:{bert}", BuildOptions(**wish))


def test_trouble_in_the_model_names_its_place(bert: Path, tmp_path: Path) -> None:
    done = record(bert, tmp_path / "a", "--input", "input_ids=int64[1,2]:1000..1001")
    assert done.returncode == 2
    assert " failed at torch/" in done.stderr
    assert done.stderr.count("\n") == 1
