"""JUnit: the common shape, and a suite that passes only where the comparison does."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from recording_builders import CASES as RECORDINGS
from recording_builders import FIRST, recording, recording_extra, recording_of, site
from report_builders import CASES as CHECKPOINTS
from report_builders import comparison, mixed, nothing, pair
from run_builders import CASES as RUNS

from nndiff.metrics import Metrics
from nndiff.reports import ReportOptions, get_report
from nndiff.result import Comparison, Rules
from nndiff.verdict import Judge, Verdict

CASES = {**CHECKPOINTS, **RECORDINGS, **RUNS}
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


def get_cases(result: Comparison) -> dict[str | None, ET.Element]:
    return {case.get("name"): case for case in rendered(result).iter("testcase")}


def get_message(case: ET.Element, tag: str = "failure") -> str:
    trouble = case.find(tag)
    assert trouble is not None, ET.tostring(case)
    return trouble.get("message", "")


def test_one_case_per_pair_and_leftover_and_one_for_a_divergence_without_a_pair() -> None:
    cases = get_cases(mixed())
    assert len(cases) == 13
    assert cases["decoder.meta"].find("error") is not None
    shape = get_message(cases["decoder.out.weight"])
    assert shape.startswith("shape: 512×80 → 80×512; agrees after permute(1, 0): --accept layout; finding: transposed")
    assert "did you mean codebook (4096×16)?" in get_message(cases["quantizer.codebook (only in the reference)"])
    assert list(cases["encoder.pos_enc.pe"]) == []
    assert list(cases["encoder.layers.0.norm.weight"]) == []


def test_names_of_recordings_tell_their_slot_once_and_what_is_only_listed_is_skipped() -> None:
    cases = get_cases(recording())
    assert "blocks.1.norm:output" in cases
    assert "blocks.1.norm:grad_output#1" in cases
    assert [each.tag for each in cases["blocks.0.drop:output (only in the reference)"]] == ["skipped"]
    assert [each.tag for each in cases["(model):output.aux (only in the candidate)"]] == ["failure"]
    assert "max rel" not in get_message(cases["embed.weight:param_grad"])


def test_the_first_case_is_the_first_divergence_with_its_findings() -> None:
    first, *others = rendered(recording()).iter("testcase")
    assert first.get("name") == "blocks.1.norm:output"
    message = get_message(first)
    assert message.startswith("first divergence: blocks.1.norm:output (LayerNorm → FastNorm, max abs 6.500e-03): ")
    assert "Finding: norm-eps (90% sure): eps 1e-05 against 0.001. Repair: make them equal." in message
    failing = [case for case in others if case.find("failure") is not None]
    assert len(failing) == 10
    assert all("see the first divergence, blocks.1.norm:output" in get_message(case) for case in failing)


def test_a_first_divergence_without_a_pair_has_a_case_of_its_own() -> None:
    first = next(rendered(mixed()).iter("testcase"))
    assert first.get("name") == "encoder.layers.2.linear"
    assert get_message(first).startswith("first divergence: encoder.layers.2.linear (max abs 2.500e-01)")


def test_evidence_is_skipped_and_never_a_failure() -> None:
    cases = get_cases(recording())
    guess = get_message(cases["blocks.0.mix:output"], "skipped")
    assert "paired only by call order; values differ, so perhaps not the same layer" in guess
    for name in ("blocks.0:grad_output", "head:input.0"):
        assert get_message(cases[name], "skipped").endswith("evidence only, not counted")


def test_where_only_outputs_are_judged_the_inside_is_skipped() -> None:
    pairs = [site("fc:output", Verdict.DIFFERENT, 0.5), site("(model):output")]
    first = replace(FIRST, name="fc:output")
    rules = Rules(judge=Judge.OUTPUTS)
    result = recording_of(*pairs, first_divergences={first.candidate: first}, rules=rules)
    assert result.exit_code == 0
    assert get_message(next(rendered(result).iter("testcase")), "skipped").startswith("first divergence: fc:output")


def test_extra_outputs_are_said_as_what_they_are() -> None:
    first, *_ = rendered(recording_extra()).iter("testcase")
    assert get_message(first).startswith("only the candidate returns output.past_key_values (4 tensors)")
    assert "--accept extra" in get_message(first)


def test_a_recording_that_was_cut_off_fails_where_all_pairs_agree() -> None:
    cut = tuple(replace(side, meta={**side.meta, "complete": False}) for side in recording().candidates)
    root = rendered(recording_of(site("(model):output"), candidates=cut))
    assert [case.get("name") for case in root.iter("testcase") if len(case)] == ["the whole agrees"]


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
