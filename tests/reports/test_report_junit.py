"""JUnit: the common shape, and a suite that passes only where the comparison does."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest
from recording_builders import CASES as RECORDINGS
from recording_builders import recording
from report_builders import CASES as CHECKPOINTS
from report_builders import comparison, mixed, nothing, pair

from nndiff.reports import ReportOptions, get_report
from nndiff.result import Comparison
from nndiff.metrics import Metrics
from nndiff.verdict import Verdict

CASES = {**CHECKPOINTS, **RECORDINGS}
# The parts of the JUnit schema that Jenkins, GitLab and GitHub's readers share: children in order, needed attributes.
SHAPE: dict[str, tuple[list[str], set[str]]] = {
    "testsuites": (["testsuite"], {"name", "tests", "failures", "errors", "time"}),
    "testsuite": (["properties", "testcase", "system-out"], {"name", "tests", "failures", "errors", "time"}),
    "properties": (["property"], set()),
    "property": ([], {"name", "value"}),
    "testcase": (["failure", "error", "skipped"], {"classname", "name", "time"}),
    "failure": ([], {"message", "type"}),
    "error": ([], {"message", "type"}),
    "skipped": ([], {"message"}),
    "system-out": ([], set()),
}


def troubles(element: ET.Element) -> list[str]:
    """Return where a document does not have the common shape."""
    if element.tag not in SHAPE:
        return [f"unknown element {element.tag}"]
    order, needed = SHAPE[element.tag]
    found = [f"{element.tag} has attributes {sorted(element.attrib)}"] if set(element.attrib) != needed else []
    places = [order.index(child.tag) if child.tag in order else -1 for child in element]
    if -1 in places or places != sorted(places):
        found.append(f"{element.tag} has children {[child.tag for child in element]}")
    if "tests" in needed and element.get("tests") != str(len(list(element.iter("testcase")))):
        found.append(f"{element.tag} counts its tests wrongly")
    return found + [trouble for child in element for trouble in troubles(child)]


def rendered(result: Comparison) -> ET.Element:
    return ET.fromstring(get_report("junit").render(result, ReportOptions()))


@pytest.mark.parametrize("case", CASES)
def test_shape_and_agreement_with_the_exit_code(case: str) -> None:
    result = CASES[case]()
    root = rendered(result)
    assert root.tag == "testsuites"
    assert troubles(root) == []
    failed = int(root.get("failures", "")) + int(root.get("errors", ""))
    assert failed == len(root.findall(".//failure")) + len(root.findall(".//error"))
    assert (failed == 0) == (result.exit_code == 0)


def test_the_shape_check_can_fail() -> None:
    assert troubles(ET.fromstring("<testsuites/>"))
    assert troubles(ET.fromstring("<other/>"))
    good = rendered(mixed())
    good[0].set("tests", "1")
    assert troubles(good) == ["testsuite counts its tests wrongly"]


def test_one_case_per_pair_and_leftover() -> None:
    cases = {case.get("name"): case for case in rendered(mixed()).iter("testcase")}
    assert len(cases) == 11
    assert cases["decoder.meta"].find("error") is not None
    failure = cases["decoder.out.weight"].find("failure")
    assert failure is not None
    assert failure.get("message") == "shape: 512×80 → 80×512"
    left = cases["quantizer.codebook (only in the reference)"].find("failure")
    assert left is not None
    assert "did you mean codebook?" in left.get("message", "")
    assert list(cases["encoder.pos_enc.pe"]) == []


def test_names_of_recordings_tell_their_slot_once_and_what_is_only_listed_is_skipped() -> None:
    cases = {case.get("name"): case for case in rendered(recording()).iter("testcase")}
    assert "blocks.1.norm:output" in cases
    assert "blocks.1.norm:grad_output#1" in cases
    assert [each.tag for each in cases["blocks.0.drop:output (only in the reference)"]] == ["skipped"]
    assert [each.tag for each in cases["(model):output.aux (only in the candidate)"]] == ["failure"]
    gradient = cases["embed.weight:param_grad"].find("failure")
    assert gradient is not None
    assert "max rel" not in gradient.get("message", "")


def test_nothing_compared_is_an_error() -> None:
    root = rendered(nothing())
    assert (root.get("tests"), root.get("errors")) == ("1", "1")


def test_no_candidate_at_all_is_an_error() -> None:
    assert rendered(comparison(candidates=())).get("errors") == "1"


def test_only_empty_tensors_is_an_error(empty: Metrics) -> None:
    root = rendered(comparison(pair("a", Verdict.IDENTICAL, metrics=empty)))
    assert (root.get("tests"), root.get("errors")) == ("2", "1")


@pytest.fixture
def empty() -> Metrics:
    from report_builders import metrics

    return metrics(count=0)
