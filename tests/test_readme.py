"""The README cannot rot: its commands and its Python run, and its screens show what they print."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nndiff.commands import build_parser, main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])

_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?e[-+]\d+|\d+\.\d{6}\b|\d+\.\d+(?= dB)")
_TABLE_ROW = re.compile(r"\s*(\S+ (?:identical|close|different|shape)\s+\S+)  ")  # mark, verdict, name


def get_blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def get_screens() -> list[tuple[str, list[str]]]:
    """Return (command, the lines shown of its output) for every command on a screen, in order."""
    screens: list[tuple[str, list[str]]] = []
    for block in get_blocks(README, "console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                screens.append((line.removeprefix("$ "), []))
            elif line.strip() != "...":
                screens[-1][1].append(line)
    return screens


def squeeze(text: str) -> str:
    """Return a text without line breaks, the width of columns, and numbers that depend on the machine."""
    return " ".join(_NUMBER.sub("#", text).split())


def get_claims(shown: list[str]) -> list[str]:
    """Return what the shown lines promise: whole sentences, and mark, verdict and name of rows in tables."""
    claims = []
    for line in shown:
        row = _TABLE_ROW.match(line)
        if row:
            claims.append(squeeze(row[1]))
        elif not line.strip().startswith("verdict "):  # titles of columns depend on the width
            claims.append(squeeze(line))
    return claims


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a copy of docs/tour with its checkpoints, as the working directory."""
    folder = tmp_path_factory.mktemp("tour")
    shutil.copytree(ROOT / "docs" / "tour", folder, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        patch.setenv("COLUMNS", "100")
        for file in folder.glob("*.py"):
            patch.delitem(sys.modules, file.stem, raising=False)  # of other examples, by the same name
        runpy.run_path("checkpoints.py", run_name="__main__")
        yield folder
        for file in folder.glob("*.py"):
            sys.modules.pop(file.stem, None)


@pytest.mark.usefixtures("tour")
def test_the_screens_of_the_readme_are_real(capsys: pytest.CaptureFixture[str]) -> None:
    for command, shown in get_screens():
        status = main(shlex.split(command)[1:])
        output = capsys.readouterr()
        statuses = re.findall(r"\(exit (\d)\)", " ".join(shown)) or ["0"]
        assert [str(status)] == statuses, f"{command}\n{output.out}{output.err}"
        printed = squeeze(output.out)
        for claim in get_claims(shown):
            assert claim in printed, f"{command} does not print {claim!r}"


@pytest.mark.usefixtures("tour")
@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "python.md"], ids=["README", "python"])
def test_the_python_of_the_pages_runs(page: Path) -> None:
    names: dict[str, object] = {}
    for code in get_blocks(page.read_text(), "python"):
        exec(compile(code, page.name, "exec"), names)


def get_commands() -> list[str]:
    """Return the commands in the indented and shell blocks of all pages."""
    commands = []
    for page in PAGES:
        text = page.read_text()
        lines = [line for line in text.splitlines() if line.startswith("    nndiff ")]
        for block in get_blocks(text, "bash"):
            lines += block.splitlines()
        for line in lines:
            command = line.split("  #")[0].strip()
            if command.startswith("nndiff ") and command not in commands:
                commands.append(command)
    return commands


@pytest.mark.parametrize("command", get_commands())
def test_the_commands_of_the_pages_parse(command: str) -> None:
    args = build_parser().parse_args(shlex.split(command)[1:])
    assert callable(args.run)


def test_links_between_the_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
