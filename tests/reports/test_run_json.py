"""Training runs in the saved result: the contract, what comes back, and damage in one sentence."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from report_builders import load_relation
from run_builders import CASES, comparison, mark, numbers, run_different, run_identical, run_long, run_several, step
from test_report_json import JUNK, comparable, damaged, places

from nndiff import result_json
from nndiff.commands import report
from nndiff.errors import NndiffError, ReportError, UsageError
from nndiff.facts import run_json
from nndiff.facts.runs import ALL, BUFFERS, GroupNumbers, Quantity, RunFacts, StepMark
from nndiff.rejudge import judge_at
from nndiff.reports import ReportOptions, get_report
from nndiff.result import Comparison
from nndiff.tolerance import Tolerance
from nndiff.verdict import Verdict


def forget(result: Comparison) -> Comparison:
    """Return a result without what a saved one does not hold: numbers of parameters, and those of unmatched steps."""
    runs = []
    for facts in result.run:
        kept: dict[str, Any] = {"details": None}
        for side in ("only_reference_steps", "only_candidate_steps"):
            marks = getattr(facts, side)
            kept[side] = tuple(item if item.epoch is None else dataclasses.replace(item, number=-1) for item in marks)
        kept["parting"] = {quantity: facts.parting.get(quantity) for quantity in Quantity}
        kept["first_unequal"] = {quantity: facts.first_unequal.get(quantity) for quantity in Quantity}
        known = {**facts.parting, **facts.first_unequal, **facts.unknown}
        kept["unknown"] = {**facts.unknown, **{quantity: "" for quantity in Quantity if quantity not in known}}
        runs.append(dataclasses.replace(facts, **kept))
    return dataclasses.replace(result, run=tuple(runs))


def comparable_run(value: Any) -> Any:
    """Return the value with NaN equal to itself, in mappings too."""
    if isinstance(value, dict):
        return {key: comparable_run(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return type(value), [comparable_run(getattr(value, field.name)) for field in fields]
    return [comparable_run(item) for item in value] if isinstance(value, (tuple, list)) else comparable(value)


@pytest.mark.parametrize("case", CASES)
def test_what_goes_in_comes_out(case: str, tmp_path: Path) -> None:
    result = CASES[case]()
    (tmp_path / "x.json").write_text(result_json.dumps(result))
    loaded = result_json.load(tmp_path / "x.json", load_relation)
    assert comparable_run(loaded) == comparable_run(forget(result))
    assert (loaded.verdict, loaded.totals) == (result.verdict, result.totals)
    for name in ("terminal", "csv", "md", "junit", "html"):
        options = ReportOptions(width=100, color=False)
        assert get_report(name).render(loaded, options) == get_report(name).render(result, options), name


def test_the_round_trip_check_can_fail() -> None:
    assert comparable_run(forget(run_different())) != comparable_run(forget(run_identical()))


def test_the_contract() -> None:
    data = result_json.to_dict(run_different())
    assert (data["kind"], data["verdict"], data["exit_code"], data["pairs"]) == ("run", "different", 1, [])
    item = data["steps"][12]
    assert (item["candidate"], item["epoch"], item["batch"], item["step"]) == ("runs/ours", 0, 12, 12)
    assert (item["verdict"], item["same_data"]) == ("close", True)
    assert set(item["groups"]) == {"all", "mlp", "buffers"}
    wanted = {"l2", "rel_l2", "cosine", "max_abs", "max_abs_name", "mean_l2", "max_l2"}
    assert wanted <= set(item["groups"]["all"])
    for quantity in ("gradients", "optimizer"):
        assert wanted | {"all"} <= set(item[quantity])
        assert item[quantity]["l2"] == item[quantity]["all"]["l2"] > 0
    assert item["scalars"]["lr/0"] == [0.1, 0.1]
    assert data["parting"] == {
        "initial_weights": None,
        "data": None,
        "loss": {"epoch": 1, "batch": 0, "step": 20},
        "gradients": {"epoch": 0, "batch": 10, "step": 10},
        "weights": {"epoch": 0, "batch": 19, "step": 19},
        "optimizer": {"epoch": 0, "batch": 17, "step": 17},
    }
    first = {"name": "gradients", "epoch": 0, "batch": 10, "step": 10, "tensor": "layer4.2.bn3.weight"}
    assert data["first_divergence"] == {"candidate": "runs/ours", **first}
    assert data["candidates"][0]["first_divergence"] == data["first_divergence"]
    assert data["only_reference_steps"] == [[2, 0], [2, 1], [2, 2]]
    assert data["growth"]["kind"] == "exponential"
    assert data["leaders"][0] == ["fc.weight", 0.612]
    assert data["sign_test"]["lower_in_candidate"] == 30
    assert data["jumps"] == [{"epoch": 1, "batch": 5, "step": 25, "factor": 48.6, "tensor": "fc.weight"}]
    assert data["unknown"] == {}
    assert "partings" not in data
    assert data["groups"]["mlp"]["totals"]["pairs"] == 40
    losses = [item["scalars"]["loss"][0] for item in data["steps"]]
    assert data["summary"]["loss.reference"]["mean"] == pytest.approx(sum(losses) / len(losses))


def test_of_several_candidates_the_first_that_parts_stands_in_front() -> None:
    data = result_json.to_dict(run_several())
    assert data["first_divergence"]["candidate"] == "runs/b"
    assert data["parting"]["initial_weights"] == {"epoch": None, "batch": None, "step": -1}
    assert list(data["partings"]) == ["runs/a", "runs/b", "runs/c"]
    assert data["partings"]["runs/c"]["data"] == {"epoch": 0, "batch": 1, "step": 1}
    assert data["runs"][2]["only_candidate_steps"] == [[None, 7]]
    assert [item["candidate"] for item in data["steps"]] == ["runs/a"] * 3 + ["runs/b"] * 3 + ["runs/c"] * 3


def test_a_group_may_be_called_like_a_number() -> None:
    facts = run_different().run[0]
    groups = {ALL: numbers(0.5), "l2": numbers(0.25)}
    facts = dataclasses.replace(facts, steps=(step(0, 0.5, gradients=groups),))
    data = json.loads(result_json.dumps(comparison(facts)))
    assert data["steps"][0]["gradients"]["rel_l2"] == 0.5
    assert result_json.from_dict(data, load_relation).run[0].steps[0].gradients == groups


def test_every_number_of_a_group_is_read_back() -> None:
    names = {field.name for field in dataclasses.fields(GroupNumbers)}
    assert names == {*run_json._NUMBERS, *run_json._NAMES, *run_json._COUNTS, "max_abs"}


def test_unmatched_steps_are_no_difference() -> None:
    totals = run_different().totals
    assert (totals.pairs, totals.only_reference, totals.only_candidate) == (40, 3, 0)
    assert (totals.identical, totals.close, totals.different) == (7, 12, 21)
    assert totals.match_rate == 19 / 40
    alone = RunFacts("c", (step(0, 0.0, "c"),), {}, {}, only_candidate_steps=(mark(1), mark(2)))
    assert comparison(alone).totals.match_rate == 1.0


def test_totals_of_a_candidate_and_of_a_group() -> None:
    result = run_several()
    assert (result.totals.pairs, result.totals_of("runs/b").different, result.totals_of("runs/a").identical) == (
        9,
        3,
        3,
    )
    mlp = run_different().totals_of_group("mlp")
    assert (mlp.identical, mlp.different > 21, mlp.pairs) == (7, True, 40)
    assert run_several().totals_of_group(BUFFERS).pairs == 9


def test_the_first_divergence_is_that_of_the_runs() -> None:
    first = run_several().first_divergence
    assert (first.quantity, first.mark) == (Quantity.INITIAL_WEIGHTS, StepMark(-1))  # type: ignore[union-attr]
    assert run_identical().first_divergence is None


def read_and_rendered(path: Path) -> str:
    """Use a result in every way; return the sentence it was refused with, if it was."""
    try:
        result = result_json.load(path, load_relation)
        for name in ("terminal", "csv", "md", "junit", "html"):
            get_report(name).render(result, ReportOptions(width=80))
    except NndiffError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: repr(junk)[:20])
def test_damage_is_refused_or_harmless(junk: Any, tmp_path: Path) -> None:
    facts = run_different().run[0]
    result = comparison(dataclasses.replace(facts, steps=facts.steps[9:12]))
    text = result_json.dumps(result)
    refused = []
    for place in places(json.loads(text))[1:]:
        (tmp_path / "x.json").write_text(damaged(text, place, junk))
        refused.append(read_and_rendered(tmp_path / "x.json"))
    assert not [sentence for sentence in refused if "\n" in sentence]
    assert sum(map(bool, refused)) > 40


@pytest.mark.parametrize("key", ["steps", "runs"])
def test_what_belongs_to_no_candidate_is_refused(key: str) -> None:
    data = result_json.to_dict(run_different())
    data[key] = [{**item, "candidate": "another"} for item in data[key]]
    with pytest.raises(ReportError, match="the runs are not those of the candidates"):
        result_json.from_dict(data, load_relation)


def run_report(*words: object) -> int:
    parser = argparse.ArgumentParser(prog="nndiff")
    report.add_parser(parser.add_subparsers())
    args = parser.parse_args(["report", *map(str, words)])
    return int(args.run(args))


def test_a_saved_comparison_is_rendered_but_not_judged_again(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "x.json").write_text(result_json.dumps(run_different()))
    assert run_report(tmp_path / "x.json") == 1
    assert "the trainings part at epoch 0, batch 10" in capsys.readouterr().out
    assert run_report(tmp_path / "x.json", "--atol", "1e-5", "--quiet") == 1
    with pytest.raises(UsageError, match="compare the runs again"):
        run_report(tmp_path / "x.json", "--atol", "1e-3")
    (tmp_path / "same.json").write_text(result_json.dumps(run_identical()))
    assert run_report(tmp_path / "same.json", "--atol", "0", "--rtol", "0", "--quiet") == 0


def test_python_judges_no_comparison_of_runs_again() -> None:
    with pytest.raises(UsageError, match="compare the runs again"):
        judge_at(run_different(), Tolerance(1.0, 1.0, "given"))


def test_two_thousand_steps(tmp_path: Path) -> None:
    result = run_long()
    (tmp_path / "x.json").write_text(result_json.dumps(result))
    assert len(result_json.load(tmp_path / "x.json", load_relation).run[0].steps) == 2000
    for name in ("terminal", "csv", "md", "junit", "html"):
        text = get_report(name).render(result, ReportOptions(width=100))
        assert ("epoch 99, batch 19" in text) == (name != "csv")


def test_a_number_that_is_not_finite_comes_back() -> None:
    facts = RunFacts(
        "c", (step(0, math.nan, "c", verdict=Verdict.NOT_FINITE, scalars={"x": (math.inf, -math.inf)}),), {}, {}
    )
    back = result_json.from_dict(json.loads(result_json.dumps(comparison(facts))), load_relation).run[0].steps[0]
    assert back.scalars["x"] == (math.inf, -math.inf)
    assert math.isnan(back.groups[ALL].l2)
