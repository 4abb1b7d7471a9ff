"""Where nothing was compared the report says why, in words that fit what the sides hold, and the way out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nndiff import compare
from nndiff.recording import Writer
from nndiff.reports import ReportOptions, get_report, wording


def recorded(path: Path, *modules: str, slot: str = "output", value: float = 1.0, keep: str = "full") -> str:
    with Writer(path, {"producer": "test"}, keep=keep) as writer:
        for module in modules:
            writer.add(module, slot, np.full((3, 4) if slot == "output" else (12,), value))
    return str(path)


def saved(path: Path) -> str:
    np.savez(path, w=np.ones(3))
    return str(path)


def test_recordings_without_a_common_layer(tmp_path: Path) -> None:
    result = compare(recorded(tmp_path / "a", "x"), recorded(tmp_path / "b", "y", slot="recompute"))
    assert wording.headline(result) == (
        "nothing compared: no tensor found a partner (1 only in the reference, 1 only in the candidate)"
    )
    assert "layers that go by other names are paired by --rename or --map; --dry-run shows all names" in list(
        wording.notes(result)
    )
    assert result.exit_code == 2


def test_a_recording_of_nothing(tmp_path: Path) -> None:
    full, empty = recorded(tmp_path / "a", "x"), recorded(tmp_path / "b")
    assert wording.headline(compare(full, empty)) == (
        "nothing compared: the candidate holds no tensors (1 only in the reference)"
    )
    assert "the reference holds no tensors (1 only in the candidate)" in wording.headline(compare(empty, full))
    assert wording.headline(compare(empty, empty)) == "nothing compared: there are no tensors"


def test_a_recording_against_weights(tmp_path: Path) -> None:
    result = compare(recorded(tmp_path / "a", "x"), saved(tmp_path / "w.npz"))
    (note,) = [note for note in wording.notes(result) if "a recording holds what layers did" in note]
    assert "nndiff diff REF.nnrec MODEL --ckpt FILE" in note


def test_recordings_that_kept_too_little(tmp_path: Path) -> None:
    one, other = (
        recorded(tmp_path / name, "x", value=value, keep="digest") for name, value in (("a", 1.0), ("b", 2.0))
    )
    result = compare(one, other)
    assert wording.headline(result) == "nothing compared: not one element of 1 pair could be compared"
    assert next(wording.notes(result)).endswith("record again with --keep full or sketch")


@pytest.mark.parametrize("report", ["terminal", "md", "html"])
def test_what_was_recorded_is_never_called_parameters(report: str, tmp_path: Path) -> None:
    result = compare(recorded(tmp_path / "a", "x"), recorded(tmp_path / "b", "y", slot="recompute"))
    text = get_report(report).render(result, ReportOptions(width=100, color=False))
    assert "12 elements" in text
    assert "12 parameters" not in text
    assert "trainable" not in text


def test_weights_are_parameters_still(tmp_path: Path) -> None:
    result = compare(recorded(tmp_path / "a", "x"), saved(tmp_path / "w.npz"))
    text = get_report("terminal").render(result, ReportOptions(width=100, color=False))
    assert "3 parameters  3 trainable" in text
