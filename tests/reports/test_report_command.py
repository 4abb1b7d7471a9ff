"""nndiff report: a saved result, rendered and judged again."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import pytest
from report_builders import CASES, close, comparison, mixed, pair

from nndiff import result_json
from nndiff.commands import report
from nndiff.errors import NndiffError, ReportError, UsageError
from nndiff.result import Comparison
from nndiff.tolerance import AUTO, Tolerance
from nndiff.verdict import Verdict


def save(result: Comparison, path: Path) -> None:
    """Save a result as the command reads it: without the relations of the tests, which it does not know."""
    pairs = tuple(replace(each, related=None) for each in result.pairs)
    path.write_text(result_json.dumps(replace(result, pairs=pairs)))


def run(*words: object) -> int:
    parser = argparse.ArgumentParser(prog="nndiff")
    report.add_parser(parser.add_subparsers())
    args = parser.parse_args(["report", *map(str, words)])
    code = args.run(args)
    assert isinstance(code, int)
    return code


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save(comparison(pair("a.weight", Verdict.DIFFERENT, 3e-3), pair("a.bias")), tmp_path / "x.json")
    return tmp_path / "x.json"


@pytest.mark.parametrize("case", CASES)
def test_the_exit_code_is_that_of_the_result(case: str, tmp_path: Path) -> None:
    result = CASES[case]()
    save(result, tmp_path / "x.json")
    assert run(tmp_path / "x.json", "--quiet") == result.exit_code


def test_the_terminal_report_is_the_default(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(saved) == 1
    assert capsys.readouterr().out.startswith("✗ different: 1 of 2 tensors differs, 1 identical (exit 1)\n\n")


def test_quiet_is_one_line(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(saved, "--quiet")
    assert capsys.readouterr().out == "✗ different: 1 of 2 tensors differs, 1 identical (exit 1)\n"


def test_only_json_on_standard_output(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(saved, "--report", "json:-") == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "different"


def test_reports_to_files_do_not_silence_the_terminal(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(saved, "--report", f"html:{saved.parent}/x.html", "--report", f"md:{saved.parent}/x.md")
    shown = capsys.readouterr().out
    assert "different" in shown
    assert f"wrote {saved.parent}/x.html" in shown
    assert (saved.parent / "x.html").exists()
    assert (saved.parent / "x.md").exists()


def judged(saved: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    code = run(saved, "--report", "json", *words)
    data: dict[str, object] = json.loads(capsys.readouterr().out)
    assert data["exit_code"] == code
    return data


def test_judged_again(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = judged(saved, capsys, "--atol", "1e-2", "--rtol", "0")
    assert data["verdict"] == "close"
    assert data["tolerance"] == {"atol": 1e-2, "rtol": 0.0, "origin": "given", "overrides": []}


def test_a_half_not_given_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(comparison(pair("a"), tolerance=Tolerance(2e-3, 3e-3, "given")), tmp_path / "x.json")
    data = judged(tmp_path / "x.json", capsys, "--atol", "1e-2")
    assert data["tolerance"] == {"atol": 1e-2, "rtol": 3e-3, "origin": "given", "overrides": []}


def test_a_half_not_given_of_auto_is_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(comparison(pair("a"), tolerance=AUTO), tmp_path / "x.json")
    data = judged(tmp_path / "x.json", capsys, "--rtol", "1e-2")
    assert data["tolerance"] == {"atol": 1e-5, "rtol": 1e-2, "origin": "given", "overrides": []}


def test_auto(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tolerance = judged(saved, capsys, "--tolerance", "auto")["tolerance"]
    assert isinstance(tolerance, dict)
    assert tolerance["origin"] == "auto"


def test_the_passing_tolerance_printed_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(comparison(pair("a.weight", Verdict.DIFFERENT, 3.14159e-3)), tmp_path / "x.json")
    assert run(tmp_path / "x.json") == 1
    line = next(line for line in capsys.readouterr().out.splitlines() if "passes at" in line)
    assert run(tmp_path / "x.json", *line.split()[2:]) == 0


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (["--atol", "-1"], UsageError, "finite number of zero or more"),
        (["--rtol", "nan"], UsageError, "finite number of zero or more"),
        (["--tolerance", "auto", "--atol", "1"], UsageError, "not both"),
        (["--report", "pdf"], UsageError, "unknown report format 'pdf'"),
        (["--report", "json:{}"], UsageError, "is the file being read"),
    ],
)
def test_troubles(words: list[str], kind: type[NndiffError], message: str, saved: Path) -> None:
    before = saved.read_bytes()
    with pytest.raises(kind, match=message):
        run(saved, *(word.format(saved) for word in words))
    assert saved.read_bytes() == before


@pytest.mark.parametrize("words", [["--top", "-1"], ["--top", "x"], ["-q", "-v"], ["--tolerance", "magic"]])
def test_bad_usage_ends_with_2(words: list[str], saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(saved, *words)
    assert caught.value.code == 2
    assert "error" in capsys.readouterr().err


def test_a_missing_file() -> None:
    with pytest.raises(ReportError, match="no such file"):
        run("/nowhere/x.json")


def test_top_and_verbose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(mixed(), tmp_path / "x.json")
    run(tmp_path / "x.json", "--top", "2")
    out = capsys.readouterr().out
    assert "5 more: use --top or --verbose" in out
    assert "encoder.pos_enc.pe  " not in out
    run(tmp_path / "x.json", "--verbose")
    assert "✓ identical" in capsys.readouterr().out


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("--help")
    assert "examples:" in capsys.readouterr().out


def test_close_passes(tmp_path: Path) -> None:
    save(close(), tmp_path / "x.json")
    assert run(tmp_path / "x.json", "-q") == 0
    assert run(tmp_path / "x.json", "-q", "--atol", "0", "--rtol", "0") == 1
