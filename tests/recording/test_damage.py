"""A byte that changed on disk is trouble, never a difference of the models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import nndiff
from nndiff.comparison import compare_sources
from nndiff.errors import DamagedError
from nndiff.recording import Writer, open_recording
from nndiff.recording.format import digests, hashes
from nndiff.verdict import Verdict

VALUES = np.random.default_rng(0).normal(size=100_000).astype(np.float32)  # more than one part
SMALL = VALUES[:100].reshape(10, 10)


def recorded(path: Path, shift: float = 0.0, keep: str = "full") -> Path:
    with Writer(path, {"producer": "test"}, keep=keep) as writer:
        writer.add("fc", "output", VALUES)
        writer.add("big", "output", VALUES + np.float32(shift))
        writer.add("act", "output", SMALL + np.float32(shift))
        writer.add("again", "output", SMALL + np.float32(shift))
    return path


def flip(path: Path, value: np.ndarray[Any, Any]) -> None:
    """Change one bit of the elements that end with these."""
    (shard,) = path.glob("*.safetensors")
    body = bytearray(shard.read_bytes())
    at = body.rindex(value.tobytes()[-64:])
    body[at] ^= 1
    shard.write_bytes(body)


DAMAGED = "'{}' is damaged: its elements in shard-00000.safetensors do not match the recorded digest"


@pytest.mark.parametrize("side", ["reference", "candidate"])
@pytest.mark.parametrize("engine", ["native", "numpy"])
def test_damage_is_trouble(side: str, engine: str, tmp_path: Path) -> None:
    pair = {"reference": recorded(tmp_path / "a.nnrec"), "candidate": recorded(tmp_path / "b.nnrec", 1e-7)}
    flip(pair[side], VALUES + np.float32(1e-7 if side == "candidate" else 0))
    done = nndiff("diff", pair["reference"], pair["candidate"], NNDIFF_ENGINE=engine)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"nndiff: {pair[side]}: {DAMAGED.format('big:output')}")
    assert done.stderr.count("\n") == 1


def test_what_is_left_out_is_not_read(tmp_path: Path) -> None:
    one, other = recorded(tmp_path / "a.nnrec"), recorded(tmp_path / "b.nnrec", 1e-7)
    flip(other, VALUES + np.float32(1e-7))
    assert compare_sources(str(one), str(other), exclude=["big"]).exit_code == 0


def test_equal_digests_need_no_elements(tmp_path: Path) -> None:
    """What was recorded was equal, whatever became of the file since."""
    one, other = recorded(tmp_path / "a.nnrec"), recorded(tmp_path / "b.nnrec")
    flip(other, VALUES)
    assert compare_sources(str(one), str(other)).verdict == Verdict.IDENTICAL.value


@pytest.mark.parametrize("values", [VALUES, SMALL])
def test_sketches_are_checked_too(values: np.ndarray[Any, Any], tmp_path: Path) -> None:
    one, other = recorded(tmp_path / "a.nnrec", keep="sketch"), recorded(tmp_path / "b.nnrec", 1e-3, keep="sketch")
    name = "big:output#sketch" if values is not SMALL else "act:output#sketch"
    sketch = open_recording(other).source().tensors[name.removesuffix("#sketch")].trace.sketch.numpy()
    flip(other, sketch)
    with pytest.raises(DamagedError, match=re.escape(DAMAGED.format(name))):
        compare_sources(str(one), str(other))


def test_all_that_is_damaged_is_found_when_asked(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.nnrec", 1.0)
    assert nndiff("show", path, "--check", "-q").stdout.splitlines()[-1] == (
        "  checked   every element matches the digest recorded with it"
    )
    flip(path, VALUES)
    flip(path, SMALL + np.float32(1))
    done = nndiff("show", path, "--check")
    assert done.returncode == 2
    assert done.stderr == (
        f"nndiff: {path}: is damaged: the elements of 3 tensors (fc:output first) do not match their recorded "
        "digests; copy or record it again\n"
    )


def test_events_that_are_gone_are_damage(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.nnrec", 1.0)
    events = (path / "events.jsonl").read_bytes().splitlines(keepends=True)
    (path / "events.jsonl").write_bytes(b"".join(events[:-1]))
    told = f"damaged: {len(events) - 1} of {len(events)} events can be read"
    done = nndiff("show", path, "-q")
    assert done.stdout.startswith(f"{path}: recording, damaged, ")
    assert told in done.stdout
    done = nndiff("show", path, "--check", "-q")
    assert (done.returncode, done.stderr) == (2, f"nndiff: {path}: is {told}; copy or record it again\n")


def test_nothing_but_a_recording_can_be_checked(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", SMALL)
    done = nndiff("show", tmp_path / "a.npy", "--check")
    assert done.returncode == 2
    assert "--check is for recordings" in done.stderr


def test_elements_are_read_once_however_many_events_share_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nndiff.recording.format import checks

    seen: list[tuple[int, ...]] = []
    whole = checks.compute_file_digest
    monkeypatch.setattr(checks, "compute_file_digest", lambda *args: seen.append(args[2]) or whole(*args))
    tensors = open_recording(recorded(tmp_path / "a.nnrec")).source().tensors
    for _ in range(2):
        for tensor in tensors.values():
            tensor.numpy()
    assert seen == [(100_000,), (10, 10)]


def test_the_check_needs_no_extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recorded(tmp_path / "a.nnrec")
    monkeypatch.setattr(digests, "native", None)
    monkeypatch.setattr(hashes, "_PARTS_AT_ONCE", 1)
    open_recording(path).check()
    flip(path, VALUES)
    with pytest.raises(DamagedError):
        open_recording(path).check()
