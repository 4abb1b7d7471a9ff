"""The picture of training runs, and the files of --output-dir."""

from __future__ import annotations

import builtins
import csv
import json
import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_builders import mixed
from run_builders import (
    comparison,
    facts_of,
    run_different,
    run_dumps,
    run_hostile,
    run_identical,
    run_nothing,
    run_one_step,
    run_several,
)

from nndiff.errors import MissingExtraError, ReportError, UsageError
from nndiff.facts.run_summary import Panel
from nndiff.reports import check_specs, draw_picture, get_report, run_files, write_report
from nndiff.reports.run_files import check_output_folder, write_run_files
from nndiff.reports.run_picture import draw_figure

FILES = {"model_comparison.png", "model_comparison.csv", "detailed_comparison.json"}


def read_size(picture: bytes) -> tuple[int, int]:
    """Return width and height of a PNG file."""
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", picture[16:24])
    return width, height


def test_the_picture_has_six_panels() -> None:
    axes = draw_figure(run_different()).axes
    assert [axis.get_title() for axis in axes] == [panel.value for panel in Panel]
    scales = [axis.get_yscale() for axis in axes]
    assert scales == ["symlog", "linear", "linear", "symlog", "linear", "symlog"]  # equal at first: zero has a place
    for axis in axes:
        marks = [line for line in axis.lines if list(line.get_xdata()) == [10, 10]]
        assert len(marks) == 1, "the first divergence is marked"
    labels = [text.get_text() for text in axes[0].get_legend().get_texts()]
    assert labels[:3] == ["weight L2", "weight L2, mlp", "weight L2, buffers"]
    assert labels[3] == "first divergence: gradients, epoch 0, batch 10"
    distances = [step.groups["all"].l2 for step in facts_of().steps]
    assert list(axes[0].lines[0].get_ydata()) == distances
    assert list(axes[3].lines[0].get_ydata())[20] == pytest.approx(
        abs(facts_of().steps[20].scalars["loss"][1] - facts_of().steps[20].scalars["loss"][0])
    )


def test_a_panel_without_data_says_so() -> None:
    axes = draw_figure(run_dumps()).axes
    texts = [[text.get_text() for text in axis.texts] for axis in axes]
    assert texts == [[], [], [], [], ["no data"], ["no data"]]
    assert len(draw_figure(run_nothing()).axes) == 6


def test_tensors_of_every_tenth_step_are_one_line_and_what_is_not_finite_is_marked() -> None:
    facts = facts_of()
    steps = [item if item.mark.number % 10 == 0 else replace(item, groups={}) for item in facts.steps]
    steps[20] = replace(steps[20], scalars={"loss": (1.0, math.nan)})
    axes = draw_figure(comparison(replace(facts, steps=tuple(steps)))).axes
    assert list(axes[0].lines[0].get_xdata()) == [0, 10, 20, 30]
    crosses = {line.get_label(): list(line.get_xdata()) for line in axes[2].lines}
    assert crosses["not finite"] == [20]


def test_several_candidates_have_six_panels_each() -> None:
    titles = [axis.get_title() for axis in draw_figure(run_several()).axes]
    assert len(titles) == 18
    assert titles[6] == "weight L2, runs/b"


@pytest.mark.parametrize("case", [run_different, run_dumps, run_nothing, run_identical, run_one_step])
def test_the_picture_is_a_file(case: Any) -> None:
    width, height = read_size(draw_picture(case()))
    assert 1200 <= width <= 1600
    assert 1000 <= height <= 1600


def test_hostile_names_are_drawn_as_they_are(tmp_path: Path) -> None:
    written = write_run_files(run_hostile(), str(tmp_path / "out"))
    assert len(written) == 3 * len(run_hostile().candidates)
    for path in written:
        assert Path(path).resolve().is_relative_to(tmp_path / "out"), "no name leads elsewhere"


def test_png_is_a_report_of_runs_alone(tmp_path: Path) -> None:
    write_report(run_different(), f"png:{tmp_path / 'x.png'}")
    read_size((tmp_path / "x.png").read_bytes())
    with pytest.raises(ReportError, match=r"png pictures show training runs.*kind 'checkpoint'"):
        write_report(mixed(), f"png:{tmp_path / 'y.png'}")
    assert not (tmp_path / "y.png").exists()
    for spec in ("png", "png:-"):
        with pytest.raises(UsageError, match="cannot be printed: give a path, as in png:PATH"):
            check_specs([spec])
    with pytest.raises(UsageError, match="png is a picture"):
        get_report("png")
    with pytest.raises(UsageError, match=r"did you mean png:curves\.png"):
        check_specs(["curves.png"])


def test_the_files_of_one_candidate(tmp_path: Path) -> None:
    result = run_different()
    written = write_run_files(result, str(tmp_path / "new" / "out"))
    assert {Path(path).name for path in written} == FILES == {path.name for path in (tmp_path / "new/out").iterdir()}
    rows = list(csv.DictReader((tmp_path / "new/out/model_comparison.csv").read_text().splitlines()))
    assert [int(row["step"]) for row in rows] == list(range(40))
    data = json.loads((tmp_path / "new/out/detailed_comparison.json").read_text())
    assert (data["format"], data["version"], data["candidate"]) == ("nndiff.run-details", 1, "runs/ours")
    assert len(data["steps"]) == 40
    details = result.run[0].details
    assert details is not None
    item = data["steps"][30]
    assert (item["epoch"], item["batch"], item["step"], item["verdict"]) == (1, 10, 30, "different")
    assert list(item["parameters"]) == list(details.names)
    assert item["parameters"]["fc.weight"] == {
        "l2": details.l2[30, 3],
        "rel_l2": details.rel_l2[30, 3],
        "cosine": details.cosine[30, 3],
        "max_abs": None,
    }
    assert item["scalars"]["loss"] == list(result.run[0].steps[30].scalars["loss"])


def test_several_candidates_have_folders_of_their_own(tmp_path: Path) -> None:
    write_run_files(run_several(), str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "c"}
    assert {path.name for path in (tmp_path / "b").iterdir()} == FILES
    rows = list(csv.DictReader((tmp_path / "b" / "model_comparison.csv").read_text().splitlines()))
    assert {row["candidate"] for row in rows} == {"runs/b"}
    data = json.loads((tmp_path / "c" / "detailed_comparison.json").read_text())
    assert [item["parameters"] for item in data["steps"]] == [None] * 3  # none were kept


def test_without_matplotlib_the_other_files_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_matplotlib(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    with pytest.raises(MissingExtraError, match=r"pip install 'nndiff\[report\]'"):
        write_run_files(run_different(), str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == FILES - {"model_comparison.png"}


def test_a_file_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(*args: object) -> Any:
        yield "{"
        raise KeyboardInterrupt

    monkeypatch.setattr(run_files, "write_details", break_off)
    with pytest.raises(KeyboardInterrupt):
        write_run_files(run_different(), str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_folders_that_cannot_be_written_to_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file; give a folder"):
        check_output_folder(str(tmp_path / "file"), [])
    with pytest.raises(UsageError, match="is one of the compared runs"):
        check_output_folder(str(tmp_path), ["elsewhere", str(tmp_path)])
    with pytest.raises(ReportError, match="cannot write the report"):
        write_run_files(run_different(), str(tmp_path / "file" / "below"))
    check_output_folder(str(tmp_path / "new"), [str(tmp_path)])
