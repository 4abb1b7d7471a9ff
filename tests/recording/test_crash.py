"""Killed, interrupted, out of disk: what was finished can be read, and says that it is not all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from nndiff.recording import open_recording

PROGRAM = """
import os, resource, signal, sys
import numpy as np
from nndiff.errors import NndiffError
from nndiff.recording import Writer

path, how, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
if how == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    with Writer(path, shard_bytes=400_000) as writer:
        for number in range(200):
            if how == "kill" and number == limit:
                os.kill(os.getpid(), signal.SIGKILL)
            writer.add(f"m{number}", "output", np.full(12_000, number, np.float64))
except NndiffError as error:
    sys.stderr.write(str(error))
    sys.exit(error.exit_code)
"""


def run(path: Path, how: str, limit: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PROGRAM, str(path), how, str(limit)], capture_output=True, text=True)


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


@pytest.mark.parametrize("limit", [0, 100, 3000, 300_000])
def test_a_full_disk_is_one_sentence(limit: int, tmp_path: Path) -> None:
    done = run(tmp_path / "a.nnrec", "full", limit)
    assert done.returncode == 2
    assert "cannot be written: the disk is full; what was finished before can be read" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "a.nnrec").glob("*.part"))
    if limit > 100:
        assert not open_recording(tmp_path / "a.nnrec").complete


MODEL = """
import resource, sys, torch
from nndiff.recording.record import record
from nndiff.recording.hooks import Recorder
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
    assert "the disk is full" in done.stdout
    assert done.stdout.strip().endswith("True"), "the hooks are gone"
    assert "Traceback" not in done.stderr


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
