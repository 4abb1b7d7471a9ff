"""What is known without measuring whole: digests, statistics, sketches never say more than they know."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from nndiff.comparison import compare_sources
from nndiff.recording import Writer, open_recording
from nndiff.recording.format.keep_levels import sketch_positions
from nndiff.result import NoteSlug
from nndiff.verdict import Verdict


def recorded(path, values, keep):
    with Writer(path, {"producer": "test"}, keep=keep) as writer:
        writer.add(module="layer", slot="output", value=values)
        writer.add(module="", slot="output", value=np.arange(3.0))
    return open_recording(path)


def judged(tmp_path, one, other, keep):
    result = compare_sources(recorded(tmp_path / "a", one, keep), recorded(tmp_path / "b", other, keep))
    return next(pair for pair in result.pairs if pair.name == "layer:output"), result


VALUES = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)


@pytest.mark.parametrize("keep", ["digest", "stats", "sketch", "full"])
def test_equal_bytes_are_known_equal_at_every_level(tmp_path, keep):
    pair, result = judged(tmp_path, VALUES, VALUES.copy(), keep)
    assert pair.verdict is Verdict.IDENTICAL
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("keep", "verdict"),
    [("digest", Verdict.NOT_COMPARED), ("stats", Verdict.DIFFERENT), ("sketch", Verdict.DIFFERENT)],
)
def test_less_than_everything_never_passes_what_differs(tmp_path, keep, verdict):
    pair, result = judged(tmp_path, VALUES, VALUES * 1.5, keep)
    assert pair.verdict is verdict
    assert pair.notes
    assert result.exit_code == 1


def test_a_permuted_tensor_does_not_pass_by_its_statistics(tmp_path):
    pair, result = judged(tmp_path, VALUES, VALUES[::-1].copy(), "stats")
    assert pair.verdict is Verdict.NOT_COMPARED
    assert result.exit_code == 1


def test_a_sketch_of_all_elements_tells_places_in_the_tensor(tmp_path):
    other = VALUES[:8, :8].copy()
    other[3, 5] += 1
    pair, _ = judged(tmp_path, VALUES[:8, :8], other, "sketch")
    assert pair.metrics.max_abs_index == (3, 5)


def test_a_sketch_that_agrees_is_close_at_best(tmp_path):
    pair, _ = judged(tmp_path, VALUES, VALUES + np.float32(1e-7), "sketch")
    assert pair.verdict is Verdict.CLOSE
    (note,) = pair.notes
    assert note.slug is NoteSlug.BY_SKETCH
    assert "1,024 of 4,096" in note.text


def test_a_sketch_of_all_there_is_is_no_sketch(tmp_path):
    few = VALUES.reshape(-1)[:1000].copy()
    pair, _ = judged(tmp_path, few, few + np.float32(1e-7), "sketch")
    assert pair.verdict is Verdict.CLOSE
    assert pair.notes == ()


def test_the_numbers_of_equal_digests_are_those_of_a_measurement(tmp_path):
    short, _ = judged(tmp_path / "x", VALUES, VALUES, "full")
    measured = compare_sources({"a": VALUES}, {"a": VALUES.copy()}).pairs[0].metrics
    for field in fields(measured):
        one, other = getattr(short.metrics, field.name), getattr(measured, field.name)
        assert one == pytest.approx(other, rel=1e-12), field.name


def test_a_sketch_cannot_excuse_what_lies_between_its_places(tmp_path):
    other = VALUES.copy()
    place = next(i for i in range(other.size) if i not in set(sketch_positions(other.size).tolist()))
    other.reshape(-1)[place] += np.float32(1e-3)  # the statistics do not tell either
    pair, result = judged(tmp_path, VALUES, other, "sketch")
    assert pair.verdict is Verdict.NOT_COMPARED
    assert result.exit_code == 1


@pytest.mark.parametrize("shape", [(64, 64), (8, 8)])
@pytest.mark.parametrize("flipped", [False, True])
def test_a_tensor_kept_in_full_is_judged_by_the_sketch_of_the_other(tmp_path, flipped, shape):
    values = VALUES[: shape[0], : shape[1]]
    for factor, verdict in ((1.0, Verdict.IDENTICAL), (1 + 2e-6, Verdict.CLOSE), (1.5, Verdict.DIFFERENT)):
        sides = [
            recorded(tmp_path / f"{keep}-{factor}", made, keep)
            for keep, made in (("full", values), ("sketch", (values * factor).astype(np.float32)))
        ]
        result = compare_sources(*(sides[::-1] if flipped else sides))
        assert next(pair for pair in result.pairs if pair.name == "layer:output").verdict is verdict
