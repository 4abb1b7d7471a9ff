"""From pairs to layers: rows, rates, scale, what is shown of many."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nndiff.reports.parting import partings
from nndiff.reports.window import Gap, window
from recording_builders import (
    CANDIDATE,
    FIRST,
    NEAR,
    OK,
    OUT,
    recording,
    recording_deep,
    recording_same,
    recording_several,
    site,
)
from report_builders import metrics

from nndiff import compare, result_json
from nndiff.recording import Writer
from nndiff.reports import ReportOptions, get_report, recording_words, wording
from nndiff.reports.layers import Recorded, Row, in_detail, model_rows, place_of, recorded, worst_gradients
from nndiff.result import Comparison, Finding, Leftover
from nndiff.tolerance import Tolerance


def view(result: Comparison) -> Recorded:
    (only,) = recorded(result)
    return only


def of(*pairs: object, **more: object) -> Recorded:
    made = [replace(each, order=order) for order, each in enumerate(pairs)]  # type: ignore[type-var]
    values: dict[str, object] = {"pairs": tuple(made), "leftovers": (), "first_divergences": {}}
    return view(replace(recording(), **{**values, **more}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "label", "slot"),
    [
        ("a.b:output", "a.b", "output"),
        ("a.b@2:output.0.k", "a.b@2:0.k", "output"),
        ("a:grad_output.0#1", "a:0", "grad_output"),
        ("a:recompute#1", "a:#1", "recompute"),
        ("(model):model_input_grad.x", "(model):x", "model_input_grad"),
        ("(model):output.grad_output", "(model):grad_output", "output"),
        ("a.weight:param_grad", "a.weight", "param_grad"),
        ("plain", "plain", ""),
        ("a:outputs", "a:outputs", ""),
    ],
)
def test_names_tell_places(name: str, label: str, slot: str) -> None:
    place = place_of(name)
    assert (place.label, place.slot) == (label, slot)


@given(st.text(), st.none() | st.text())
def test_any_name_has_a_place(name: str, slot: str | None) -> None:
    assert isinstance(place_of(name, slot).label, str)


def test_forward_and_backward_stand_side_by_side_in_order_of_execution() -> None:
    rows = view(recording()).rows
    assert [row.label for row in rows][:3] == ["embed", "blocks.0.norm", "blocks.0.attn:0"]
    by_label = {row.label: row for row in rows}
    norm = by_label["blocks.1.norm"]
    assert norm.first
    assert [pair.name for pair in norm.pairs] == ["blocks.1.norm:output", "blocks.1.norm:grad_output"]
    assert by_label["embed"].backward is None
    assert sum(row.first for row in rows) == 1


def test_a_gradient_seen_twice_counts_by_its_worst() -> None:
    rows = of(site("a:output"), site("a:grad_output", NEAR, 1e-7), site("a:grad_output#1", OUT, 1.0)).rows
    assert len(rows) == 1
    assert rows[0].backward is not None
    assert rows[0].backward.verdict is OUT


def test_gradients_alone_make_rows() -> None:
    assert [row.label for row in of(site("b:grad_output"), site("a:grad_output")).rows] == ["b", "a"]


def test_a_layer_of_several_outputs_is_one_and_matches_if_all_do() -> None:
    forward, *_ = of(site("a:output.0"), site("a:output.1", OUT, 1.0), site("b:output")).rates
    assert (forward.name, forward.matched, forward.total, forward.percent) == ("forward", 1, 2, "50.00%")


def test_a_rate_is_never_rounded_up_to_all() -> None:
    many = [site(f"a.{index}:output") for index in range(100_000)]
    forward, *_ = of(*many, site("b:output", OUT, 1.0)).rates
    assert forward.percent == "99.99%"


def test_only_in_one_side_counts_layers_without_a_partner() -> None:
    label = recording().candidates[0].label
    names = ["a:output.1", "b:output", "b:grad_output", "b.weight:param_grad", "c@1:output"]
    left = tuple(Leftover(label, "reference", name, (), "float32", counts=False) for name in names)
    seen = of(site("a:output.0"), leftovers=left)
    assert (seen.common, seen.only_in("reference"), seen.only_in("candidate")) == (1, 2, 0)


def test_the_final_output() -> None:
    assert of(site("a:output")).outputs_match is None
    assert of(site("(model):output"), site("a:output", OUT, 1.0)).outputs_match is True
    assert of(site("(model):output.0"), site("(model)@1:output.0", OUT, 1.0)).outputs_match is False
    label = recording().candidates[0].label
    alone = Leftover(label, "candidate", "(model):output.aux", (), "float32")
    assert of(site("(model):output.0"), leftovers=(alone,)).outputs_match is False


def test_noise_is_measured_by_the_scale_of_all_gradients() -> None:
    seen = view(recording())
    assert seen.scale == 0.31
    ranked = worst_gradients(seen)
    assert ranked[0].name == "embed.weight:param_grad"
    noise = next(pair for pair in ranked if "linear_k.bias" in pair.name)
    assert seen.of_scale(noise) == pytest.approx(2e-9 / 0.31)
    for name in ("terminal", "md"):
        text = get_report(name).render(recording(), ReportOptions(width=200, color=False, verbose=True))
        assert "linear_k.bias" in text
        assert "1.500e+04" not in text
        assert "max rel" not in text


def test_a_scale_without_numbers_is_none() -> None:
    nothing = of(site("a.w:param_grad", metrics=metrics(ref_min=float("nan"), ref_max=float("inf"))))
    assert nothing.scale == 0.0
    assert nothing.of_scale(nothing.gradients[0]) is None


def test_each_candidate_is_shown_alone() -> None:
    one, other, late = recorded(recording_several())
    assert len(one.rows) == 13
    assert [row.label for row in other.rows] == ["fc", "(model)"]
    assert (one.first, other.first, late.first) == ("blocks.1.norm:output", None, "fc:output")


@pytest.mark.parametrize("name", ["terminal", "md", "html"])
def test_each_candidate_has_its_first_divergence(name: str, tmp_path: Path) -> None:
    recording_several().save(tmp_path / "x.json")
    for result in (recording_several(), result_json.load(tmp_path / "x.json")):
        text = get_report(name).render(result, ReportOptions(width=200, color=False))
        before, _, after = text.partition("against port.nnrec")
        assert "blocks.1.norm:output" in before.splitlines()[-1]
        assert "fc:output" in after.partition("against late.nnrec")[0].splitlines()[-1]


@pytest.mark.parametrize("name", ["terminal", "md"])
@pytest.mark.parametrize("top", [0, 1])
def test_the_final_output_and_the_loss_are_always_seen(name: str, top: int) -> None:
    text = get_report(name).render(recording(), ReportOptions(width=100, color=False, top=top))
    assert "final output logits" in text
    assert any("loss" in line and "close" in line for line in text.splitlines())


def test_of_very_many_outputs_the_worst_are_seen() -> None:
    many = [site(f"(model):output.{number}", *((OUT, 1.0) if number == 70 else (OK, 0.0))) for number in range(90)]
    shown = model_rows(of(site("(model):model_input.0"), site("(model):model_input.1"), *many, site("(model):loss")), 1)
    assert [pair.name for pair in shown][:2] == ["(model):model_input.0", "(model):output.0"]
    assert {"(model):output.70", "(model):loss"} <= {pair.name for pair in shown}
    assert len(shown) == 21


def test_details_begin_where_the_runs_part() -> None:
    assert in_detail(view(recording()), 2)[0][0].name == "blocks.1.norm:output"
    assert in_detail(view(recording_same()), 5) == ([], "")


@pytest.mark.parametrize("name", ["terminal", "md"])
@pytest.mark.parametrize(
    ("top", "verbose", "said"),
    [
        (20, False, "and 11 more; --verbose shows them"),
        (14, False, "and 11 more; --verbose shows them"),
        (5, False, "and 11 more; --verbose --top 14 shows them"),
        (5, True, "and 9 more; --top 14 shows them"),
        (14, True, ""),
    ],
)
def test_details_say_how_many_more_there_are(name: str, top: int, verbose: bool, said: str) -> None:
    pairs = [site(f"fc{number}:output", OUT, 1.0) for number in range(14)]
    many = replace(recording(), pairs=tuple(pairs), leftovers=(), first_divergences={}, findings=())
    text = get_report(name).render(many, ReportOptions(width=100, color=False, top=top, verbose=verbose))
    details = text.partition("mismatched layers in detail")[2]
    assert [line.strip() for line in details.splitlines() if "shows them" in line] == ([said] if said else [])


@pytest.mark.parametrize("most", [1, 2, 5, 20, 999])
def test_a_window_of_many_layers(most: int) -> None:
    rows = view(recording_deep()).rows
    shown = window(rows, most)
    kept = [each for each in shown if isinstance(each, Row)]
    gaps = [each for each in shown if isinstance(each, Gap)]
    assert any(row.first for row in kept)
    assert min(most, 503) <= len(kept) <= 2 * most + 1  # those that differ and three before them
    assert len(kept) + sum(len(gap.rows) for gap in gaps) == 1000
    flat = [row for each in shown for row in (each.rows if isinstance(each, Gap) else (each,))]
    assert flat == list(rows)


def test_a_window_of_few_layers_is_all() -> None:
    rows = view(recording()).rows
    assert window(rows, len(rows)) == list(rows)


def test_a_gap_says_how_its_layers_fared() -> None:
    gap = Gap(of(site("a:output", NEAR, 1e-7), site("b:output", OUT, 2.0), site("c:output", OUT, 3.0)).rows)
    side = gap.side("forward")
    assert side is not None
    assert (side.worst, side.failing, side.max_abs) == (OUT, 2, 3.0)
    assert gap.side("backward") is None


def test_a_thousand_layers_stay_readable() -> None:
    text = get_report("terminal").render(recording_deep(), ReportOptions(width=100, color=False))
    assert len(text.splitlines()) < 70
    assert "▶  layers.500" in text
    every = get_report("terminal").render(recording_deep(), ReportOptions(width=100, color=False, verbose=True))
    assert every.count("\n     layers.") == 999


@pytest.mark.parametrize("after", ["x:output", ""])
@pytest.mark.parametrize("before", ["y:output", ""])
def test_between_which_inner_calls(after: str, before: str) -> None:
    first = {**FIRST, "after": after, "before": before}
    (found,) = partings(replace(recording(), first_divergences={CANDIDATE: first}))
    assert all(part in found.fact("between") for part in (after, before))
    assert bool(found.fact("between")) == bool(after or before)


@given(
    st.dictionaries(
        st.sampled_from(
            ("name", "class", "source", "attributes", "max_abs", "after", "inputs", "why", "candidate_name")
        ),
        st.none() | st.text() | st.floats() | st.lists(st.text() | st.none(), max_size=3) | st.booleans(),
    )
)
def test_any_first_divergence_can_be_said(found: dict[str, object]) -> None:
    (said,) = partings(replace(recording(), first_divergences={CANDIDATE: found}))
    assert said.name


def record(path: Path, wrong: float, where: int = 1) -> None:
    """Write what a model of three layers might leave behind; `wrong` is added at one of them."""
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    with Writer(path, {"mode": "eval", "seed": 1}) as writer:
        writer.add("", "model_input", (x,))
        for index in range(3):
            x = np.tanh(x * np.float32(1.5)) + np.float32(wrong if index == where else 0)
            writer.add(f"layers.{index}", "output", x, cls="Tanh")
        writer.add("", "output", {"logits": x}, cls="Net")
        for index in (2, 1, 0):
            writer.add(f"layers.{index}", "grad_output", x * np.float32(1e-3), phase="backward")


def test_two_written_recordings(tmp_path: Path) -> None:
    record(tmp_path / "a.nnrec", 0.0)
    record(tmp_path / "b.nnrec", 0.25)
    result = compare(tmp_path / "a.nnrec", tmp_path / "b.nnrec")
    text = get_report("terminal").render(result, ReportOptions(width=100, color=False))
    assert "▶ first at layers.1:output  Tanh, max abs 2.500e-01" in text
    assert "forward    1 of 4 layers match, 25.00%" in text
    assert "backward   0 of 3 layers match, 0.00%" in text
    assert "✗ the first to differ is layers.1:output" in text
    same = compare(tmp_path / "a.nnrec", tmp_path / "a.nnrec")
    text = get_report("terminal").render(same, ReportOptions(width=100, color=False))
    assert text.endswith("  ✓ all outputs match, bit for bit\n")
    assert OK.value in text


def test_several_recordings_part_each_at_its_place(tmp_path: Path) -> None:
    record(tmp_path / "ref.nnrec", 0.0)
    for where in range(3):
        record(tmp_path / f"{where}.nnrec", 1e-3, where)
    result = compare(*(tmp_path / name for name in ("ref.nnrec", "2.nnrec", "ref.nnrec", "0.nnrec")))
    result.save(tmp_path / "x.json")
    for each in (result, result_json.load(tmp_path / "x.json")):
        firsts = [each.first_divergences.get(side.label, {}).get("name") for side in each.candidates]
        assert firsts == ["layers.2:output", None, "layers.0:output"]
    data = json.loads((tmp_path / "x.json").read_text())
    assert [side["first_divergence"] and side["first_divergence"]["name"] for side in data["candidates"]] == firsts
    assert data["first_divergence"]["name"] == "layers.2:output"


def test_judged_again_a_place_stays_the_first_only_if_none_before_it_fails_now(tmp_path: Path) -> None:
    for name, wrong, then in (("ref.nnrec", 0.0, 0.0), ("cand.nnrec", 1e-6, 0.25)):
        with Writer(tmp_path / name) as writer:
            for index, far in enumerate((wrong, then)):
                writer.add(f"layers.{index}", "output", np.full(4, 1 + far, np.float32))
    result = compare(tmp_path / "ref.nnrec", tmp_path / "cand.nnrec")
    assert (result.first_divergence or {})["name"] == "layers.1:output"
    assert result.judged_at(Tolerance(1e-4, 1e-4)).first_divergence == result.first_divergence
    smaller = result.judged_at(Tolerance(0.0, 0.0)).first_divergence or {}
    assert (smaller["name"], "saved result does not tell" in smaller["why"]) == ("layers.0:output", True)
    assert result.judged_at(Tolerance(1.0, 1.0)).first_divergence is None


def cut(path: Path, events: int) -> None:
    """Leave of a recording what a kill would have left: so many events, and a manifest that says so."""
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "complete": False}))
    lines = (path / "events.jsonl").read_text().splitlines(keepends=True)
    (path / "events.jsonl").write_text("".join(lines[:events]))


def cut_pair(tmp_path: Path, *events: int) -> Comparison:
    """Return the comparison of a recording with its copy, the copy cut off, or both."""
    for name, most in zip(("cand.nnrec", "ref.nnrec"), (*events, None), strict=False):
        record(tmp_path / name, 0.0)
        if most is not None:
            cut(tmp_path / name, most)
    return compare(tmp_path / "ref.nnrec", tmp_path / "cand.nnrec")


def test_a_recording_that_was_cut_off_is_no_pass_and_the_rest_is_counted(tmp_path: Path) -> None:
    result = cut_pair(tmp_path, 3)  # the input and two layers; one layer, the output and three gradients were to come
    assert (result.verdict, result.exit_code, result.totals.unreached) == ("different", 1, 5)
    assert result.totals.match_rate == 3 / 8
    assert all(left.counts and left.unreached for left in result.leftovers)
    text = get_report("terminal").render(result, ReportOptions(width=120, color=False))
    assert "✗ different: all 3 paired tensors agree, 5 never reached: the recording was cut off (exit 1)" in text
    assert "cut off    5 sites of the reference were never reached" in text
    assert "layers     2 common, 2 only in the reference, 0 only in the candidate" in text
    assert "forward    2 of 4 layers match, 50.00% (2 never reached)" in text
    assert "output     the final output was never reached" in text
    for name in ("md", "html", "csv", "junit"):
        assert "never reached" in get_report(name).render(result, ReportOptions())
    data = json.loads(result_json.dumps(result))
    assert (data["totals"]["unreached"], data["recording"]["unreached"]) == (5, 5)
    assert result_json.from_dict(data).verdict == "different"


def test_a_reference_that_was_cut_off_is_no_pass_either(tmp_path: Path) -> None:
    cut_pair(tmp_path, 3)
    result = compare(tmp_path / "cand.nnrec", tmp_path / "ref.nnrec")
    assert (result.exit_code, result.totals.unreached) == (1, 5)
    assert {left.side for left in result.leftovers} == {"candidate"}


def test_two_that_were_cut_off_alike_are_no_pass(tmp_path: Path) -> None:
    result = cut_pair(tmp_path, 4, 4)
    assert (result.exit_code, result.needed_tolerance, result.totals.unreached) == (1, None, 0)
    text = get_report("terminal").render(result, ReportOptions(width=120, color=False))
    assert "✗ different: all 4 paired tensors agree, both recordings were cut off (exit 1)" in text
    assert result_json.from_dict(json.loads(result_json.dumps(result))).exit_code == 1


def test_a_recording_that_seems_to_have_lost_nothing_but_its_end_is_no_pass(tmp_path: Path) -> None:
    result = cut_pair(tmp_path, 99)
    assert (result.verdict, result.needed_tolerance) == ("different", None)
    assert wording.headline(result).endswith("agree, a recording was cut off")


@pytest.mark.parametrize(
    ("slot", "said"),
    [
        ("buffer_before", "initial: 1 of 2 initial buffers match, 50.00%"),
        ("model_input_grad", "input grad: 1 of 2 input gradients match, 50.00%"),
        ("recompute", "recompute: 1 of 2 recomputed outputs match, 50.00%"),
        ("hidden", "hidden: 1 of 2 hidden tensors match, 50.00%"),
        ("a_slot_of_another_writer", "other: 1 of 2 a_slot_of_another_writer tensors match, 50.00%"),
    ],
)
def test_rates_are_named_whole(slot: str, said: str) -> None:
    made = [replace(site(f"{name}:{slot}", verdict), slot=slot) for name, verdict in (("a", OK), ("b", OUT))]
    (rate,) = [each for each in of(*made).rates if each.name == slot]
    assert f"{recording_words.rate_label(rate)}: {recording_words.rate_text(rate)}" == said


@pytest.mark.parametrize("width", [60, 100])
def test_the_names_in_a_finding_wrap_and_are_not_cut(width: int) -> None:
    names = [f"resnet.encoder.stages.{number}.layers.0.layer.0.shortcut.normalization:output" for number in range(3)]
    finding = Finding("norms-only", tuple(names), "evidence", "repair", 0.8)
    text = get_report("terminal").render(replace(recording(), findings=(finding,)), ReportOptions(width=width))
    assert all(name in "".join(text.split()) for name in names)
    assert width < 100 or all(name in text for name in names)  # none is broken that fits a line
