"""Reports of comparisons that were made, not built by hand: what is measured is what is said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from nndiff import compare, result_json
from nndiff.recording import Writer
from nndiff.relations import load_relation
from nndiff.reports import ReportOptions, get_report, summary
from nndiff.result import Comparison
from nndiff.tolerance import Tolerance


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


def render_text(result: Comparison) -> str:
    return get_report("terminal").render(result, ReportOptions(width=100, color=False))


def test_two_written_recordings(tmp_path: Path) -> None:
    record(tmp_path / "a.nnrec", 0.0)
    record(tmp_path / "b.nnrec", 0.25)
    text = render_text(compare(tmp_path / "a.nnrec", tmp_path / "b.nnrec"))
    assert text.startswith("✗ different: the output differs; 2 of 3 layers differ inside; first divergence at layers.1")
    assert "▶ first at layers.1:output  Tanh, max abs 2.500e-01" in text
    assert "forward    1 of 3 layers matches, 33.33%" in text
    assert "backward   0 of 3 layers match, 0.00%" in text
    assert "✗ first divergence: layers.1:output" in text
    same = render_text(compare(tmp_path / "a.nnrec", tmp_path / "a.nnrec"))
    assert same.startswith("✓ identical: outputs are identical; all 3 layers agree inside (exit 0)\n")
    assert same.endswith("  ✓ identical\n")


def test_several_recordings_part_each_at_its_place(tmp_path: Path) -> None:
    record(tmp_path / "ref.nnrec", 0.0)
    for where in range(3):
        record(tmp_path / f"{where}.nnrec", 1e-3, where)
    result = compare(*(tmp_path / name for name in ("ref.nnrec", "2.nnrec", "ref.nnrec", "0.nnrec")))
    (tmp_path / "x.json").write_text(result_json.dumps(result))
    for comparison in (result, result_json.load(tmp_path / "x.json", load_relation)):
        firsts = [comparison.first_divergences.get(side.label) for side in comparison.candidates]
        assert [first and first.name for first in firsts] == ["layers.2:output", None, "layers.0:output"]
    assert json.loads((tmp_path / "x.json").read_text())["first_divergence"]["name"] == "layers.2:output"


def test_judged_again_a_place_stays_the_first_only_if_none_before_it_fails_now(tmp_path: Path) -> None:
    for name, wrong, then in (("ref.nnrec", 0.0, 0.0), ("cand.nnrec", 1e-6, 0.25)):
        with Writer(tmp_path / name) as writer:
            for index, far in enumerate((wrong, then)):
                writer.add(f"layers.{index}", "output", np.full(4, 1 + far, np.float32))
    result = compare(tmp_path / "ref.nnrec", tmp_path / "cand.nnrec")
    assert result.first_divergence is not None
    assert result.first_divergence.name == "layers.1:output"
    assert result.judged_at(Tolerance(1e-4, 1e-4)).first_divergence == result.first_divergence
    smaller = result.judged_at(Tolerance(0.0, 0.0)).first_divergence
    assert smaller is not None
    assert smaller.name == "layers.0:output"
    assert result.judged_at(Tolerance(1.0, 1.0)).first_divergence is None


def cut(path: Path, events: int) -> None:
    """Leave of a recording what a kill would have left: so many events, and a manifest that says so."""
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "complete": False}))
    lines = (path / "events.jsonl").read_text().splitlines(keepends=True)
    (path / "events.jsonl").write_text("".join(lines[:events]))


def compare_cut(tmp_path: Path, candidate: int, reference: int | None = None) -> Comparison:
    """Return the comparison of a recording with its copy, the copy cut off, or both."""
    for name, most in (("cand.nnrec", candidate), ("ref.nnrec", reference)):
        record(tmp_path / name, 0.0)
        if most is not None:
            cut(tmp_path / name, most)
    return compare(tmp_path / "ref.nnrec", tmp_path / "cand.nnrec")


def test_a_recording_that_was_cut_off_is_no_pass_and_the_rest_is_counted(tmp_path: Path) -> None:
    result = compare_cut(tmp_path, 3)  # input and two layers; one layer, the output and three gradients were to come
    assert (result.verdict, result.exit_code, result.totals.unreached) == ("different", 1, 5)
    assert result.totals.match_rate == 3 / 8
    assert summary.headline(result) == (
        "different: both layers agree inside; 5 never reached: the candidate's recording was cut off"
    )
    text = render_text(result)
    assert "cut off    5 tensors of the reference were never reached" in text
    assert "forward    2 of 3 layers match, 66.67% (1 never reached)" in text
    assert "output     the final output was never reached" in text
    for name in ("md", "html", "csv", "junit"):
        assert "never reached" in get_report(name).render(result, ReportOptions())
    data = json.loads(result_json.dumps(result))
    assert (data["totals"]["unreached"], data["recording"]["unreached"]) == (5, 5)
    assert result_json.from_dict(data, load_relation).verdict == "different"
    backwards = compare(tmp_path / "cand.nnrec", tmp_path / "ref.nnrec")
    assert (backwards.exit_code, backwards.totals.unreached) == (1, 5)
    assert {leftover.side for leftover in backwards.leftovers} == {"candidate"}


def test_two_that_were_cut_off_alike_are_no_pass(tmp_path: Path) -> None:
    result = compare_cut(tmp_path, 4, 4)
    assert (result.exit_code, result.needed_tolerance, result.totals.unreached) == (1, None, 0)
    assert summary.headline(result).endswith("both recordings were cut off")
    assert result_json.from_dict(json.loads(result_json.dumps(result)), load_relation).exit_code == 1


def test_a_recording_that_seems_to_have_lost_nothing_but_its_end_is_no_pass(tmp_path: Path) -> None:
    result = compare_cut(tmp_path, 99)
    assert (result.verdict, result.needed_tolerance) == ("different", None)
    assert summary.headline(result).endswith("the candidate's recording was cut off")


def test_what_is_too_small_to_be_judged_is_told() -> None:
    far, near = np.full(4, 1e-6), np.full(4, 1.0)
    result = compare({"a": far, "b": near}, {"a": 0 * far, "b": near + 1e-6})
    assert result.exit_code == 0
    assert [note for note in summary.list_notes(result) if "smaller than atol" in note]


def test_print_shows_the_terminal_report_and_a_notebook_the_page() -> None:
    result = compare({"a": np.ones(3)}, {"a": np.ones(3)})
    assert str(result) == get_report("terminal").render(result, ReportOptions(width=100, color=False))
    assert result._repr_html_().startswith("<iframe srcdoc=")
