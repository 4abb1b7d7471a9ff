"""Killed, interrupted, out of disk: what was finished can be read, and says that it is not all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from helpers import nndiff
from nndiff.errors import SourceError
from nndiff.recording import Writer, open_recording
from nndiff.recording.format import shard_store
from nndiff.recording.record import record
from nndiff.recording.writer import SHARD_BYTES

TOO_LARGE = "a file grew beyond the size limit (ulimit -f, or that of the file system)"
PROGRAM = """
import os, resource, signal, sys
import numpy as np
from nndiff.errors import NndiffError
from nndiff.recording import Writer

path, how, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
if how == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    with Writer(path, shard_bytes=int(sys.argv[4])) as writer:
        for number in range(200):
            if how == "kill" and number == limit:
                os.kill(os.getpid(), signal.SIGKILL)
            writer.add(f"m{number}", "output", np.full(12_000, number, np.float64))
except NndiffError as error:
    sys.stderr.write("; ".join([str(error), *getattr(error, "__notes__", ())]))
    sys.exit(error.exit_code)
"""


def run(
    path: Path, how: str, limit: int, shard_bytes: int = 400_000, program: str = PROGRAM
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, str(path), how, str(limit), str(shard_bytes)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("step", [0, 3, 50, 199])
def test_a_killed_run_is_readable_up_to_the_last_finished_shard(step: int, tmp_path: Path) -> None:
    done = run(tmp_path / "a.nnrec", "kill", step)
    assert done.returncode == -9
    recording = open_recording(tmp_path / "a.nnrec")
    assert not recording.complete
    assert "incomplete" in recording.notes[0]
    tensors = recording.source().tensors
    assert step - 5 <= len(tensors) <= step
    for number, (name, ref) in enumerate(tensors.items()):
        assert name == f"m{number}:output"
        assert np.array_equal(ref.numpy(), np.full(12_000, number))


def test_a_run_that_is_not_killed_is_complete(tmp_path: Path) -> None:
    assert run(tmp_path / "a.nnrec", "kill", 1000).returncode == 0
    recording = open_recording(tmp_path / "a.nnrec")
    assert recording.complete
    assert recording.notes == ()
    assert len(recording.source().tensors) == 200


@pytest.mark.parametrize(("step", "least"), [(15, 10), (60, 40), (199, 160)])
def test_a_small_recording_that_is_killed_leaves_most_of_it(step: int, least: int, tmp_path: Path) -> None:
    """The first shards are small: what never fills one of the usual size is not lost whole."""
    assert run(tmp_path / "a.nnrec", "kill", step, SHARD_BYTES).returncode == -9
    recording = open_recording(tmp_path / "a.nnrec")
    assert not recording.complete
    assert least <= len(recording.source().tensors) <= step
    recording.check()


@pytest.mark.parametrize("keep", ["full", "stats"])
def test_a_slow_run_is_made_safe_by_the_clock(keep: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1 << 20, 2))  # two seconds for every look at it
    monkeypatch.setattr(shard_store, "monotonic", lambda: next(clock))
    writer = Writer(tmp_path / "a.nnrec", keep=keep)
    for number in range(3):
        writer.add(f"m{number}", "output", np.ones(4) * number)
        assert len(open_recording(tmp_path / "a.nnrec").tensors) == number + 1
    writer.discard()


def test_a_long_run_has_not_too_many_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(shard_store, "monotonic", lambda: clock[0])
    kept, number = shard_store.FlushSchedule(SHARD_BYTES), 0
    while clock[0] < 24 * 3600:
        clock[0] += 0.25
        if kept.is_overdue():
            kept.note_flush(0)
            number += 1
    assert number < 150


@pytest.mark.parametrize("limit", [0, 100, 3000, 100_000])
def test_a_full_disk_is_one_sentence(limit: int, tmp_path: Path) -> None:
    done = run(tmp_path / "a.nnrec", "full", limit)
    assert done.returncode == 2
    assert done.stderr.endswith(f"cannot be written: {TOO_LARGE}"), "nothing was finished"
    assert not list((tmp_path / "a.nnrec").glob("*.part"))
    if limit > 100:
        assert not open_recording(tmp_path / "a.nnrec").complete
    elif limit == 0:
        assert not (tmp_path / "a.nnrec").exists()


def test_a_full_disk_leaves_what_is_whole(tmp_path: Path) -> None:
    """The tensor that did not fit is given up, not those before it in the same shard."""
    done = run(tmp_path / "a.nnrec", "full", 300_000)
    assert done.stderr.endswith(f"{TOO_LARGE}; what was finished before can be read")
    recording = open_recording(tmp_path / "a.nnrec")
    assert not recording.complete
    assert len(recording.source().tensors) == 2
    recording.check()


def test_events_that_do_not_fit_are_not_torn(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"first\n")
    program = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (9, 9))\n"
    program += "from pathlib import Path; from nndiff.recording.format.shards import append_atomically\n"
    program += "append_atomically(Path(sys.argv[1]), b'second\\n')"
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)
    assert "File too large" in done.stderr
    assert path.read_bytes() == b"first\n"


def test_a_disk_that_fills_later_leaves_what_was_finished(tmp_path: Path) -> None:
    program = PROGRAM.replace("range(200)", "range(9)") + MORE
    done = run(tmp_path / "a.nnrec", "kill", 99, program=program)
    assert f"{TOO_LARGE}; what was finished before can be read" in done.stdout
    assert len(open_recording(tmp_path / "b.nnrec").source().tensors) >= 4


MORE = """
try:
    with Writer(path.replace("a.nnrec", "b.nnrec"), shard_bytes=400_000) as writer:
        for number in range(200):
            writer.add(f"m{number}", "output", np.full(12_000, number, np.float64))
            if number == 6:
                resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
