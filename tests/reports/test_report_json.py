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
from report_builders import NamedRelation, load_relation, metrics, mixed

from nndiff import result_json
from nndiff.errors import NndiffError, ReportError
from nndiff.metrics import ENVELOPE_RTOLS, Metrics
from nndiff.reports import FORMATS, ReportOptions, get_report
from nndiff.result import (
    Comparison,
    Finding,
    FirstDivergence,
    InputState,
    Judgement,
    Leftover,
    LeftoverReason,
    Method,
    Note,
    NoteSlug,
    Pair,
    PartingReason,
    Related,
    Rules,
    Side,
    WeightsAtSite,
)
from nndiff.tensors import Site, Slot
from nndiff.tolerance import Override, Tolerance
from nndiff.verdict import Judge, Outcome, RelationKind, Verdict

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
both = st.tuples(texts, texts)
some_texts = st.lists(texts, max_size=2).map(tuple)
sites = st.builds(Site, texts, st.sampled_from(Slot), counts, texts, texts, texts, counts)
relations = st.builds(NamedRelation, texts, st.sampled_from(RelationKind))
notes = st.lists(st.builds(Note, st.sampled_from(NoteSlug), texts), max_size=2).map(tuple)
pairs = st.builds(
    Pair,
    candidate=st.sampled_from(labels),
    reference_name=texts,
    candidate_name=texts,
    method=st.sampled_from(Method),
    certain=st.booleans(),
    verdict=st.sampled_from(Verdict),
    shape=st.tuples(shapes, shapes),
    dtype=both,
    order=counts,
    stored=st.none() | all_metrics,
    atol=positive,
    rtol=positive,
    scale=st.floats(1e-9, 1e9),
    sites=st.none() | st.tuples(sites, sites),
    related=st.none() | st.builds(Related, relations, all_metrics, st.booleans()),
    notes=notes,
)
sides = {
    "kind": texts,
    "tensors": counts,
    "elements": counts,
    "trainable": counts,
    "nbytes": counts,
    "notes": some_texts,
    "meta": st.dictionaries(texts, texts, max_size=2),
}
leftovers = st.builds(
    Leftover,
    candidate=st.sampled_from(labels),
    side=st.sampled_from(("reference", "candidate")),
    name=texts,
    shape=shapes,
    dtype=texts,
    reason=st.sampled_from(LeftoverReason),
    site=st.none() | sites,
    near=texts,
    near_shape=st.none() | shapes,
    same_as=texts,
)
findings = st.builds(Finding, texts, some_texts, texts, texts, st.floats(0, 1), st.booleans())
divergences = st.builds(
    FirstDivergence,
    candidate=st.sampled_from(labels),
    name=texts,
    candidate_name=texts,
    order=counts,
    slot=st.none() | st.sampled_from(Slot),
    reason=st.sampled_from(PartingReason),
    verdict=st.none() | st.sampled_from(Verdict),
    why=texts,
    max_abs=st.none() | st.floats(allow_nan=False),
    module=texts,
    candidate_module=texts,
    call=counts,
    classes=both,
    module_classes=st.none() | both,
    inputs=st.none() | st.sampled_from(InputState),
    sources=both,
    settings=st.dictionaries(texts, st.tuples(texts | counts, st.none() | st.booleans()), max_size=2),
    weights=st.none() | st.builds(WeightsAtSite, counts, some_texts, some_texts, some_texts),
    after=texts,
    before=texts,
    missing_in=texts,
)
judgements = st.builds(Judgement, st.sampled_from(Outcome), st.none() | st.sampled_from(Outcome), counts, counts)
overrides = st.builds(Override, texts, st.none() | positive, st.none() | positive)
comparisons = st.builds(
    Comparison,
    kind=texts | st.just("recording"),
    reference=st.builds(Side, label=texts, **sides),
    candidates=st.tuples(*(st.builds(Side, label=st.just(label), **sides) for label in labels)),
    tolerance=st.builds(Tolerance, positive, positive, texts, st.lists(overrides, max_size=2).map(tuple)),
    pairs=st.lists(pairs, max_size=3).map(tuple),
    judgements=st.fixed_dictionaries(dict.fromkeys(labels, judgements)),
    leftovers=st.lists(leftovers, max_size=2).map(tuple),
    findings=st.lists(findings, max_size=2).map(tuple),
    first_divergences=st.dictionaries(st.sampled_from(labels), divergences, max_size=2),
    groups=st.dictionaries(texts, st.sampled_from(("a.*", "encoder")), max_size=2),
    notes=notes,
    rules=st.builds(Rules, st.frozensets(texts, max_size=2), st.sampled_from(Judge), st.booleans()),
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
    back = result_json.from_dict(json.loads(result_json.dumps(result)), load_relation)
    assert comparable(back) == comparable(result)
    assert back.verdict == result.verdict


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
    (tmp_path / "x.json").write_text(result_json.dumps(result))
    assert comparable(result_json.load(tmp_path / "x.json", load_relation)) == comparable(result)


def test_the_summary_of_a_recording() -> None:
    data = result_json.to_dict(recording())
    counts = data["recording"]
    assert counts["final_output"] == {"match": False, "max_abs": 8e-4, "extra": ["(model):output.aux"]}
    assert counts["layers"] == {"common": 11, "only_reference": 1, "only_candidate": 0}
    assert counts["rates"]["forward"] == {"matched": 4, "total": 10, "guessed": 1, "match_rate": 4 / 10}
    assert counts["rates"]["backward"] == {"matched": 2, "total": 5, "guessed": 0, "match_rate": 2 / 5}
    assert counts["rates"]["param_grad"]["match_rate"] == 3 / 4
    assert counts["gradient_scale"] == 0.31
    assert data["candidates"][0]["recording"] == counts
    assert "recording" not in result_json.to_dict(mixed())


def test_the_summary_is_not_read_back() -> None:
    data = result_json.to_dict(recording())
    data["recording"] = {"rates": "nonsense"}
    assert comparable(result_json.from_dict(data, load_relation)) == comparable(recording())


def test_the_contract() -> None:
    data = result_json.to_dict(recording())
    assert (data["format"], data["version"]) == ("nndiff.comparison", 2)
    wanted = "kind reference candidates verdict exit_code tolerance totals pairs only_reference only_candidate"
    assert {*wanted.split(), "first_divergence", "findings", "rules", "judgements", "notes", "leftovers"} <= set(data)
    assert data["rules"] == {"accept": [], "judge": "all", "strict_dtype": False}
    assert data["judgements"] == {
        "port.nnrec": {"outcome": "different", "outside": "different", "inside_compared": 12, "inside_different": 7}
    }
    assert data["notes"] == [{"slug": "gradient-scale", "text": "gradients are judged at atol 3.1e-06"}]
    assert data["totals"]["match_rate"] == 13 / 29
    keys = "candidate name reference_name candidate_name slot order method certain decides relation verdict shape dtype"
    for pair in data["pairs"]:
        assert {*keys.split(), "metrics", "sites"} <= set(pair)
    assert {"name", "order", "class", "module_class", "source", "reason", "settings"} <= set(data["first_divergence"])
    assert data["first_divergence"]["class"] == ["LayerNorm", "FastNorm"]
    assert {"cause", "where", "evidence", "repair", "confidence", "harmless"} <= set(data["findings"][0])
    assert {"reason", "near", "near_shape", "same_as", "site"} <= set(data["leftovers"][0])


def test_the_numbers_judged_and_those_as_stored_stand_apart() -> None:
    pairs = {pair["name"]: pair for pair in result_json.to_dict(mixed())["pairs"]}
    accepted = pairs["encoder.layers.0.norm.weight"]
    assert accepted["relation"] == {"kind": "cast", "text": "cast(float32)"}
    assert accepted["related"] == {"accepted": True, "text": "cast(float32)"}
    assert accepted["stored"]["max_abs"] == accepted["metrics"]["max_abs"] == 2e-6
    proven = pairs["decoder.out.weight"]
    assert (proven["metrics"], proven["related"]["accepted"]) == (None, False)
    assert proven["related"]["metrics"]["max_abs"] == 1e-7
    assert "stored" not in proven
    assert "related" not in pairs["decoder.out.bias"]


def test_settings_of_any_type_can_be_saved() -> None:
    first = dataclasses.replace(recording().first_divergence, settings={"size": ((1, 2), object)})  # type: ignore[type-var]
    result = dataclasses.replace(recording(), first_divergences={first.candidate: first})
    data = json.loads(result_json.dumps(result))
    assert data["first_divergence"]["settings"] == {"size": [[1, 2], "<class 'object'>"]}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside plain data, of a list's items that of the first."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    return [path, *(place for key, each in items for place in places(each, (*path, key)))]


def damaged(text: str, place: tuple[Any, ...], junk: Any) -> str:
    data: Any = json.loads(text)
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = junk
    return json.dumps(data)


def short_recording() -> Comparison:
    """Return a recording of a few pairs that still has every kind of fact."""
    result = recording()
    kept = tuple(result.pairs[index] for index in (2, 0, 5, 7, 15, 20, 23))  # a relation first: it has most fields
    return dataclasses.replace(result, pairs=kept)


JUNK = [None, -1, True, "text", [["x"]], {}, 1e400, 10**299]


def read_and_rendered(path: Path) -> str:
    """Use a result in every way; return the sentence it was refused with, if it was."""
    try:
        result = result_json.load(path, load_relation)
        for name in ("terminal", "csv", "md", "junit", "html"):
            get_report(name).render(result, ReportOptions(width=80))
    except NndiffError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("case", "junk"),
    [*((short_recording, junk) for junk in JUNK), (mixed, None), (mixed, "text")],
    ids=lambda value: repr(value)[:20],
)
def test_damage_is_refused_or_harmless(case: Callable[[], Comparison], junk: Any, tmp_path: Path) -> None:
    refused = []
    text = result_json.dumps(case())
    for place in places(json.loads(text))[1:]:
        (tmp_path / "x.json").write_text(damaged(text, place, junk))
        refused.append(read_and_rendered(tmp_path / "x.json"))
    assert not [sentence for sentence in refused if "\n" in sentence]
    assert sum(map(bool, refused)) > 20


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "its format is not"),
        ('{"format": "nndiff.comparison", "version": 99}', "version 99; this nndiff reads version 2"),
        ('{"format": "nndiff.comparison", "version": 1}', "version 1; this nndiff reads version 2"),
        ('{"format": "nndiff.comparison", "version": 2}', "damaged"),
    ],
)
def test_other_files_are_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ReportError, match=words):
        result_json.load(tmp_path / "x.json", load_relation)


