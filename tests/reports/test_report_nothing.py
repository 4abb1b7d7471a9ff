"""Where nothing was compared the report says why, in words that fit what the sides hold, and the way out."""

from __future__ import annotations

import pytest
from recording_builders import PORT, alone, recording, recording_of, site
from report_builders import comparison, leftover, side

from nndiff.reports import ReportOptions, get_report, summary
from nndiff.result import CANDIDATE, REFERENCE, Comparison, Note, NoteSlug
from nndiff.verdict import Verdict


def recordings_without_a_common_layer() -> Comparison:
    return recording_of(leftovers=(alone(REFERENCE, "x:output"), alone(CANDIDATE, "y:recompute")))


def test_recordings_without_a_common_layer() -> None:
    result = recordings_without_a_common_layer()
    assert summary.headline(result) == (
        "nothing compared: no tensor has a partner (1 only in the reference, 1 only in the candidate)"
    )
    assert "pair layers of different names with --rename or --map; --dry-run lists all names" in list(
        summary.list_notes(result)
    )
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("reference", "candidate", "said"),
    [
        (1, 0, "nothing compared: the candidate holds no tensors (1 only in the reference)"),
        (0, 1, "nothing compared: the reference holds no tensors (1 only in the candidate)"),
        (0, 0, "nothing compared: there are no tensors"),
    ],
)
def test_a_side_that_holds_nothing(reference: int, candidate: int, said: str) -> None:
    leftovers = [leftover(REFERENCE, "x")] * reference + [leftover(CANDIDATE, "y")] * candidate
    sides = {"reference": side("ref", tensors=reference), "candidates": (side("cand.ckpt", tensors=candidate),)}
    assert summary.headline(comparison(leftovers=tuple(leftovers), **sides)) == said


def test_filters_that_leave_nothing() -> None:
    note = Note(NoteSlug.LEFT_OUT, "3 tensors were left out")
    assert summary.headline(comparison(notes=(note,))).endswith("--include/--exclude left no tensor to compare")


def test_a_recording_against_weights() -> None:
    leftovers = (leftover(REFERENCE, "x:output"), leftover(CANDIDATE, "w"))
    result = comparison(reference=side("a.nnrec", "recording"), leftovers=leftovers)
    (note,) = [note for note in summary.list_notes(result) if "a recording holds what layers computed" in note]
    assert "nndiff diff REF.nnrec MODEL --ckpt FILE" in note


def test_recordings_that_kept_too_little() -> None:
    result = recording_of(site("x:output", Verdict.NOT_COMPARED, metrics=None))
    assert summary.headline(result) == "nothing compared: no element of 1 pair could be compared"
    assert next(summary.list_notes(result)).endswith("record again with --keep full or sketch")


def test_only_inputs_were_compared() -> None:
    result = recording_of(site("(model):model_input.0"))
    assert summary.headline(result).endswith("only the inputs of the models have partners, nothing they computed")


def test_outputs_that_could_not_be_recorded() -> None:
    meta = {"not_recorded": {"(model):output": "an object of class Image"}}
    result = recording_of(site("fc:output"), candidates=(side(PORT, "recording", meta=meta),))
    assert result.exit_code == 1
    assert summary.headline(result).endswith("1 final output not compared")
    notes = list(summary.list_notes(result))
    assert "not compared: (model):output is an object of class Image in the candidate" in notes
    assert notes[0].endswith("leave them out with --exclude '(model):output'")


@pytest.mark.parametrize("report", ["terminal", "md", "html"])
def test_what_was_recorded_is_never_called_parameters(report: str) -> None:
    text = get_report(report).render(recordings_without_a_common_layer(), ReportOptions(width=100, color=False))
    assert "1,234,567 elements" in text
    assert "1,234,567 parameters" not in text
    assert "trainable" not in text


def test_weights_are_parameters_still() -> None:
    result = comparison(leftovers=(leftover(REFERENCE, "x"),), reference=recording().reference)
    text = get_report("terminal").render(result, ReportOptions(width=100, color=False))
    assert "1,234,567 parameters  1,200,000 trainable" in text
