"""What the reports on training runs say: headlines, where they part, curves, tables."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
from xml.etree import ElementTree as ET

import pytest
from run_builders import (
    CASES,
    comparison,
    facts_of,
    finding,
    run_different,
    run_dumps,
    run_hostile,
    run_identical,
    run_rounding,
    run_several,
    step,
)

from nndiff.facts.run_summary import Curve, CurveKind, Panel, choose_accuracy, choose_loss, draw_curves, fits_log_axis
from nndiff.facts.runs import RunFacts, SignTest, StepMark
from nndiff.reports import ReportOptions, get_report, output, run_wording, summary
from nndiff.reports.run_wording import choose_steps, describe_sign_test, format_cosine, name_step
from nndiff.reports.sparkline import BLOCKS, draw_sparkline
from nndiff.result import Comparison
from nndiff.verdict import Outcome

PLAIN = ReportOptions(width=100, color=False)


@pytest.mark.parametrize(
    ("case", "headline"),
    [
        ("run", "different: the trainings part at epoch 0, batch 10: gradients differ first in layer4.2.bn3.weight"),
        ("run-same", "identical: all 40 steps are bit-identical"),
        ("run-close", "close: all 30 steps agree within tolerance, 4 of them bit-identical"),
        (
            "run-nothing",
            "nothing compared: the runs have no step in common (2 only in the reference, 1 only in the candidate)",
        ),
        ("run-dumps", "different: the trainings part at step 1: the loss differs first"),
        ("run-one", "different: the trainings part at epoch 0, batch 0: weights differ first in fc.bias"),
        (
            "run-leftovers",
            "different: what both have agrees at all 3 steps, 2 tensors (aux.weight first) have no partner",
        ),
        (
            "run-several",
            "different: 2 of 3 candidates part from the reference; runs/b parts from the start: "
            "the weights differ before the first step, farthest in fc.weight",
        ),
    ],
)
def test_headlines(case: str, headline: str) -> None:
    assert summary.headline(CASES[case]()) == headline


def test_a_difference_by_rounding_alone_says_so() -> None:
    assert summary.headline(run_rounding()).startswith("different by rounding only (harmless): the trainings part at")
    assert "look at" not in get_report("terminal").render(run_rounding(), PLAIN)
    both = dataclasses.replace(run_rounding(), findings=(*run_rounding().findings, finding()))
    assert summary.headline(both).startswith("different: ")
    assert summary.headline(dataclasses.replace(both, findings=())).startswith("different: ")
    elsewhere = (dataclasses.replace(run_rounding().findings[0], candidate="another"),)
    assert summary.headline(dataclasses.replace(both, findings=elsewhere)).startswith("different: ")


def test_one_step_and_several_candidates_are_said_in_the_singular_and_plural() -> None:
    one = RunFacts("c", (step(0, 0.0, "c"),), {}, {})
    assert summary.headline(comparison(one, outcome=Outcome.IDENTICAL)) == "identical: the only step is bit-identical"
    runs = [RunFacts(name, (step(0, 0.0, name), step(1, 0.0, name)), {}, {}) for name in "ab"]
    both = comparison(*runs, outcome=Outcome.IDENTICAL)
    assert summary.headline(both) == "identical: all 2 candidates are bit-identical at 4 steps"


def test_findings_stand_right_under_the_headline() -> None:
    lines = get_report("terminal").render(run_different(), PLAIN).splitlines()
    assert lines[2].startswith("  finding    clipping (95% sure)")


def test_what_is_not_recorded_is_said_and_not_claimed_equal() -> None:
    text = get_report("terminal").render(run_dumps(), PLAIN)
    assert "initial weights and data were not recorded" in text
    assert "agree up to here" not in text
    rows = {row[0]: row[1:] for row in run_wording.list_quantities(run_dumps().run[0])}
    assert rows["gradients"] == ("not recorded", "–", "the dumps hold no such tensors")
    assert rows["optimizer state"][:2] == ("never", "never")
    assert rows["weights"][:2] == ("epoch 0, step 0", "step 1")


@pytest.mark.parametrize(
    ("step_mark", "name"),
    [
        (StepMark(-1), "the initial state"),
        (StepMark(7), "step 7"),
        (StepMark(7, 2), "epoch 2, step 7"),
        (StepMark(7, 2, 3), "epoch 2, batch 3"),
        (StepMark(7, None, 3), "step 7"),
    ],
)
def test_names_of_steps(step_mark: StepMark, name: str) -> None:
    assert name_step(step_mark) == name


def test_the_statistics_are_those_of_the_numbers() -> None:
    facts = facts_of()
    curves = {curve.key: curve.spread for curve in draw_curves(facts)}
    distances = [item.groups["all"].l2 for item in facts.steps]
    spread = curves["weights.all.l2"]
    assert spread is not None
    assert spread.mean == pytest.approx(sum(distances) / 40)
    assert (spread.low, spread.high, spread.last) == (0.0, max(distances), distances[-1])
    differences = [abs(cand - ref) for ref, cand in (item.scalars["acc"] for item in facts.steps)]
    apart = curves["acc.difference"]
    assert apart is not None
    assert apart.high == max(differences)


def test_what_is_not_finite_is_left_out_of_the_mean_and_counted() -> None:
    curve = Curve("x", "x", CurveKind.LEVEL, (1.0, math.nan, None, math.inf, 3.0))
    assert curve.spread is not None
    assert (curve.spread.mean, curve.spread.finite, curve.spread.not_finite) == (2.0, 2, 2)
    assert Curve("x", "x", CurveKind.LEVEL, (None,)).spread is None
    equal = Curve("x", "x", CurveKind.COSINE, (1.0,) * 6).spread
    assert equal is not None
    assert equal.mean == 1.0, "six sixths are less than 1 in floating point"
    large = Curve("x", "x", CurveKind.LEVEL, (1.7e308, 1.7e308)).spread
    assert large is not None
    assert math.isfinite(large.mean)


def test_which_scalar_is_the_loss_and_which_the_accuracy() -> None:
    def steps_with(*names: str) -> tuple:  # type: ignore[type-arg]
        return (step(0, 0.0, scalars=dict.fromkeys(names, (1.0, 1.0))),)

    assert choose_loss(steps_with("aux_loss", "loss")) == "loss"
    assert choose_loss(steps_with("lr/0", "Train_Loss", "aux_loss")) == "Train_Loss"
    assert choose_loss(steps_with("lr/0")) is None
    assert choose_accuracy(steps_with("Acc")) == "Acc"
    assert choose_accuracy(steps_with("val", "ACCURACY")) == "ACCURACY"
    assert choose_accuracy(steps_with("vaccine", "top5_acc")) is None


def test_sparklines() -> None:
    rising = Curve("x", "x", CurveKind.LEVEL, tuple(float(number) for number in range(8)))
    assert draw_sparkline(rising, 20) == BLOCKS
    assert draw_sparkline(rising, 4) == "▁▃▅▇"  # means of two, between the limits of all
    decades = Curve("x", "x", CurveKind.DISTANCE, (0.0, 1e-6, 1e-3, 1.0, math.nan, None))
    assert draw_sparkline(decades, 20) == "▁▂▅█×"
    assert draw_sparkline(Curve("x", "x", CurveKind.COSINE, (1.0, 1.0, 0.5, 1.0)), 2) == "█▁"
    assert draw_sparkline(Curve("x", "x", CurveKind.DISTANCE, ()), 5) == ""
    rare = Curve("x", "x", CurveKind.DISTANCE, (1.0, None, None, 2.0, None, None, 3.0))
    assert draw_sparkline(rare, 5) == "▁▅█"  # of a recording of every third step


def test_a_logarithmic_axis_is_for_what_spans_two_decades() -> None:
    assert fits_log_axis([1.0, 299.0])
    assert not fits_log_axis([1.0, 35.0])
    assert not fits_log_axis([-1.0, 1e-9, 1e9])
    assert not fits_log_axis([0.0, 0.0])
    assert not fits_log_axis([])


def test_a_terminal_without_blocks_gets_letters() -> None:
    text = get_report("terminal").render(run_different(), PLAIN)
    shown = output._encode_text(text, "ascii").decode()
    assert "\\u" not in shown
    assert any(line.rstrip().endswith("####") for line in shown.splitlines())


def test_one_side_is_better_only_beyond_chance() -> None:
    for p_value, is_sure in ((3.4e-3, True), (2.9e-2, False)):
        sentence = describe_sign_test(SignTest(3, 17, 2, p_value), "loss")
        assert sentence.startswith("loss is lower in the reference at 3, in the candidate at 17, equal at 2 steps")
        assert ("the candidate is consistently better" in sentence) is is_sure
        assert ("neither side" in sentence) is not is_sure


def test_cosines_near_one_keep_their_digits() -> None:
    assert [format_cosine(value) for value in (1.0, 0.5, 1 - 3e-9, -1.0)] == ["1", "0.500000", "1-3.0e-09", "-1.000000"]


def test_the_steps_worth_a_row_are_among_those_chosen() -> None:
    facts = facts_of()
    for most in (8, 12, 39):
        numbers = [item.mark.number for item in choose_steps(facts, most)]
        assert len(numbers) <= most
        assert numbers == sorted(set(numbers))
        assert {10, 7, 17, 19, 20, 25} <= set(numbers)
    assert len(choose_steps(facts, 40)) == 40
    assert choose_steps(facts, 0) == []


def read_rows(result: Comparison) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(get_report("csv").render(result, PLAIN))))


def test_csv_reads_back() -> None:
    rows = read_rows(run_different())
    assert len(rows) == 40
    row = rows[12]
    item = facts_of().steps[12]
    assert (row["epoch"], row["batch"], row["step"], row["verdict"], row["same_data"]) == (
        "0",
        "12",
        "12",
        "close",
        "true",
    )
    assert float(row["weights.all.l2"]) == item.groups["all"].l2
    assert float(row["weights.buffers.rel_l2"]) == item.groups["buffers"].rel_l2
    assert float(row["gradients.mlp.cosine"]) == item.gradients["mlp"].cosine  # type: ignore[index]
    assert row["optimizer.all.max_abs"] == ""
    reference, candidate = item.scalars["loss"]
    assert (float(row["loss.reference"]), float(row["loss.candidate"])) == (reference, candidate)
    assert float(row["loss.difference"]) == candidate - reference
    assert rows[10]["note"].startswith("first divergence: gradients, farthest out: layer4.2.bn3.weight")
    assert "clipping" in rows[10]["note"]
    assert [number for number, item in enumerate(rows) if item["note"]] == [10]


def test_csv_of_what_is_missing_or_not_finite() -> None:
    rows = read_rows(run_dumps())
    assert [row["batch"] for row in rows] == [""] * 4
    assert rows[2]["train_loss.candidate"] == "nan"
    assert rows[2]["weights.all.l2"] == "inf"
    assert rows[3]["weights.all.l2"] == rows[3]["train_loss.reference"] == ""
    assert [row["candidate"] for row in read_rows(run_several())] == ["runs/a"] * 3 + ["runs/b"] * 3 + ["runs/c"] * 3


def test_csv_starts_no_formula() -> None:
    table = list(csv.reader(io.StringIO(get_report("csv").render(run_hostile(), PLAIN))))
    assert len({len(row) for row in table}) == 1
    for row in table:
        for cell in row:
            assert not cell.startswith(("=", "@", "\t", "\r")), cell


def test_the_page_has_six_panels_with_the_first_divergence_marked() -> None:
    page = get_report("html").render(run_different(), PLAIN)
    assert page.count('class="plot"') == len(Panel)
    assert page.count('<text class="mark"') == len(Panel)
    for panel in Panel:
        assert f"<h3>{panel.value}</h3>" in page
    assert page.count("data-search=") == 40
    assert '<h3>accuracy</h3>\n<p class="soft">no data</p>' in get_report("html").render(run_dumps(), PLAIN)
    assert "first divergence</text>" not in get_report("html").render(run_identical(), PLAIN)


@pytest.mark.parametrize("case", CASES)
def test_every_plot_is_well_formed_and_stays_in_its_frame(case: str) -> None:
    page = get_report("html").render(CASES[case](), PLAIN)
    plots = [ET.fromstring(plot) for plot in re.findall("<svg.*?</svg>", page, re.DOTALL)]
    assert len(plots) <= len(Panel) * len(CASES[case]().run)
    for plot in plots:
        for line in plot.iter("polyline"):
            for point in line.attrib["points"].split():
                x, y = map(float, point.split(","))
                assert 70 <= x <= 550
                assert 22 <= y <= 212


def test_initial_weights_are_marked_at_the_first_step() -> None:
    page = get_report("html").render(run_several(), PLAIN)
    places = re.findall('<line class="mark" x1="([0-9.]+)"', page)
    assert places == ["70.0"] * 6 + ["310.0"] * 6  # of three steps the first, then the second