except NndiffError as error:
    print("; ".join([str(error), *error.__notes__]))
"""


class Fails(nn.Module):
    """Raise after some of its layers have run."""

    def __init__(self, layers: int, error: type[BaseException] = ValueError) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(layers))
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        raise self.error("stop")


X = torch.ones(2, 4)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_run_that_fails_before_any_layer_leaves_nothing_behind(error: type[BaseException], tmp_path: Path) -> None:
    out = tmp_path / "new" / "a.nnrec"
    with pytest.raises(error) as caught:
        record(Fails(0, error), X, path=out, params=True)
    assert not (tmp_path / "new").exists()
    assert not hasattr(caught.value, "__notes__")
    record(nn.Linear(4, 4), X, path=out)  # needs no overwrite


def test_a_run_that_fails_later_leaves_what_it_did_and_says_so(tmp_path: Path) -> None:
    out = tmp_path / "a.nnrec"
    with pytest.raises(ValueError, match="stop") as caught:
        record(Fails(2), X, path=out)
    assert caught.value.__notes__ == [f"what ran before is in {out}; --overwrite (overwrite=True) replaces it"]
    found = open_recording(out)
    assert not found.complete
    assert [event.site.name for event in found.tensors][-1] == "layers.1:output"
    args, kwargs = found.inputs()
    assert kwargs == {}
    assert np.array_equal(args[0].numpy(), X.numpy()), "its inputs can be fed again"


@pytest.mark.parametrize("before", ["empty", "recording", "more"])
def test_a_folder_that_was_there_before_stays(before: str, tmp_path: Path) -> None:
    out = tmp_path / "a.nnrec"
    out.mkdir()
    if before == "recording":
        record(nn.Linear(4, 4), X, path=out)
    if before == "more":
        (tmp_path / "note.txt").write_text("mine")
        out = tmp_path / "new.nnrec"
    with pytest.raises(ValueError, match="stop"):
        record(Fails(0), X, path=out, overwrite=True)
    assert out.exists() == (before != "more")
    assert (tmp_path / "note.txt").exists() == (before == "more")
    if before == "recording":
        assert open_recording(out).complete, "a run that fails takes nothing away"
    else:
        assert not out.exists() or not list(out.iterdir())
    assert not (tmp_path / "a.nnrec.before").exists()


def test_a_recording_that_is_overwritten_waits_until_the_new_one_is_whole(tmp_path: Path) -> None:
    out, aside = tmp_path / "a.nnrec", tmp_path / "a.nnrec.before"
    record(nn.Linear(4, 4), X, path=out, label="first")
    for _ in range(2):  # the second time finds the rest of the first, and keeps what was there before both
        with pytest.raises(ValueError, match="stop") as caught:
            record(Fails(2), X, path=out, overwrite=True)
        assert caught.value.__notes__[-1] == f"the recording that was there is in {aside}"
        found = open_recording(out)
        assert not found.complete
        assert found.notes[-1].endswith("the recording that was there is in a.nnrec.before, beside it")
        assert open_recording(aside).meta["label"] == "first"
    for label in ("second", "third"):  # whoever replaces what was cut off may still want what was there before
        record(nn.Linear(4, 4), X, path=out, overwrite=True, label=label)
        assert open_recording(out).meta["label"] == label
        assert open_recording(aside).meta["label"] == "first"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.nnrec", "a.nnrec.before"]
    assert not open_recording(out).notes


def test_a_recording_put_aside_comes_back_where_the_next_try_leaves_nothing(tmp_path: Path) -> None:
    out, aside = tmp_path / "a.nnrec", tmp_path / "a.nnrec.before"
    record(nn.Linear(4, 4), X, path=out, label="first")
    for layers in (2, 0):
        with pytest.raises(ValueError, match="stop"):
            record(Fails(layers), X, path=out, overwrite=True)
    assert open_recording(out).meta["label"] == "first"
    assert not aside.exists()


def test_of_several_that_were_cut_off_only_the_first_and_the_last_stay(tmp_path: Path) -> None:
    out = tmp_path / "a.nnrec"
    for _ in range(4):
        with pytest.raises(ValueError, match="stop"):
            record(Fails(2), X, path=out, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.nnrec", "a.nnrec.before"]
    record(nn.Linear(4, 4), X, path=out, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a.nnrec"], "nothing of it was whole"


_LIMIT = "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))"
_FULL = """
import resource
import torch
from nndiff.recording.format import shard_store

