"""From pairs to layers: rows, rates, scale, what is shown of many."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from recording_builders import (
    NEAR,
    OK,
    OUT,
    alone,
    parse_site,
    recording,
    recording_deep,
    recording_of,
    recording_same,
    recording_several,
    site,
)
from report_builders import load_relation, metrics

from nndiff import result_json
from nndiff.reports import ReportOptions, get_report, summary
from nndiff.reports.layers import (
    Gap,
    RecordingView,
    Row,
    choose_details,
    choose_model_rows,
    choose_rows,
    label_site,
    rank_gradients,
    view_recordings,
)
from nndiff.result import CANDIDATE, REFERENCE, Comparison, Finding, LeftoverReason, Pair


def view(result: Comparison) -> RecordingView:
    (only,) = view_recordings(result)
    return only


def of(*pairs: Pair, **more: object) -> RecordingView:
    return view(recording_of(*pairs, **more))


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("a.b:output", "a.b"),
        ("a.b@2:output.0.k", "a.b@2:0.k"),
        ("a:grad_output.0#1", "a:0"),
        ("(model):model_input_grad.x", "(model):x"),
        ("(model):output.grad_output", "(model):grad_output"),
        ("a.weight:param_grad", "a.weight"),
    ],
)
def test_sites_have_labels_without_their_slot(name: str, label: str) -> None:
    assert parse_site(name).name == name
    assert label_site(parse_site(name)) == label


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
    forward, *_ = of(site("a:output.0"), site("a:output.1", OUT, 1.0), site("b:output")).counts.rates
    assert (forward.name, forward.matched, forward.total) == ("forward", 1, 2)


def test_a_rate_is_never_rounded_up_to_all() -> None:
    many = [site(f"a.{index}:output") for index in range(30_000)]
    forward, *_ = of(*many, site("b:output", OUT, 1.0)).counts.rates
    assert "30,000 of 30,001 layers match, 99.99%" in summary.describe_rate(forward)


def test_only_in_one_side_counts_layers_without_a_partner() -> None:
    names = ["a:output.1", "b:output", "b:grad_output", "b.weight:param_grad", "c@1:output"]
    leftovers = tuple(alone(REFERENCE, name, LeftoverReason.INNER) for name in names)
    counts = of(site("a:output.0"), leftovers=leftovers).counts
    assert (counts.common_layers, counts.layers_only_in) == (1, {REFERENCE: 2, CANDIDATE: 0})


def test_the_final_output() -> None:
    assert of(site("a:output")).counts.outputs_agree is None
    assert of(site("(model):output"), site("a:output", OUT, 1.0)).counts.outputs_agree is True
    assert of(site("(model):output.0"), site("(model)@1:output.0", OUT, 1.0)).counts.outputs_agree is False
    lost = alone(REFERENCE, "(model):output.aux")
    assert of(site("(model):output.0"), leftovers=(lost,)).counts.outputs_agree is False
    extra = alone(CANDIDATE, "(model):output.aux", LeftoverReason.EXTRA_OUTPUT)
    assert of(site("(model):output.0"), leftovers=(extra,)).counts.outputs_agree is True
    unreached = alone(CANDIDATE, "(model):output.aux", LeftoverReason.UNREACHED)
    assert of(site("(model):output.0"), leftovers=(unreached,)).counts.outputs_agree is None


def test_gradients_that_one_side_lacks_are_missing() -> None:
    leftovers = (alone(REFERENCE, "b.weight:param_grad"), alone(REFERENCE, "c:grad_output", LeftoverReason.INNER))
    (rate,) = of(site("a.weight:param_grad"), leftovers=leftovers).counts.rates
    assert summary.describe_rate(rate) == "1 of 2 parameter gradients matches, 50.00% (1 missing on one side)"


def test_noise_is_measured_by_the_scale_of_all_gradients() -> None:
    seen = view(recording())
    assert seen.counts.gradient_scale == 0.31
    ranked = rank_gradients(seen)
    assert ranked[0].name == "embed.weight:param_grad"
    noise = next(pair for pair in ranked if "linear_k.bias" in pair.name)
    assert seen.share_of_scale(noise) == pytest.approx(2e-9 / 0.31)
    for name in ("terminal", "md"):
        text = get_report(name).render(recording(), ReportOptions(width=200, color=False, verbose=True))
        assert "linear_k.bias" in text
        assert "1.500e+04" not in text
        assert "max rel" not in text


def test_a_scale_without_numbers_is_none() -> None:
    nothing = of(site("a.w:param_grad", metrics=metrics(ref_min=float("nan"), ref_max=float("inf"))))
    assert nothing.counts.gradient_scale == 0.0
    assert nothing.share_of_scale(nothing.parameter_gradients[0]) is None


def test_each_candidate_is_shown_alone() -> None:
    one, other, late = view_recordings(recording_several())
    assert len(one.rows) == 14
    assert [row.label for row in other.rows] == ["fc", "(model)"]
    assert [each.first and each.first.name for each in (one, other, late)] == [
        "blocks.1.norm:output",
        None,
        "fc:output",
    ]


@pytest.mark.parametrize("name", ["terminal", "md", "html"])
def test_each_candidate_has_its_first_divergence(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(result_json.dumps(recording_several()))
    for result in (recording_several(), result_json.load(tmp_path / "x.json", load_relation)):
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
    shown = choose_model_rows(
        of(site("(model):model_input.0"), site("(model):model_input.1"), *many, site("(model):loss")), 1
    )
    assert [pair.name for pair in shown][:2] == ["(model):model_input.0", "(model):output.0"]
    assert {"(model):output.70", "(model):loss"} <= {pair.name for pair in shown}
    assert len(shown) == 21


def test_details_begin_where_the_runs_part() -> None:
    assert choose_details(view(recording()), 2)[0][0].name == "blocks.1.norm:output"
    assert choose_details(view(recording_same()), 5) == ([], "")


@pytest.mark.parametrize("name", ["terminal", "md"])
@pytest.mark.parametrize(
    ("top", "verbose", "said"),
    [
        (20, False, "11 more: use --verbose"),
        (14, False, "11 more: use --verbose"),
        (5, False, "11 more: use --verbose --top 14"),
        (5, True, "9 more: use --top 14"),
        (14, True, ""),
    ],
)
def test_details_say_how_many_more_there_are(name: str, top: int, verbose: bool, said: str) -> None:
    pairs = [site(f"fc{number}:output", OUT, 1.0) for number in range(14)]
    many = recording_of(*pairs)
    text = get_report(name).render(many, ReportOptions(width=100, color=False, top=top, verbose=verbose))
    details = text.partition("mismatched layers in detail")[2]
    assert [line.strip() for line in details.splitlines() if "more: use" in line] == ([said] if said else [])


@pytest.mark.parametrize("most", [1, 2, 5, 20, 999])
def test_a_window_of_many_layers(most: int) -> None:
    rows = view(recording_deep()).rows
    shown = choose_rows(rows, most)
    kept = [each for each in shown if isinstance(each, Row)]
    gaps = [each for each in shown if isinstance(each, Gap)]
    assert any(row.first for row in kept)
    assert min(most, 503) <= len(kept) <= 2 * most + 1  # those that differ and three before them
    assert len(kept) + sum(len(gap.rows) for gap in gaps) == 1000
    flat = [row for each in shown for row in (each.rows if isinstance(each, Gap) else (each,))]
    assert flat == list(rows)


def test_a_window_of_few_layers_is_all() -> None:
    rows = view(recording()).rows
    assert choose_rows(rows, len(rows)) == list(rows)


def test_a_gap_says_how_its_layers_fared() -> None:
    gap = Gap(of(site("a:output", NEAR, 1e-7), site("b:output", OUT, 2.0), site("c:output", OUT, 3.0)).rows)
    side = gap.forward
    assert side is not None
    assert (side.worst, side.failing, side.max_abs) == (OUT, 2, 3.0)
    assert gap.backward is None


def test_a_thousand_layers_stay_readable() -> None:
    text = get_report("terminal").render(recording_deep(), ReportOptions(width=100, color=False))
    assert len(text.splitlines()) < 70
    assert "▶  layers.500" in text
    every = get_report("terminal").render(recording_deep(), ReportOptions(width=100, color=False, verbose=True))
    assert every.count("\n     layers.") == 999


@pytest.mark.parametrize(
    ("slot", "said"),
    [
        ("buffer_before", "initial: 1 of 2 initial buffers matches, 50.00%"),
        ("model_input_grad", "input grad: 1 of 2 input gradients matches, 50.00%"),
        ("recompute", "recompute: 1 of 2 recomputed outputs matches, 50.00%"),
        ("grad_input", "grad input: 1 of 2 gradients matches, 50.00%"),
    ],
)
def test_rates_are_named_whole(slot: str, said: str) -> None:
    pairs = [site(f"{name}.x:{slot}", verdict) for name, verdict in (("a", OK), ("b", OUT))]
    (rate,) = of(*pairs).counts.rates
    assert f"{summary.label_rate(rate)}: {summary.describe_rate(rate)}" == said


@pytest.mark.parametrize("width", [60, 100])
def test_the_names_in_a_finding_wrap_and_are_not_cut(width: int) -> None:
    names = [f"resnet.encoder.stages.{number}.layers.0.layer.0.shortcut.normalization:output" for number in range(3)]
    finding = Finding("norms-only", tuple(names), "evidence", "repair", 0.8)
    text = get_report("terminal").render(replace(recording(), findings=(finding,)), ReportOptions(width=width))
    assert all(name in "".join(text.split()) for name in names)
    assert width < 100 or all(name in text for name in names)  # none is broken that fits a line
