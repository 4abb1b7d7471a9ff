"""Names are data from strangers: no format lets them act."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from collections.abc import Callable
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from recording_builders import CASES as RECORDINGS
from recording_builders import recording_hostile
from report_builders import CASES as CHECKPOINTS
from report_builders import HOSTILE, comparison, hostile, load_relation, pair
from rich.cells import cell_len
from run_builders import CASES as RUNS
from run_builders import run_hostile

from nndiff import result_json
from nndiff.reports import FORMATS, ReportOptions, get_report
from nndiff.reports.csv_report import guard_text
from nndiff.reports.html import render_html
from nndiff.reports.markdown import escape_text, format_code
from nndiff.result import Comparison
from nndiff.verdict import Verdict

CASES = {**CHECKPOINTS, **RECORDINGS, **RUNS}
ATTACKS = [hostile, recording_hostile, run_hostile]
PLAIN = ReportOptions(width=100, color=False, verbose=True)


def acting_characters(text: str) -> set[str]:
    """Return characters that could move a cursor, end a line or turn the writing direction."""
    return {
        char for char in text if char != "\n" and unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp", "Cn")
    }


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("name", FORMATS)
def test_no_acting_character_in_any_format(name: str, attack: Callable[[], Comparison]) -> None:
    text = get_report(name).render(attack(), PLAIN)
    assert not acting_characters(text)
    text.encode("utf-8")


def test_the_check_for_acting_characters_can_fail() -> None:
    assert acting_characters(HOSTILE["escape"])
    assert acting_characters(HOSTILE["override"])
    assert acting_characters(HOSTILE["surrogate"])


@pytest.mark.parametrize("attack", ATTACKS)
def test_colour_only_of_our_own(attack: Callable[[], Comparison]) -> None:
    text = get_report("terminal").render(attack(), ReportOptions(width=100, color=True))
    codes = set(re.findall(r"\x1b(.[0-9;]*.)", text))
    assert codes
    assert all(re.fullmatch(r"\[[0-9;]*m", each) for each in codes)
    assert not acting_characters(re.sub(r"\x1b\[[0-9;]*m", "", text))
    assert "[red]not red[/red]" in text


@pytest.mark.parametrize("width", [40, 41, 55, 80, 100, 137, 300])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("verbose", [False, True])
def test_every_line_fits(case: str, width: int, verbose: bool) -> None:
    text = get_report("terminal").render(CASES[case](), ReportOptions(width=width, color=False, verbose=verbose))
    assert text.endswith("\n")
    assert max(cell_len(line) for line in text.splitlines()) <= width


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_markdown_cells_stay_one_cell(name: str) -> None:
    cell = format_code(name)
    assert "|" not in cell
    assert "\n" not in cell
    assert not re.search(r"<(?!/?code>)", cell)
    assert cell.count("`") in (0, 2)


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_markdown_text_has_no_syntax_left(name: str) -> None:
    assert not re.search(r"[<>|`*_\[\]@\\~!]|://", escape_text(name))


@pytest.mark.parametrize(("attack", "least"), [(hostile, 3), (recording_hostile, 40), (run_hostile, 60)])
def test_markdown_tables_keep_their_columns(attack: Callable[[], Comparison], least: int) -> None:
    text = get_report("md").render(attack(), ReportOptions())
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) >= least
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_csv_reads_back_and_starts_no_formula() -> None:
    rows = list(csv.DictReader(io.StringIO(get_report("csv").render(hostile(), PLAIN))))
    tensors = [row for row in rows if row["verdict"] != "finding"]
    assert len(tensors) == len(HOSTILE) * 4 - 1  # a pair, two leftovers, and but for one a divergence at none of them
    texts = ("candidate", "name", "reference_name", "candidate_name", "relation", "reference_dtype", "note")
    assert not [row[key] for row in rows for key in texts if row[key].startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert all(None not in row for row in rows)


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_csv_guards_every_start_of_a_formula(start: str) -> None:
    assert guard_text(start + "1+1").startswith("'")
    assert guard_text("a" + start) == guard_text("a" + start).lstrip("'")


def test_junit_is_legal_xml_with_every_name_in_it() -> None:
    root = ET.fromstring(get_report("junit").render(hostile(), PLAIN))
    names = [case.get("name", "") for case in root.iter("testcase")]
    assert len(names) == len(HOSTILE) * 4 - 1  # a pair, two leftovers, and but for one a divergence at none of them
    assert any("<script>" in name for name in names)


class Tags(HTMLParser):
    """Gather tags and attributes as a browser would see them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}


def tags(text: str) -> Tags:
    parser = Tags()
    parser.feed(text)
    return parser


@pytest.mark.parametrize("attack", ATTACKS)
def test_html_has_only_our_tags_and_attributes(attack: Callable[[], Comparison]) -> None:
    plain = tags(get_report("html").render(comparison(pair("a", Verdict.DIFFERENT, 0.1)), PLAIN))
    seen = tags(get_report("html").render(attack(), PLAIN))
    assert seen.tags.count("script") == seen.tags.count("style") == 1
    assert not {"img", "iframe", "link", "object", "a"} & set(seen.tags)
    assert not [name for name in seen.attributes if name.startswith("on") or name in ("src", "href", "style")]
    assert plain.tags.count("script") == 1


def test_a_notebook_cell_is_one_frame_that_no_name_can_leave() -> None:
    cell = tags(render_html(recording_hostile()))
    assert cell.tags == ["iframe"]
    assert not [name for name in cell.attributes if name.startswith("on")]
    assert 'sandbox="allow-scripts"' in render_html(comparison(pair("a")))


def test_the_html_check_can_fail() -> None:
    assert "onerror" in tags(HOSTILE["end of script"]).attributes
    assert "script" in tags(HOSTILE["script"]).tags


def test_json_keeps_names_exactly() -> None:
    back = result_json.from_dict(json.loads(get_report("json").render(hostile(), PLAIN)), load_relation)
    assert [each.name for each in back.pairs] == list(HOSTILE.values())