shard_store.SHORTEST_WAIT = shard_store.LONGEST_WAIT_SHARE = 0.0  # every event is made safe at once

class Full(torch.nn.Module):
    def forward(self, x):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        return x

def model():
    return torch.nn.Sequential(torch.nn.Linear(64, 64), Full(), torch.nn.Linear(64, 64))

def inputs():
    return torch.ones(2, 64)
"""


def test_a_full_disk_tells_where_the_recording_is_that_was_there(tmp_path: Path) -> None:
    out, net = tmp_path / "a.nnrec", tmp_path / "net.py"
    record(nn.Linear(4, 4), X, path=out, label="first")
    net.write_text(_FULL)
    done = nndiff("record", net, "-o", out, "--overwrite")
    assert done.returncode == 2
    told = "what was finished before can be read; the recording that was there is in"
    assert done.stderr.endswith(f"{TOO_LARGE}; {told} {out}.before\n"), done.stderr
    assert f"the recording that was there is in {out.name}.before" in nndiff("show", out, "-q").stdout
    net.write_text(_FULL.replace(_LIMIT, "pass"))
    assert f"note: {out}.before is still there" in nndiff("record", net, "-o", out, "--overwrite").stdout


def test_a_run_says_of_what_it_left_only_what_is_true(tmp_path: Path) -> None:
    """A temporary folder goes, and nothing in it can be read."""
    net, kept = tmp_path / "net.py", tmp_path / "kept"
    net.write_text(_FULL.replace(_LIMIT, "pass"))
    assert nndiff("run", net, net, "-q", "-o", kept).returncode == 0
    for failing, said in ((_FULL, TOO_LARGE), (_FULL.replace(_LIMIT, "1 / 0"), "ZeroDivisionError")):
        net.write_text(failing)
        gone = nndiff("run", net, net).stderr
        assert said in gone
        assert not any(word in gone for word in ("can be read", "what ran before", "that was there"))
        stays = nndiff("run", net, net, "-o", kept, "--overwrite").stderr
        assert "can be read" in stays or f"what ran before is in {kept / 'reference'}" in stays
        where = f"the recording that was there is in {kept / 'reference'}.before"
        assert stays.endswith((f"{where}\n", f"{where}; set NNDIFF_TRACEBACK=1 to see the traceback\n"))
    net.write_text(_FULL.replace(_LIMIT, "import os; os.kill(os.getpid(), 9)"))
    killed = nndiff("run", net, net, "-o", kept, "--overwrite").stderr
    assert "killed by signal 9" in killed
    assert killed.endswith(f"the recording that was there is in {kept / 'reference'}.before\n"), killed


def test_a_recording_of_the_users_own_beside_it_is_never_removed(tmp_path: Path) -> None:
    out, beside = tmp_path / "a.nnrec", tmp_path / "a.nnrec.before"
    record(nn.Linear(4, 4), X, path=beside)
    record(nn.Linear(4, 4), X, path=out)
    record(nn.Linear(4, 4), X, path=out, overwrite=True, label="again")
    assert open_recording(out).meta["label"] == "again"
    assert open_recording(beside).complete
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.nnrec", "a.nnrec.before"]


def test_a_link_to_a_recording_stays_a_link(tmp_path: Path) -> None:
    record(nn.Linear(4, 4), X, path=tmp_path / "real.nnrec")
    (tmp_path / "link.nnrec").symlink_to(tmp_path / "real.nnrec")
    record(nn.Linear(4, 4), X, path=tmp_path / "link.nnrec", overwrite=True, label="again")
    assert (tmp_path / "link.nnrec").is_symlink()
    assert open_recording(tmp_path / "real.nnrec").meta["label"] == "again"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.nnrec", "real.nnrec"]


def test_what_somebody_else_put_there_stays(tmp_path: Path) -> None:
    class Writes(Fails):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            (tmp_path / "a.nnrec" / "note.txt").write_text("mine")
            return super().forward(x)

    with pytest.raises(ValueError, match="stop"):
        record(Writes(0), X, path=tmp_path / "a.nnrec")
    assert [path.name for path in (tmp_path / "a.nnrec").iterdir()] == ["note.txt"]


def test_a_recording_that_was_there_is_not_touched_by_a_refusal(tmp_path: Path) -> None:
    out = tmp_path / "a.nnrec"
    record(nn.Linear(4, 4), X, path=out)
    with pytest.raises(SourceError, match="holds a recording already"):
        record(Fails(0), X, path=out)
    assert open_recording(out).complete


def test_a_writer_that_was_given_nothing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Writer(tmp_path / "a.nnrec"):
        raise ZeroDivisionError
    assert not (tmp_path / "a.nnrec").exists()


def test_inputs_are_known_from_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is killed has only its first manifest: it must tell of the inputs what the last one would."""
    monkeypatch.setattr(shard_store, "SHORTEST_WAIT", 3600.0)  # however slow the machine is just now
    inputs = {"x": X, "more": [X + 1, None, {"y": X + 2}]}
    seen: list[Any] = []

    class Peeks(nn.Module):
        def forward(self, x: torch.Tensor, more: Any) -> torch.Tensor:
            seen.append(open_recording(tmp_path / "a.nnrec"))
            return x

    found = record(Peeks(), inputs, path=tmp_path / "a.nnrec")
    assert seen[0].meta["inputs"] == found.meta["inputs"]
    assert not seen[0].complete
    with pytest.raises(SourceError, match="is incomplete: the run was cut off before its inputs were on disk"):
        seen[0].inputs()


