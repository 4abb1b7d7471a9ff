"""Modes as JUnit XML: a testsuite per mode, a testcase per requirement and per layer. Version 1."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from nndiff.facts.modes import ModeFacts
from nndiff.reports import ReportOptions, modes_text, summary
from nndiff.reports.junit import ERROR, FAILURE, SKIPPED, count_cases, make_case
from nndiff.reports.wording import describe_difference
from nndiff.result import Comparison
from nndiff.text import printable

FORMAT = "nndiff.junit.modes 1"


class ModesJunitReport:
    """Render every mode as a testsuite."""

    name = "junit"

    def render(self, comparison: Comparison, options: ReportOptions) -> str:
        """Return the whole document."""
        root = ET.Element("testsuites", {"name": "nndiff"})
        for mode in modes_text.get_modes(comparison).modes:
            root.append(_make_suite(comparison, mode))
        root.attrib.update(count_cases(root))
        ET.indent(root)
        return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _make_suite(comparison: Comparison, mode: ModeFacts) -> ET.Element:
    facts = modes_text.get_modes(comparison)
    label = printable(mode.mode)
    suite = ET.Element("testsuite", {"name": label})
    properties = ET.SubElement(suite, "properties")
    for name, value in (
        ("reference", printable(facts.reference)),
        ("verdict", comparison.outcome_of(mode.mode).value),
        ("format", FORMAT),
    ):
        ET.SubElement(properties, "property", {"name": f"nndiff.{name}", "value": value})
    trouble = (ERROR, "failed", printable(mode.failed)) if mode.failed is not None else ()
    suite.append(make_case(label, "the mode runs", *trouble))
    for threshold in facts.thresholds:
        text = modes_text.describe_threshold(threshold)
        error = modes_text.describe_error(comparison, mode)
        suite.append(make_case(label, text, *((FAILURE, f"misses {text}", error) if threshold in mode.unmet else ())))
    for pair in comparison.pairs_of(mode.mode):
        message = f"{pair.verdict.value}: {describe_difference(pair)}"
        tag = SKIPPED if facts.thresholds else FAILURE  # where there are requirements, they decide
        suite.append(make_case(label, printable(pair.name), *(() if pair.verdict.passed else (tag, message, ""))))
    for leftover in comparison.leftovers_of(mode.mode):
        tag = SKIPPED if facts.thresholds else FAILURE
        name = f"{printable(leftover.name)} (only in the {leftover.side})"
        suite.append(make_case(label, name, tag, "without a partner", ""))
    suite.attrib.update(count_cases(suite))
    ET.SubElement(suite, "system-out").text = summary.headline(comparison)
    return suite
