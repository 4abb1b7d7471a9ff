"""The judgement of the whole: nothing compared is never a pass."""

from __future__ import annotations

import pytest

from nndiff.verdict import Outcome, Verdict, outcome


@pytest.mark.parametrize(
    ("verdicts", "leftovers", "compared", "expected"),
    [
        ([], 0, 0, Outcome.NOTHING),
        ([], 3, 0, Outcome.NOTHING),
        ([Verdict.IDENTICAL], 0, 0, Outcome.NOTHING),
        ([Verdict.NOT_COMPARED], 0, 0, Outcome.NOTHING),
        ([Verdict.SHAPE], 0, 0, Outcome.DIFFERENT),
        ([Verdict.DIFFERENT], 0, 0, Outcome.DIFFERENT),
        ([Verdict.IDENTICAL, Verdict.NOT_COMPARED], 0, 9, Outcome.DIFFERENT),
        ([Verdict.IDENTICAL], 1, 9, Outcome.DIFFERENT),
        ([Verdict.IDENTICAL, Verdict.NOT_FINITE], 0, 9, Outcome.DIFFERENT),
        ([Verdict.IDENTICAL, Verdict.CLOSE], 0, 9, Outcome.CLOSE),
        ([Verdict.IDENTICAL, Verdict.IDENTICAL], 0, 9, Outcome.IDENTICAL),
    ],
)
def test_outcomes(verdicts, leftovers, compared, expected):
    assert outcome(verdicts, leftovers, compared) is expected
    assert expected.exit_code == {"identical": 0, "close": 0, "different": 1, "nothing compared": 2}[expected.value]
