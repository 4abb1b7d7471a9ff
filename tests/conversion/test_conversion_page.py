"""docs/conversion.md: its screens are real, its map is one, and its lists are complete."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from nndiff.commands import main
from nndiff.conversion import MissingReason
from nndiff.conversion.map import load_conversion_map

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "conversion.md").read_text()


def get_blocks(language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_screens_are_real(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "docs" / "tour", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    runpy.run_path("checkpoints.py")["write_converted"]()
    for file in tmp_path.glob("*.py"):
        sys.modules.pop(file.stem, None)
    screens = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", "".join(get_blocks("console")), re.MULTILINE)
    assert len(screens) == 5
    for command, shown in screens:
        assert main(shlex.split(command)[1:]) == 0, command
        printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        for line in shown.splitlines():
            assert line.strip() == "..." or " ".join(line.split()) in printed, f"{command} does not print {line!r}"


def test_the_map_on_the_page_is_one() -> None:
    (text,) = get_blocks("json")
    conversion = load_conversion_map(json.loads(text))
    assert [entry.target for entry in conversion.entries] == ["encoder.classifier.weight"]


def test_every_reason_is_listed() -> None:
    rows = re.findall(r"^\| `([\w ]+)` \|", PAGE.split("with the reason:")[1], re.MULTILINE)
    assert rows == [reason.value for reason in MissingReason]