MODEL = """
import resource, sys, torch
from nndiff.recording.record import record
from nndiff.recording.capture.recorder import Recorder
from nndiff.errors import NndiffError
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(20)])
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
try:
    record(model, torch.randn(512, 64), path=sys.argv[1], shard_bytes=200_000)
except NndiffError as error:
    print(error, all(not each._forward_hooks for each in model.modules()))
"""


def test_a_disk_that_fills_while_a_model_runs(tmp_path: Path) -> None:
    """The limit is per file, so a manifest of any size and shards of 200 kB fit, and a larger shard does not."""
    program = MODEL.replace("shard_bytes=200_000", "shard_bytes=100_000_000")
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "a.nnrec")], capture_output=True, text=True)
    assert TOO_LARGE in done.stdout
    assert done.stdout.strip().endswith("True"), "the hooks are gone"
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "a.nnrec").exists(), "nothing could be read of it"


MEMORY = """
import resource, sys, torch
from nndiff.recording.record import record
torch.manual_seed(0)

class Wide(torch.nn.Module):
    def forward(self, x):
        return x + 1

model = torch.nn.Sequential(*[Wide() for _ in range(60)])
x = torch.randn(1 << 21)  # 8 MB, 60 times: 480 MB of activations
model(x)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
record(model, x, path=sys.argv[1], keep=sys.argv[2])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_memory_stays_flat_whatever_the_activations_sum_to(tmp_path: Path) -> None:
    where = str(tmp_path / "a.nnrec")
    done = subprocess.run([sys.executable, "-c", MEMORY, where, "full"], capture_output=True, text=True, check=True)
    size = sum(entry.stat().st_size for entry in os.scandir(where))
    assert size > 480 * 1000 * 1000
    assert float(done.stdout) < 160, "MB above the bare run: a few tensors, not sixty"
