"""nndiff map, nndiff convert and nndiff diff --map, from the command line."""

from __future__ import annotations

import filecmp
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from conversion.map_builders import draw, make_entry, store_map
from helpers import Arrays, save
from nndiff.commands import main
from nndiff.result import Method

LAYERS = 11  # more than ten: the order of names is not that of numbers


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a tiny GPT-2 of transformers, and the same model as nanoGPT keeps it."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=LAYERS, n_head=2, n_embd=8, vocab_size=23, n_positions=12, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model.save_pretrained(folder / "gpt2")
    turned = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
    state = {}
    for name, value in model.state_dict().items():
        state[name] = value.T.clone() if name.endswith(turned) else value.clone()
    torch.save(state, folder / "nanogpt.pt")
    return folder


def test_gpt2_goes_to_nanogpt_and_back_bit_for_bit(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpt2, nanogpt = str(models / "gpt2"), str(models / "nanogpt.pt")
    there, back = str(tmp_path / "there.json"), str(tmp_path / "back.json")
    assert main(["map", gpt2, nanogpt, "-o", there]) == 0
    printed = capsys.readouterr().out
    assert f"{12 * LAYERS + 5} of {12 * LAYERS + 5} tensors can be made" in printed
    assert f"{4 * LAYERS}  layout: permute(1, 0)" in printed
    assert "1  tied  (lm_head.weight)" in printed
    assert main(["map", nanogpt, gpt2, "-o", back]) == 0

    made, returned = str(tmp_path / "made.safetensors"), str(tmp_path / "returned.safetensors")
    assert main(["convert", gpt2, "--map", there, "-o", made]) == 0
    assert main(["convert", made, "--map", back, "-o", returned]) == 0
    expected = torch.load(nanogpt)
    converted = load_file(made)
    assert converted.keys() == expected.keys()
    assert all(torch.equal(converted[name], value) for name, value in expected.items())
    assert filecmp.cmp(returned, models / "gpt2" / "model.safetensors", shallow=False)


def test_diff_applies_the_map(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpt2, nanogpt, path = str(models / "gpt2"), str(models / "nanogpt.pt"), str(tmp_path / "map.json")
    assert main(["map", gpt2, nanogpt, "-o", path]) == 0
    assert main(["diff", gpt2, nanogpt, "-q"]) == 1
    assert main(["diff", gpt2, nanogpt, "--map", path, "--report", f"json:{tmp_path / 'result.json'}"]) == 0
    pairs = json.loads((tmp_path / "result.json").read_text())["pairs"]
    assert {pair["method"] for pair in pairs} == {Method.MAP.value}
    broken = torch.load(nanogpt)
    broken["transformer.h.3.mlp.c_fc.weight"][1, 2] += 1
    torch.save(broken, tmp_path / "broken.pt")
    capsys.readouterr()
    assert main(["diff", gpt2, str(tmp_path / "broken.pt"), "--map", path]) == 1
    assert "1 of 137 tensors differs" in capsys.readouterr().out


def test_a_conversion_is_repaired_by_the_map_of_a_right_one(models: Path, tmp_path: Path) -> None:
    gpt2, nanogpt, path = str(models / "gpt2"), str(models / "nanogpt.pt"), str(tmp_path / "map.json")
    broken = torch.load(nanogpt)
    broken["transformer.h.3.ln_1.weight"].zero_()
    torch.save(broken, tmp_path / "broken.pt")
    assert main(["map", gpt2, str(tmp_path / "broken.pt"), "-o", path]) == 1  # one tensor has other values
    assert main(["convert", gpt2, "--map", path, "-o", str(tmp_path / "new.safetensors"), "-q"]) == 0
    assert main(["diff", nanogpt, str(tmp_path / "new.safetensors"), "-q"]) == 0


def test_the_torch_code_makes_the_same(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["map", str(models / "gpt2"), str(models / "nanogpt.pt"), "--torch"]) == 0
    code = capsys.readouterr().out
    names: dict[str, Any] = {}
    exec(compile(code, "convert.py", "exec"), names)
    made = names["convert"](load_file(models / "gpt2" / "model.safetensors"))
    expected = torch.load(models / "nanogpt.pt")
    assert made.keys() == expected.keys()
    assert all(torch.equal(made[name], value) for name, value in expected.items())
    assert f"for i in range({LAYERS}):" in code
    assert len(code.splitlines()) < 30


def make_sides(tmp_path: Path) -> tuple[str, str, Arrays]:
    """Return two checkpoints of which the second can be made of the first, and what the second holds."""
    arrays = draw(0, w=(4, 6), b=(3,))
    other = {"w": arrays["w"].T, "b": arrays["b"]}
    return save(tmp_path / "a.safetensors", arrays), save(tmp_path / "b.safetensors", other), other


def test_files_are_not_overwritten_by_accident(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, candidate, _ = make_sides(tmp_path)
    path = str(tmp_path / "map.json")
    assert main(["map", source, candidate, "-o", source]) == 2
    assert main(["map", source, candidate, "-o", path, "-q"]) == 0
    words = ["convert", source, "--map", path, "-o"]
    (tmp_path / "there.safetensors").write_text("mine")
    assert main([*words, str(tmp_path / "there.safetensors")]) == 2
    assert "--force" in capsys.readouterr().err
    assert (tmp_path / "there.safetensors").read_text() == "mine"
    assert main([*words, str(tmp_path / "there.safetensors"), "--force", "-q"]) == 0
    assert main(["diff", candidate, str(tmp_path / "there.safetensors"), "-q"]) == 0
    assert main([*words, source, "--force"]) == 2
    assert "belongs to the checkpoint that is converted" in capsys.readouterr().err
    assert main([*words, str(tmp_path)]) == 2
    assert main([*words, str(tmp_path / "b.pt")]) == 2
    assert "safetensors" in capsys.readouterr().err


def test_shards_by_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, candidate, _ = make_sides(tmp_path)
    assert main(["map", source, candidate, "-o", str(tmp_path / "map.json")]) == 0
    (tmp_path / "out").mkdir()
    words = ["convert", source, "--map", str(tmp_path / "map.json"), "-o", str(tmp_path / "out" / "model.safetensors")]
    assert main([*words, "--max-shard-size", "0.05kB"]) == 0
    assert capsys.readouterr().out.count("wrote") == 4
    assert main(["diff", candidate, str(tmp_path / "out"), "-q"]) == 0
    assert main([*words, "--max-shard-size", "0.05kB"]) == 2
    with pytest.raises(SystemExit, match="2"):
        main([*words, "--max-shard-size", "many"])


def test_what_is_missing_is_refused_unless_partial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, _, other = make_sides(tmp_path)
    larger = save(tmp_path / "larger.safetensors", {**other, "new.head": np.ones((7, 7), np.float32)})
    path, target = str(tmp_path / "map.json"), str(tmp_path / "c.safetensors")
    assert main(["map", source, larger, "-o", path]) == 1
    assert "missing, no partner: new.head" in capsys.readouterr().out
    assert main(["convert", source, "--map", path, "-o", target]) == 2
    error = capsys.readouterr().err
    assert "1 tensor (new.head)" in error
    assert "--partial" in error
    assert not Path(target).exists()
    assert main(["convert", source, "--map", path, "-o", target, "--partial"]) == 0
    assert load_file(target).keys() == {"w", "b"}


def test_tensors_the_map_does_not_know_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, candidate, _ = make_sides(tmp_path)
    path = str(tmp_path / "map.json")
    assert main(["map", source, candidate, "-o", path]) == 0
    grown = save(tmp_path / "grown.safetensors", {**draw(0, w=(4, 6), b=(3,)), "lora": np.ones(3, np.float32)})
    assert main(["convert", grown, "--map", path, "-o", str(tmp_path / "c.safetensors")]) == 2
    assert "the map knows nothing of 1 tensor (lora)" in capsys.readouterr().err
    assert main(["diff", grown, candidate, "--map", path, "-q"]) == 1  # it has no partner
    assert "1 only in the reference" in capsys.readouterr().out


def test_what_names_alone_decided_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = {"v": np.ones(3, np.float32)}
    sides = [save(tmp_path / f"{seed}.safetensors", {**draw(seed, w=(4, 6)), **same}) for seed in (0, 1)]
    plan, new = str(tmp_path / "map.json"), str(tmp_path / "new.safetensors")
    assert main(["map", *sides, "-o", plan]) == 1
    capsys.readouterr()
    assert main(["convert", sides[0], "--map", plan, "-o", new]) == 0
    assert "not proven, by names and shapes alone, as values differed: 1 tensor (w)" in capsys.readouterr().out


def test_unused_tensors_are_told_when_a_map_is_applied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, candidate, _ = make_sides(tmp_path)
    extra = save(tmp_path / "extra.safetensors", {**draw(0, w=(4, 6), b=(3,)), "old": np.ones(5, np.float32)})
    path = str(tmp_path / "map.json")
    assert main(["map", extra, candidate, "-o", path]) == 0
    assert "unused: 1 tensor (old)" in capsys.readouterr().out
    assert main(["diff", extra, candidate, "--map", path]) == 0
    assert "the map makes no use of 1 tensor (old)" in capsys.readouterr().out


def test_a_map_that_does_not_fit_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, candidate, _ = make_sides(tmp_path)
    entry = make_entry(target="w", sources=["w"], shape=[6, 4], operations=[{"op": "permute", "axes": [0, 2, 1]}])
    path = store_map(tmp_path / "map.json", entry, unused=["b"])
    for words in (["diff", source, candidate], ["convert", source, "-o", str(tmp_path / "c.safetensors")]):
        assert main([*words, "--map", path]) == 2
        assert "the map's entry of 'w' does not fit" in capsys.readouterr().err
    assert not (tmp_path / "c.safetensors").exists()


def test_unrelated_checkpoints_have_no_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = save(tmp_path / "a.safetensors", draw(0, x=(4, 6)))
    other = save(tmp_path / "b.safetensors", draw(1, y=(5, 5)))
    assert main(["map", source, other, "-o", str(tmp_path / "map.json")]) == 2
    error = capsys.readouterr().err
    assert "no tensor of" in error
    assert ": no partner; tensors that belong together" in error
    assert not (tmp_path / "map.json").exists()


def test_a_map_is_no_list_of_names_for_nndiff_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, candidate, _ = make_sides(tmp_path)
    path = store_map(tmp_path / "map.json", make_entry())
    assert main(["map", source, candidate, "--map", path]) == 2
    assert "is a map already" in capsys.readouterr().err


def test_a_bfloat16_checkpoint_is_made_as_it_is_stored(tmp_path: Path) -> None:
    values = {"w": torch.randn(8, 4).to(torch.bfloat16)}
    save_file({"w": values["w"].float()}, str(tmp_path / "a.safetensors"))
    save_file({"w": values["w"].T.contiguous()}, str(tmp_path / "b.safetensors"))
    sides = [str(tmp_path / name) for name in ("a.safetensors", "b.safetensors")]
    assert main(["map", *sides, "-o", str(tmp_path / "map.json"), "-q"]) == 0
    target = str(tmp_path / "c.safetensors")
    assert main(["convert", sides[0], "--map", str(tmp_path / "map.json"), "-o", target, "-q"]) == 0
    made = load_file(target)["w"]
    assert made.dtype is torch.bfloat16
    assert torch.equal(made, values["w"].T)
