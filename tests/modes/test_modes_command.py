"""nndiff modes: the commands people type, one by one, and how each ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mode_nets
from nndiff.commands import main
from nndiff.sources import open_source


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder with the definition files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    mode_nets.write_net(tmp_path, "net", mode_nets.BLOCKS)
    mode_nets.write_net(tmp_path, "conv", mode_nets.CONVNET, mode_nets.MODES)
    return tmp_path


def run(*words: str) -> int:
    return main(["modes", *words])


def read(path: str) -> dict:
    return json.loads(Path(path).read_text())


def test_the_steps_of_the_old_scripts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # 1. the reference alone (save_all_modes.sh fp_only)
    assert run("conv.py", "-o", "layer_outputs", "--preset", "fp_only", "--layout", "npy", "--samples", "3") == 0
    assert "there is nothing to compare yet" in capsys.readouterr().out
    assert sorted(os.listdir("layer_outputs")) == [
        "mode_fp32_layer_0_conv1.npy", "mode_fp32_layer_3_fc.npy", "mode_fp32_output.npy", "mode_fp32_stats.json",
    ]  # fmt: skip
    # 2. one mode (save_layer_outputs.py --mode 2-1)
    base = ["conv.py", "-o", "layer_outputs", "--layout", "npy", "--samples", "3"]
    assert run(*base, "--only", "2-1") == 1
    printed = capsys.readouterr()
    assert "fp32: recorded already" in printed.err
    assert "2-1: recorded" in printed.err
    # 3. compare it (comparewithfp 2-1)
    assert run("--compare", "layer_outputs", "2-1") == 1
    text = capsys.readouterr().out
    for words in ("Layer 0 conv1 - Comparison Results", "📊 FP32 Reference Statistics:", "📊 Mode Output Statistics:",
                  "📏 Difference (Mode - FP32):", "Mean Abs Diff:", "❌ Error Metrics:", "📈 Relative Metrics:",
                  "📊 Absolute Difference Percentiles:", "50th (Median):", "SUMMARY TABLE - All Modes"):  # fmt: skip
        assert words in text
    # all modes, a preset, some by name (save_all_modes.sh, essential, fp32 0 2-1 2-4)
    assert run(*base, "--preset", "essential") == 1
    assert run(*base, "fp32", "0", "2-1", "2-4") == 1
    capsys.readouterr()
    assert run(*base) == 1
    assert capsys.readouterr().err.count("recorded already") == 5
    # compare all (compare_all_modes.sh)
    assert run("--compare", "layer_outputs") == 1
    table = capsys.readouterr().out
    assert table.split("\n")[6].split("  ")[0] == "Mode"
    rows = [line.split() for line in table.split("-----\n")[1].split("\n")[:10]]
    assert {row[0] for row in rows} == {"fp16", "bf16", "fp8", "0", "2-0", "2-1", "2-2", "2-3", "2-4", "3_dyn"}
    sqnr = [float(row[6]) for row in rows]
    assert sqnr == sorted(sqnr, reverse=True)
    assert os.path.exists("layer_outputs/comparisons/mode_2-1_vs_fp32.json")
    assert os.path.exists("layer_outputs/comparisons/summary_vs_fp32.csv")
    assert run("--compare", "layer_outputs", "--comparisons", "elsewhere/comparisons") == 1
    assert sorted(os.listdir("elsewhere/comparisons")) == sorted(os.listdir("layer_outputs/comparisons"))
    assert run("--compare", "layer_outputs", "--comparisons", "conv.py") == 2, "asked for, and no folder"
    # another reference, and the result in a file (--reference fp16, --save_comparison)
    saved = "results/mode_2-1_comparison.json"
    assert run("--compare", "layer_outputs", "2-1", "--reference", "fp16", "--save-comparison", saved) == 1
    assert read(saved)["reference_mode"] == "fp16"
    # the arrays can be loaded and subtracted
    arrays = [np.load(f"layer_outputs/mode_{mode}_layer_0_conv1.npy") for mode in ("fp32", "2-1")]
    pair = read("layer_outputs/comparisons/mode_2-1_vs_fp32.json")["pairs"][0]
    assert pair["name"] == "layer_0_conv1"
    np.testing.assert_allclose(pair["metrics"]["max_abs"], np.abs(arrays[1] - arrays[0]).max(), rtol=1e-6)
    # diff knows the modes by their prefix
    assert main(["diff", "layer_outputs/mode_fp32", "layer_outputs/mode_2-1", "--report", "json:d.json"]) == 1
    assert {pair["name"] for pair in read("d.json")["pairs"]} == {"layer_0_conv1", "layer_3_fc", "output"}
    assert list(open_source("layer_outputs/mode_2-1").tensors) == ["layer_0_conv1", "layer_3_fc", "output"]


def test_modes_that_raise_give_nan_or_another_shape_come_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("net.py", "--samples", "2", "--save-comparison", "r.json", "--layers", "all") == 1
    printed = capsys.readouterr()
    assert "broken: failed: mode 'broken' failed at net.py:" in printed.err
    assert "ValueError: there is no such kernel" in printed.out
    result = read("r.json")
    ranked = [mode["mode"] for mode in result["modes"]]
    assert ranked[:3] == ["same", "small", "large_-1"]
    assert set(ranked[3:]) == {"broken", "late", "nan", "shape"}
    failed = {mode["mode"]: mode["failed"] for mode in result["modes"]}
    assert failed["nan"].startswith("NaN or inf in ")
    assert failed["shape"].endswith("is [11, 11] instead of [11, 12]")
    assert failed["small"] is None
    by_mode = {mode["mode"]: mode for mode in result["modes"]}
    assert by_mode["small"]["output"]["mse"] == by_mode["small"]["error"] > 0
    assert by_mode["small"]["logits"]["top1"] == 1
    assert by_mode["small"]["perplexity"][0] > 1
    assert by_mode["broken"]["output"] is None
    ratings = {pair["rating"]["mse"] for pair in result["pairs"] if pair["rating"]}
    assert ratings <= {"very close", "good", "fair", "large"}
    assert (result["blame"], result["recommend"]) == ({}, {})


def test_exit_status_of_thresholds(capsys: pytest.CaptureFixture[str]) -> None:
    base = ("net.py", "-o", "out", "--samples", "2", "--only", "small,large_-1")
    assert run(*base) == 1
    assert run(*base, "--fail-under", "sqnr=20", "--fail-over", "mse=1e-3") == 0
    assert "all meet sqnr >= 20 and mse <= 0.001" in capsys.readouterr().out
    assert run(*base, "--fail-under", "sqnr=200") == 1
    assert run(*base, "--fail-under", "top1=1", "--fail-over", "perplexity=0.5", "--fail-over", "kl=1e-3") == 0
    assert run("net.py", "--samples", "2", "--only", "same") == 0
    assert run("net.py", "--samples", "2", "--only", "broken") == 2
    assert run("net.py", "--samples", "2", "--only", "broken,same", "--fail-over", "mse=1") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["net.py", "--only", "smal"], "has no mode 'smal'; did you mean 'small'?"),
        (["net.py", "--reference", "fp23"], "has no mode 'fp23'; did you mean 'fp32'?"),
        (["net.py", "--preset", "esential"], "has no preset 'esential'; did you mean 'essential'?"),
        (["net.py", "--only", "small", "--preset", "all"], "exclude each other"),
        (["nothing.py"], "nothing.py: no such file"),
        ([], "give a FILE.py"),
        (["--compare", "nowhere"], "nowhere: no such folder"),
        (["--compare", ".", "--blame"], "--blame would run models"),
        (["net.py", "--fail-under", "sqnr"], "is not METRIC=NUMBER"),
        (["net.py", "--recommend", "kl=3"], "metrics: sqnr, mse, top1"),
        (["net.py", "--layers", "layer.9"], "matches no module"),
        (["net.py", "--report", "png"], "cannot be printed"),
    ],
)
def test_trouble_is_one_sentence(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 2
    trouble = capsys.readouterr().err.strip().split("\n")[-1]
    assert message in trouble
    assert "bug" not in trouble


def test_a_missing_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("net.py", "-o", "out", "--samples", "2", "--only", "small", "--quiet") == 1
    assert run("--compare", "out", "--reference", "fp16") == 2
    assert "there is no mode 'fp16'; record the reference with `nndiff modes" in capsys.readouterr().err
    assert run("--compare", "out", "smal") == 2
    assert "there is no mode 'smal'" in capsys.readouterr().err


def test_another_reference_and_ready_modes_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("net.py", "--samples", "2", "--reference", "int8-channel", "--only", "fp32,int4-group")
    assert run(*words, "--save-comparison", "r.json", "--quiet") == 1
    assert capsys.readouterr().err == ""
    assert [mode["mode"] for mode in read("r.json")["modes"]] == ["fp32", "int4-group"]


def test_every_report_and_the_result_read_back(capsys: pytest.CaptureFixture[str]) -> None:
    reports = [
        word for name in ("json", "csv", "md", "junit", "html", "png") for word in ("--report", f"{name}:r.{name}")
    ]
    assert run("net.py", "--samples", "2", "--fail-under", "sqnr=70", *reports) == 1
    first = capsys.readouterr().out
    assert main(["report", "r.json"]) == 1
    again = capsys.readouterr().out
    assert again == first.split("wrote ")[0]
    assert main(["report", "r.json", "--report", "json:again.json", "--quiet"]) == 1
    assert read("again.json") == read("r.json")
    assert main(["report", "r.json", "--atol", "1e9"]) == 1  # requirements decide at any tolerance
    assert Path("r.png").read_bytes()[:4] == b"\x89PNG"
    rows = Path("r.csv").read_text().split("\n")
    assert rows[0].startswith("mode,rank,layer,verdict,mse_rating")
    assert any(row.startswith("broken,") and "no such kernel" in row for row in rows)
    xml = Path("r.junit").read_text()
    assert 'name="sqnr &gt;= 70"' in xml
    assert "SUMMARY" not in Path("r.md").read_text()
    assert "| `small` |" in Path("r.md").read_text()
    assert "<h2>SQNR of every layer" in Path("r.html").read_text()


def test_folders_are_compared_without_torch() -> None:
    random = np.random.default_rng(0)
    os.mkdir("out")
    for mode in ("fp32", "0"):
        np.save(f"out/mode_{mode}_layer_0.npy", random.normal(size=(2, 3)))
    code = "import sys; from nndiff.commands import main\nstatus = main(['modes', '--compare', 'out'])\n"
    code += "raise SystemExit(9 if 'torch' in sys.modules else status)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "SUMMARY TABLE" in done.stdout


def test_a_model_of_one_module_has_its_output_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.py").write_text(
        "import torch\nfrom nndiff.modes import weight_only\n\n"
        "def model():\n    torch.manual_seed(0)\n    return torch.nn.Linear(6, 4)\n\n"
        "def samples(count=10):\n    torch.manual_seed(1)\n    return [torch.randn(3, 6) for _ in range(count)]\n\n"
        'modes = {"int4": weight_only(4)}\nreference = "fp32"\n'
    )
    assert run("one.py", "-o", "outputs", "--blame", "--report", "json:result.json") == 1
    result = json.loads(Path("result.json").read_text())
    assert [pair["verdict"] for pair in result["pairs"]] == ["different"]
    assert result["blame"]["int4"][0]["share"] == pytest.approx(1)
    assert result["blame"]["int4"][0]["together"] == []


@pytest.mark.parametrize("words", [("--fail-under", "top1=0"), ("--recommend", "top1=0")], ids=["fail", "recommend"])
def test_top1_is_about_logits_alone(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    lines = (
        "import torch\nfrom nndiff.modes import weight_only\n\n"
        "def model():\n    torch.manual_seed(0)\n    return torch.nn.Linear(6, 4)\n\n"
        "def samples(count=2):\n    torch.manual_seed(1)\n    return [torch.randn(2, 3, 6) for _ in range(count)]\n\n"
        'modes = {"int4": weight_only(4)}\nreference = "fp32"\n'
    )
    Path("hidden.py").write_text(lines)
    assert run("hidden.py", *words) == 2
    assert f"{words[0]} top1 needs outputs that are logits (`logits = True` in FILE.py)" in capsys.readouterr().err
    Path("logits.py").write_text(lines + "logits = True\n")
    assert run("logits.py", *words) == (0 if words[0] == "--fail-under" else 1)  # a recommendation decides nothing
    assert "top1" in capsys.readouterr().out


def test_another_layout_is_not_taken_for_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    test_a_model_of_one_module_has_its_output_alone(tmp_path, monkeypatch)
    assert run("one.py", "-o", "outputs", "--layout", "npy") == 2
    assert "was recorded with layout recording" in capsys.readouterr().err
    assert run("--compare", "outputs", "fp32") == 2
    assert "'fp32' is the reference" in capsys.readouterr().err
