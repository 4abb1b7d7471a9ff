"""examples/siamese from nothing, by its scripts: two implementations are identical, and every mistake is named."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from environments import ROOT

EXAMPLE = ROOT / "examples/siamese"
README = (EXAMPLE / "README.md").read_text()
REFERENCE = "outputs/reference_model"
CAUSES = {
    "data-order": ("data-order", "the trainings part at epoch 0, batch 0: the batches differ first"),
    "layer-init": ("initial-weights", "the trainings part from the start"),
    "head-lr": ("learning-rate", "the trainings part at epoch 0, batch 0: weights differ first in fc"),
    "bn-momentum": ("batch-norm-momentum", "the trainings part at epoch 0, batch 0: weights differ first in trunk"),
    "no-zero-grad": ("gradients-accumulated", "the trainings part at epoch 0, batch 1: gradients differ first"),
}
STEPS = ["epoch_000/batch_0000.pt", "epoch_000/batch_0001.pt", "epoch_000/batch_0002.pt", "epoch_000/batch_0010.pt",
         "epoch_001/batch_0000.pt", "epoch_001/batch_0010.pt"]  # fmt: skip


def run(folder: Path, *arguments: str, expected: int = 0) -> str:
    """Run a command of the README and return what it prints, on one line."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == expected, done.stdout[-2000:] + done.stderr[-2000:]
    return " ".join(done.stdout.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the example with all trainings done, two at a time."""
    copy = tmp_path_factory.mktemp("example") / "siamese"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("outputs", "__pycache__"))
    commands = [["train_reference_with_dumps.py", "--output_dir", REFERENCE, "--batch_dump_interval", "10"]]
    commands.append(["-m", "siamese.train", "--config", "configs/siamese_e2e/resnet50.yaml"])
    for fault in CAUSES:
        commands.append(["-m", "siamese.train", "--fault", fault, "--run_name", fault])
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda command: run(copy, *command), commands))
    return copy


def analyze(folder: Path, ours: str, reference: str = REFERENCE, *options: str, expected: int = 1) -> str:
    module = "siamese.analyze_batch_comparisons"
    return run(folder, "-m", module, ours, reference, *options, expected=expected)


def test_both_implementations_are_identical_to_the_last_bit(folder: Path) -> None:
    (ours,) = folder.glob("outputs/siamese_e2e/[0-9]*_[0-9]*")
    for output in (ours, folder / REFERENCE):
        dumps = output / "batch_dumps"
        assert sorted(str(path.relative_to(dumps)) for path in dumps.glob("*/*")) == STEPS
    text = analyze(folder, str(ours), expected=0)
    assert "all 40 steps are bit-identical" in text
    text = analyze(folder, f"{ours}/batch_dumps", f"{REFERENCE}/batch_dumps", expected=0)
    assert "all 6 steps are bit-identical" in text


@pytest.mark.parametrize("fault", CAUSES)
def test_each_mistake_is_named(folder: Path, fault: str) -> None:
    cause, headline = CAUSES[fault]
    text = analyze(folder, f"outputs/siamese_e2e/{fault}")
    assert headline in text
    assert f"finding {cause} (" in text
    assert text.count("finding ") == text.count("see the finding") + 1, "no other cause is named"
    shown = re.search(rf"^\| `{fault}` \| .* \| `{cause}` (.*) \|$", README, re.MULTILINE)
    assert shown
    assert mask_numbers(f"finding {cause} {shown[1]}") in mask_numbers(text)


def mask_numbers(text: str) -> str:
    """Return a text on one line, without numbers and curves, which may depend on the machine."""
    return " ".join(re.sub(r"[▁-█]+", "~", re.sub(r"\d+", "#", text)).split())


@pytest.mark.parametrize("screen", re.findall(r"```bash\n[^`]*?analyze_batch.*?```text\n.*?```", README, re.DOTALL))
def test_the_screens_of_the_readme_are_real(folder: Path, screen: str) -> None:
    commands, shown = re.findall(r"```\w+\n(.*?)```", screen, re.DOTALL)
    (ours,) = folder.glob("outputs/siamese_e2e/[0-9]*_[0-9]*")
    words = shlex.split(commands.splitlines()[-1])[1:]
    words[2] = re.sub(r"outputs/siamese_e2e/\d.*", str(ours.relative_to(folder)), words[2])
    (status,) = re.findall(r"\(exit (\d)\)", shown)
    printed = mask_numbers(run(folder, *words, expected=int(status)))
    for line in shown.splitlines():
        assert line.strip() == "..." or mask_numbers(line) in printed, line


def test_full_size_is_identical_too(folder: Path) -> None:
    settings = yaml.safe_load((EXAMPLE / "configs/siamese_e2e/resnet50_full.yaml").read_text())
    settings |= {"pairs": 6, "batch_size": 2, "image_size": 64, "epochs": 1, "batch_comparison_interval": 1}
    (folder / "full.yaml").write_text(yaml.safe_dump(settings))
    run(folder, "-m", "siamese.train", "--config", "full.yaml", "--run_name", "full")
    run(folder, "train_reference_with_dumps.py", "--config", "full.yaml", "--output_dir", "outputs/full")
    text = analyze(folder, "outputs/siamese_e2e/full", "outputs/full", expected=0)
    assert "all 3 steps are bit-identical" in text
    assert "24,611,319 parameters" in text
    assert not (folder / "outputs/full/batch_dumps").exists()


def test_a_reader_that_leaves_and_a_missing_config_are_no_tracebacks(folder: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = f"{sys.executable} -m siamese.analyze_batch_comparisons outputs/siamese_e2e/head-lr {REFERENCE} | head -1"
    done = subprocess.run(command, shell=True, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("✗ different")
    assert not done.stderr
    for script in (["-m", "siamese.train"], ["train_reference_with_dumps.py", "--output_dir", "never_made"]):
        words = [sys.executable, *script, "--config", "nowhere.yaml"]
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "nowhere.yaml" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr


def test_the_head_and_the_backbone_can_be_compared_alone(folder: Path) -> None:
    ours = "outputs/siamese_e2e/head-lr"
    text = analyze(folder, ours, REFERENCE, "--filter", "mlp", "--output_dir", "head")
    assert "part at epoch 0, batch 0" in text
    text = analyze(folder, ours, REFERENCE, "--filter", "backbone", "--output_dir", "backbone")
    assert "part at epoch 0, batch 1" in text
    with (folder / "backbone/model_comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 40
    assert float(rows[0]["weights.backbone.l2"]) == 0 < float(rows[1]["weights.backbone.l2"])
    details = json.loads((folder / "head/detailed_comparison.json").read_text())
    assert list(details["steps"][0]["parameters"]) == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    assert (folder / "head/model_comparison.png").read_bytes().startswith(b"\x89PNG")
