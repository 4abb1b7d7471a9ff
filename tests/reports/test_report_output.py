"""Where reports go: whole or not at all, never over a source, quiet where the reader left."""

from __future__ import annotations

import errno
import io
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from report_builders import comparison, mixed, pair, same, side

from nndiff.errors import NndiffError, ReportError, UsageError
from nndiff.reports import FORMATS, ReportOptions, output, write_report, write_reports

HERE = Path(__file__).parent


def test_writes_the_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    for name in FORMATS:
        write_report(same(), f"{name}:{tmp_path / name}")
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(FORMATS)


def test_a_new_file_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_report(same(), f"json:{tmp_path / 'a.json'}")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o640


def test_an_old_file_keeps_its_permissions_and_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "a.json", tmp_path / "link.json"
    target.write_text("old")
    target.chmod(0o604)
    link.symlink_to(target)
    write_report(same(), f"json:{link}")
    assert link.is_symlink()
    assert "nndiff.comparison" in target.read_text()
    assert stat.S_IMODE(target.stat().st_mode) == 0o604


def test_a_device_is_written_and_not_replaced() -> None:
    write_report(same(), "json:/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize(
    ("spec", "kind", "words"),
    [
        ("jsn", UsageError, "unknown report format 'jsn': did you mean 'json'?"),
        ("markdown:x.md", UsageError, "did you mean 'md'?"),
        ("xml", UsageError, "did you mean 'junit'?"),
        ("result.html", UsageError, "did you mean html:result.html?"),
        ("zebra", UsageError, "the formats are terminal, json, csv, md, junit, html"),
        ("json:", UsageError, "no path after the colon"),
        ("json:{}", ReportError, "it is a folder"),
        ("json:{}/no/x.json", ReportError, "there is no folder"),
        ("json:{}/a\0b", UsageError, "NUL"),
        ("json:{}/" + "x" * 300, ReportError, "file name too long"),
        ("json:/dev/full", ReportError, "no space left on device"),
    ],
)
def test_troubles_are_one_sentence(spec: str, kind: type[NndiffError], words: str, tmp_path: Path) -> None:
    with pytest.raises(kind) as caught:
        write_report(same(), spec.format(tmp_path))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(output.os, "fsync", full)
    with pytest.raises(ReportError, match="no space left on device"):
        write_report(same(), f"json:{target}")
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]
    assert target.read_text() == "old"


def test_one_failing_report_leaves_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ReportError):
        write_reports(same(), [f"json:{tmp_path}/a.json", "terminal", f"csv:{tmp_path}/no/b.csv"])
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


def test_a_report_that_cannot_be_rendered_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nndiff.reports import csv_report

    def broken(*_: object) -> str:
        raise ReportError("broken")

    monkeypatch.setattr(csv_report.CsvReport, "render", broken)
    with pytest.raises(ReportError, match="broken"):
        write_reports(same(), [f"json:{tmp_path}/a.json", f"csv:{tmp_path}/b.csv"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("spelling", ["{}/cand.ckpt", "{}/./cand.ckpt", "{}/link"])
@pytest.mark.parametrize("label", ["{}/cand.ckpt", "{}/cand.ckpt::state_dict"])
def test_a_compared_file_is_never_overwritten(spelling: str, label: str, tmp_path: Path) -> None:
    (tmp_path / "cand.ckpt").write_text("weights")
    (tmp_path / "link").symlink_to(tmp_path / "cand.ckpt")
    result = comparison(pair("a"), candidates=(side(label.format(tmp_path)),))
    with pytest.raises(UsageError, match="is one of the compared files"):
        write_report(result, f"json:{spelling.format(tmp_path)}")
    assert (tmp_path / "cand.ckpt").read_text() == "weights"


def test_two_reports_to_one_place_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="standard output"):
        write_reports(same(), ["json:-", "terminal"])
    with pytest.raises(UsageError, match=r"x\.json"):
        write_reports(same(), [f"json:{tmp_path}/x.json", f"csv:{tmp_path}/./x.json"])
    assert list(tmp_path.iterdir()) == []


def test_standard_output_is_the_report_alone(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    write_report(same(), "json:-")
    assert json.loads(capsys.readouterr().out)["verdict"] == "identical"


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "tty", "colour"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_colour_only_where_it_is_wanted(
    environment: dict[str, str], tty: bool, colour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = (Terminal if tty else io.TextIOWrapper)(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", stream)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    write_report(same(), "terminal")
    assert (b"\x1b[" in stream.buffer.getvalue()) is colour  # type: ignore[attr-defined]


def test_a_file_is_never_coloured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    write_report(same(), f"terminal:{tmp_path}/a.txt")
    assert "\x1b" not in (tmp_path / "a.txt").read_text()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "gbk"])
def test_any_encoding_can_show_it(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    write_report(mixed(), "terminal")
    assert "different: 5 of 9" in stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def test_a_stream_of_text_without_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    write_report(same(), "terminal")
    assert "identical" in stream.getvalue()


def test_closed_standard_output_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(ReportError, match="closed"):
        write_report(same(), "terminal")


def _shell(line: str) -> subprocess.CompletedProcess[str]:
    imports = "import sys; sys.path.insert(0, sys.argv[1]); import report_builders as b, nndiff.reports as r"
    program = f"{imports}; r.write_report(b.hostile(), 'json')"
    command = line.replace("PROGRAM", f'"{sys.executable}" -c "{program}" "{HERE}"')
    return subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False)


def test_a_reader_that_leaves_is_no_trouble() -> None:
    done = _shell("PROGRAM | head -c 1")
    assert (done.stdout, done.stderr, done.returncode) == ("{", "", 0)


def test_full_standard_output_is_one_trouble() -> None:
    done = _shell("PROGRAM > /dev/full")
    assert done.stderr.strip().endswith("cannot write to standard output: no space left on device")
    assert "Exception ignored" not in done.stderr


def test_importing_reports_imports_nothing_heavy() -> None:
    heavy = "('rich', 'torch', 'xml.etree', 'csv', 'html')"
    code = f"import sys, nndiff.reports; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    alone = code.replace("nndiff.reports;", "nndiff.reports.terminal;")
    assert "rich" not in subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True).stdout
    loaded = code.replace("nndiff.reports;", "nndiff.reports.terminal_sections;")
    assert "rich" in subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout


def test_options_have_these_defaults() -> None:
    assert ReportOptions() == ReportOptions(top=20, width=None, color=None, quiet=False, verbose=False)
