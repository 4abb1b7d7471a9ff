"""Recordings are hostile until proven plain: every lie is one sentence, never a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nndiff.errors import NndiffError, SourceError
from nndiff.recording import Writer, open_recording
from nndiff.recording.format.events import SLOTS, CallEvent, Content, TensorEvent, ValueEvent
from nndiff.recording.format.lines import event_to_line, line_to_event
from nndiff.sources import open_source
from nndiff.tensors import Link, Site, Stats

Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good") / "a.nnrec"
    with Writer(path, {"seed": 1}) as writer:
        writer.add("fc", "output", np.arange(6.0, dtype=np.float32).reshape(2, 3))
        writer.add("fc", "output", np.arange(6.0, dtype=np.float32).reshape(2, 3))
        writer.add("fc", "output", None, path="1")
        entered = writer.reserve_order()
        writer.add_call(entered, "fc", 0, "Linear", None, (Link("0", "own", 0),), (1,))
    return path


def changed(good: Path, folder: Path, change: Callable[[Lines], Any]) -> Path:
    path = folder / "b.nnrec"
    shutil.copytree(good, path)
    lines = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    change(lines)
    (path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def opened(path: Path) -> Any:
    return open_recording(path).source()


def test_the_good_one_opens(good: Path) -> None:
    assert list(opened(good).tensors) == ["fc:output", "fc@1:output"]


LIES: dict[str, tuple[Callable[[Lines], Any], str]] = {
    "a shard outside": (
        lambda lines: lines[0].update(shard="../x.safetensors"),
        "'shard' of an event is not of the form",
    ),
    "an absolute shard": (lambda lines: lines[0].update(shard="/etc/passwd"), "'shard' of an event"),
    "a shard that is not there": (lambda lines: lines[0].update(shard="shard-00009.safetensors"), "no such file"),
    "a key that is not there": (lambda lines: lines[0].update(key="other"), "is not in shard-00000"),
    "no key": (lambda lines: lines[0].pop("key"), "does not say where"),
    "another shape": (lambda lines: [line.update(shape=[3, 2]) for line in lines[:2]], "another shape or dtype"),
    "a huge shape": (lambda lines: lines[1].update(shape=[1 << 40, 1 << 40]), "claims to equal an earlier tensor"),
    "a negative shape": (lambda lines: lines[0].update(shape=[-1]), "'shape' of an event"),
    "a shape of floats": (lambda lines: lines[0].update(shape=[1.5]), "'shape' of an event"),
    "many axes": (lambda lines: lines[0].update(shape=[1] * 65), "'shape' of an event"),
    "another dtype": (lambda lines: lines[1].update(dtype="int32", same=None), "another shape or dtype"),
    "an unknown dtype": (lambda lines: lines[0].update(dtype="float99"), "unknown dtype"),
    "a short digest": (lambda lines: lines[0].update(digest="00"), "'digest' of an event"),
    "no digest": (lambda lines: lines[0].pop("digest"), "'digest' of an event"),
    "another kind": (lambda lines: lines[0].update(kind="secret"), "unknown kind"),
    "an unknown slot": (lambda lines: lines[0].update(slot="state"), "'slot' of an event"),
    "the slot of files": (lambda lines: lines[0].update(slot="stored"), "'slot' of an event"),
    "an unknown level": (lambda lines: lines[0].update(keep="most"), "'keep' of an event"),
    "statistics of text": (lambda lines: lines[0]["stats"].update(mean="many"), "'mean' of an event"),
    "statistics that are a list": (lambda lines: lines[0].update(stats=[1]), "'stats' of an event"),
    "orders that go back": (lambda lines: lines[1].update(order=0), "goes back"),
    "a name twice": (lambda lines: lines[1].pop("call"), "two events of the name"),
    "the same as what comes later": (lambda lines: lines[0].update(same=1), "refers to event 1, which is missing"),
    "written over what comes later": (lambda lines: lines[0].update(over=1), "refers to event 1, which is missing"),
    "the same as another": (lambda lines: lines[1].update(digest="0" * 64), "claims to equal an earlier tensor"),
    "a call of what is not there": (lambda lines: lines[3].update(outputs=[77]), "refers to events that are missing"),
    "a call that ends before it begins": (lambda lines: lines[3].update(entered=99), "refers to events"),
    "inputs that are a number": (lambda lines: lines[3].update(inputs=3), "'inputs' of an event"),
    "a link of no kind": (lambda lines: lines[3]["inputs"][0].update(how="magic"), "'how' of an event"),
    "a long name": (lambda lines: lines[0].update(module="x" * 5000), "'module' of an event"),
    "an order of text": (lambda lines: lines[0].update(order="0"), "'order' of an event"),
    "an order of true": (lambda lines: lines[0].update(order=True), "'order' of an event"),
    "an order beyond reason": (lambda lines: lines[3].update(order=1 << 80), "'order' of an event"),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_named(lie: str, good: Path, tmp_path: Path) -> None:
    change, message = LIES[lie]
    with pytest.raises(SourceError, match=message.replace("(", r"\(")) as caught:
        opened(changed(good, tmp_path, change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a recording"),
        ("{}", "not a recording"),
        ('{"format": "nndiff.recording", "version": 3}', "update nndiff"),
        ('{"format": "nndiff.recording", "version": 1}', "record it again"),
        ('{"format": "nndiff.recording", "version": "1"}', "version is not a whole number"),
        ('{"format": "nndiff.recording", "version": 0}', "version is not a whole number"),
        ('{"x": "nndiff.recording", "format": "other"}', "the format is 'other'"),
        ('{"format": "nndiff.recording", "version": 2, "meta": 3}', "'meta' is not an object"),
        ('{"format": "nndiff.recording", "version": 1', "not valid JSON"),
        ('["nndiff.recording"]', "not a JSON object"),
        ('{"format": "nndiff.recording", "a": ' + "[" * 200_000 + "}", "not valid JSON"),
        ('{"format": "nndiff.recording", "version": 1, "version": 1}', "not valid JSON"),
        ('{"format": "nndiff.recording", "version": NaN}', "not valid JSON"),
    ],
)
def test_manifests_that_are_none(text: str, message: str, good: Path, tmp_path: Path) -> None:
    path = changed(good, tmp_path, lambda lines: None)
    (path / "manifest.json").write_text(text)
    with pytest.raises(SourceError, match=message):
        opened(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"complete": "yes"}, "'complete' is neither true nor false"),
        ({"events": "x"}, "'events' is not a whole number"),
        ({"events": True}, "'events' is not a whole number"),
        ({"events": 3}, "claims 3 events but there are 4"),
        ({"shards": None}, "'shards' is not a list of objects"),
        ({"shards": [3]}, "'shards' is not a list of objects"),
        ({"shards": [{"file": "../x", "bytes": 1}]}, "'../x' in 'shards' is not the name of a shard"),
        ({"shards": [{"bytes": 1}]}, "a NoneType in 'shards' is not the name of a shard"),
        ({"shards": [{"file": "shard-00000.safetensors", "bytes": -1}]}, "'bytes' of shard-00000.safetensors is not"),
        ({"shards": [{"file": "shard-00000.safetensors", "bytes": 10**18}]}, "fewer than the 1,000,000,000"),
        ({"shards": [{"file": "shard-00009.safetensors", "bytes": 1}]}, "is missing, but the manifest names it"),
    ],
)
def test_manifests_that_claim_what_is_not_so(change: dict[str, Any], message: str, good: Path, tmp_path: Path) -> None:
    path = changed(good, tmp_path, lambda lines: None)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | change))
    with pytest.raises(SourceError, match=message):
        opened(path)


@pytest.mark.parametrize("line", ["null", "3", "[]", "{", '{"kind": 1e999}', "[" * 100_000, '{"a": NaN}', "\x00"])
def test_lines_that_are_no_events(line: str, good: Path, tmp_path: Path) -> None:
    path = changed(good, tmp_path, lambda lines: None)
    with open(path / "events.jsonl", "a") as file:
        file.write(line + "\n")
    with pytest.raises(SourceError, match="line 5"):
        opened(path)


def test_a_line_without_end_is_refused(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nndiff.recording.reader.LINE_LIMIT", 1 << 16)
    path = changed(good, tmp_path, lambda lines: None)
    with open(path / "events.jsonl", "a") as file:
        file.write("x" * (1 << 22))
    with pytest.raises(SourceError, match="line of more than"):
        opened(path)


def test_a_torn_last_line_is_left_out_and_said(good: Path, tmp_path: Path) -> None:
    path = changed(good, tmp_path, lambda lines: None)
    text = (path / "events.jsonl").read_bytes()
    (path / "events.jsonl").write_bytes(text[:-20])
    recording = open_recording(path)
    assert not recording.complete
    assert len(recording.events) == 3
    assert any("cut off and is left out" in note for note in recording.notes)
    assert any("damaged: 3 of 4 events" in note for note in recording.notes)


@pytest.mark.parametrize("name", ["manifest.json", "events.jsonl", "shard-00000.safetensors"])
def test_files_that_are_no_files(name: str, good: Path, tmp_path: Path) -> None:
    import os

    path = changed(good, tmp_path, lambda lines: None)
    (path / name).unlink()
    os.mkfifo(path / name)
    if name == "manifest.json":
        (path / name).unlink()
        (path / name).mkdir()
    with pytest.raises(SourceError):
        opened(path)


def test_a_truncated_shard_is_named(good: Path, tmp_path: Path) -> None:
    path = changed(good, tmp_path, lambda lines: None)
    shard = path / "shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-4])
    with pytest.raises(SourceError, match="truncated"):
        opened(path)


@given(st.data())
def test_random_damage_is_an_error_or_a_recording(
    good: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "c.nnrec"
    shutil.copytree(good, path)
    victim = path / data.draw(st.sampled_from(["manifest.json", "events.jsonl", "shard-00000.safetensors"]))
    content = bytearray(victim.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, min(len(content), 3000) - 1))] = data.draw(st.integers(0, 255))
    victim.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        for ref in opened(path).tensors.values():
            ref.numpy()
    except NndiffError as error:
        assert "\n" not in str(error)  # noqa: PT017  # either outcome is right


def test_what_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file"):
        open_recording(tmp_path / "missing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(SourceError, match="not a folder"):
        open_recording(tmp_path / "file")
    with pytest.raises(SourceError, match="not a recording"):
        open_recording(tmp_path)


@pytest.mark.parametrize("kind", ["zip", "tar", "gztar"])
@pytest.mark.parametrize("inside", ["", "runs/a.nnrec"])
def test_an_archive_of_a_recording_says_that_it_is_to_be_unpacked(
    kind: str, inside: str, good: Path, tmp_path: Path
) -> None:
    """A tar of weights is a checkpoint; taken for one, a recording would lose its order and its digests."""
    shutil.copytree(good, tmp_path / "in" / inside)
    packed = shutil.make_archive(str(tmp_path / "packed"), kind, tmp_path / "in")
    with pytest.raises(SourceError, match=r"a recording in an archive; unpack it and give its folder"):
        open_source(packed)


TEXT = st.text(max_size=20)
NUMBER = st.integers(0, 1 << 40)
SITES = st.builds(Site, TEXT, st.sampled_from([*SLOTS]), NUMBER, TEXT, TEXT, TEXT, NUMBER)
ANY_FLOAT = st.floats(allow_nan=False)
STATS = st.builds(Stats, NUMBER, NUMBER, *[ANY_FLOAT] * 6)
PHASES = st.sampled_from(["forward", "backward", "recompute"])
MAYBE = st.none() | NUMBER
TENSORS = st.builds(
    TensorEvent, NUMBER, SITES, st.lists(NUMBER, max_size=5).map(tuple), TEXT,
    st.sampled_from(["digest", "stats", "sketch", "full"]), st.just("ab" * 32), st.none() | STATS,
    st.none() | st.just("shard-00001.safetensors"), st.none() | TEXT.filter(bool), st.none() | TEXT.filter(bool),
    st.none() | st.just("cd" * 32), MAYBE, MAYBE, MAYBE, PHASES,
)  # fmt: skip
VALUES = st.builds(
    ValueEvent, NUMBER, SITES, TEXT, st.none() | TEXT | st.booleans() | NUMBER, TEXT, st.sampled_from(Content), PHASES
)
LINKS = st.builds(Link, TEXT, st.sampled_from(["same", "view", "own", "none"]), MAYBE, st.none(), TEXT)
CALLS = st.builds(
    CallEvent, NUMBER, NUMBER, TEXT, NUMBER, TEXT, MAYBE, st.lists(LINKS, max_size=3).map(tuple),
    st.lists(NUMBER, max_size=4).map(tuple), PHASES,
)  # fmt: skip


@given(TENSORS | VALUES | CALLS)
def test_events_survive_the_way_to_a_line_and_back(event: Any) -> None:
    line = event_to_line(event)
    assert line.endswith("\n")
    assert line.isascii()
    assert line_to_event("here", line.encode()) == event
