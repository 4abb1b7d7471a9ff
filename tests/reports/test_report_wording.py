"""What all reports say in the same words: shares, numbers that are not there, the order of rows, damage."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recording_builders import (
    FIRST,
    OUT,
    PORT,
    alone,
    make_pairs,
    recording,
    recording_extra,
    recording_of,
    recording_several,
    site,
)
from report_builders import comparison, leftover, load_relation, metrics, mixed, pair, related, same, side

from nndiff import result_json
from nndiff.errors import ReportError
from nndiff.reports import FORMATS, ReportOptions, get_report, summary, wording
from nndiff.reports.figures import format_percent
from nndiff.result import (
    CANDIDATE,
    REFERENCE,
    Comparison,
    Finding,
    LeftoverReason,
    Method,
    Note,
    NoteSlug,
    OwnError,
    PartingReason,
    Rules,
    WeightsAtSite,
)
from nndiff.tensors import Slot
from nndiff.tolerance import Override, Tolerance
from nndiff.verdict import EXTRA_OUTPUTS, Judge, RelationKind, Verdict

DOCUMENTS = ("terminal", "md", "html")


def render(name: str, result: Comparison, width: int = 100) -> str:
    return get_report(name).render(result, ReportOptions(width=width, color=False))


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [
        (2, 3, "66.67%"),
        (1, 3, "33.33%"),
        (0, 0, "0.00%"),
        (0, 5, "0.00%"),
        (5, 5, "100.00%"),
        (999_999, 1_000_000, "99.99%"),
        (1, 1_000_000, "0.01%"),
    ],
)
def test_a_share_is_rounded_and_only_all_is_a_hundred(part: int, whole: int, said: str) -> None:
    assert format_percent(part, whole) == said


def _not_finite(apart: float) -> Comparison:
    numbers = metrics(bad=2, apart=apart, nonfinite_cand=2, nonfinite_unequal=2, needed_tolerance=math.inf)
    return comparison(pair("a.weight", Verdict.NOT_FINITE, metrics=numbers))


@pytest.mark.parametrize("name", ["terminal", "md", "html"])
def test_what_is_not_finite_has_no_difference_of_zero(name: str) -> None:
    def row(apart: float) -> list[str]:
        text = get_report(name).render(_not_finite(apart), ReportOptions(width=120, color=False))
        line = next(line for line in text.splitlines() if "a.weight" in line and "✗" in line)
        line = re.sub("<dl>.*</dl>", "", line)  # the page folds the plain counts away there
        return line.replace("|", " ").replace("<", " <").replace(">", "> ").split()

    assert "0" not in row(0.0)
    assert row(0.0).count("–") >= 2
    assert "5.000e-01" in row(0.5)


def test_counters_come_after_what_is_trained() -> None:
    counter = metrics(count=1, bad=1, apart=2.0, max_rel=math.inf)
    pairs = (
        pair("bn.num_batches_tracked", Verdict.DIFFERENT, dtype=("int64", "int64"), metrics=counter),
        pair("bn.weight", Verdict.DIFFERENT, 0.1),
        pair("close", Verdict.CLOSE, 1e-6),
    )
    wanted = ["bn.weight", "bn.num_batches_tracked", "close"]
    assert [each.name for each in comparison(*pairs).worst()] == wanted
    assert [each.name for each in wording.rank_pairs(pairs)] == wanted


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda data: data.pop("kind"), "'kind' is missing"),
        (lambda data: data["pairs"][0].update(order="x"), "a value has the wrong type"),
        (lambda data: data["pairs"][0].update(certain=5), "'certain' has the wrong type"),
        (lambda data: data["pairs"][0].update(method="magic"), "'magic' is not a known Method"),
        (lambda data: data["leftovers"][0].update(reason="x"), "'x' is not a known LeftoverReason"),
        (lambda data: data["notes"][0].update(slug="x"), "'x' is not a known NoteSlug"),
        (lambda data: data["judgements"].clear(), "there is no judgement of 'cand.ckpt'"),
        (lambda data: data["tolerance"].update(atol="much"), "atol must be a finite number"),
    ],
)
def test_damage_is_told_without_python(harm: Callable[[Any], object], said: str, tmp_path: Path) -> None:
    data = result_json.to_dict(mixed())
    harm(data)
    (tmp_path / "x.json").write_text(json.dumps(data))
    with pytest.raises(ReportError, match=said) as caught:
        result_json.load(tmp_path / "x.json", load_relation)
    assert "Error" not in str(caught.value)


def test_what_is_too_small_to_be_judged_is_told() -> None:
    tiny = metrics(apart=1e-6, rel_l2=1.0, ref_min=0.0, ref_max=1e-6, cand_min=0.0, cand_max=0.0)
    result = comparison(pair("a", Verdict.CLOSE, metrics=tiny), pair("b", Verdict.CLOSE, 1e-6))
    notes = [note for note in summary.list_notes(result) if "atol" in note]
    assert notes == ["1 tensor (a) is smaller than atol, so it passes with any values: lower --atol to judge"]
    assert not list(summary.list_notes(comparison(pair("b", Verdict.CLOSE, 1e-6))))


# -- headline ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        (["a:output", "(model):output"], "identical: outputs are identical; the only layer agrees inside"),
        (["a:output ≈", "b:output", "(model):output ≈"], "close: outputs agree; both layers agree inside"),
        (["a:output ✗", "b:output", "(model):output ≈"], "different: outputs agree; 1 of 2 layers differs inside"),
        (
            ["a:output ✗", "b:output ✗", "(model):output ✗"],
            "different: the output differs; 2 of 2 layers differ inside",
        ),
        (
            ["(model):model_input.0 ✗", "(model):model_input.1", "(model):output.0 ✗", "(model):output.1"],
            "different: 1 of 2 model inputs differs; 1 of 2 outputs differs",
        ),
        (["a:output", "(model):output", "(model):loss ✗"], "outputs are identical; the loss differs; the only layer"),
        (
            ["a:output", "(model):output", "a.weight:param_grad ✗", "a.bias:param_grad"],
            "the only layer agrees inside; 1 of 2 parameter gradients differs",
        ),
        (["a:output", "(model):output", "a.mean:buffer ✗"], "the only layer agrees inside; the buffer differs"),
    ],
)
def test_the_headline_of_a_recording_says_outside_and_inside_apart(pairs: list[str], said: str) -> None:
    verdicts = {"": (Verdict.IDENTICAL, 0.0), "≈": (Verdict.CLOSE, 1e-7), "✗": (OUT, 0.5)}
    made = []
    for text in pairs:
        name, _, sign = text.partition(" ")
        made.append(site(name, *verdicts[sign]))
    assert said in summary.headline(recording_of(*made))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_first_divergence_and_findings_stand_directly_under_the_headline(name: str) -> None:
    text = html.unescape(render(name, recording()))
    body = text.partition("<body>")[2] or text
    headline, divergence, finding, sides = (
        body.index(part) for part in ("6 of 10 layers differ inside", "blocks.1.norm:output", "norm-eps", "nemo.nnrec")
    )
    assert headline < divergence < finding < sides
    if name == "terminal":
        assert "norm-eps (90% sure): eps 1e-05 against 0.001" in text.splitlines()[4]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_findings_of_files_stand_under_the_headline_too(name: str) -> None:
    body = render(name, mixed()).partition("<body>")[2] or render(name, mixed())
    assert body.index("transposed") < body.index("ref.nemo")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("result", [mixed(), recording(), recording_several()])
def test_every_format_carries_the_first_divergence_and_the_findings(name: str, result: Comparison) -> None:
    text = html.unescape(render(name, result, width=300))
    for first in result.first_divergences.values():
        assert first.name in text
    for finding in result.findings:
        assert finding.cause in text
        assert finding.evidence in text
        assert finding.repair in text


def test_quiet_is_one_line() -> None:
    for result in (mixed(), recording(), recording_extra(), recording_several(), same()):
        text = get_report("terminal").render(result, ReportOptions(width=40, color=False, quiet=True))
        assert text.count("\n") == 1


def test_a_judgement_of_outputs_alone_is_said() -> None:
    pairs = (site("a:output", OUT, 0.5), site("(model):output", Verdict.CLOSE, 1e-7))
    result = recording_of(*pairs, rules=Rules(judge=Judge.OUTPUTS))
    assert result.exit_code == 0
    assert summary.headline(result) == ("close: outputs agree; 1 of 1 layer differs inside; only outputs are judged")
    assert "--judge outputs" in render("terminal", result)


# -- match rate, extra outputs, guesses, relations --------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_match_rate_counts_tensors_without_a_partner(name: str) -> None:
    result = comparison(pair("a"), pair("b"), leftovers=(leftover(REFERENCE, "c"), leftover(CANDIDATE, "d")))
    assert "2 without a partner, match rate 50.00%" in render(name, result)


@pytest.mark.parametrize("name", FORMATS)
def test_an_extra_output_is_said_as_what_it_is(name: str) -> None:
    text = html.unescape(render(name, recording_extra(), width=200))
    assert "does not match" not in text
    assert "output differs" not in text
    if name != "json":
        assert "only the candidate returns output.past_key_values (4 tensors)" in text
        assert "--accept extra" in text
        assert "--judge outputs" in text


def test_an_extra_output_is_one_line_and_no_first_divergence() -> None:
    lines = render("terminal", recording_extra(), 200).splitlines()
    assert lines[0].startswith("✗ different: outputs agree; the only layer agrees inside; only the candidate returns")
    assert lines[1].startswith("  extra      only the candidate returns output.past_key_values (4")
    assert lines[2] == ""
    assert "  output     the final output agrees, max abs 3.000e-07" in lines
    assert not [line for line in lines if "first at" in line]


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        (Rules(accept=frozenset([EXTRA_OUTPUTS])), "accepted by --accept extra"),
        (Rules(judge=Judge.OUTPUTS), "not counted with --judge outputs"),
    ],
)
def test_an_extra_output_that_is_accepted_is_still_said(rules: Rules, said: str) -> None:
    leftovers = (alone(REFERENCE, "(model):output.aux", LeftoverReason.EXTRA_OUTPUT),)
    result = recording_of(site("(model):output.0"), leftovers=leftovers, rules=rules)
    assert result.exit_code == 0
    assert f"only the reference returns output.aux; {said}" in render("terminal", result)


@pytest.mark.parametrize("name", ["terminal", "md", "html", "csv", "junit"])
def test_a_guessed_pair_that_differs_is_evidence(name: str) -> None:
    guess = {"candidate_name": "mix:output", "method": Method.CALL, "certain": False}
    result = recording_of(site("a:output", OUT, 0.5, **guess), site("(model):output"))
    assert result.exit_code == 0
    text = render(name, result, width=300)
    assert "paired only by call order; values differ, so perhaps not the same layer" in text
    assert "✗" not in text


def test_guesses_are_no_layers_that_differ() -> None:
    guess = {"method": Method.CALL, "certain": False}
    result = recording_of(
        *(site("a:output", OUT, 0.5, **guess), site("b:output"), site("c:output", Verdict.CLOSE, 1e-7, **guess)),
        site("(model):output"),
    )
    assert summary.headline(result) == "identical: outputs are identical; the only layer agrees inside"
    assert "forward    1 of 1 layer matches, 100.00%; 2 only guessed (1 agree)" in render("terminal", result)


@pytest.mark.parametrize("name", ["terminal", "md", "html", "csv", "junit"])
@pytest.mark.parametrize("width", [40, 80, 100])
@pytest.mark.parametrize("recorded", [False, True])
def test_a_proven_relation_is_shown_with_the_way_to_accept_it(name: str, width: int, recorded: bool) -> None:
    swapped = ((512, 80), (80, 512))
    relation = related(False, text="permute(1, 0)", kind=RelationKind.LAYOUT)
    values = {"shape": swapped, "metrics": None, "related": relation}
    if recorded:
        result = recording_of(site("a:output", Verdict.SHAPE, **values), site("(model):output"))
    else:
        result = comparison(pair("a.weight", Verdict.SHAPE, **values))
    text = " ".join(render(name, result, width).split())
    assert "agrees after permute(1, 0): --accept layout" in text


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("recorded", [False, True])
def test_a_pair_that_agrees_by_a_relation_shows_it_and_the_numbers_after_it(name: str, recorded: bool) -> None:
    values = {"metrics": metrics(bad=9, apart=3.0), "related": related(True, 1e-7)}
    if recorded:
        result = recording_of(site("a:output", Verdict.CLOSE, **values), site("(model):output"))
    else:
        result = comparison(pair("a.weight", Verdict.CLOSE, **values))
    text = render(name, result)
    assert "≈ after permute(1, 0)" in text
    assert "1.000e-07" in text
    assert "3.000e+00" not in text


# -- what is cut, what is printed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 50, 60, 80])
@pytest.mark.parametrize("result", [mixed(), recording()])
def test_shapes_and_hints_are_never_cut(width: int, result: Comparison) -> None:
    text = render("terminal", result, width)
    shapes = "512×80 → 80×512" if result.kind == "checkpoint" else "2×5×16 → 2×16×5"
    assert shapes in text
    joined = " ".join(text.split())
    for leftover_ in result.leftovers:
        assert wording.hint_leftover(leftover_) in joined
    for each in result.pairs:
        assert wording.describe_relation(each) in joined


@pytest.mark.parametrize("width", [40, 80])
def test_a_shape_with_many_axes_stands_below_its_row(width: int) -> None:
    shape = ((16, 256, 3, 224, 224), (16, 224, 224, 256, 3))
    text = render("terminal", comparison(pair("a.weight", Verdict.SHAPE, shape=shape, metrics=None)), width)
    assert "16×256×3×224×224 → 16×224×224×256×3" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("json", "csv")])
def test_the_index_of_a_maximum_is_printed_only_where_it_is_known(name: str) -> None:
    unknown = [replace(each, stored=replace(each.stored, max_abs_index=None)) for each in make_pairs() if each.stored]
    text = render(name, recording_of(*unknown))
    assert "None" not in text
    assert "[1, 2]" not in text
    assert "max_abs_index" not in text


@pytest.mark.parametrize("name", DOCUMENTS)
def test_notes_print_their_text(name: str) -> None:
    notes = (Note(NoteSlug.PAIRED_BY_WEIGHTS, "3 modules were paired by their weights"),)
    text = render(name, comparison(pair("a", note="only digests were kept"), notes=notes))
    assert "3 modules were paired by their weights" in text
    assert "1 tensor: only digests were kept" in text
    assert "paired-by-weights" not in text


def test_labels_of_live_models_are_not_mangled() -> None:
    result = comparison(pair("a", candidate="<Llama 2>"), candidates=(side("<Llama 2>"),), reference=side("<Llama>"))
    assert "candidate  <Llama 2>" in render("terminal", result)
    for name in ("md", "html"):
        assert "<Llama 2>" in html.unescape(render(name, result))
        assert "<Llama" not in render(name, result)


@pytest.mark.parametrize(
    ("reason", "more", "said"),
    [
        (LeftoverReason.NO_PARTNER, {"near": "b"}, "did you mean b?"),
        (LeftoverReason.NO_PARTNER, {"near": "b", "near_shape": (2, 3)}, "did you mean b (2×3)?"),
        (LeftoverReason.NO_PARTNER, {"same_as": "c"}, "same values as c"),
        (LeftoverReason.EXTRA_OUTPUT, {}, "the candidate does not return it"),
        (LeftoverReason.INNER, {}, "inside the model: no difference"),
        (LeftoverReason.NOT_RECORDED, {}, "the candidate was recorded without it"),
        (LeftoverReason.COMPUTED, {}, "computed, and not registered by the candidate: no difference"),
        (LeftoverReason.UNREACHED, {}, "never reached: the candidate's recording was cut off"),
    ],
)
def test_why_a_tensor_is_alone(reason: LeftoverReason, more: dict[str, Any], said: str) -> None:
    assert wording.explain_leftover(leftover(REFERENCE, "a", reason=reason, **more)) == said


@pytest.mark.parametrize("reason", PartingReason)
def test_every_reason_for_a_first_divergence_has_its_words(reason: PartingReason) -> None:
    result = replace(recording(), first_divergences={PORT: replace(FIRST, reason=reason)})
    divergences = wording.describe_divergences(result)
    assert bool(divergences) == (reason is not PartingReason.EXTRA_OUTPUT)
    assert all(divergence.why for divergence in divergences)


@pytest.mark.parametrize("method", Method)
def test_every_method_has_its_words(method: Method) -> None:
    assert wording.name_method(method)


def test_what_is_said_of_the_weights_at_the_first_divergence() -> None:
    weights = WeightsAtSite(4, ("weight", "bias"), ("extra",))
    (divergence,) = wording.describe_divergences(
        replace(recording(), first_divergences={PORT: replace(FIRST, weights=weights)})
    )
    said = "2 of 4 differ from the start: weight, bias; only in the reference: extra"
    assert ("weights", said) in divergence.facts


@pytest.mark.parametrize("after", ["x:output", ""])
@pytest.mark.parametrize("before", ["y:output", ""])
def test_between_which_inner_calls(after: str, before: str) -> None:
    first = replace(FIRST, after=after, before=before)
    (divergence,) = wording.describe_divergences(replace(recording(), first_divergences={PORT: first}))
    said = dict(divergence.facts).get("between", "")
    assert after in said
    assert before in said
    assert bool(said) == bool(after or before)


def test_tolerances_of_their_own_are_said() -> None:
    tolerance = Tolerance(overrides=(Override("encoder.*", atol=1e-3), Override("head", rtol=0.5)))
    text = render("terminal", comparison(pair("a"), tolerance=tolerance))
    assert "|cand - ref| <= 1e-05 + 1e-05 * |ref| (default); encoder.*: atol 0.001; head: rtol 0.5" in " ".join(
        text.split()
    )


def own_error(module: str, max_abs: float) -> OwnError:
    name = f"{module}:output"
    return OwnError("cand.ckpt", name, name, 0, Slot.OUTPUT, module, module, ("GELU", "GELU"), max_abs)


def test_modules_of_one_proven_cause_are_told_once():
    same = Finding("activation", ("a:output",), "tanh for erf", "use erf", 0.98, candidate="cand.ckpt")
    causes = [same, replace(same, where=("b:output",)), replace(same, where=("c:output",), evidence="relu for erf")]
    errors = (own_error("a", 0.25), own_error("b", 0.5), own_error("c", 0.75), own_error("d", 1.0))
    result = replace(comparison(), own_errors=errors, findings=tuple(causes))
    faults, others = wording.describe_faults(result)
    assert [(fault.module, fault.alike) for fault in faults] == [("a", ("b",)), ("c", ()), ("d", ())]
    assert others == []
    assert wording.count_faults(faults) == "4 modules"
    for name in DOCUMENTS:
        assert render(name, result).count("tanh for erf") == 1
        assert len(re.findall(r"\band\b\W+(<code>|`)?b\b", render(name, result))) == 1
