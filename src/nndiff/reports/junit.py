"""The result as JUnit XML, for continuous integration: one testcase per pair and per tensor without a partner.

Version 1: the first. One testsuite per candidate. A pair that differs is a failure; a pair that could not be
compared, or a candidate with which nothing was compared, is an error: no suite passes that did not compare.
Version 1.1: tensors of modules that only one of two recordings has are skipped: listed, no difference.
Version 2: the first testcase is the first divergence, with its findings in the message; the other failures refer to
it. What does not count for the verdict (guessed pairs, inner gradients) is skipped.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from nndiff.reports import ReportOptions, summary, wording
from nndiff.reports.figures import format_shape
from nndiff.result import Comparison, FirstDivergence, Leftover, Pair, Side, decides_alone, decides_verdict
from nndiff.text import printable
from nndiff.verdict import Outcome, Verdict

FORMAT = "nndiff.junit 2"
FAILURE, ERROR, SKIPPED = "failure", "error", "skipped"


class JunitReport:
    """Render every pair and leftover as a testcase."""

    name = "junit"

    def render(self, comparison: Comparison, options: ReportOptions) -> str:
        """Return the whole document."""
        root = ET.Element("testsuites", {"name": "nndiff"})
        for side in comparison.candidates:
            root.append(_make_suite(wording.select_candidate(comparison, side), side))
        if not comparison.candidates:
            root.append(_make_suite(comparison, comparison.reference))
        root.attrib.update(count_cases(root))
        ET.indent(root)
        return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _make_suite(comparison: Comparison, side: Side) -> ET.Element:
    """Return the suite of one candidate, the first divergence first."""
    label = printable(wording.name_side(side))
    first = comparison.first_divergences.get(side.label)
    suite = ET.Element("testsuite", {"name": label})
    suite.append(make_properties(comparison))
    cases = []
    first_case = None
    for pair in comparison.pairs:
        case = _make_pair_case(comparison, label, pair, first)
        if first is not None and pair.name == first.name and first_case is None:
            first_case = case
        else:
            cases.append(case)
    for leftover in comparison.leftovers:
        case = make_leftover_case(comparison, label, leftover, first)
        if first is not None and leftover.name == first.name and first_case is None:
            first_case = case
        else:
            cases.append(case)
    for setting in comparison.settings:
        reference, candidate = wording.show_setting_values(setting)
        message = f"{reference} against {candidate}"
        tag = FAILURE if setting.changes_network else SKIPPED
        cases.append(make_case(label, printable(setting.name), tag, message, message))
    if first is not None:
        if first_case is None:
            first_case = make_case(label, printable(first.name))
        _fail_first_divergence(comparison, first_case, first)
        cases.insert(0, first_case)
    for name, sentence in summary.list_unread_outputs(comparison):
        cases.append(make_case(label, f"{name} is compared", ERROR, "not compared", sentence))
    if comparison.outcome is Outcome.NOTHING:
        headline = summary.headline(comparison)
        cases.append(make_case(label, "something is compared", ERROR, "nothing compared", headline))
    suite.extend(cases)
    passed = comparison.exit_code == 0
    if not passed and not (suite.findall(".//failure") or suite.findall(".//error")):
        headline = summary.headline(comparison)
        suite.append(make_case(label, "the whole agrees", FAILURE, headline, headline))
    suite.attrib.update(count_cases(suite))
    ET.SubElement(suite, "system-out").text = _summarise(comparison)
    return suite


def count_cases(element: ET.Element) -> dict[str, str]:
    """Return the counts of testcases as the attributes of a suite."""
    counts = {"tests": "testcase", "failures": FAILURE, "errors": ERROR}
    return {**{name: str(len(element.findall(f".//{tag}"))) for name, tag in counts.items()}, "time": "0"}


def make_properties(comparison: Comparison) -> ET.Element:
    """Return what was compared and how."""
    properties = ET.Element("properties")
    facts = {
        "reference": printable(wording.name_side(comparison.reference)),
        "tolerance": wording.describe_tolerance(comparison),
        "verdict": comparison.verdict,
        "format": FORMAT,
    }
    for name, value in facts.items():
        ET.SubElement(properties, "property", {"name": f"nndiff.{name}", "value": value})
    return properties


def make_case(classname: str, name: str, tag: str = "", message: str = "", detail: str = "") -> ET.Element:
    """Return a testcase; with a tag, one that did not pass."""
    case = ET.Element("testcase", {"classname": classname, "name": name, "time": "0"})
    if tag:
        _add_trouble(case, tag, message, detail)
    return case


def _add_trouble(case: ET.Element, tag: str, message: str, detail: str) -> None:
    attributes = {"message": message} if tag == SKIPPED else {"message": message, "type": tag}
    ET.SubElement(case, tag, attributes).text = detail


def _fail_first_divergence(comparison: Comparison, case: ET.Element, first: FirstDivergence) -> None:
    """Put the first divergence and all findings into the message of its testcase."""
    trouble = case[0] if len(case) else None
    detail = (trouble.text or "") if trouble is not None else ""
    if trouble is not None:
        case.remove(trouble)
    name = printable(first.name)
    message = "; ".join(wording.list_extra_outputs(comparison))
    for divergence in wording.describe_divergences(comparison):
        what = f" ({divergence.what})" if divergence.what else ""
        message = f"first divergence: {name}{what}: {wording.end_sentence(divergence.why)}"
        detail = "\n".join([detail, *(f"{label}: {text}" for label, text in divergence.facts)]).strip()
    for finding in comparison.findings:
        message += f" Finding: {wording.tell_finding(finding)}"
    _add_trouble(case, FAILURE if comparison.exit_code else SKIPPED, message, detail)


def _make_pair_case(comparison: Comparison, label: str, pair: Pair, first: FirstDivergence | None) -> ET.Element:
    name = printable(pair.name)
    if pair.verdict.passed:
        return make_case(label, name)
    message = f"{pair.verdict.value}: {wording.describe_difference(pair)}"
    remark = wording.describe_remark(pair)
    if remark:
        message += f"; {remark}"
    for finding in wording.find_causes(comparison, pair.candidate, pair.name, pair.candidate_name):
        message += f"; finding: {wording.tell_finding(finding)}"
    if not decides_verdict(pair, comparison.rules):
        tag = SKIPPED
        message += "; evidence only, not counted"
    else:
        tag = ERROR if pair.verdict is Verdict.NOT_COMPARED else FAILURE
        message += _refer_to(first)
    return make_case(label, name, tag, message, "\n".join(_list_details(pair)))


def _refer_to(first: FirstDivergence | None) -> str:
    return f"; see the first divergence, {printable(first.name)}" if first else ""


def _list_details(pair: Pair) -> list[str]:
    lines = []
    for position, side in enumerate(("reference", "candidate")):
        name = printable((pair.reference_name, pair.candidate_name)[position])
        lines.append(f"{side}: {name} {format_shape(pair.shape[position])} {printable(pair.dtype[position])}")
    guessed = "" if pair.certain else " (guessed)"
    lines.append(f"matched by: {wording.name_method(pair.method)}{guessed}")
    if pair.metrics:
        for name in ("max_abs", "max_abs_index", "max_rel", "rmse"):
            value = getattr(pair.metrics, name)
            if value is not None:
                lines.append(f"{name}: {value!r}")
    lines += [f"note: {printable(note.text)}" for note in pair.notes]
    return lines


def make_leftover_case(
    comparison: Comparison, label: str, leftover: Leftover, first: FirstDivergence | None = None
) -> ET.Element:
    """Return the testcase of a tensor that only one side has."""
    where = f"only in the {leftover.side}"
    name = f"{printable(leftover.name)} ({where})"
    explanation = wording.explain_leftover(leftover)
    message = f"{where}: {explanation}" if explanation else where
    tag = SKIPPED
    if decides_alone(leftover, comparison.rules):
        tag = FAILURE
        message += _refer_to(first)
    return make_case(label, name, tag, message, f"{format_shape(leftover.shape)} {printable(leftover.dtype)}")


def _summarise(comparison: Comparison) -> str:
    """Return the headline, the first divergence and the findings."""
    lines = [summary.headline(comparison)]
    for divergence in wording.describe_divergences(comparison):
        what = f" ({divergence.what})" if divergence.what else ""
        lines.append(f"first divergence: {divergence.name}{what}: {divergence.why}")
        lines += [f"{label}: {text}" for label, text in divergence.facts]
    lines += wording.list_extra_outputs(comparison)
    for finding in comparison.findings:
        where = ", ".join(printable(name) for name in finding.where)
        lines.append(f"finding: {wording.tell_finding(finding)}" + (f" Where: {where}." if where else ""))
    return "\n".join(lines)
