"""Hugging Face folders: config and tokenizer files are compared beside the weights."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import nndiff
from nndiff import result_json
from nndiff.commands import main
from nndiff.relations import load_relation
from nndiff.result import NoteSlug
from nndiff.settings import LONGEST_VALUE, MOST_LISTED
from nndiff.tolerance import Tolerance

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-05,
    "num_attention_heads": 4,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "sliding_window": None,
    "torch_dtype": "float32",
    "transformers_version": "4.40.0",
}


def make_folder(path: Path, files: dict[str, Any], changed: float = 0.0) -> str:
    """Write a folder with one weight and some setting files; return its path."""
    path.mkdir()
    weight = np.arange(12, dtype=np.float32).reshape(3, 4) + changed
    save_file({"embed.weight": weight}, str(path / "model.safetensors"))
    for name, content in files.items():
        if isinstance(content, bytes):
            (path / name).write_bytes(content)
        else:
            (path / name).write_text(json.dumps(content))
    return str(path)


def compare(tmp_path: Path, reference: Any, candidate: Any, file: str = "config.json", **options: Any) -> Any:
    """Compare two folders whose weights are equal and that differ in one file."""
    sides = [make_folder(tmp_path / name, {file: content}) for name, content in (("a", reference), ("b", candidate))]
    return nndiff.compare(*sides, **options)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_theta", 500000.0),
        ("rms_norm_eps", 1e-06),
        ("num_attention_heads", 8),
        ("hidden_act", "gelu"),
        ("tie_word_embeddings", True),
        ("sliding_window", 4096),
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
        ("final_logit_softcapping", 30.0),
        ("a_key_nobody_knows", 1),
    ],
)
def test_a_setting_that_changes_the_network_is_a_difference(tmp_path: Path, key: str, value: Any) -> None:
    comparison = compare(tmp_path, CONFIG, {**CONFIG, key: value})
    assert comparison.exit_code == 1
    (setting,) = comparison.settings
    assert setting.changes_network
    assert setting.key.split(".")[0] == key
    (finding,) = comparison.findings
    assert finding.cause == "config"
    assert finding.where == (setting.name,)
    assert not finding.harmless
    assert "1 setting differs" in str(comparison)


def test_harmless_settings_are_a_note(tmp_path: Path) -> None:
    other = {**CONFIG, "torch_dtype": "bfloat16", "transformers_version": "4.50.1", "_name_or_path": "elsewhere"}
    comparison = compare(tmp_path, CONFIG, other)
    assert comparison.verdict == "identical"
    assert {setting.key for setting in comparison.settings} == {"dtype", "transformers_version", "_name_or_path"}
    assert not any(setting.changes_network for setting in comparison.settings)
    assert [note.slug for note in comparison.notes] == [NoteSlug.HARMLESS_SETTINGS]
    assert comparison.findings == ()


@pytest.mark.parametrize(
    "other",
    [
        {**CONFIG, "rope_theta": 10000},  # 10000 is 10000.0
        {**CONFIG, "rope_scaling": None},
        {
            **{key: value for key, value in CONFIG.items() if key not in ("rope_theta", "torch_dtype")},
            "dtype": "float32",
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        dict(reversed(CONFIG.items())),
    ],
    ids=["integer", "no scaling", "transformers 5", "order"],
)
def test_the_same_settings_written_otherwise_are_none(tmp_path: Path, other: dict[str, Any]) -> None:
    comparison = compare(tmp_path, CONFIG, other)
    assert comparison.settings == ()
    assert comparison.verdict == "identical"


def test_theta_is_found_in_the_form_of_transformers_5(tmp_path: Path) -> None:
    newer = {key: value for key, value in CONFIG.items() if key != "rope_theta"}
    newer["rope_parameters"] = {"rope_theta": 500000.0, "rope_type": "default"}
    (setting,) = compare(tmp_path, CONFIG, newer).settings
    assert (setting.key, setting.values) == ("rope_theta", ("10000.0", "500000.0"))


def test_true_is_not_one(tmp_path: Path) -> None:
    (setting,) = compare(tmp_path, {"bias": True}, {"bias": 1}).settings
    assert setting.values == ("true", "1")


def test_a_class_that_only_one_side_names_is_harmless(tmp_path: Path) -> None:
    without = {key: value for key, value in CONFIG.items() if key != "architectures"}
    assert compare(tmp_path, CONFIG, without).exit_code == 0
    (tmp_path / "two").mkdir()
    assert compare(tmp_path / "two", CONFIG, {**CONFIG, "architectures": ["MistralForCausalLM"]}).exit_code == 1


def test_sampling_is_harmless_and_special_tokens_are_not(tmp_path: Path) -> None:
    before = {"temperature": 1.0, "eos_token_id": 2}
    comparison = compare(tmp_path, before, {"temperature": 0.6, "eos_token_id": 3}, "generation_config.json")
    assert {setting.key: setting.changes_network for setting in comparison.settings} == {
        "temperature": False,
        "eos_token_id": True,
    }


def make_tokenizer(**tokens: int) -> dict[str, Any]:
    """Return a tokenizer with a vocabulary."""
    return {"version": "1.0", "padding": None, "model": {"type": "BPE", "vocab": tokens, "merges": [["a", "b"]]}}


def test_the_vocabulary_counts_and_padding_does_not(tmp_path: Path) -> None:
    padded = {**make_tokenizer(a=0, b=1, ab=2), "padding": {"length": 8}}
    comparison = compare(tmp_path, padded, make_tokenizer(a=1, b=0, ab=2), "tokenizer.json")
    assert [(setting.key, setting.changes_network) for setting in comparison.settings] == [
        ("padding", False),
        ("model.vocab.a", True),
        ("model.vocab.b", True),
    ]


def test_many_differences_in_one_place_are_counted(tmp_path: Path) -> None:
    tokens = {f"t{number}": number for number in range(MOST_LISTED + 1)}
    shifted = {name: number + 1 for name, number in tokens.items()}
    (setting,) = compare(tmp_path, make_tokenizer(**tokens), make_tokenizer(**shifted), "tokenizer.json").settings
    assert setting.key == "model.vocab"
    assert setting.values == ("17 entries", "17 entries, 17 different")
    fewer = {name: number for name, number in shifted.items() if name != "t0"}
    (tmp_path / "few").mkdir()
    listed = {name: tokens[name] for name in fewer}
    assert (
        len(compare(tmp_path / "few", make_tokenizer(**listed), make_tokenizer(**fewer), "tokenizer.json").settings)
        == 16
    )


@pytest.mark.parametrize(
    ("file", "reference", "candidate", "key"),
    [
        ("merges.txt", b"#version: 0.2\na b\nc d\n", b"#version: 0.2\na b\nd c\n", "line 2"),
        ("merges.txt", b"a b\n", b"a b\nc d\n", "line 2"),
        ("tokenizer.model", b"\x00\x01", b"\x00\x02", ""),
        ("config.json", b'{"a": 1}', b"{broken", ""),
        ("config.json", b'{"a": 1, "a": 1}', b'{"a": 1}', ""),
        ("config.json", b"[1]", b"{}", ""),
        ("config.json", b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b"{}", ""),
    ],
    ids=["merges", "more merges", "sentencepiece", "broken", "twice", "list", "deep"],
)
def test_other_files_and_damaged_ones_are_never_passed(
    tmp_path: Path, file: str, reference: bytes, candidate: bytes, key: str
) -> None:
    comparison = compare(tmp_path, reference, candidate, file)
    assert comparison.exit_code == 1
    assert [(setting.file, setting.key) for setting in comparison.settings] == [(file, key)]


def test_equal_bytes_are_equal_whatever_they_are(tmp_path: Path) -> None:
    assert compare(tmp_path, b"{broken", b"{broken").verdict == "identical"
    (tmp_path / "version").mkdir()
    merges = compare(tmp_path / "version", b"#version: 0.2\na b\n", b"a b", "merges.txt")
    assert merges.verdict == "identical"


def test_deep_settings_within_what_json_reads_are_compared(tmp_path: Path) -> None:
    deep = [b'{"a":' * 300 + value + b"}" * 300 for value in (b"1", b"2")]
    (setting,) = compare(tmp_path, *deep).settings
    assert setting.changes_network


def test_long_values_are_shown_where_they_differ(tmp_path: Path) -> None:
    templates = [{"chat_template": "x" * 5000 + ending} for ending in ("a", "b")]
    (setting,) = compare(tmp_path, *templates, "tokenizer_config.json").settings
    reference, candidate = setting.values
    assert reference.endswith('xa"…')
    assert candidate.endswith('xb"…')
    assert len(reference) <= LONGEST_VALUE + 2


def test_a_file_on_one_side_is_a_note(tmp_path: Path) -> None:
    left = make_folder(tmp_path / "a", {"config.json": CONFIG, "tokenizer.json": make_tokenizer(a=0)})
    comparison = nndiff.compare(left, make_folder(tmp_path / "b", {"config.json": CONFIG}))
    assert comparison.verdict == "identical"
    assert "tokenizer.json is only in the reference: not compared" in str(comparison)


def test_a_file_of_weights_has_no_settings(tmp_path: Path) -> None:
    left = make_folder(tmp_path / "a", {"config.json": CONFIG})
    right = make_folder(tmp_path / "b", {"config.json": {**CONFIG, "rope_theta": 1.0}})
    assert nndiff.compare(left, f"{right}/model.safetensors").settings == ()


def test_equal_settings_do_not_hide_different_weights(tmp_path: Path) -> None:
    left = make_folder(tmp_path / "a", {"config.json": CONFIG})
    assert nndiff.compare(left, make_folder(tmp_path / "b", {"config.json": CONFIG}, changed=1.0)).exit_code == 1


def test_exclude_leaves_out_a_setting(tmp_path: Path) -> None:
    other = {**CONFIG, "rope_theta": 1.0, "rms_norm_eps": 1.0}
    comparison = compare(tmp_path, CONFIG, other, exclude="config.json:rope_theta")
    assert [setting.key for setting in comparison.settings] == ["rms_norm_eps"]
    assert not any(note.slug is NoteSlug.RULE_WITHOUT_EFFECT for note in comparison.notes)


def test_every_report_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = {**CONFIG, "rope_theta": 500000.0, "transformers_version": "<5>"}
    sides = [make_folder(tmp_path / "a", {"config.json": CONFIG}), make_folder(tmp_path / "b", {"config.json": other})]
    formats = ("json", "md", "html", "csv", "junit")
    reports = [f"--report={name}:{tmp_path / name}" for name in formats]
    assert main(["diff", *sides, *reports]) == 1
    printed = capsys.readouterr().out
    for text in (printed, *((tmp_path / name).read_text() for name in formats)):
        assert "rope_theta" in text.replace("&#95;", "_")
        assert "500000.0" in text
    assert "passes at  no tolerance (1 settings that differ)" in printed
    assert "<5>" not in (tmp_path / "html").read_text()
    root = ET.parse(tmp_path / "junit").getroot()
    assert (root.get("failures"), root.get("errors")) == ("1", "0")
    loaded = result_json.load(tmp_path / "json", load_relation)
    assert loaded.settings == nndiff.compare(*sides).settings
    again = loaded.judged_at(Tolerance(1.0, 1.0))
    assert again.exit_code == 1
    assert [finding.cause for finding in again.findings] == ["config"]
    assert main(["report", str(tmp_path / "json")]) == 1
    assert "rope_theta" in capsys.readouterr().out


@pytest.mark.parametrize("setting", [5, {"file": 1}, {"values": ["a"]}, {"values": [1, 2]}, {"changes_network": "no"}])
def test_a_damaged_saved_setting_is_trouble(tmp_path: Path, setting: Any, capsys: pytest.CaptureFixture[str]) -> None:
    comparison = compare(tmp_path, CONFIG, {**CONFIG, "rope_theta": 1.0})
    data = comparison.to_dict()
    data["settings"][0] = {**data["settings"][0], **setting} if isinstance(setting, dict) else setting
    (tmp_path / "result.json").write_text(json.dumps(data))
    assert main(["report", str(tmp_path / "result.json")]) == 2
    assert "damaged result" in capsys.readouterr().err


def test_real_folders_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for name, theta in (("a", 10000.0), ("b", 10000.0), ("c", 500000.0)):
        config = transformers.LlamaConfig(
            vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
        )
        config.rope_parameters = {"rope_type": "default", "rope_theta": theta}
        config.save_pretrained(tmp_path / name)
        save_file({"w": np.ones(3, np.float32)}, str(tmp_path / name / "model.safetensors"))
    assert nndiff.compare(tmp_path / "a", tmp_path / "b").settings == ()
    (setting,) = nndiff.compare(tmp_path / "a", tmp_path / "c").settings
    assert (setting.key, setting.values) == ("rope_theta", ("10000.0", "500000.0"))
