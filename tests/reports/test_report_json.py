"""The saved result: what goes in comes out, and damage is said in one sentence."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recording_builders import CASES as RECORDINGS
from recording_builders import recording
from report_builders import CASES as CHECKPOINTS
from report_builders import metrics, mixed

from nndiff import result_json
from nndiff.errors import NndiffError, ReportError
from nndiff.metrics import ENVELOPE_RTOLS, Metrics
from nndiff.reports import FORMATS, ReportOptions, get_report
from nndiff.result import Comparison, Finding, Leftover, Pair, PairSite, Rearranged, Side
from nndiff.tolerance import Tolerance
from nndiff.verdict import Verdict

CASES = {**CHECKPOINTS, **RECORDINGS}
texts = st.text(st.characters(), max_size=12)  # surrogates too
counts = st.integers(0, 2**70)
numbers = st.floats()
positive = st.floats(0, 1e300)
shapes = st.lists(st.integers(0, 2**40), max_size=4).map(tuple)
labels = ("one", "two\ud800", "<three>")

KINDS: dict[str, st.SearchStrategy[Any]] = {
    "int": counts,
    "int | None": st.none() | counts,
    "float": numbers,
    "tuple[int, ...] | None": st.none() | shapes,
    "tuple[float, ...]": st.tuples(*[numbers] * len(ENVELOPE_RTOLS)),
}
all_metrics = st.builds(Metrics, **{field.name: KINDS[str(field.type)] for field in dataclasses.fields(Metrics)})
layouts = st.builds(
    Rearranged,
    *(texts, texts, texts, texts, st.floats(0, 1)),
    st.lists(st.tuples(positive, positive), max_size=2).map(tuple),
    st.none() | all_metrics,
)
both = st.tuples(texts, texts)
sites = st.builds(PairSite, both, both, both, counts, st.tuples(shapes, shapes), st.none() | layouts)
pairs = st.builds(
    Pair,
    candidate=st.sampled_from(labels),
    reference_name=texts,
    candidate_name=texts,
    matched_by=texts,
    verdict=st.sampled_from(Verdict),
    shape=st.tuples(shapes, shapes),
    dtype=st.tuples(texts, texts),
    order=counts,
    metrics=st.none() | all_metrics,
    atol=positive,
    rtol=positive,
    slot=st.none() | texts | st.sampled_from(("output", "grad_output", "param_grad", "model_input", "loss")),
    note=texts,
    site=st.none() | sites,
)
sides = {
    "kind": texts,
    "tensors": counts,
    "elements": counts,
    "trainable": counts,
    "nbytes": counts,
    "notes": st.lists(texts, max_size=2).map(tuple),
    "meta": st.dictionaries(texts, texts, max_size=2),
}
leftovers = st.builds(
    Leftover,
    *(st.sampled_from(labels), st.sampled_from(("reference", "candidate")), texts, shapes, texts, texts),
    aside=st.booleans(),
)
findings = st.builds(
    Finding, texts, st.lists(texts, max_size=2).map(tuple), texts, texts, st.floats(0, 1), st.booleans()
)
comparisons = st.builds(
    Comparison,
    kind=texts | st.just("recording"),
    reference=st.builds(Side, label=texts, **sides),
    candidates=st.tuples(*(st.builds(Side, label=st.just(label), **sides) for label in labels)),
    tolerance=st.builds(Tolerance, positive, positive, texts),
    pairs=st.lists(pairs, max_size=3).map(tuple),
    leftovers=st.lists(leftovers, max_size=2).map(tuple),
    findings=st.lists(findings, max_size=2).map(tuple),
    first_divergences=st.dictionaries(
        st.sampled_from(labels), st.dictionaries(texts, texts | counts, max_size=2), max_size=2
    ),
    groups=st.dictionaries(texts, st.sampled_from(("a.*", "encoder")), max_size=2),
    notes=st.lists(texts, max_size=2).map(tuple),
    aside=st.lists(pairs, max_size=2).map(tuple),
    latent=st.lists(findings, max_size=1).map(tuple),
)


def comparable(value: Any) -> Any:
    """Return the value with NaN equal to itself."""
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if dataclasses.is_dataclass(value):
        return type(value), [comparable(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return [comparable(each) for each in value] if isinstance(value, (tuple, list)) else value


@given(comparisons)
@settings(max_examples=60, deadline=None)
def test_what_goes_in_comes_out(result: Comparison) -> None:
    back = result_json.from_dict(json.loads(result_json.dumps(result)))
    assert comparable(back) == comparable(result)
    assert back.verdict == result.verdict


@given(comparisons, st.builds(Tolerance, positive, positive, st.just("given")))
@settings(max_examples=60, deadline=None)
def test_anything_can_be_judged_again(result: Comparison, tolerance: Tolerance) -> None:
    judged = result.judged_at(tolerance)
    assert len(judged.pairs) + len(judged.aside) == len(result.pairs) + len(result.aside)


@given(comparisons, st.integers(40, 300))
@settings(max_examples=60, deadline=None)
def test_every_format_renders_anything(result: Comparison, width: int) -> None:
    for name in FORMATS:
        made = get_report(name).render(result, ReportOptions(width=width, color=False, verbose=True))
        assert made.encode("utf-8").strip(), name


def test_the_round_trip_check_can_fail() -> None:
    nan, other = metrics(max_abs=math.nan), metrics(max_abs=1.0)
    assert comparable(nan) == comparable(metrics(max_abs=math.nan))
    assert comparable(nan) != comparable(other)


@pytest.mark.parametrize("case", CASES)
def test_saved_and_loaded(case: str, tmp_path: Path) -> None:
    result = CASES[case]()
    result.save(tmp_path / "x.json")
    assert comparable(result_json.load(tmp_path / "x.json")) == comparable(result)


def test_the_summary_of_a_recording() -> None:
    data = result_json.to_dict(recording())
    summary = data["recording"]
    assert summary["final_output"] == {"match": False, "max_abs": 8e-4}
    assert summary["layers"] == {"common": 11, "only_reference": 1, "only_candidate": 0}
    assert summary["rates"]["forward"] == {"matched": 4, "total": 11, "match_rate": 4 / 11}
    assert summary["rates"]["backward"] == {"matched": 2, "total": 5, "match_rate": 2 / 5}
    assert summary["rates"]["param_grad"]["match_rate"] == 3 / 4
    assert summary["gradient_scale"] == 0.31
    assert data["candidates"][0]["recording"] == summary
    assert "recording" not in result_json.to_dict(mixed())


def test_the_summary_is_not_read_back() -> None:
    data = result_json.to_dict(recording())
    data["recording"] = {"rates": "nonsense"}
    assert comparable(result_json.from_dict(data)) == comparable(recording())


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside plain data, of a list's items that of the first."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    return [path, *(place for key, each in items for place in places(each, (*path, key)))]


def damaged(result: Comparison, place: tuple[Any, ...], junk: Any) -> dict[str, Any]:
    data: Any = json.loads(json.dumps(result_json.to_dict(result)))
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = junk
    assert isinstance(data, dict)
    return data


JUNK = [None, 5, -1, "text", [], {}, 1e400, 10**400, 10**299, True, [["x"]], {"a": {}}]


def read_and_rendered(path: Path) -> str:
    """Use a result in every way; return the sentence it was refused with, if it was."""
    try:
        result = result_json.load(path).judged_at(Tolerance(1e-3, 1e-3, "given"))
        for name in ("terminal", "csv", "md", "junit", "html"):
            get_report(name).render(result, ReportOptions(width=80))
    except NndiffError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: repr(junk)[:20])
@pytest.mark.parametrize("case", [mixed, recording])
def test_damage_is_refused_or_harmless(case: Callable[[], Comparison], junk: Any, tmp_path: Path) -> None:
    refused = []
    for place in places(result_json.to_dict(case()))[1:]:
        (tmp_path / "x.json").write_text(json.dumps(damaged(case(), place, junk)))
        refused.append(read_and_rendered(tmp_path / "x.json"))
    assert not [sentence for sentence in refused if "\n" in sentence]
    assert sum(map(bool, refused)) > 20


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no valid JSON"),
        ("[" * 100_000, "no valid JSON"),
        ("[]", "its format is not"),
        ('{"format": "nndiff.comparison", "version": 99}', "version 99"),
        ('{"format": "nndiff.comparison", "version": 1}', "damaged"),
    ],
)
def test_other_files_are_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ReportError, match=words):
        result_json.load(tmp_path / "x.json")


def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="/dev/zero: not a regular file but a device"):
        result_json.load("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ReportError, match="not a regular file but a named pipe"):
        result_json.load(tmp_path / "pipe")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(1 << 31)  # of holes
    with pytest.raises(ReportError, match="is 2,147,483,648 bytes; of a saved result more than"):
        result_json.load(tmp_path / "large.json")


def test_a_number_of_too_many_digits_is_told(tmp_path: Path) -> None:
    data = result_json.to_dict(recording())
    data["reference"]["nbytes"] = 10**400
    (tmp_path / "x.json").write_text(json.dumps(data))
    with pytest.raises(ReportError, match=r"x\.json: a saved result that is damaged: a whole number of 401 digits"):
        result_json.load(tmp_path / "x.json")


@pytest.mark.parametrize("size", [1.79e308, 5e-324])
def test_differences_as_large_or_small_as_they_come_are_drawn(size: float) -> None:
    pairs = [dataclasses.replace(each, metrics=metrics(max_abs=size)) for each in recording().pairs]
    result = dataclasses.replace(recording(), pairs=tuple(pairs))
    assert 'class="plot"' in get_report("html").render(result, ReportOptions())


@pytest.mark.parametrize("first", [3, "x", ["name"], {"name": 3}])
def test_a_damaged_first_divergence_is_named(first: object, tmp_path: Path) -> None:
    data = result_json.to_dict(recording())
    data["candidates"][0]["first_divergence"] = first
    (tmp_path / "x.json").write_text(json.dumps(data))
    with pytest.raises(ReportError, match=r"damaged: .*first_divergence"):
        result_json.load(tmp_path / "x.json")
