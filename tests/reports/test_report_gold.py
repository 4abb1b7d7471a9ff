"""Every format as a whole document."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_builders import CASES
from report_gold import check

from nndiff.reports import FORMATS, ReportOptions, get_report

ENDINGS = {"terminal": "txt", "json": "json", "csv": "csv", "md": "md", "junit": "xml", "html": "html"}


@pytest.mark.parametrize("case", [case for case in CASES if case != "hostile"])  # that one is checked by its parts
@pytest.mark.parametrize("name", FORMATS)
def test_the_document_is_the_one_kept(name: str, case: str) -> None:
    text = get_report(name).render(CASES[case](), ReportOptions(width=100, color=False))
    check(f"{case}.{ENDINGS[name]}", text)


@pytest.mark.parametrize("width", [40, 60, 160])
def test_other_widths(width: int) -> None:
    text = get_report("terminal").render(CASES["mixed"](), ReportOptions(width=width, color=False))
    check(f"mixed-{width}.txt", text)


@pytest.mark.parametrize(("name", "ending"), [("terminal", "txt"), ("md", "md")])
def test_verbose_and_quiet(name: str, ending: str) -> None:
    report = get_report(name)
    check(
        f"mixed-verbose.{ending}", report.render(CASES["mixed"](), ReportOptions(width=120, color=False, verbose=True))
    )
    check(f"mixed-quiet.{ending}", report.render(CASES["mixed"](), ReportOptions(width=120, color=False, quiet=True)))


def test_colour() -> None:
    check("mixed-colour.ansi", get_report("terminal").render(CASES["mixed"](), ReportOptions(width=120, color=True)))


def test_every_format_has_a_gold_file() -> None:
    assert set(ENDINGS) == set(FORMATS)


def test_the_checker_fails_on_a_changed_and_on_a_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NNDIFF_REGENERATE_GOLD", raising=False)
    (tmp_path / "x.txt").write_text("one\n")
    check("x.txt", "one\n", tmp_path)
    with pytest.raises(AssertionError, match="two"):
        check("x.txt", "two\n", tmp_path)
    with pytest.raises(AssertionError, match="no gold file"):
        check("y.txt", "one\n", tmp_path)
