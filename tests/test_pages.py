"""The pages in docs/ know what the code knows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from nndiff.findings.causes import Cause
from nndiff.judge import ACCEPTED_INSIDE
from nndiff.result import Method
from nndiff.verdict import EXTRA_OUTPUTS, Outcome, RelationKind

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "nndiff"


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
    expected |= {"tied": "everywhere", "mask": "inside recordings, and for model inputs"}
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


_WITH_THRESHOLDS = ("align/*.py", "relations/*.py", "diagnosis/*.py", "findings/*.py", "findings/hypotheses/*.py",
                    "plan.py", "comparison.py", "proofs.py", "cancelling.py",
                    "judge.py", "tolerance.py", "facts/modes.py")  # fmt: skip


def list_numeric_constants() -> dict[tuple[str, str], object]:
    """Return {(file, name): value} of the constants at the top of modules that are numbers, or dicts of numbers."""
    constants: dict[tuple[str, str], object] = {}
    for pattern in _WITH_THRESHOLDS:
        for path in sorted(SOURCE.glob(pattern)):
            for statement in ast.parse(path.read_text()).body:
                if not isinstance(statement, ast.Assign):
                    continue
                (target,) = statement.targets
                try:
                    value = eval(ast.unparse(statement.value), {"__builtins__": {}})
                except (NameError, TypeError):  # made of other things than numbers
                    continue
                several = isinstance(target, ast.Tuple)
                names = [ast.unparse(name) for name in target.elts] if several else [ast.unparse(target)]
                for name, number in zip(names, value if several else [value], strict=True):
                    parts = list(number.values()) if isinstance(number, dict) else number
                    parts = parts if isinstance(parts, (list, tuple)) else [parts]
                    if name.isupper() and parts and all(isinstance(part, (int, float)) for part in parts):
                        constants[str(path.relative_to(SOURCE)), name] = number
    return constants


def test_every_threshold_is_listed_with_its_value() -> None:
    rows = read_rows("thresholds.md", 5) + read_rows("thresholds.md", 4)
    listed = {(row[0].strip("`"), row[1].strip("`")): eval(row[2].strip("`")) for row in rows}
    assert listed == list_numeric_constants()


def test_the_tests_of_thresholds_exist() -> None:
    for row in read_rows("thresholds.md", 5):
        tests = re.findall(r"`([\w/]+\.py)::(test_\w+)", row[4])
        assert tests, row
        for file, name in tests:
            assert f"def {name}(" in (ROOT / "tests" / file).read_text(), row
