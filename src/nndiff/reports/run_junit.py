"""A comparison of training runs as JUnit XML, for continuous integration: one testcase per step.

Version 1: the first. One testsuite per candidate; the first divergence is its first testcase, with the findings in the
message, and the other failures refer to it. Steps that only one side has are skipped: listed, no difference.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from nndiff.facts.run_summary import CurveKind
from nndiff.facts.runs import ALL, RunFacts, StepComparison
from nndiff.reports import ReportOptions, run_wording, summary, wording
from nndiff.reports.figures import format_name, format_number
from nndiff.reports.junit import ERROR, FAILURE, SKIPPED, count_cases, make_case, make_leftover_case, make_properties
from nndiff.result import Comparison, Side
from nndiff.text import printable
from nndiff.verdict import Outcome, Verdict


class RunJunitReport:
    """Render every step as a testcase."""

    name = "junit"

    def render(self, comparison: Comparison, options: ReportOptions) -> str:
        """Return the whole document."""
        root = ET.Element("testsuites", {"name": "nndiff"})
        for side in comparison.candidates:
            root.append(_make_suite(wording.select_candidate(comparison, side), side))
        root.attrib.update(count_cases(root))
        ET.indent(root)
        return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _make_suite(comparison: Comparison, side: Side) -> ET.Element:
    """Return the suite of one candidate."""
    label = printable(side.label)
    suite = ET.Element("testsuite", {"name": label})
    suite.append(make_properties(comparison))
    for facts in comparison.run:
        suite.extend(_make_cases(comparison, label, facts))
    if comparison.outcome is Outcome.NOTHING:
        headline = summary.headline(comparison)
        suite.append(make_case(label, "something is compared", ERROR, "nothing compared", headline))
    elif comparison.exit_code and not (suite.findall(".//failure") or suite.findall(".//error")):
        headline = summary.headline(comparison)
        suite.append(make_case(label, "the whole agrees", FAILURE, headline, headline))
    suite.attrib.update(count_cases(suite))
    ET.SubElement(suite, "system-out").text = "\n".join(_summarise(comparison))
    return suite


def _make_cases(comparison: Comparison, label: str, facts: RunFacts) -> list[ET.Element]:
    """Return the testcases of one candidate, the first divergence first."""
    cases = []
    first = facts.first_divergence
    for parting in run_wording.describe_partings(comparison):
        message = f"first divergence: {parting.what}: {wording.end_sentence(parting.why)}"
        for finding in comparison.findings:
            message += f" Finding: {wording.tell_finding(finding)}"
        tag = FAILURE if comparison.exit_code else SKIPPED
        cases.append(make_case(label, f"first divergence at {parting.name}", tag, message, message))
    for step in facts.steps:
        cases.append(_make_step_case(comparison, label, step, run_wording.name_step(first.mark) if first else ""))
    cases += [make_leftover_case(comparison, label, leftover) for leftover in comparison.leftovers]
    alone = run_wording.describe_unmatched(facts)
    if alone:
        cases.append(make_case(label, "steps of one side alone", SKIPPED, alone, alone))
    return cases


def _make_step_case(comparison: Comparison, label: str, step: StepComparison, first: str) -> ET.Element:
    name = run_wording.name_step(step.mark)
    if step.verdict.passed:
        return make_case(label, name)
    details = []
    weights = step.groups.get(ALL)
    if weights is not None:
        details.append(
            f"weights: relative L2 {format_number(weights.rel_l2)}, {weights.out:,} of {weights.tensors:,} out"
        )
        if weights.max_l2_name is not None:
            details.append(f"farthest: {format_name(weights.max_l2_name)}")
    gradients = (step.gradients or {}).get(ALL)
    if gradients is not None:
        details.append(f"gradients: relative L2 {format_number(gradients.rel_l2)}, {gradients.out:,} out")
    for scalar, (reference, candidate) in step.scalars.items():
        if reference != candidate:
            values = [run_wording.format_value(value, CurveKind.LEVEL) for value in (reference, candidate)]
            details.append(f"{printable(scalar)}: {values[0]} in the reference, {values[1]} in the candidate")
    message = "; ".join([step.verdict.value, *details])
    if first and first != name:
        message += f"; see the first divergence, {first}"
    tag = SKIPPED
    if comparison.exit_code:
        tag = ERROR if step.verdict is Verdict.NOT_COMPARED else FAILURE
    return make_case(label, name, tag, message, "\n".join(details))


def _summarise(comparison: Comparison) -> list[str]:
    """Return the headline, the first divergence, the findings and what the curves show."""
    lines = [summary.headline(comparison)]
    for parting in run_wording.describe_partings(comparison):
        lines.append(f"first divergence: {parting.name}: {parting.what}: {parting.why}")
    lines += [f"finding: {wording.tell_finding(finding)}" for finding in comparison.findings]
    for facts in comparison.run:
        lines += [f"{label}: {sentence}" for label, sentence in run_wording.list_sentences(facts)]
    return lines
