"""Every format as a whole document."""

from __future__ import annotations

from pathlib import Path

import pytest
from recording_builders import CASES as RECORDINGS
from report_builders import CASES as CHECKPOINTS
from report_gold import check_gold
from run_builders import CASES as RUNS

from nndiff.reports import FORMATS, ReportOptions, get_report

CASES = {**CHECKPOINTS, **RECORDINGS}
ENDINGS = {"terminal": "txt", "json": "json", "csv": "csv", "md": "md", "junit": "xml", "html": "html"}


@pytest.mark.parametrize("case", [case for case in CASES if "hostile" not in case])  # those are checked by their parts
@pytest.mark.parametrize("name", FORMATS)
def test_the_document_is_the_one_kept(name: str, case: str) -> None:
    text = get_report(name).render(CASES[case](), ReportOptions(width=100, color=False))
    check_gold(f"{case}.{ENDINGS[name]}", text)


# Of the longer runs the formats that people read: those for programs repeat themselves step by step.
SHORT_RUNS = ("run-nothing", "run-dumps", "run-several", "run-one", "run-leftovers")
READ_RUNS = ("run", "run-rounding", "run-same", "run-close")
RUN_DOCUMENTS = [
    *((name, case) for name in FORMATS for case in SHORT_RUNS),
    *((name, case) for name in ("terminal", "md") for case in READ_RUNS),
    ("html", "run"),
]


@pytest.mark.parametrize(("name", "case"), RUN_DOCUMENTS)
def test_the_document_of_runs_is_the_one_kept(name: str, case: str) -> None:
    text = get_report(name).render(RUNS[case](), ReportOptions(width=100, color=False))
    check_gold(f"{case}.{ENDINGS[name]}", text)


@pytest.mark.parametrize("width", [40, 60, 160])
def test_runs_at_other_widths(width: int) -> None:
    text = get_report("terminal").render(RUNS["run"](), ReportOptions(width=width, color=False, top=5))
    check_gold(f"run-{width}.txt", text)


@pytest.mark.parametrize("case", ["mixed", "recording"])
@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_other_widths(case: str, width: int) -> None:
    text = get_report("terminal").render(CASES[case](), ReportOptions(width=width, color=False))
    check_gold(f"{case}-{width}.txt", text)


@pytest.mark.parametrize("case", ["mixed", "recording"])
@pytest.mark.parametrize(("name", "ending"), [("terminal", "txt"), ("md", "md")])
def test_verbose_and_quiet(case: str, name: str, ending: str) -> None:
    for how in ("verbose", "quiet"):
        options = ReportOptions(width=120, color=False, verbose=how == "verbose", quiet=how == "quiet")
        check_gold(f"{case}-{how}.{ending}", get_report(name).render(CASES[case](), options))


@pytest.mark.parametrize("case", ["mixed", "recording"])
def test_colour(case: str) -> None:
    text = get_report("terminal").render(CASES[case](), ReportOptions(width=120, color=True))
    check_gold(f"{case}-colour.ansi", text)


def test_every_format_has_a_gold_file() -> None:
    assert set(ENDINGS) == set(FORMATS)


def test_the_checker_fails_on_a_changed_and_on_a_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NNDIFF_REGENERATE_GOLD", raising=False)
    (tmp_path / "x.txt").write_text("one\n")
    check_gold("x.txt", "one\n", tmp_path)
    with pytest.raises(AssertionError, match="two"):
        check_gold("x.txt", "two\n", tmp_path)
    with pytest.raises(AssertionError, match="no gold file"):
        check_gold("y.txt", "one\n", tmp_path)