def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="/dev/zero: not a regular file but a device"):
        result_json.load("/dev/zero", load_relation)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ReportError, match="not a regular file but a named pipe"):
        result_json.load(tmp_path / "pipe", load_relation)
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(1 << 31)  # of holes
    with pytest.raises(ReportError, match="is 2,147,483,648 bytes; nndiff reads saved results of up to"):
        result_json.load(tmp_path / "large.json", load_relation)


def test_a_number_of_too_many_digits_is_told(tmp_path: Path) -> None:
    data = result_json.to_dict(recording())
    data["reference"]["nbytes"] = 10**400
    (tmp_path / "x.json").write_text(json.dumps(data))
    with pytest.raises(ReportError, match=r"x\.json: damaged result: an integer of 401 digits"):
        result_json.load(tmp_path / "x.json", load_relation)


@pytest.mark.parametrize("size", [1.79e308, 5e-324])
def test_differences_as_large_or_small_as_they_come_are_drawn(size: float) -> None:
    pairs = [dataclasses.replace(each, stored=metrics(max_abs=size)) for each in recording().pairs]
    result = dataclasses.replace(recording(), pairs=tuple(pairs))
    assert 'class="plot"' in get_report("html").render(result, ReportOptions())


@pytest.mark.parametrize("first", [3, "x", ["name"], {"name": 3}])
def test_a_damaged_first_divergence_is_named(first: object, tmp_path: Path) -> None:
    data = result_json.to_dict(recording())
    data["candidates"][0]["first_divergence"] = first
    (tmp_path / "x.json").write_text(json.dumps(data))
    with pytest.raises(ReportError, match=r"damaged result: first_divergence: "):
        result_json.load(tmp_path / "x.json", load_relation)
