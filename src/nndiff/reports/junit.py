"""The result as JUnit XML, for continuous integration: one testcase per pair and per leftover.

Version 1: the first. One testsuite per candidate. A pair that is out is a failure; a pair that could not be
compared, or a candidate with which nothing was compared, is an error: no suite passes that did not compare.
Version 1.1: tensors of modules that only one of two recordings has are skipped: listed, no difference.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from nndiff.reports import ReportOptions, nothing, wording
from nndiff.result import Comparison, Leftover, Pair
from nndiff.text import printable
from nndiff.verdict import Outcome, Verdict


class JunitReport:
    """Render every pair and leftover as a testcase."""

    name = "junit"

    def render(self, comparison: Comparison, options: ReportOptions) -> str:
        """Return the whole document."""
        suites = [_suite(wording.part_of(comparison, side)) for side in comparison.candidates]
        root = ET.Element("testsuites", {"name": "nndiff", **_counts(*suites)})
        root.extend(suites or [_suite(comparison)])
        if not suites:
            root.attrib.update(_counts(*root))
        ET.indent(root)
        return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _suite(part: Comparison) -> ET.Element:
    label = printable(wording.side_name((part.candidates or (part.reference,))[0]))
    suite = ET.Element("testsuite", {"name": label})
    suite.append(_properties(part))
    for pair in part.pairs:
        suite.append(_case(label, _pair_name(pair), _pair_trouble(pair)))
    for left in part.leftovers:
        where = f"only in the {left.side}"
        suite.append(_case(label, f"{printable(left.name)} ({where})", _leftover_trouble(left, where)))
    for told in nothing.unread(part):
        suite.append(_case(label, f"{told.partition(' is ')[0]} was compared", ("error", "not compared", told)))
    if part.outcome is Outcome.NOTHING:
        suite.append(_case(label, "something was compared", ("error", "nothing compared", wording.headline(part))))
    suite.attrib.update(_counts(suite))
    ET.SubElement(suite, "system-out").text = wording.headline(part)
    return suite


def _counts(*elements: ET.Element) -> dict[str, str]:
    def total(tag: str) -> str:
        return str(sum(len(element.findall(f".//{tag}")) for element in elements))

    return {"tests": total("testcase"), "failures": total("failure"), "errors": total("error"), "time": "0"}


def _properties(part: Comparison) -> ET.Element:
    properties = ET.Element("properties")
    facts = {
        "reference": printable(wording.side_name(part.reference)),
        "tolerance": wording.tolerance(part),
        "verdict": part.verdict,
        "format": "nndiff.junit 1.1",
    }
    for name, value in facts.items():
        ET.SubElement(properties, "property", {"name": f"nndiff.{name}", "value": value})
    return properties


def _case(classname: str, name: str, trouble: tuple[str, str, str] | None) -> ET.Element:
    case = ET.Element("testcase", {"classname": classname, "name": name, "time": "0"})
    if trouble:
        tag, message, detail = trouble
        facts = {"message": message} if tag == "skipped" else {"message": message, "type": tag}
        ET.SubElement(case, tag, facts).text = detail
    return case


def _pair_name(pair: Pair) -> str:
    said = pair.slot is None or f":{pair.slot}" in pair.name  # the names of recordings tell the slot
    return printable(pair.name if said else f"{pair.name} {pair.slot}")


def _pair_trouble(pair: Pair) -> tuple[str, str, str] | None:
    if pair.verdict.passed:
        return None
    tag = "error" if pair.verdict is Verdict.NOT_COMPARED else "failure"
    return tag, f"{pair.verdict.value}: {_message(pair)}", "\n".join(_details(pair))


def _message(pair: Pair) -> str:
    if pair.verdict is Verdict.SHAPE:
        return wording.both(*map(wording.shape, pair.shape))
    if pair.metrics is None:
        return printable(pair.note) or "no numbers"
    out = f"{wording.mismatched(pair)} of {wording.plural(pair.metrics.count, 'element')} out"
    relative = wording.relative(pair)
    worst = f"max abs {wording.number(wording.measured(pair, 'max_abs'))}"
    worst += f", max rel {wording.number(relative)}" if relative is not None else ""
    return f"{worst}, {out} of atol {wording.short(pair.atol)}, rtol {wording.short(pair.rtol)}"


def _details(pair: Pair) -> list[str]:
    facts = [
        ("reference", f"{printable(pair.reference_name)} {wording.shape(pair.shape[0])} {printable(pair.dtype[0])}"),
        ("candidate", f"{printable(pair.candidate_name)} {wording.shape(pair.shape[1])} {printable(pair.dtype[1])}"),
        ("matched by", printable(pair.matched_by)),
    ]
    if pair.metrics:
        facts += [(name, repr(getattr(pair.metrics, name))) for name in ("max_abs", "max_abs_index", "max_rel", "rmse")]
    if pair.note:
        facts.append(("note", printable(pair.note)))
    return [f"{name}: {value}" for name, value in facts]


def _leftover_trouble(left: Leftover, where: str) -> tuple[str, str, str]:
    detail = f"{wording.shape(left.shape)} {printable(left.dtype)}"
    tag = "failure" if left.counts else "skipped"
    hint = "never reached: the other recording was cut off" if left.unreached else printable(left.hint)
    return tag, f"{where}{f': {hint}' if hint else ''}", detail
