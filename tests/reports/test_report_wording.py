"""What all reports say in the same words: shares, numbers that are not there, the order of rows, damage."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_builders import comparison, metrics, mixed, pair

import nndiff
from nndiff import result_json
from nndiff.errors import ReportError
from nndiff.reports import ReportOptions, get_report, wording
from nndiff.result import Comparison
from nndiff.verdict import Verdict


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [
        (2, 3, "66.67%"),
        (1, 3, "33.33%"),
        (0, 0, "0.00%"),
        (0, 5, "0.00%"),
        (5, 5, "100.00%"),
        (999_999, 1_000_000, "99.99%"),
        (1, 1_000_000, "0.01%"),
    ],
)
def test_a_share_is_rounded_and_only_all_is_a_hundred(part: int, whole: int, said: str) -> None:
    assert wording.percent(part, whole) == said


def _not_finite(apart: float) -> Comparison:
    numbers = metrics(bad=2, apart=apart, nonfinite_cand=2, nonfinite_unequal=2, needed_tolerance=math.inf)
    return comparison(pair("a.weight", Verdict.NOT_FINITE, metrics=numbers))


@pytest.mark.parametrize("name", ["terminal", "md", "html"])
def test_what_is_not_finite_has_no_difference_of_zero(name: str) -> None:
    def row(apart: float) -> list[str]:
        text = get_report(name).render(_not_finite(apart), ReportOptions(width=120, color=False))
        line = next(line for line in text.splitlines() if "a.weight" in line and "✗" in line)
        line = re.sub("<dl>.*</dl>", "", line)  # the page folds the plain counts away there
        return line.replace("|", " ").replace("<", " <").replace(">", "> ").split()

    assert "0" not in row(0.0)
    assert row(0.0).count("–") >= 2
    assert "5.000e-01" in row(0.5)


def test_counters_come_after_what_is_trained() -> None:
    counter = metrics(count=1, bad=1, apart=2.0, max_rel=math.inf)
    pairs = (
        pair("bn.num_batches_tracked", Verdict.DIFFERENT, dtype=("int64", "int64"), metrics=counter),
        pair("bn.weight", Verdict.DIFFERENT, 0.1),
        pair("close", Verdict.CLOSE, 1e-6),
    )
    wanted = ["bn.weight", "bn.num_batches_tracked", "close"]
    assert [each.name for each in comparison(*pairs).worst()] == wanted
    assert [each.name for each in wording.ranked(pairs)] == wanted


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda data: data.pop("kind"), "'kind' is missing"),
        (lambda data: data["pairs"][0].update(order="x"), "a value in it is not of the kind that belongs there"),
        (lambda data: data["pairs"][0].update(note=5), "'note' is not of the kind that belongs there"),
        (lambda data: data["tolerance"].update(atol="much"), "atol must be a finite number"),
    ],
)
def test_damage_is_told_without_python(harm: Callable[[Any], object], said: str, tmp_path: Path) -> None:
    data = result_json.to_dict(mixed())
    harm(data)
    (tmp_path / "x.json").write_text(json.dumps(data))
    with pytest.raises(ReportError, match=said) as caught:
        result_json.load(tmp_path / "x.json")
    assert "Error" not in str(caught.value)


def test_what_is_too_small_to_be_judged_is_told() -> None:
    far, near = np.full(4, 1e-6), np.full(4, 1.0)
    result = nndiff.compare({"a": far, "b": near}, {"a": 0 * far, "b": near + 1e-6})
    assert result.exit_code == 0
    told = [note for note in wording.notes(result) if "whatever" in note]
    assert told == ["1 tensor (a) lies wholly below the tolerance and passes whatever it holds: see --atol"]
    assert not [note for note in wording.notes(nndiff.compare({"b": near}, {"b": near + 1e-6})) if "whatever" in note]
