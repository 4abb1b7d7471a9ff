"""The pages in docs/ know what the code knows."""

from __future__ import annotations

import re
from pathlib import Path

from nndiff.findings.causes import Cause
from nndiff.judge import ACCEPTED_INSIDE, ALWAYS_ACCEPTED
from nndiff.result import Method
from nndiff.verdict import EXTRA_OUTPUTS, Outcome, RelationKind

DOCS = Path(__file__).parents[1] / "docs"


def read_rows(page: str, cells: int) -> list[list[str]]:
    """Return the rows of all tables with so many columns, titles left out."""
    rows = []
    for line in (DOCS / page).read_text().splitlines():
        row = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `") and len(row) == cells:
            rows.append(row)
    return rows


def test_every_cause_is_listed_with_its_meaning() -> None:
    listed = [(slug.strip("`"), meaning) for slug, meaning, _ in read_rows("findings.md", 3)]
    assert listed == [(cause.value, cause.description) for cause in Cause]


def test_every_kind_of_relation_is_listed_with_its_default() -> None:
    kinds = {kind.value for kind in RelationKind} | {EXTRA_OUTPUTS}
    defaults = {row[0].strip("`"): row[2] for row in read_rows("judgement.md", 3) if row[0].strip("`") in kinds}
    expected = dict.fromkeys(kinds, "no")
    expected |= {kind.value: "everywhere" for kind in ALWAYS_ACCEPTED}
    expected |= {kind.value: "inside recordings" for kind in ACCEPTED_INSIDE}
    assert defaults == expected


def test_every_verdict_is_listed_with_its_exit_status() -> None:
    exits = {row[0].strip("`"): row[1] for row in read_rows("judgement.md", 3)}
    for outcome in Outcome:
        assert exits[outcome.value] == str(outcome.exit_code)


def test_every_method_is_listed() -> None:
    listed = set()
    for row in read_rows("pairing.md", 3):
        listed.update(re.findall(r"`(\w+)`", row[0]))
    assert listed == {method.value for method in Method}
